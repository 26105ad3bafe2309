/*
 * One mutex guards a client. A thread that polls or sleeps without it pins the connection
 * (fa_client_pin()). A lost connection is shut down at once, which wakes those threads; its socket
 * and pages go with the last pin.
 *
 * One thread reconnects, without the mutex: while `connecting` is set, only that thread changes the
 * lists of buffers and streams or uses the message buffers.
 */
#pragma once

#include "client/connection.h"
#include "client/faclient.h"
#include "client/handle.h"
#include "client/spawn.h"
#include "common/backoff.h"
#include "common/clock.h"
#include "common/completion.h"
#include "common/error.h"
#include "common/list.h"
#include "schema/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Results kept per stream; as many requests may be in flight. */
#define FA_RESULTS 4096

struct fa_result {
	uint64_t queued_ns, started_ns, finished_ns;
	uint64_t number; /* a step's, if the ring carried its StepBegin */
	char *text;      /* owned; NULL: none */
	int status;
};

enum fa_stream_state {
	FA_STREAM_CLOSED = 0,
	FA_STREAM_BUSY, /* a thread is creating or freeing it */
	FA_STREAM_OPEN,
};

/* Values go on across connections, each of which starts from 1: wire value = value - base. Results
 * up to `finished` are stored. Values up to `last_by_socket` were sent by the socket. */
struct fa_client_stream {
	struct fa_result *results; /* [FA_RESULTS], at v % FA_RESULTS; NULL until used */
	uint64_t submitted, finished, base, last_by_socket;
	/* What the program has; modulo FA_COMPLETION_SLOTS the stream's index. Changes when the
	 * stream is freed. */
	uint32_t number;
	int priority;
	enum fa_stream_state state;
};

struct fa_client_home {
	uint64_t sequence, cache;
};

struct fa_client {
	void *handle; /* NULL: none yet */
	/* Constant after fa_connect(). */
	volatile uint64_t *fork_page; /* cleared by fork(); NULL: compare pids */
	pid_t pid;
	uint32_t tag; /* of the client, in tickets */
	uint64_t connect_ns, reconnect_ns, spin_ns, reply_ns;
	bool spin_yields;
	bool no_ring;
	enum fa_daemon_origin origin;
	char spawn_reason[FA_SPAWN_REASON_BYTES]; /* why no other daemon is used */
	char *daemon; /* options.daemon or FAD_DAEMON, absolute; or NULL */
	char *config; /* options.config or FAD_CONFIG, absolute; or NULL */
	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	char path[FA_SOCKET_PATH_BYTES];
	int epoll_fd, event_fd;
	pthread_condattr_t clock; /* CLOCK_MONOTONIC, for condition variables */
	uint8_t *in, *out;        /* FA_WIRE_BYTES_MAX each */

	/* Serialises imports and frees of CUDA memory. Locked before `lock`. */
	pthread_mutex_t import_lock;
	pthread_mutex_t lock; /* guards all that follows */
	/* A connect or set-up ended, or the last pin of a lost connection went. */
	pthread_cond_t changed;
	enum fa_client_state state;
	atomic_bool lost; /* state == FA_CLIENT_LOST, without the mutex */
	struct fa_connection connection;
	uint32_t epoch;
	uint64_t reconnects, resumed;
	int lost_code;
	struct fa_error lost_error;

	bool connecting;
	/* Used by the connecting thread. session_lost: a session was lost since the last
	 * connection. */
	struct fa_session_key session_key;
	bool session_lost;
	uint64_t attempts; /* to reconnect, that have ended */
	int attempt_code;
	struct fa_error attempt_error;

	uint64_t ring_retry_at_ns; /* to ask for a ring again; or FA_NS_NEVER */
	uint64_t ring_backoff_ns;
	bool ring_setup_busy;
	bool ring_setup_answered; /* the daemon has answered */
	unsigned int pins;
	bool leader; /* a thread leads (waiter.h) */
	struct fa_backoff backoff;
	struct fa_list waiters;
	struct fa_list spinning;
	struct fa_list calls;
	uint64_t last_id;
	uint64_t detached_replies; /* due, with no thread waiting */
	uint64_t sending;
	bool sending_for_fds; /* of calls whose reply has descriptors */
	uint64_t in_flight;   /* requests without a read result */
	uint64_t max_requests;

	bool fd_watched; /* fa_fd() was called */
	bool fd_readable;

	struct fa_list buffers;
	struct fa_list registrations;
	/* Changed with both mutexes held, read with either. */
	struct fa_list cuda_used, cuda_unused; /* cuda_unused: least recently used first */
	uint32_t last_registration;
	uint32_t last_step;
	struct fa_client_home *homes; /* hashed by sequence; NULL: none */
	struct fa_list steps;         /* with a handle of the program's */
	struct fa_list abandoned;     /* of this connection, to be aborted */
	bool aborting_abandoned;
	struct fa_client_stream streams[FA_COMPLETION_SLOTS];
	struct fa_timeline *timeline; /* NULL: not open */
};

/* Locks the client. -ECHILD in a child of fork(). */
int fa_client_enter(struct fa_client *client);
static inline void fa_client_leave(struct fa_client *client)
{
	pthread_mutex_unlock(&client->lock);
}
bool fa_client_forked(const struct fa_client *client);
/* Returns -ECHILD. */
int fa_client_child_error(void);

/* Releases the mutex, and keeps the connection open until fa_client_unpin() locks it again. */
void fa_client_pin(struct fa_client *client);
void fa_client_unpin(struct fa_client *client);

/* With the mutex held. */
void fa_client_await_connecting(struct fa_client *client);
/* With the mutex held. Makes fa_fd()'s descriptor readable. */
void fa_client_notify(struct fa_client *client);
