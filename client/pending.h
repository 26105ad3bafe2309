/* Waiting threads and calls in flight, on the waiting thread's stack. */
#pragma once

#include "client/faclient.h"
#include "common/error.h"
#include "common/list.h"
#include "schema/wire.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Set in ids of messages whose reply is ignored. */
#define FA_ID_DETACHED (1ull << 63)

struct fa_client_waiter {
	struct fa_list link; /* fa_client.waiters or .spinning */
	pthread_cond_t wake;
	/* Called by any thread, with the mutex, when something has arrived; may copy what it sees.
	 * Must return true once the connection is lost. */
	bool (*ready)(const struct fa_client *client, struct fa_client_waiter *waiter);
};

/* A message and its reply. */
struct fa_client_call {
	struct fa_client_waiter waiter;
	struct fa_list link; /* fa_client.calls */
	enum fa_wire_type type, expect;
	size_t expect_fds;
	uint64_t deadline_ns;
	uint64_t id;
	union {
		struct {
			uint64_t bytes; /* in a BufferReply or StatusReply */
			uint64_t piece_bytes;
		};
		struct fa_wire_cache_reply cache;
		struct fa_wire_sequence_reply sequence;
		struct fa_wire_prefix_reply prefix;
		struct fa_wire_step_reply step;
		struct fa_wire_ring_reply ring;
		struct fa_wire_timeline_reply timeline;
	};
	int ring_fds[FA_WIRE_RING_FDS]; /* of a RingReply, owned */
	int fd;                         /* the reply's first, owned; or -1 */
	int second_fd;                  /* the second, owned; or -1 */
	bool done;
	bool repeated; /* after a lost connection (fa_kv_call()) */
	int status;
	uint32_t epoch; /* of the connection that carried the message */
	struct fa_error error;
};
