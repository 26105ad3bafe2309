/*
 * libfaclient: attention computed by fad, in another process.
 *
 * A client connects, makes or imports buffers, and asks for attention over
 * tensors inside them. Nothing is copied through the socket: the daemon reads
 * and writes the very memory that the client sees.
 *
 * Errors: functions return 0 or a negative errno; fa_error() then has a sentence
 * in the same thread. On an error nothing is written through ret_ pointers.
 * Besides what each function names, every function that takes a client may return
 *   -ECONNRESET  the daemon went away, and what was asked with it
 *   -ENOENT, -ECONNREFUSED, -ETIMEDOUT  ... and could not be reached again in time
 *   -ESHUTDOWN   the daemon is stopping and takes no new work
 *   -EPROTO      the daemon broke the protocol, or found that this library did;
 *                the connection is given up
 *   -ECHILD      the client was made before a fork(); a child connects anew
 *   -EINVAL      an argument is wrong, the sentence says which
 *   -EMSGSIZE    what is copied into a request (vectors, masks, names) has more than about
 *                63000 bytes
 *   -ENOMEM, -EMFILE, -ENFILE  no memory or descriptors in this process, or in the daemon
 *
 * GPUs: with a daemon that computes on an NVIDIA GPU, buffers may be memory of that
 * GPU, too (fa_buffer_import_cuda(), FA_BUFFER_DEVICE). Only these, and streams' writes and
 * waits (fa_timeline_enqueue_write()), load the CUDA driver into this process. The daemon has streams of its own, which know nothing of this
 * process's: work that fills the tensors of a request must have finished on the GPU
 * before fa_attention() (cuStreamSynchronize(), or an event that was waited for), or the
 * request waits for a value that a stream writes behind it (faclient_timeline.h); and
 * what fa_wait() returned for is complete and can be read by any stream.
 *
 * Threads: a client and all its objects may be used by any number of threads at
 * once; calls wait for one another only briefly. An object is freed by one
 * thread when no other uses it, a client when none of its objects is used. A
 * buffer, stream or ticket is used only with the client it came from. No call
 * may be made from a signal handler. The library makes no threads and leaves
 * signals alone (starting a daemon causes one SIGCHLD).
 *
 * fork(): a child must not use the clients of its parent; every call says
 * -ECHILD. It can read and write memory of buffers that it inherited, and may call
 * fa_buffer_free() and fa_disconnect(), which then free what is its own and
 * leave the parent's session alone.
 *
 * Reconnecting: when the daemon goes away, requests in flight end with
 * -ECONNRESET; it is not known which of them had written their output. The next
 * call that needs the daemon connects again (waiting up to
 * fa_options.reconnect_ns; for a socket that forbids it, which is -EACCES, up to
 * 200 ms of these), and registers every buffer and stream of the client again;
 * handles and tickets stay good, and memory keeps its contents. A request that
 * could not even be sent is sent to the new daemon. fa_client_state() and
 * fa_info.generation tell. What becomes of the KV cache is said in faclient_kv.h.
 *
 * Units: lengths in tokens, strides in elements, sizes and offsets in bytes,
 * times in nanoseconds.
 *
 * Structs that cross this interface start with their size, set by the caller to
 * sizeof, so that they can grow. One that is larger than this library knows is
 * taken if the unknown part is 0 (else -E2BIG), and one to be filled gets zeros
 * there. Fields that are 0 mean the default. Those that lie in others and in arrays
 * (fa_tensor, fa_ticket, fa_gate, fa_step_item) have no size, and do not grow.
 */
#ifndef FACLIENT_H
#define FACLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 1
#define FA_VERSION_PATCH 0

struct fa_client;
struct fa_buffer;
struct fa_gates;

/* "0.1.0", of the library. Static. */
const char *fa_version(void);

/* The sentence that goes with the last error of the calling thread, in any
 * client; "" if there was none. Good until the thread's next call. */
const char *fa_error(void);

/* ---- connecting */

/* fa_options.flags: start a daemon of our own. */
#define FA_CONNECT_SPAWN (1u << 0)   /* if none answers that this user may talk to */
#define FA_CONNECT_PRIVATE (1u << 1) /* in any case */
/* Requests go through the socket, even if the daemon offers memory to put them in. */
#define FA_CONNECT_NO_RING (1u << 2)

struct fa_options {
	uint32_t size; /* sizeof(struct fa_options) */
	uint32_t flags;
	/* Path of the socket; NULL: FAD_SOCKET, else $XDG_RUNTIME_DIR/fad/fad.sock if a
	 * daemon answers there, else /run/fad/fad.sock. One that is relative is good after
	 * chdir(), too, if the whole path fits into a socket's address. */
	const char *socket;
	/* Shown by factl, at most 64 bytes; NULL: the program's name. */
	const char *name;
	/* Path of fad, for spawning; NULL: FAD_DAEMON, else the installed one, else
	 * the first on PATH. */
	const char *daemon;
	uint64_t connect_ns; /* for fa_connect() as a whole; 0: 5 s */
	uint64_t
		reconnect_ns; /* for connecting again; 0: 5 s; UINT64_MAX: only by fa_reconnect() */
	/* How long a call that waits for the daemon spins before it sleeps; 0: 20 us where
	 * this process may use more than one processor, else not at all. With up to four it
	 * yields to others meanwhile. Where answers keep taking longer, it sleeps at once. */
	uint64_t spin_ns;
	/* How long the daemon may take to answer what it should answer at once (all but
	 * attention) before the connection is given up; 0: 60 s; UINT64_MAX: for ever. */
	uint64_t reply_ns;
	/* Path of the configuration of a daemon that is spawned, as fad --config takes it; NULL:
	 * FAD_CONFIG, else none. */
	const char *config;
};

/*
 * Connects and shakes hands; *ret_client is freed by fa_disconnect(). @options may
 * be NULL, and is not kept. Environment variables do not count in set-uid programs.
 *
 * A spawned daemon is a process of its own (no child of the caller, none of its
 * descriptors) that listens on a socket in a new directory of mode 0700 under
 * $XDG_RUNTIME_DIR or /tmp. fa_socket_path() names it, so that other processes of this
 * user can join. It ends when its last client disconnects. If it dies before,
 * the client that started it starts it again when it reconnects.
 *
 * It reads fa_options.config (as it is then; with SIGHUP again) and not the system's
 * /etc/fad/fad.conf. Without one it has the defaults: the GPU if it can use one, else the
 * CPU; and a KV pool of at most 256 MiB, which "bytes" in [pool] of a configuration changes.
 * If it ends before it serves, the last that it wrote to stderr stands in fa_error(). After
 * that there is no log, unless a configuration has "log = journal" in [daemon] (then why it
 * does not start may stand there instead). With "backend = cuda" in [daemon] it ends rather
 * than do without a GPU, and so says why it uses none; fa_info.backend tells that it does not.
 *   -ENOENT, -ECONNREFUSED  no daemon there, or none to start, or no such configuration, or
 *                           it ended at once
 *   -EACCES                 the socket's mode forbids
 *   -EPROTONOSUPPORT        no common version
 *   -ETIMEDOUT              it does not answer
 *   -EDQUOT                 too many connections of this user
 *   -ENAMETOOLONG           the path does not fit into a socket's address
 */
int fa_connect(const struct fa_options *options, struct fa_client **ret_client);

/* Disconnects and frees; work in flight is cancelled. Buffers that were not freed
 * before are freed with it, and must not be touched any more. Never waits. Takes
 * NULL, returns NULL. */
struct fa_client *fa_disconnect(struct fa_client *client);

enum fa_client_state {
	FA_CLIENT_CONNECTED = 0,
	FA_CLIENT_LOST = 1, /* the next call will try to connect again */
};
/* Notices a daemon that went away since the last call. Never waits. */
enum fa_client_state fa_client_state(struct fa_client *client);

/* Connects again now, if the connection is lost. Errors as fa_connect()'s, and
 * those of registering buffers. */
int fa_reconnect(struct fa_client *client);

/* The path of the socket this client is connected to; lives as long as it. */
const char *fa_socket_path(struct fa_client *client);

struct fa_info {
	uint32_t size;
	uint32_t protocol; /* version spoken */
	char daemon_version[32];
	char backend[16]; /* "cpu", "cuda" */
	char device_name[64];
	uint64_t device_uuid[2]; /* of a GPU: the 16 bytes of its UUID, as they lie */
	uint64_t generation;     /* changes when the daemon was restarted */
	uint64_t session;
	uint64_t reconnects;       /* how often this client had to connect again */
	uint64_t max_buffers;      /* of one client */
	uint64_t max_buffer_bytes; /* of all buffers of this user */
	uint64_t max_streams;
	uint64_t max_requests; /* in flight, of one client; at most 4096 */
	uint64_t resumed;      /* of the reconnects, those that lost no cache or sequence */
	uint64_t ring_bytes;   /* requests go through shared memory; 0: through the socket */
};

/* What the daemon said when it was connected to last. Set ret_info->size before.
 * No round trip; never waits. */
int fa_info(struct fa_client *client, struct fa_info *ret_info);

/* One empty round trip. */
int fa_ping(struct fa_client *client);

/* ---- memory */

/* The daemon makes the memory, of its device's own kind, and it is mapped here: with
 * the CPU backend host memory, with a GPU device memory (fa_buffer_device_data()).
 * Without it the memory is made here (a memfd) and handed over, which is as fast for
 * the CPU backend; a GPU reads it through the bus. */
#define FA_BUFFER_DEVICE (1u << 0)
/* The daemon cannot write it; good for queries, keys and values only. */
#define FA_BUFFER_READ_ONLY (1u << 1)

/*
 * Zeroed memory that both sides see, writable here. Freed by fa_buffer_free(). Each
 * buffer holds a descriptor: many small tensors are better off in one buffer. An arena
 * of a GPU is mapped for every context of this process on that GPU.
 *   -EDQUOT          more buffers or bytes than this user may have
 *   -ENODEV, -ENOSYS an arena of a GPU: no CUDA driver here, too old, or without that GPU
 */
int fa_buffer_new(struct fa_client *client, uint64_t bytes, uint32_t flags,
                  struct fa_buffer **ret_buffer);

/*
 * Hands over [offset, offset + bytes) of a memfd of the caller's, which is
 * sealed with F_SEAL_SHRINK and has plain pages; offset is a multiple of the page
 * size. The descriptor is duplicated. A memfd that cannot be written (sealed, or
 * opened for reading) needs FA_BUFFER_READ_ONLY, and is mapped for reading here.
 *   -EINVAL, -ENOTSUP  not such a file
 *   -EDQUOT            as above
 */
int fa_buffer_import_fd(struct fa_client *client, int fd, uint64_t offset, uint64_t bytes,
                        uint32_t flags, struct fa_buffer **ret_buffer);

/*
 * Makes a buffer of [ptr, ptr + bytes), memory of the daemon's GPU that this process
 * has allocated: a device pointer of cuMemAlloc() (or cudaMalloc()), or of memory of
 * cuMemCreate() with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, where the range may
 * span up to 4096 allocations side by side. Nothing is copied. @flags: 0 or
 * FA_BUFFER_READ_ONLY.
 *
 * The daemon gets whole allocations, once each; further buffers in the same one cost
 * no round trip. The last 256 allocations that no buffer uses any more stay known to
 * it. Memory of an allocation that it knows returns to the GPU only when both sides
 * have let go: after its cuMemFree() that is with the next import or fa_buffer_free()
 * of this client, or fa_cuda_trim(). Allocations must not be freed while buffers are in them.
 *
 * It uses the context that is current in this thread; if that is none, or the memory
 * belongs to another, it makes one current for the time of the call.
 *   -EINVAL   no CUDA memory, or not so much of it
 *   -ENOTSUP  memory that cannot be handed over (of cuMemAllocAsync(), managed, pinned
 *             host memory, of another GPU), a daemon without a GPU, or one that cannot
 *             open it, as it has this process's id in another container; the sentence
 *             names the way out
 *   -ENODEV, -ENOSYS  no CUDA driver here, too old, or its context is lost
 *   -EDQUOT   as above: whole allocations count
 * After a reconnect allocations are handed over again. One that cannot be (it was
 * freed, or the new daemon has another GPU or none) leaves its buffers good for nothing
 * but fa_buffer_free(): fa_attention() says -ESTALE.
 */
int fa_buffer_import_cuda(struct fa_client *client, uint64_t ptr, uint64_t bytes, uint32_t flags,
                          struct fa_buffer **ret_buffer);

/* Lets go of the allocations that no buffer uses. */
int fa_cuda_trim(struct fa_client *client);

/* Where it is mapped in this process, page-aligned; lives until fa_buffer_free(). NULL
 * if it is memory of a GPU. */
void *fa_buffer_data(struct fa_buffer *buffer);
/* Its device pointer in this process (a CUdeviceptr), if it is memory of a GPU; else 0. */
uint64_t fa_buffer_device_data(struct fa_buffer *buffer);
uint64_t fa_buffer_bytes(struct fa_buffer *buffer);

/* Here it is unmapped at once; the daemon keeps it until work in flight on it has
 * ended. Takes NULL, returns NULL. */
struct fa_buffer *fa_buffer_free(struct fa_buffer *buffer);

/* ---- tensors */

enum fa_dtype {
	FA_F32 = 1,
	FA_F16 = 2,
	FA_BF16 = 3,
};

uint32_t fa_dtype_bytes(uint32_t dtype); /* 0 if unknown */

/*
 * A view into a buffer, outermost dimension first; the first rank entries of shape
 * and strides count. All strides 0 mean dense. Else the inner stride is 1, others
 * are 0 (broadcast, inputs only) or more.
 */
struct fa_tensor {
	struct fa_buffer *buffer;
	uint64_t offset; /* bytes; a multiple of the element size */
	uint32_t dtype;
	uint32_t rank;
	int64_t shape[4];
	int64_t strides[4]; /* elements */
};

/* Fills in a dense tensor. @shape has @rank entries, at most 4, and is copied. Nothing is
 * checked before fa_attention(). */
void fa_tensor_init(struct fa_tensor *ret_tensor, struct fa_buffer *buffer, uint64_t offset,
                    uint32_t dtype, uint32_t rank, const int64_t *shape);

/* Bytes of the dense tensor of that shape; 0 if that overflows, a dimension is
 * negative, or dtype or rank is none of ours. */
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
 * heads is a multiple of kv_heads. dim is a multiple of 8 up to 256, dim_v one up to
 * 512. q, k, v and out have one dtype. A row that sees no key gives zeros, and an
 * lse of -inf (with sinks: the sink). lse is the natural logarithm of the softmax's
 * denominator. out and lse must not overlap anything else in use.
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
	const float *alibi_slopes; /* [heads, at most 1024] or NULL; copied */
	const float *sinks;        /* the same */
	uint64_t timeout_ns; /* the request ends with -ETIMEDOUT if it takes longer; 0: none */
	const struct fa_gates *gates; /* what it waits for, and signals; NULL: nothing */
};

/* Names one request of one client; plain data, may be copied and forgotten. */
struct fa_ticket {
	uint64_t value;
	uint32_t stream;
	uint32_t client;
};

/*
 * Submits a request. With a ticket it returns once the request is on its way;
 * with NULL it waits for the end, as fa_wait() does, and its result is returned.
 * Errors that need no daemon to see (-EINVAL) come at once; others from fa_wait().
 * Requests of one stream run in order, so one may read what the one before wrote.
 * Buffers must not be freed, and what is read must not be changed, before the end.
 *   -EAGAIN   with a ticket: max_requests are in flight; wait for one
 *   -ENOTSUP  no kernel covers it
 *   -EDQUOT   on the CPU, few rows over many keys: no bytes of this user's are left for what
 *             threads share, which are given back at the end
 *   -ESTALE   a buffer is memory of a GPU that was lost with a reconnect
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
 * Waits for a request, @timeout_ns at most (UINT64_MAX: for ever, 0: only looks).
 * Returns its result; its output can be read then. Any thread may ask, any number
 * of times. @ret_completion may be NULL; set its size before. It is filled whenever
 * the request has ended, also with an error. (Where requests go through the socket,
 * asking for it costs the trip that a spinning wait saves; where the device told the
 * end, its times come with the daemon's word, microseconds later, which is waited for
 * then, even with 0, for 100 ms at most.) Never connects again.
 *   -EAGAIN      not finished in that time; it goes on
 *   -ECANCELED, -ETIMEDOUT (its own timeout), -ECONNRESET, -EINVAL, -ENOTSUP: its end
 *   -ESTALE      so long ago that the result is forgotten: 4096 requests of its
 *                stream ended after it
 */
int fa_wait(struct fa_client *client, const struct fa_ticket *ticket, uint64_t timeout_ns,
            struct fa_completion *ret_completion);

/*
 * Submits a request that does nothing: it ends when all before it in its stream have, and
 * what @gates (may be NULL) say it waits for has come. Tickets, waiting and errors are
 * those of fa_attention().
 */
int fa_marker(struct fa_client *client, uint32_t stream, const struct fa_gates *gates,
              struct fa_ticket *ret_ticket);

/* Asks that a request end early. 0: it was told, and the request ends with
 * -ECANCELED unless it was faster. -ENOENT: it had finished. */
int fa_cancel(struct fa_client *client, const struct fa_ticket *ticket);

/*
 * For event loops: a descriptor that is readable when requests have ended or the
 * connection was lost since the last fa_dispatch(), whichever thread noticed.
 * Then call fa_dispatch(), which never waits, and ask fa_wait() with timeout 0.
 * The descriptor belongs to the client and stays the same across reconnects.
 * fa_fd() returns it, or a negative errno. fa_dispatch() returns 0, or
 * -ECONNRESET (-EPROTO) as long as the connection is lost.
 */
int fa_fd(struct fa_client *client);
int fa_dispatch(struct fa_client *client);

/*
 * Streams: requests of one stream run in order, those of different streams beside
 * one another. Stream 0 is always there. One of @priority > 0 goes before
 * the others of this client (decode); on a GPU its kernels go before everybody's.
 * They are freed with the client.
 *   -EDQUOT  max_streams     -EBUSY (free)  requests are in flight
 *   -ENOENT (free)           no such stream
 */
int fa_stream_new(struct fa_client *client, int priority, uint32_t *ret_stream);
int fa_stream_free(struct fa_client *client, uint32_t stream);

/* ---- administration */

/*
 * The daemon's state as JSON, zero-terminated, freed by the caller with fa_free() or free().
 * -ENOMEM.
 *
 * All numbers are integers: _bytes are bytes, _ns nanoseconds, all others are counted. Keys under
 * "may change", and any that are not listed, may go or mean something else in the next release;
 * all others stay as they are. New ones may come anywhere.
 *
 * Root and the daemon's own user see everything. Others see nothing that is marked "all:", and of
 * sessions, tenants, caches and sequences their own tenant's; so also its other sessions, with
 * their names and pids. A tenant is a user in a cgroup, in whose name '?' stands before two
 * hexadecimal digits, a byte that would not be text, or '?' itself. Of each list at most 128 entries are told,
 * of sessions and tenants the caller's own first.
 *
 *   version, backend, device  strings; device: of which name
 *   mps               "on", "off" or "unknown": whether the daemon runs under MPS; GPUs only
 *   gpu_unused        a string, if the CPU computes though there seems to be a GPU: why
 *   pid, threads
 *   generation        fa_info.generation
 *   uptime_ns         since the daemon's start
 *   draining          true: it finishes what is in flight and exits
 *   connections       of everybody, now
 *   sessions_total, tenants_total  that the caller may see, also those that are not told
 *   all: connections_total, connections_refused  since the start
 *   all: buffers, buffers_max   of everybody, and how many there may be
 *   all: rings        sessions whose requests come through memory (fa_options.flags)
 *   all: ring_requests  messages that came so, since the start
 *   requests          an object: of everybody, since the start
 *     submitted, launched, finished  launched: that the device was given; with those that the
 *                     daemon adds to steps
 *     failed, cancelled  of the finished: ended with an error, with -ECANCELED
 *     busy_ns         sum of the times from the start on the device until the end was seen; of
 *                     requests that run beside one another more than passes meanwhile
 *   limits            an object: connections (of everybody), uid_factor (how often what a tenant
 *                     may have all tenants of one user together may have), session_buffers,
 *                     session_streams, session_requests, session_out_bytes, session_steps (of a
 *                     session), pool_bytes, sequences, caches (of a tenant, in the KV cache).
 *                     2^63 - 1: no limit
 *   sessions          a list of objects
 *     session         its number, fa_info.session
 *     name            fa_options.name
 *     pid, uid, cgroup  of the process that connected
 *     buffers, buffer_bytes  what it has registered
 *     gpu_buffers     of these, memory of the GPU that the client can use itself
 *     timeline        true: it has set one up
 *     streams, requests, steps  it has; in flight; that are neither committed nor aborted
 *     finished, failed, cancelled  its requests, as above, without what the daemon added
 *     busy_ns         as above, with what the daemon added
 *     took_ns         sum of the times from when a request came until the device had done it, of
 *                     those that the device had at all; it may have waited for others or for gates
 *     took            the same requests by how long it took: entry i of the list counts those of
 *                     up to 2^(10 + i) ns that are in no entry before it; entry 24 has no bound.
 *                     What is behind the last entry is 0
 *     shared_prefixes how often attention was planned to read at once, on a GPU, what several
 *                     sequences of a step begin with, each layer counted
 *     ring_bytes, ring_requests  if it has a ring: its size, messages that came through it
 *     messages, errors  that came, with those of the ring; that were answered with an error
 *   tenants           a list of objects; to root and the daemon's user also of some that have
 *                     gone, whose numbers go on when they come back
 *     uid, cgroup     who it is; cgroup "" if unknown
 *     sessions, buffers, buffer_bytes, device_bytes, pieces, fds, requests, step_bytes, gates,
 *     timelines       it has now. device_bytes: memory of the device; pieces: allocations of
 *                     buffers that are made of several; fds: descriptors of the daemon; requests:
 *                     in flight; step_bytes: memory of steps in flight; gates: of requests in
 *                     flight
 *     limits          an object of the same keys: what it may have
 *     finished, failed, cancelled, busy_ns, took_ns, took  of all its sessions, also ended ones
 *   pool              an object, of a daemon that has a KV cache
 *     chunk_bytes, chunks_max  of which it is made, and how many there may be
 *     used_bytes, idle_bytes   pages of sequences and steps; pages that are only published
 *     caches, sequences  how many (to others than root and the daemon's user these four are those
 *                     of their tenant)
 *     all: chunks, chunks_free  that have memory; that belong to no cache
 *     all: used_pages, idle_pages, free_pages  of all caches
 *     all: steps, evicted_pages  in flight; published pages given up for others since the start
 *     all: tenants_total  how many have something of it or a session
 *     tenants         a list of objects: uid, cgroup, used_bytes, idle_bytes, caches, sequences
 *   caches            a list of objects, if there is a pool
 *     cache, name, uid, session  its number; name "": it has none; session 0: it is nobody's
 *     mode            fa_cache_options.mode
 *     layers, kv_heads, head_dim, head_dim_v, page_tokens, page_bytes
 *     dtype           "fp32", "fp16" or "bf16"
 *     store           "plain", "e4m3" or "int8"
 *     used_pages, idle_pages, free_pages, max_pages  as of the pool; max_pages 0: no limit
 *     sequences       how many
 *   sequences         a list of objects, if there is a pool
 *     sequence, name, cache, uid, session, mode  as of caches
 *     length, first   tokens; the first of them that was not dropped
 *     steps           in flight
 *   may change: sessions: state, out_messages, out_bytes, ring_doorbells, ring_asleep; sequences:
 *   planned; pool: generation, chunks_unkept, quarantined_pages, sessions_awaited;
 *   rings_polled, ring_doorbells
 */
int fa_status(struct fa_client *client, char **ret_json);

/* Frees memory that a function says is freed so, for languages that do not have C's free(). Takes
 * NULL, returns NULL. Any thread, with or without clients. */
void *fa_free(void *memory);

/* Asks the daemon to finish what is in flight and exit. -EPERM unless root or the
 * daemon's own user. */
int fa_daemon_drain(struct fa_client *client);

#include "faclient_kv.h"
#include "faclient_timeline.h"

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
