/* A connection to the daemon after its handshake. */
#pragma once

#include "client/ring.h"
#include "common/completion.h"
#include "common/error.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SO_RCVTIMEO of the socket. */
#define FA_RECEIVE_SLICE_NS FA_NS_PER_SEC

/* How long to wait when sockets of this user hold too many descriptors. */
#define FA_TOO_MANY_FDS_PAUSE_NS FA_NS_PER_MS

/* The session to resume: received in HelloReply, sent in the next Hello. */
struct fa_session_key {
	struct fa_wire_secret secret;
	uint64_t generation; /* 0: no session to resume */
};

struct fa_connection {
	int socket;
	const struct fa_completion_slot *page;
	uint32_t version;
	uint64_t features;
	struct fa_client_ring ring;
	char daemon_version[32];
	char backend[16];
	char device_name[64];
	uint64_t device_uuid[2];
	uint64_t generation;
	uint64_t session;
	uint32_t pid; /* of the daemon; 0: unknown */
	struct fa_wire_secret secret;
	bool resumed;
	struct fa_wire_limits limits;
};

/* @named: the program named the path; else only a trusted daemon may listen there (-EACCES). @in,
 * @out: FA_WIRE_BYTES_MAX. */
int fa_connection_open(const char *path, bool named, const char *name,
                       const struct fa_session_key *key, uint8_t *in, uint8_t *out,
                       uint64_t deadline_ns, struct fa_error *error,
                       struct fa_connection *ret_connection);
void fa_connection_close(struct fa_connection *connection);

/* Returns -EMFILE if this process cannot open @n more descriptors; tried by duplicating @fd. A
 * reply whose descriptors find no room ends the connection, so no other reply with descriptors may
 * arrive during the check. */
int fa_connection_check_fds(int fd, size_t n, struct fa_error *error);
