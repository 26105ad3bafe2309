/*
 * The client object, and how a call enters and leaves it.
 *
 * One mutex guards a client. A thread that polls or sleeps without it pins the connection
 * (fa_client_pin()). A lost connection is shut down at once, which wakes those threads; its socket
 * and pages go with the last pin.
 *
 * One thread at a time reconnects, without the mutex. While `connecting` is set, only that thread
 * changes the lists of buffers and streams or uses the message buffers.
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

/* Stored results per stream, and the most requests in flight. */
#define FA_RESULTS 4096

struct fa_result {
	uint64_t queued_ns, started_ns, finished_ns;
	uint64_t number; /* the step's number, if one was begun through the ring */
	char *text;      /* owned; NULL: none */
	int status;
};

enum fa_stream_state {
	FA_STREAM_CLOSED = 0,
	FA_STREAM_BUSY, /* a thread is creating or freeing it */
	FA_STREAM_OPEN,
};

/* Values continue across connections; on the wire each connection starts from 1: wire value = value
 * - base. Results up to `finished` are stored. Values up to `last_by_socket` were sent by the
 * socket. */
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
	void *handle; /* what the program has; NULL: nothing yet */
	/* Do not change after fa_connect(). */
	volatile uint64_t *fork_page; /* a page that fork() clears; NULL: compare pids */
	pid_t pid;
	uint32_t tag; /* identifies the client in tickets */
	uint64_t connect_ns, reconnect_ns, spin_ns, reply_ns;
	bool spin_yields;
	bool no_ring;
	enum fa_daemon_origin origin;
	char spawn_reason[FA_SPAWN_REASON_BYTES]; /* why no other daemon is used */
	char *daemon; /* options.daemon or FAD_DAEMON, absolute, or NULL */
	char *config; /* options.config or FAD_CONFIG, absolute, or NULL */
	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	char path[FA_SOCKET_PATH_BYTES];
	int epoll_fd, event_fd;
	pthread_condattr_t clock; /* CLOCK_MONOTONIC for condition variables */
	uint8_t *in, *out;        /* message buffers, FA_WIRE_BYTES_MAX each */

	/* Serialises imports and frees of CUDA memory. Locked before `lock`. */
	pthread_mutex_t import_lock;
	pthread_mutex_t lock; /* guards all that follows */
	/* A connect or a set-up ended, or the last pin of a lost connection is gone. */
	pthread_cond_t changed;
	enum fa_client_state state;
	atomic_bool lost; /* state == FA_CLIENT_LOST, for threads without the mutex */
	struct fa_connection connection;
	uint32_t epoch; /* counts connections */
	uint64_t reconnects, resumed;
	int lost_code;
	struct fa_error lost_error;

	bool connecting;
	/* The connecting thread's. session_lost: a session was lost since the last connection. */
	struct fa_session_key session_key;
	bool session_lost;
	uint64_t attempts; /* attempts to reconnect that have ended */
	int attempt_code;  /* how the last of these attempts ended */
	struct fa_error attempt_error;

	uint64_t ring_retry_at_ns; /* when to ask for a ring again; FA_NS_NEVER: not again */
	uint64_t ring_backoff_ns;  /* back-off after the next refusal */
	bool ring_setup_busy;
	bool ring_setup_answered;  /* the daemon has answered */
	unsigned int pins;         /* pins of the connection */
	bool leader;               /* a thread leads (waiter.h) */
	struct fa_backoff backoff; /* whether a leader spins */
	struct fa_list waiters;    /* sleeping threads */
	struct fa_list spinning;
	struct fa_list calls;
	uint64_t last_id;
	uint64_t detached_replies; /* due, and no thread waits for them */
	uint64_t sending;
	bool sending_for_fds; /* of a call whose reply brings descriptors */
	uint64_t in_flight;   /* requests whose result has not been read */
	uint64_t max_requests;

	bool fd_watched;  /* fa_fd() was called */
	bool fd_readable; /* event_fd is readable */

	struct fa_list buffers;
	struct fa_list registrations;
	/* Changed with both mutexes: either suffices to read. */
	struct fa_list cuda_used, cuda_unused; /* cuda_unused: least recently used first */
	uint32_t last_registration;
	uint32_t last_step;
	struct fa_client_home *homes; /* hashed by sequence; NULL: none known */
	struct fa_list steps;         /* those that the program has a handle of */
	struct fa_list abandoned;     /* steps of this connection that are still to be aborted */
	bool aborting_abandoned;      /* a thread is aborting these steps */
	struct fa_client_stream streams[FA_COMPLETION_SLOTS];
	struct fa_timeline *timeline; /* NULL: not opened */
};

/* Locks the client; -ECHILD in a child of fork(). */
int fa_client_enter(struct fa_client *client);
static inline void fa_client_leave(struct fa_client *client)
{
	pthread_mutex_unlock(&client->lock);
}
bool fa_client_forked(const struct fa_client *client);
/* Returns -ECHILD. */
int fa_client_child_error(void);

/* Called with the mutex held, which is released. Keeps the connection open until fa_client_unpin()
 * locks it again. */
void fa_client_pin(struct fa_client *client);
void fa_client_unpin(struct fa_client *client);

/* Called with the mutex held. */
void fa_client_await_connecting(struct fa_client *client);
/* Called with the mutex held. Makes the descriptor of fa_fd() readable. */
void fa_client_notify(struct fa_client *client);
