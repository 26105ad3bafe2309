/*
 * Sessions that outlive the daemon: the number and the secret of each, in a memfd that is
 * kept. A client whose daemon died says the secret, and is the session again that it was;
 * until then, and for a while, what the session had is there. Loop thread only.
 */
#pragma once

#include "common/error.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_SESSION_STORE_SESSIONS_MAX 65536u /* more have no secret that counts */
#define FA_SESSION_STORE_NONE UINT32_MAX

struct fa_session_store_header;
struct fa_session_store_record;

/* How long a session is waited for; this process's alone. */
struct fa_session_store_wait {
	uint64_t until_ns; /* while it is lost */
	uint64_t left_ns;  /* what it has of waiting, beyond that */
};

struct fa_session_store {
	struct fa_session_store_header *header; /* the map; NULL: not open */
	struct fa_session_store_record *records;
	struct fa_session_store_wait *waits; /* of each record that was lost once */
	uint32_t free_at;                    /* no record before it is free */
	uint32_t n_lost;
	uint64_t grace_ns;
	/* No wait is over before it. It is found by looking at all of them, so many at a time. */
	uint64_t next_ns, look_ns;
	uint32_t look_at;
};

/* What the pool's memory is of: that of another device is not the same pool. */
struct fa_session_store_device {
	char backend[16];
	uint64_t uuid[2];
};

/* An empty one, in a sealed memfd, which the caller has kept. */
int fa_session_store_new(const struct fa_session_store_device *device, struct fa_error *error,
                         struct fa_session_store *ret_store, int *ret_fd);

/*
 * What an earlier daemon had; its sessions are lost now. @fd stays the caller's. -EBADMSG it
 * is none; -ESTALE it is another device's; others, as -ENOMEM, say nothing of it. No session is
 * given up before fa_session_store_start_grace().
 */
int fa_session_store_open(int fd, const struct fa_session_store_device *device,
                          struct fa_error *error, struct fa_session_store *ret_store);
void fa_session_store_close(struct fa_session_store *store);

/*
 * From now on lost sessions can come back, and are waited for @grace_ns long. One that comes
 * back and is lost again has that anew, until all that it was away is as long as @all_ns:
 * whoever comes and goes for ever, and wants nothing of what is kept, does not keep it for ever.
 */
void fa_session_store_start_grace(struct fa_session_store *store, uint64_t now_ns,
                                  uint64_t grace_ns, uint64_t all_ns);

/* The highest number that a session had. */
uint64_t fa_session_store_last_number(const struct fa_session_store *store);

/* A session with the secret @secret; its record, or FA_SESSION_STORE_NONE if there is no room. */
uint32_t fa_session_store_add(struct fa_session_store *store, uint64_t number, uint32_t uid,
                              const struct fa_wire_secret *secret);
/* Takes FA_SESSION_STORE_NONE. */
void fa_session_store_remove(struct fa_session_store *store, uint32_t record);

/* The lost session of that secret: it is none any more. -ENOENT. */
int fa_session_store_resume(struct fa_session_store *store, uint32_t uid,
                            const struct fa_wire_secret *secret, uint64_t now_ns,
                            uint32_t *ret_record, uint64_t *ret_number);

/* One that was taken is lost again, and may come back. */
void fa_session_store_set_lost(struct fa_session_store *store, uint32_t record, uint64_t now_ns);

/* Whether a session with this number is lost, and may come back. */
bool fa_session_store_is_lost(const struct fa_session_store *store, uint64_t number);

/* A lost session whose time is over, which is given up; false: there is none. */
bool fa_session_store_expire(struct fa_session_store *store, uint64_t now_ns, uint64_t *ret_number);
