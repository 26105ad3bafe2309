/* A connection to the daemon after its handshake. */
#pragma once

#include "client/ring.h"
#include "common/completion.h"
#include "common/error.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* SO_RCVTIMEO of the socket: a blocking receive returns after this long. */
#define FA_RECEIVE_SLICE_NS FA_NS_PER_SEC

/* How long to pause when the sockets of this user hold too many descriptors. */
#define FA_CROWDED_PAUSE_NS FA_NS_PER_MS

/* The session to resume: sent in Hello, received in HelloReply. */
struct fa_resume {
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
	struct fa_wire_secret secret;
	bool resumed;
	struct fa_wire_limits limits;
};

/* Connects and shakes hands. @in and @out are message buffers of FA_WIRE_BYTES_MAX. */
int fa_connection_open(const char *path, const char *name, const struct fa_resume *resume,
                       uint8_t *in, uint8_t *out, uint64_t deadline_ns, struct fa_error *error,
                       struct fa_connection *ret_connection);
void fa_connection_close(struct fa_connection *connection);

/*
 * Checks that this process can open @n more descriptors, by duplicating @fd; -EMFILE. Descriptors
 * that arrive when there is no room are lost, and the connection with them. Other descriptors must
 * not be received during the check.
 */
int fa_connection_check_fds(int fd, size_t n, struct fa_error *error);
