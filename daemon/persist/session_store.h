/*
 * Each session's number, uid and secret, in a memfd that outlives the daemon. For the next daemon
 * these sessions are lost, until a client resumes one with its secret or the grace time ends. Loop
 * thread only.
 */
#pragma once

#include "common/error.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

#define FA_SESSION_STORE_SESSIONS_MAX 65536u /* further sessions cannot be resumed */
#define FA_SESSION_STORE_NONE UINT32_MAX

struct fa_session_store_header;
struct fa_session_store_record;

/* Grace time of a lost session; not persistent. */
struct fa_session_store_wait {
	uint64_t until_ns; /* when it expires */
	uint64_t left_ns;  /* if it is lost again */
};

struct fa_session_store {
	struct fa_session_store_header *header; /* NULL: not open */
	struct fa_session_store_record *records;
	struct fa_session_store_wait *waits; /* by record */
	uint32_t free_at;                    /* earlier records are in use */
	uint32_t n_lost;
	uint64_t grace_ns;
	/* The earliest expiry, and the scan that finds it. */
	uint64_t next_ns, scan_ns;
	uint32_t scan_at;
};

/* Identifies the pool's device. */
struct fa_session_store_device {
	char backend[16];
	uint64_t uuid[2];
};

/* Makes an empty store in a sealed memfd. */
int fa_session_store_new(const struct fa_session_store_device *device, struct fa_error *error,
                         struct fa_session_store *ret_store, int *ret_fd);

/*
 * An earlier daemon's. @fd stays the caller's. -EBADMSG: damaged; -ESTALE: another device; other
 * errors, e.g. -ENOMEM, may pass.
 */
int fa_session_store_open(int fd, const struct fa_session_store_device *device,
                          struct fa_error *error, struct fa_session_store *ret_store);
void fa_session_store_close(struct fa_session_store *store);

/*
 * From now on lost sessions expire after @grace_ns. One that is lost again has a new grace time,
 * until it was lost for @total_ns in all.
 */
void fa_session_store_start_grace(struct fa_session_store *store, uint64_t now_ns,
                                  uint64_t grace_ns, uint64_t total_ns);

uint64_t fa_session_store_last_number(const struct fa_session_store *store);

/* Returns FA_SESSION_STORE_NONE if the store is full. */
uint32_t fa_session_store_add(struct fa_session_store *store, uint64_t number, uint32_t uid,
                              const struct fa_wire_secret *secret);
/* @record may be FA_SESSION_STORE_NONE. */
void fa_session_store_remove(struct fa_session_store *store, uint32_t record);

/* -ENOENT: no lost session has this uid and secret. */
int fa_session_store_resume(struct fa_session_store *store, uint32_t uid,
                            const struct fa_wire_secret *secret, uint64_t now_ns,
                            uint32_t *ret_record, uint64_t *ret_number);

void fa_session_store_set_lost(struct fa_session_store *store, uint32_t record, uint64_t now_ns);

bool fa_session_store_is_lost(const struct fa_session_store *store, uint64_t number);

/* Removes a session whose grace time is over. Returns false if there is none. */
bool fa_session_store_expire(struct fa_session_store *store, uint64_t now_ns, uint64_t *ret_number);
