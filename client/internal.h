/*
 * What the files of libfaclient share.
 *
 * One mutex guards a client. What waits does so without it, and is counted in
 * `outside` meanwhile, so that the socket and the completion page are not taken
 * away under it: sleeping on the socket, and spinning on the page. A lost
 * connection is shut down at once (which wakes them) and closed when the last of
 * them has left.
 *
 * Waiting threads: one of them, the leader, sleeps on the socket; the others wait
 * on a condition variable of their own. While there is a leader nobody else reads,
 * and client.in is the leader's. Whoever leaves while there is no leader wakes one
 * of the others, which leads from then on.
 *
 * Connecting again is done by one thread, without the mutex: `connecting` says
 * so, and as long as it is set nobody but that thread changes the lists of
 * buffers and streams, or uses the message buffers.
 */
#pragma once

#include "client/faclient.h"
#include "client/ring.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/completion.h"
#include "common/error.h"
#include "common/list.h"
#include "schema/wire.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

struct fa_cuda_mapping;
struct fa_cuda_memory;

/* Results of one stream that are remembered, and so the most requests in flight. */
#define FA_RESULTS 4096

#define FA_SOCKET_PATH_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

/* A receive that waits does so this long at a time. */
#define FA_RECEIVE_SLICE_NS FA_NS_PER_SEC

/* Descriptors that lie in sockets are counted for all processes of a user; who sends one too
 * many tries again after this. */
#define FA_CROWDED_PAUSE_NS FA_NS_PER_MS

/* ids of requests whose reply nobody waits for have this bit. */
#define FA_ID_DETACHED (1ull << 63)

/* How one request ended. */
struct fa_result {
	uint64_t queued_ns, started_ns, finished_ns;
	char *text; /* owned; NULL: none */
	int status;
};

enum fa_stream_state {
	FA_STREAM_CLOSED = 0,
	FA_STREAM_BUSY, /* a thread is creating or freeing it */
	FA_STREAM_OPEN,
};

/*
 * Values count on across connections; on the wire they start again from 1 with
 * each: wire value = value - base. Results of values up to `known` are there. Those up to
 * `by_socket` went through the socket, though there may be a ring now.
 */
struct fa_client_stream {
	struct fa_result *results; /* [FA_RESULTS], value v at v % FA_RESULTS; NULL until used */
	uint64_t submitted, known, base, by_socket;
	int priority;
	enum fa_stream_state state;
};

/* What Hello says of the session before, and HelloReply of this one. */
struct fa_resume {
	struct fa_wire_secret secret;
	uint64_t generation; /* 0: there was none */
};

/* A connection after its handshake. */
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

/* Somebody who waits; on the waiting thread's stack. */
struct fa_waiter {
	struct fa_list link; /* fa_client.waiters or .spinning */
	pthread_cond_t wake;
	/* Must hold as soon as the connection is lost. May keep what it sees: it is asked when that is
	 * there, and the waiting thread runs later. */
	bool (*ready)(const struct fa_client *client, struct fa_waiter *waiter);
};

/* A request other than attention, and its reply; on the calling thread's stack. */
struct fa_call {
	struct fa_waiter waiter;
	struct fa_list link; /* fa_client.calls */
	enum fa_wire_type type, expect;
	size_t expect_fds;
	uint64_t deadline_ns;
	uint64_t id;
	union {
		struct {
			uint64_t bytes; /* of BufferReply and StatusReply */
			uint64_t piece_bytes;
		};
		struct fa_wire_cache_reply cache;
		struct fa_wire_sequence_reply sequence;
		struct fa_wire_step_reply step;
		struct fa_wire_ring_reply ring;
		struct fa_wire_timeline_reply timeline;
	};
	int ring_fds[FA_WIRE_RING_FDS]; /* of RingReply, owned */
	int fd;                         /* that came with the reply, owned; or -1 */
	int second_fd;                  /* the same */
	bool done;
	int status;
	uint32_t epoch; /* of the connection it went over */
	struct fa_error error;
};

/*
 * What the daemon knows under one id. Those of memory of this side's or the daemon's
 * belong to one buffer; those of CUDA memory of the program's cover whole allocations
 * and are shared by the buffers that are windows of them, and kept for a while when
 * there are none (cuda-cache.c).
 */
struct fa_registration {
	struct fa_list link; /* fa_client.registrations, or .cuda_used or .cuda_unused */
	uint32_t id;
	enum fa_wire_buffer_kind kind; /* as it is registered again */
	uint32_t wire_flags;
	uint64_t offset, bytes;
	int fd;               /* HOST_FD; CUDA_FD: of an arena, else -1 */
	uint64_t piece_bytes; /* CUDA_FD: of the allocation that fd is */
	uint64_t uuid[2];     /* CUDA_*: of its GPU */

	struct fa_cuda_memory *cuda;          /* the program's, owned; else NULL */
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* CUDA_IPC */
	unsigned int n_users;                 /* windows of cuda */
	bool freed;                           /* cuda was seen to be */

	/* 0, or why the daemon that was connected to last does not have it. */
	int missing;
	struct fa_error why;
};

/* A window of a registration. */
struct fa_buffer {
	struct fa_list link; /* fa_client.buffers; written under the client's mutex */
	/* The rest never changes. */
	struct fa_client *client;
	struct fa_registration *registration; /* owned unless it is one of cuda */
	uint64_t offset, bytes;               /* in the registration */
	void *data;                           /* mapped here; or NULL */
	uint64_t device_data;                 /* the GPU's address in this process; or 0 */
	struct fa_cuda_mapping *mapping;      /* behind device_data, if it is an arena; owned */
};

struct fa_client {
	/* Never change after fa_connect(). */
	volatile uint64_t *alive; /* a page that fork() clears; NULL: compare pids */
	pid_t pid;
	uint32_t tag; /* in tickets */
	uint64_t connect_ns, reconnect_ns, spin_ns, call_ns;
	bool yields; /* while it spins */
	bool no_ring;
	bool spawned;
	char *daemon; /* options.daemon or FAD_DAEMON, absolute, or NULL */
	char *config; /* options.config or FAD_CONFIG, the same */
	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	char path[FA_SOCKET_PATH_BYTES];
	int epoll_fd, event_fd;
	pthread_condattr_t clock; /* CLOCK_MONOTONIC for condition variables */
	uint8_t *in, *out;        /* messages, FA_WIRE_BYTES_MAX each */

	/* Imports and drops of CUDA memory, one at a time; taken before `lock`. Calls of the
	 * driver are made with this one alone. */
	pthread_mutex_t importing;
	pthread_mutex_t lock; /* guards all that follows */
	/* Connecting, or making a ring or a timeline, ended; or outside fell to 0 on a lost
	 * connection. */
	pthread_cond_t changed;
	enum fa_client_state state;
	atomic_bool lost; /* state == FA_CLIENT_LOST, for those outside */
	struct fa_connection connection;
	uint32_t epoch; /* counts connections */
	uint64_t reconnects, resumed;
	int lost_code;
	struct fa_error lost_error;

	bool connecting;
	/* The connecting thread's: the session to come back to, and whether that is another
	 * than the last connection had. */
	struct fa_resume resume;
	bool session_lost;
	uint64_t attempts; /* ended */
	int attempt_code;
	struct fa_error attempt_error;

	uint64_t ring_try_ns;   /* from when on a ring is tried for this connection; or never */
	uint64_t ring_pause_ns; /* after which it is tried again if there was none */
	bool ring_making;       /* a thread does */
	bool ring_near;         /* it has the daemon's answer */
	unsigned int outside;
	bool leader;                          /* there is one */
	unsigned int spun_in_vain, spin_rest; /* of the leader */
	struct fa_list waiters;
	struct fa_list spinning; /* they do not sleep, and keep what they see */
	struct fa_list calls;
	uint64_t last_id;
	uint64_t detached;    /* replies to come that nobody waits for */
	uint64_t posting;     /* requests that are on their way out */
	bool posting_for_fds; /* a call whose answer brings descriptors is on its way out */
	uint64_t in_flight;   /* requests of streams whose Completion has not been read */
	uint64_t max_requests;

	bool watched; /* fa_fd() was called */
	bool rung;    /* event_fd is readable */

	struct fa_list buffers;
	struct fa_list registrations;
	/* Changed with `importing` as well, so that either is enough to read them. */
	struct fa_list cuda_used, cuda_unused; /* the latter: least recently used first */
	uint32_t last_registration;
	uint32_t last_step;
	struct fa_list abandoned; /* steps of this connection that are to end yet */
	bool ending_abandoned;    /* a thread does */
	struct fa_client_stream streams[FA_COMPLETION_SLOTS];
	struct fa_timeline *timeline; /* NULL: fa_timeline_open() was not called */
};

/* ---- error.c: the calling thread's sentence */

/* Sets it and returns @code. */
int fa_error_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fa_error_copy(int code, const struct fa_error *error);

/*
 * Structs that grow: gives @given itself, or a copy of it in @known (@known_bytes,
 * the size this library knows) with zeros for what an older caller left out.
 * -EINVAL: size is not set; -E2BIG: a newer caller uses a field unknown here.
 */
int fa_struct_in(const char *what, const void *given, void *known, size_t known_bytes,
                 const void **ret_known);
/* Checks the size of a struct that is to be filled; then fills it. */
int fa_struct_out_check(const char *what, const void *given);
void fa_struct_out(void *ret_given, void *known, size_t known_bytes);

/* ---- client.c */

/* -ECHILD in a child of fork(), else takes the mutex. */
int fa_client_enter(struct fa_client *client);
/* The same, and the connection stands, if need be anew. */
int fa_client_enter_connected(struct fa_client *client);
static inline void fa_client_leave(struct fa_client *client)
{
	pthread_mutex_unlock(&client->lock);
}
bool fa_client_forked(const struct fa_client *client);
int fa_client_child_error(void);

/* ---- reconnect.c; with the mutex */

/* Returns 0 if connected, connecting again within @timeout_ns if need be (the
 * mutex is released meanwhile). */
int fa_client_restore(struct fa_client *client, uint64_t timeout_ns);
/* Waits while another thread is connecting. */
void fa_client_settle(struct fa_client *client);
/* Makes @connection (consumed) the client's. */
void fa_client_adopt(struct fa_client *client, struct fa_connection *connection);
/* Gives the connection up: everything that waits ends with @code (-ECONNRESET, or
 * -EPROTO if somebody is to blame) and this sentence. */
void fa_client_lose(struct fa_client *client, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The thread's sentence says why the connection was lost; returns the code. */
int fa_client_lost_error(struct fa_client *client);

/* ---- restore.c; without the mutex */

/* Registers every buffer and stream with @connection, many at a time. Memory of a GPU
 * that it cannot have is marked as missing. */
int fa_restore(struct fa_client *client, struct fa_connection *connection, uint64_t deadline_ns,
               struct fa_error *error);

/* ---- connection.c; without the mutex */

/* Connects and shakes hands. */
int fa_connection_open(const char *path, const char *name, const struct fa_resume *resume,
                       uint8_t *in, uint8_t *out, uint64_t deadline_ns, struct fa_error *error,
                       struct fa_connection *ret_connection);
void fa_connection_close(struct fa_connection *connection);
/* Whether this process can have @n descriptors more: -EMFILE. What the daemon sends while it
 * cannot is lost, and the connection with it; so is what comes while it tries. @fd is any. */
int fa_connection_spare(int fd, size_t n, struct fa_error *error);
/* Polls for @events; 0, or -EAGAIN at the deadline. */
int fa_poll(int fd, short events, uint64_t deadline_ns);
/* The same for several. */
int fa_poll_all(struct pollfd *fds, unsigned int n, uint64_t deadline_ns);

/* ---- io.c; with the mutex, which all but receive may release meanwhile */

/* As a deadline: that of calls, from the moment in which there is something to wait for. */
#define FA_IO_USUAL 0

/* Sends @message, waiting while the socket is full. A request that could not be
 * sent as the daemon is gone goes to its successor if @again. */
int fa_io_post(struct fa_client *client, struct fa_wire_message *message, const int *fds,
               size_t n_fds, uint64_t deadline_ns, bool again);
/* Reads what is there, without waiting; stops early if nothing more is due unless
 * @all. Leaves it to the leader if there is one. */
void fa_io_receive(struct fa_client *client, bool all);
/* Takes what the records of a stream say into the books, and wakes who waits for that. */
void fa_io_collect(struct fa_client *client, uint32_t stream);
/* Wakes those who have what they wait for. */
void fa_io_wake(struct fa_client *client);
/* Waits for waiter->ready; -EAGAIN at the deadline. */
int fa_io_await(struct fa_client *client, struct fa_waiter *waiter, uint64_t deadline_ns);
/* Sends a request and waits for its reply; returns its status, with the sentence set. */
int fa_io_call(struct fa_client *client, struct fa_wire_message *message, const int *fds,
               size_t n_fds, bool again, struct fa_call *call);
/* The same in two steps, between which the mutex may be released; a call that was
 * begun has to be ended. */
int fa_io_call_begin(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                     size_t n_fds, bool again, struct fa_call *call);
int fa_io_call_end(struct fa_client *client, struct fa_call *call);
/* Sends a request whose reply does not matter, and mostly its errors neither. */
int fa_io_tell(struct fa_client *client, struct fa_wire_message *message, const int *fds,
               size_t n_fds);
/* The descriptor of fa_fd() becomes readable. */
void fa_io_ring(struct fa_client *client);
void fa_io_outside_begin(struct fa_client *client);
void fa_io_outside_end(struct fa_client *client);

/* ---- submit.c: requests of streams */

#define FA_REQUEST_TENSORS 7

/* On the calling thread's stack; message.type is set by the caller. */
struct fa_request {
	struct fa_wire_message message;
	struct fa_request_tensor {
		const char *name;
		const struct fa_tensor *tensor;
	} tensors[FA_REQUEST_TENSORS];
	size_t n_tensors;
	struct fa_step *step;  /* it is part of that, and nothing without it; or NULL */
	struct fa_gates gates; /* where an older caller's are completed */
};

/* fa_tensor_view() of one of its tensors; before it is submitted, its buffer is checked. */
int fa_request_tensor(struct fa_request *request, const char *name, struct fa_client *client,
                      const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view);
/* Where the stream and the value of such a message are; NULL if it is none. */
uint32_t *fa_request_stream(struct fa_wire_message *message, uint64_t **ret_value);
/*
 * With the mutex: sends it as the next of its stream. While too many are in flight it
 * waits, and at the deadline (0: at once) says -EAGAIN. -ECONNRESET: its step is gone.
 */
int fa_request_send(struct fa_client *client, struct fa_request *request, uint64_t deadline_ns,
                    uint64_t *ret_value);
/* How many values of its stream it takes. */
uint64_t fa_request_values(const struct fa_wire_message *message);
/* Without the mutex: sends it, and waits for its end if there is no @ret_ticket. */
int fa_request_submit(struct fa_client *client, struct fa_request *request,
                      struct fa_ticket *ret_ticket);

/* ---- timeline.c */

/* The caller's gates go with the request; NULL: it has none. */
int fa_request_gates(struct fa_request *request, const struct fa_gates *gates);
int fa_gate_check(const char *what, const struct fa_gate *gate, bool may_be_out);
bool fa_request_is_gated(const struct fa_request *request);
/* With the mutex: before one that is gated is sent over a connection that stands (the mutex
 * may be released meanwhile), and after. -ECONNRESET: it waits for what was lost. */
int fa_timeline_prepare(struct fa_client *client, const struct fa_request *request);
bool fa_timeline_is_ready(const struct fa_client *client);
void fa_timeline_sent(struct fa_client *client, const struct fa_request *request);
/* With the client; takes NULL. */
struct fa_timeline *fa_timeline_release(struct fa_timeline *timeline, bool forked);

/* ---- kv.c */

/*
 * Without the mutex: asks, and waits for the reply. @by_number: a number that is not known
 * is of a session that was lost, if one was (-ESTALE).
 */
int fa_kv_call(struct fa_client *client, struct fa_wire_message *message, bool by_number,
               struct fa_call *call);
/* -EINVAL, -ENAMETOOLONG. */
int fa_kv_name(const char *name, struct fa_wire_string *ret_name);

/* ---- step.c; with the mutex */

/* 0 if it can go on; -EINVAL it was ended, -ECONNRESET its connection. */
int fa_step_check(struct fa_step *step);
void fa_step_set_ended(struct fa_step *step);
/* They have ended with their connection. */
void fa_step_forget_abandoned(struct fa_client *client);

/* ---- wait.c; with the mutex */

/* Stores the result of stream's next value. @text may be NULL. */
void fa_result_store(struct fa_client_stream *stream, int status, const char *text, size_t length,
                     uint64_t queued_ns, uint64_t started_ns, uint64_t finished_ns);
/* What the device has told the daemon will, too, in microseconds unless it dies. */
#define FA_EARLY_NS (100 * FA_NS_PER_MS)

/* What the completion page says of @value: 0 not finished, 1 succeeded, -1 finished. @early: also
 * what the device itself says. */
int fa_result_probe(const struct fa_client *client, uint32_t stream, uint64_t value, bool early);
int fa_result_wait(struct fa_client *client, uint32_t stream, uint64_t value, uint64_t timeout_ns,
                   struct fa_completion *ret_completion);

/* ---- buffer.c */

/* Unmaps and frees; the daemon is not told. */
void fa_buffer_release(struct fa_buffer *buffer);
/* -EINVAL: a buffer of that size is not possible. */
int fa_buffer_alloc(struct fa_client *client, uint64_t bytes, struct fa_buffer **ret_buffer);

/* ---- registration.c */

struct fa_registration *fa_registration_new(enum fa_wire_buffer_kind kind, uint32_t wire_flags,
                                            uint64_t offset, uint64_t bytes);
/* Takes it out of its list, closes and frees; the daemon is not told. Takes NULL. */
void fa_registration_free(struct fa_registration *registration);
/* With the mutex: an id that no other registration has. */
void fa_registration_name(struct fa_client *client, struct fa_registration *registration);
/* The BufferRegister of one that is registered by a single message. */
void fa_registration_message(const struct fa_registration *registration,
                             struct fa_wire_message *ret_message);
/* With the mutex: BufferFree, if the daemon has it. */
void fa_registration_forget(struct fa_client *client, const struct fa_registration *registration);

/* ---- cuda-cache.c */

/* Lets go of a window of CUDA memory; the buffer itself is the caller's to free. */
void fa_cuda_cache_put(struct fa_client *client, struct fa_buffer *buffer);

/* ---- spawn.c; without the mutex */

/*
 * Starts a daemon that listens on @path; with an empty @path in a new private
 * directory, whose socket is written there (FA_SOCKET_PATH_BYTES). @config NULL: the
 * defaults, whatever the system's own daemon is told. *ret_said is a descriptor of what it
 * writes to stderr, for fa_spawn_explain(), to be closed as soon as it serves.
 */
int fa_spawn(const char *daemon, const char *config, char *path, struct fa_error *error,
             int *ret_said);
/*
 * It could not be connected to, for @code and @error: adds what it said last, if it ended or does
 * not answer. Waits for its end until @deadline_ns at most. Returns @code, or -ECONNREFUSED if it
 * ended.
 */
int fa_spawn_explain(int said, int code, uint64_t deadline_ns, struct fa_error *error);
/* Removes what a spawned daemon left when it could not do so itself. */
void fa_spawn_clean(const char *path);
