/*
 * libfaclient: attention computed by fad, in another process.
 *
 * A client connects, makes or imports buffers, and asks for attention over
 * tensors inside them. Nothing is copied through the socket: the daemon reads
 * and writes the very memory that the client sees.
 *
 * Errors: functions return 0 or a negative errno; fa_error() then has a sentence
 * in the same thread. Besides what each function names, every function that
 * takes a client may return
 *   -ECONNRESET  the daemon went away (and could not be reached again in time)
 *   -ESHUTDOWN   the daemon is stopping and takes no new work
 *   -ECHILD      the client was made before a fork(); a child connects anew
 *   -EINVAL      an argument is wrong, the sentence says which
 *   -ENOMEM      no memory in this process
 *
 * Threads: a client and all its objects may be used by any number of threads at
 * once; calls wait for one another only briefly. An object is freed by one thread when no other
 * uses it. A buffer, stream or ticket is used only with the client it came from.
 *
 * Reconnecting: when the daemon goes away, requests in flight end with
 * -ECONNRESET; it is not known which of them had written their output. The next
 * call connects again (waiting up to fa_options.reconnect_ns), and registers
 * every buffer and stream of the client again; handles stay good, and memory
 * keeps its contents. fa_client_state() and fa_info.generation tell.
 *
 * Units: lengths in tokens, strides in elements, sizes and offsets in bytes, times in
 * nanoseconds.
 *
 * Structs that a caller fills start with their size, so that they can grow;
 * fields that are 0 mean the default.
 */
#ifndef FACLIENT_H
#define FACLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 1
#define FA_VERSION_PATCH 0

struct fa_client;
struct fa_buffer;

/* "0.1.0", of the library. Static. */
const char *fa_version(void);

/* The sentence that goes with the last error of the calling thread, in any
 * client; "" if none. Good until the thread's next call. */
const char *fa_error(void);

/* ---- connecting */

/* With fa_options.flags: start a daemon of our own. */
#define FA_CONNECT_SPAWN (1u << 0)   /* only if no daemon answers at the usual places */
#define FA_CONNECT_PRIVATE (1u << 1) /* in any case */

struct fa_options {
	uint32_t size; /* sizeof(struct fa_options) */
	uint32_t flags;
	const char *socket; /* NULL: FAD_SOCKET, else $XDG_RUNTIME_DIR/fad/fad.sock if there is
				  * one, else /run/fad/fad.sock */
	const char *name;   /* shown by factl; NULL: the program's name */
	const char *daemon; /* path of fad for spawning; NULL: FAD_DAEMON, else the installed one */
	uint64_t connect_ns;   /* 0: 5 s */
	uint64_t reconnect_ns; /* 0: 5 s; UINT64_MAX: never reconnect */
	uint64_t spin_ns;      /* how long fa_wait() spins before it sleeps; 0: 20 us where there
				  * are more than two processors, else not at all */
};

/*
 * Connects and shakes hands. @options may be NULL. A spawned daemon is a process
 * of its own (no child of the caller, no descriptors of it), listens on a socket
 * that fa_socket() names, and ends when its last client disconnects.
 *   -ENOENT, -ECONNREFUSED  no daemon there      -EACCES  the socket's mode forbids
 *   -EPROTONOSUPPORT        no common version    -ETIMEDOUT
 *   -EDQUOT                 too many connections of this user
 */
int fa_connect(const struct fa_options *options, struct fa_client **ret_client);

/* Disconnects and frees; work in flight is cancelled. Buffers are to be freed
 * before; those that were not are freed with it. Takes NULL, returns NULL. */
struct fa_client *fa_disconnect(struct fa_client *client);

enum fa_client_state {
	FA_CLIENT_CONNECTED = 0,
	FA_CLIENT_LOST = 1, /* the next call will try to connect again */
};
enum fa_client_state fa_client_state(struct fa_client *client);

/* Connects again now, if the connection is lost. */
int fa_reconnect(struct fa_client *client);

/* The path of the socket this client is connected to; lives as long as it. */
const char *fa_socket(struct fa_client *client);

struct fa_info {
	uint32_t size;
	uint32_t protocol; /* version spoken */
	char daemon_version[32];
	char backend[16]; /* "cpu" */
	char device_name[64];
	uint64_t device_uuid[2];
	uint64_t generation; /* changes when the daemon was restarted */
	uint64_t session;
	uint64_t reconnects;       /* how often this client had to connect again */
	uint64_t max_buffers;      /* of one client */
	uint64_t max_buffer_bytes; /* of all buffers of this user */
	uint64_t max_streams;
	uint64_t max_requests; /* in flight, of one client */
};

/* Set ret_info->size before. No round trip. */
int fa_info(struct fa_client *client, struct fa_info *ret_info);

/* One empty round trip. */
int fa_ping(struct fa_client *client);

/* ---- memory */

/* Memory is made by the daemon and mapped here; 0 makes it here (a memfd) and
 * hands it over, which is the same for the CPU backend. */
#define FA_BUFFER_ARENA (1u << 0)
#define FA_BUFFER_READ_ONLY (1u << 1) /* the daemon only reads it */

/*
 * Zeroed memory that both sides see, at most what fa_info allows.
 *   -EDQUOT  more buffers or bytes than this user may have
 */
int fa_buffer_new(struct fa_client *client, uint64_t bytes, uint32_t flags,
                  struct fa_buffer **ret_buffer);

/*
 * Hands over [offset, offset + bytes) of a memfd of the caller's, which is
 * sealed with F_SEAL_SHRINK and has plain pages; offset is a multiple of the page
 * size. The descriptor is duplicated. A memfd sealed against writing needs
 * FA_BUFFER_READ_ONLY.
 *   -EINVAL, -ENOTSUP  not such a file    -EDQUOT
 */
int fa_buffer_import_fd(struct fa_client *client, int fd, uint64_t offset, uint64_t bytes,
                        uint32_t flags, struct fa_buffer **ret_buffer);

/* Where it is mapped in this process; lives until fa_buffer_free(). */
void *fa_buffer_data(struct fa_buffer *buffer);
uint64_t fa_buffer_bytes(struct fa_buffer *buffer);

/* Work in flight on it is finished first, on the daemon's side; here it is
 * unmapped at once. Takes NULL, returns NULL. */
struct fa_buffer *fa_buffer_free(struct fa_buffer *buffer);

/* ---- tensors */

enum fa_dtype {
	FA_F32 = 1,
	FA_F16 = 2,
	FA_BF16 = 3,
};

uint32_t fa_dtype_bytes(uint32_t dtype); /* 0 if unknown */

/*
 * A view into a buffer, outermost dimension first. All strides 0 mean dense.
 * The inner stride is 1, others are 0 (broadcast, inputs only) or more.
 */
struct fa_tensor {
	struct fa_buffer *buffer;
	uint64_t offset; /* bytes; a multiple of the element size */
	uint32_t dtype;
	uint32_t rank;
	int64_t shape[4];
	int64_t strides[4]; /* elements */
};

/* Fills in a dense tensor. @shape has @rank entries. */
void fa_tensor_init(struct fa_tensor *ret_tensor, struct fa_buffer *buffer, uint64_t offset,
                    uint32_t dtype, uint32_t rank, const int64_t *shape);

/* Bytes of the dense tensor of that shape; 0 if it overflows or dtype is unknown. */
uint64_t fa_tensor_bytes(uint32_t dtype, uint32_t rank, const int64_t *shape);

/* ---- attention */

#define FA_ATTENTION_CAUSAL (1u << 0) /* row i sees keys up to i + n_k - n_q */
#define FA_ATTENTION_WINDOW (1u << 1) /* window_left and window_right count */

/*
 * out = softmax(scale * q k^T, masked) v, per sequence and head, softmax in fp32.
 *
 * Shapes, batch form:  q [batch, n_q, heads, dim], k [batch, n_k, kv_heads, dim],
 *   v [batch, n_k, kv_heads, dim_v], out [batch, n_q, heads, dim_v],
 *   lse (optional) fp32 [batch, heads, n_q].
 * Ragged form: the same without batch; sequence b has the tokens
 *   cu_seqlens[b] … cu_seqlens[b + 1] - 1 of its tensor; lse [heads, tokens].
 * heads is a multiple of kv_heads. dim is a multiple of 8 up to 256, dim_v up to
 * 512. q, k, v and out have one dtype. A row that sees no key gives zeros, and an
 * lse of -inf. out and lse must not overlap anything else in use.
 */
struct fa_attention {
	uint32_t size; /* sizeof(struct fa_attention) */
	uint32_t flags;
	uint32_t stream; /* 0: the one that is always there */
	uint32_t batch;  /* ragged: sequences, at most 4096; 0: batch form */
	struct fa_tensor q, k, v, out;
	struct fa_tensor lse;         /* buffer NULL: not wanted */
	float scale;                  /* 0: 1/sqrt(dim) */
	float softcap;                /* s = softcap * tanh(s / softcap); 0: none */
	int64_t window_left;          /* keys before the row's own that it sees; -1: all */
	int64_t window_right;         /* and after it */
	const uint32_t *cu_seqlens_q; /* [batch + 1], from 0, ascending; copied by the call */
	const uint32_t *cu_seqlens_k;
	const float *alibi_slopes; /* [heads] or NULL; copied */
	const float *sinks;        /* [heads] or NULL; copied */
	uint64_t timeout_ns; /* the request ends with -ETIMEDOUT if it takes longer; 0: none */
};

/* Names one request of one client. */
struct fa_ticket {
	uint64_t value;
	uint32_t stream;
	uint32_t epoch; /* of the connection it went over */
};

/*
 * Submits a request. With a ticket it returns once the request is on its way;
 * with NULL it waits for the end, as fa_wait() does. Errors that need no daemon
 * to see come at once; others from fa_wait().
 *   -EAGAIN   max_requests are in flight; wait for one
 *   -ENOTSUP  no kernel covers it
 */
int fa_attention(struct fa_client *client, const struct fa_attention *attention,
                 struct fa_ticket *ret_ticket);

struct fa_completion {
	uint32_t size;
	int32_t status;     /* what fa_wait() returned */
	uint64_t queued_ns; /* CLOCK_MONOTONIC of the machine; 0 where it never came so far */
	uint64_t started_ns;
	uint64_t finished_ns;
};

/*
 * Waits for a request, @timeout_ns at most (UINT64_MAX: for ever). Returns its
 * result. @ret_completion may be NULL; set its size before. (Asking for it costs
 * the trip through the socket that a spinning wait saves.)
 *   -EAGAIN      not finished in that time; it goes on
 *   -ECANCELED, -ETIMEDOUT (its own timeout), -ECONNRESET, -EINVAL, -ENOTSUP: its end
 *   -ESTALE      so long ago that the result is forgotten (max_requests requests
 *                of its stream came after it)
 */
int fa_wait(struct fa_client *client, const struct fa_ticket *ticket, uint64_t timeout_ns,
            struct fa_completion *ret_completion);

/* Asks that a request end early. 0: it was told; -ENOENT: it had finished. */
int fa_cancel(struct fa_client *client, const struct fa_ticket *ticket);

/*
 * For event loops: a descriptor that is readable when fa_dispatch() has work.
 * Then call fa_dispatch() and ask fa_wait() with timeout 0. The descriptor
 * belongs to the client and stays the same across reconnects.
 */
int fa_fd(struct fa_client *client);
int fa_dispatch(struct fa_client *client);

/* Streams: requests of one stream run in order, those of different streams
 * beside one another. @priority > 0 goes first (decode).
 *   -EDQUOT (max_streams)   -EBUSY (free: requests in flight)   -ENOENT */
int fa_stream_new(struct fa_client *client, int priority, uint32_t *ret_stream);
int fa_stream_free(struct fa_client *client, uint32_t stream);

/* ---- administration */

/*
 * The daemon's state as JSON, freed by the caller with free(). Others' sessions and
 * tenants are shown only to root and to the daemon's own user. At least:
 *   { "version": "0.1.0", "pid": N, "generation": N, "uptime_ns": N, "draining": false,
 *     "backend": "cpu", "device": "...", "threads": N, "connections": N,
 *     "requests": { "submitted": N, "finished": N, "failed": N, "cancelled": N, "busy_ns": N },
 *     "sessions": [ { "session": N, "name": "...", "pid": N, "uid": N, "buffers": N,
 *                     "buffer_bytes": N, "streams": N, "requests": N } ],
 *     "tenants": [ { "uid": N, "cgroup": "...", "sessions": N, "buffers": N, "buffer_bytes": N,
 *                    "fds": N, "requests": N } ] }
 * requests of a session or tenant are those in flight.
 */
int fa_status(struct fa_client *client, char **ret_json);

/* Asks the daemon to finish what is in flight and exit. -EPERM unless root or the
 * daemon's own user. */
int fa_drain(struct fa_client *client);

#ifdef __cplusplus
}
#endif

#endif
