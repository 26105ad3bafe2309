/*
 * libfaclient: attention computed by fad, a daemon in another process.
 *
 * A client connects to the daemon, makes or imports buffers, and requests attention over tensors in
 * these buffers. Tensors are not copied through the socket: the daemon reads and writes the memory
 * that the client sees.
 *
 * Errors: functions return 0 or a negative errno; fa_error() then returns a sentence, in the same
 * thread. On error nothing is written through ret_ pointers. Besides the errors named at each
 * function, every function that takes a client may return
 *   -ECONNRESET  the daemon went away, and the request or call with it
 *   -ENOENT, -ECONNREFUSED, -ETIMEDOUT
 *                the daemon went away and could not be reached again in time
 *   -ESHUTDOWN   the daemon is stopping and takes no new work
 *   -EPROTO      the daemon broke the protocol, or found that this library broke it; the connection
 *                is closed
 *   -ECHILD      the client was connected before a fork(); a child process connects anew
 *   -EINVAL      an argument is wrong; the sentence names it
 *   -EMSGSIZE    the data copied into a request (vectors, masks, names) exceeds about 63000 bytes
 *   -ENOMEM, -EMFILE, -ENFILE
 *                no memory or no descriptors left, in this process or in the daemon
 *
 * GPUs: if the daemon computes on an NVIDIA GPU, buffers may also be memory of that GPU
 * (fa_buffer_import_cuda(), FA_BUFFER_DEVICE). Only these, and writes and waits of CUDA streams
 * (fa_timeline_enqueue_write()), load the CUDA driver into this process. The daemon runs CUDA
 * streams of its own, which are not ordered with those of this process. Work that fills a request's
 * tensors must therefore have finished on the GPU before fa_attention() is called
 * (cuStreamSynchronize(), or an event that was waited for), or the request waits for a value that a
 * stream writes after that work (faclient_timeline.h). Once fa_wait() has returned a request's
 * result, its output is complete and may be read by any stream.
 *
 * Threads: a client and all its objects may be used by any number of threads at once; calls block
 * one another only briefly. An object may be freed when no other thread uses it, a client when none
 * of its objects is in use. A buffer, stream or ticket is used only with the client that made it.
 * No function may be called from a signal handler. The library creates no threads and leaves
 * signals alone. A thread that is cancelled (pthread_cancel()) within a call finishes the call
 * first: while a thread is in the library, its cancellation is disabled.
 *
 * Handles (struct fa_client and so on, by pointer) are numbers that are never used again, not
 * addresses. A call with one that was freed, or that never was one, returns -EINVAL, or NULL or 0;
 * freeing it again does nothing. fa_disconnect() ends the handles of the client's objects, too.
 *
 * fork(): a child process must not use its parent's clients; every call returns -ECHILD. The child
 * may read and write the memory of inherited buffers, and may call fa_buffer_free() and
 * fa_disconnect(), which free the child's resources and do not affect the parent's session. The
 * session ends with the process that connected, whatever its children hold.
 *
 * Reconnecting: when the daemon goes away, requests in flight end with -ECONNRESET; whether they
 * wrote their output is unknown. The next call that needs the daemon reconnects and registers all
 * buffers and streams of the client again. It waits up to fa_options.reconnect_ns; of these up to
 * 200 ms if the socket refuses access (-EACCES). Handles and tickets stay valid, and memory keeps
 * its contents. A request that could not be sent before the connection was lost is sent to the new
 * daemon. fa_client_state() and fa_info.generation tell of a loss. faclient_kv.h says what happens
 * to the KV cache, and lists calls that repeat themselves once.
 *
 * Units: lengths in tokens, strides in elements, sizes and offsets in bytes, times in nanoseconds.
 *
 * Structs that cross this interface start with their size, set by the caller to sizeof, so that
 * they can grow. A struct larger than this library knows is accepted if the unknown part is 0 (else
 * -E2BIG); if the library fills it, the unknown part is set to 0. A field of 0 means the default.
 * A field that has no effect must be 0 (-EINVAL): one that needs a flag or another field which is
 * not set. Only what describes a tensor whose buffer is NULL may be anything.
 * Structs inside others and in arrays (fa_tensor, fa_ticket, fa_gate, fa_step_item) have no size
 * and do not grow.
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
/* g++ warns that fa_info() and fa_attention() hide the constructors of the structs of these names.
 * Like stat(), they keep their names: C++ writes `struct fa_info`, and a new name would break every
 * program for a warning. It is off for these declarations alone. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif

#define FA_VERSION_MAJOR 0
#define FA_VERSION_MINOR 1
#define FA_VERSION_PATCH 0

struct fa_client;
struct fa_buffer;
struct fa_gates;

/* Returns the version of the library, "0.1.0"; a static string. */
const char *fa_version(void);

/* Returns the sentence of the calling thread's last error, of whatever client; "" if there was
 * none. Valid until the thread's next call into the library. */
const char *fa_error(void);

/* ---- connecting */

/* fa_options.flags: start a daemon for this program. */
#define FA_CONNECT_SPAWN (1u << 0)   /* if none answers that may be used, and no socket is named */
#define FA_CONNECT_PRIVATE (1u << 1) /* always */
/* Send requests by the socket, even if the daemon offers a ring in shared memory. */
#define FA_CONNECT_NO_RING (1u << 2)

struct fa_options {
	uint32_t size; /* sizeof(struct fa_options) */
	uint32_t flags;
	/* Path of the socket; NULL: FAD_SOCKET, else /run/fad-NAME/fad.sock if FAD_INSTANCE is
	 * NAME, else $XDG_RUNTIME_DIR/fad/fad.sock if a daemon answers there, else
	 * /run/fad/fad.sock. A socket that is named by none of the first three is used only if
	 * its daemon is this user's or root's, or at /run/fad/fad.sock that of the directory's
	 * owner; and XDG_RUNTIME_DIR must be this user's or root's. A relative path stays valid
	 * after chdir() if the absolute path fits into a socket address. */
	const char *socket;
	/* Name shown by factl, at most 64 bytes; NULL: the program's name. */
	const char *name;
	/* Path of the fad to start; NULL: FAD_DAEMON, else the installed one, else the first on
	 * PATH. Needs one of the flags that start a daemon. */
	const char *daemon;
	uint64_t connect_ns; /* time limit of fa_connect() as a whole; 0: 5 s */
	/* Time limit for reconnecting; 0: 5 s; UINT64_MAX: only fa_reconnect() reconnects. */
	uint64_t reconnect_ns;
	/* How long a call that waits for the daemon spins before it sleeps; 0: 20 us if this
	 * process may use more than one processor, else no spinning. With up to four processors it
	 * yields while it spins. While replies keep taking longer, it sleeps at once. */
	uint64_t spin_ns;
	/* How long the daemon may take to reply to what it replies to at once (all but attention)
	 * before the connection is closed; 0: 60 s; UINT64_MAX: no limit. */
	uint64_t reply_ns;
	/* Path of the configuration of a spawned daemon, as for fad --config; NULL: FAD_CONFIG,
	 * else none. Needs one of the flags that start a daemon. */
	const char *config;
};

/*
 * Connects to a daemon; *ret_client is freed by fa_disconnect(). @options may be NULL and is not
 * kept. Set-uid programs ignore the environment variables.
 *
 * A spawned daemon is a process of its own: no child of the caller, without the caller's
 * descriptors. It listens on a socket in a new directory of mode 0700 under $XDG_RUNTIME_DIR or
 * /tmp; fa_socket_path() returns its path, so that other processes of this user can join. It exits
 * when its last client disconnects. If it dies earlier, the client that started it starts it again
 * when it reconnects.
 *
 * Starting a daemon raises no SIGCHLD and leaves no child that wait() sees. But if this process is
 * PID 1 of its container or a subreaper, the kernel makes the daemon its child, like any orphan:
 * its exit raises one SIGCHLD, and it stays a zombie until this process waits for it, or until the
 * next fa_connect() or fa_disconnect(), of NULL as well, which reap it. There is no zombie if the
 * container has an init (docker run --init), or SIGCHLD is ignored.
 *
 * A spawned daemon reads fa_options.config (at its start, and again on SIGHUP), not the system's
 * /etc/fad/fad.conf. Without one it runs with the defaults: the GPU if it can use one, else the
 * CPU; and a KV pool of at most 256 MiB, which "bytes" in [pool] changes. If it exits before it
 * serves, fa_error() has the last line that it wrote to stderr. After that it has no log, unless
 * its configuration says "log = journal" in [daemon]; the reason why it does not start may then be
 * in the journal instead. With "backend = cuda" in [daemon] it exits if it cannot use a GPU, and so
 * says why; otherwise only fa_info.backend tells that it uses none.
 *   -ENOENT, -ECONNREFUSED  no daemon answers there; or none can be started, its configuration does
 *                           not exist, or it exited at once
 *   -EACCES                 the socket's mode denies access
 *   -EPROTONOSUPPORT        no common protocol version
 *   -ETIMEDOUT              the daemon does not answer
 *   -EDQUOT                 too many connections of this user
 *   -ENAMETOOLONG           the path does not fit into a socket address
 */
int fa_connect(const struct fa_options *options, struct fa_client **ret_client);

/* Disconnects and frees the client; work in flight is cancelled. Frees the client's remaining
 * buffers, whose memory must not be accessed afterwards. Never waits. Takes NULL, returns NULL. */
struct fa_client *fa_disconnect(struct fa_client *client);

enum fa_client_state {
	FA_CLIENT_CONNECTED = 0,
	FA_CLIENT_LOST = 1, /* the next call that needs the daemon reconnects */
};
/* Returns the connection's state; notices a daemon that went away since the last call. Never
 * waits. */
enum fa_client_state fa_client_state(struct fa_client *client);

/* Reconnects now, if the connection is lost. Errors are those of fa_connect() and of registering
 * buffers. */
int fa_reconnect(struct fa_client *client);

/* Returns the path of the socket that the client is connected to; valid as long as the client. */
const char *fa_socket_path(struct fa_client *client);

/* How the daemon was found. */
enum fa_daemon_origin {
	FA_DAEMON_NAMED = 1, /* by fa_options.socket, FAD_SOCKET or FAD_INSTANCE */
	FA_DAEMON_USER,      /* at $XDG_RUNTIME_DIR/fad/fad.sock */
	FA_DAEMON_SYSTEM,    /* at /run/fad/fad.sock */
	FA_DAEMON_SPAWNED,   /* started by this client */
};

#define FA_SPAWN_REASON_BYTES 256

struct fa_info {
	uint32_t size;
	uint32_t protocol; /* version of the protocol */
	char daemon_version[32];
	char backend[16]; /* "cpu", "cuda" */
	char device_name[64];
	uint64_t device_uuid[2]; /* of a GPU: the 16 bytes of its UUID, in memory order */
	uint64_t generation;     /* changes when the daemon is restarted */
	uint64_t session;
	uint64_t reconnects;       /* how often this client has reconnected */
	uint64_t max_buffers;      /* of one client */
	uint64_t max_buffer_bytes; /* of all buffers of this user together */
	uint64_t max_streams;
	uint64_t max_requests; /* in flight, of one client; at most 4096 */
	uint64_t resumed;      /* reconnects that lost no cache or sequence */
	uint64_t ring_bytes;   /* size of the request ring; 0: requests go by the socket */
	uint32_t origin;       /* enum fa_daemon_origin; fa_socket_path() has the path */
	uint32_t pid;          /* of the daemon, in its own PID namespace; 0: unknown */
	/* With FA_CONNECT_SPAWN: why no other daemon is used; "" if one is. */
	char spawn_reason[FA_SPAWN_REASON_BYTES];
};

/* Returns what the daemon said at the last connect. Set ret_info->size before the call. No round
 * trip; never waits. */
int fa_info(struct fa_client *client, struct fa_info *ret_info);

/* Makes one empty round trip. */
int fa_ping(struct fa_client *client);

/* ---- memory */

/* The daemon allocates memory of its device, which is mapped here: host memory with the CPU
 * backend, device memory with a GPU (fa_buffer_device_data()). Without the flag this process
 * allocates host memory (a memfd) and shares it: as fast for the CPU backend, but a GPU reads it
 * over the bus. */
#define FA_BUFFER_DEVICE (1u << 0)
/* The daemon cannot write the buffer: for queries, keys and values only. */
#define FA_BUFFER_READ_ONLY (1u << 1)

/*
 * Makes a buffer of zeroed memory that both sides see, writable here. Freed by fa_buffer_free().
 * Each buffer holds a descriptor: put many small tensors into one buffer. With FA_BUFFER_DEVICE and
 * a GPU it is mapped for every context of this process on that GPU.
 *   -EDQUOT          more buffers or bytes than this user may have
 *   -ENODEV, -ENOSYS FA_BUFFER_DEVICE of a GPU: no CUDA driver here, too old a driver, or one that
 *                    does not see that GPU
 */
int fa_buffer_new(struct fa_client *client, uint64_t bytes, uint32_t flags,
                  struct fa_buffer **ret_buffer);

/*
 * Makes a buffer of [offset, offset + bytes) of the caller's memfd, which must be sealed with
 * F_SEAL_SHRINK and have pages of the normal size; @offset is a multiple of the page size. The
 * descriptor is duplicated. A memfd that cannot be written (sealed, or opened for reading) requires
 * FA_BUFFER_READ_ONLY and is mapped here for reading.
 *   -EINVAL, -ENOTSUP  the descriptor is no such memfd
 *   -EDQUOT            as for fa_buffer_new()
 */
int fa_buffer_import_fd(struct fa_client *client, int fd, uint64_t offset, uint64_t bytes,
                        uint32_t flags, struct fa_buffer **ret_buffer);

/*
 * Makes a buffer of [ptr, ptr + bytes), memory of the daemon's GPU that this process has allocated:
 * a device pointer of cuMemAlloc() (or cudaMalloc()), or memory of cuMemCreate() with
 * CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, where the range may span up to 4096 adjacent
 * allocations. Nothing is copied. @flags: 0 or FA_BUFFER_READ_ONLY.
 *
 * The daemon is given whole allocations, each once; further buffers in the same allocation cost no
 * round trip. The last 256 allocations without a buffer stay open in the daemon. The memory of an
 * open allocation returns to the GPU only when both sides have freed it: after cuMemFree(), that is
 * at this client's next import or fa_buffer_free(), or at fa_cuda_trim(). An allocation must not be
 * freed while it has buffers.
 *
 * Uses the context that is current in this thread. If there is none, or the memory belongs to
 * another one, a suitable context is made current during the call.
 *   -EINVAL   no CUDA memory, or the allocation is shorter
 *   -ENOTSUP  memory that cannot be shared (of cuMemAllocAsync(), managed, pinned host memory, of
 *             another GPU), a daemon without a GPU, or a daemon that cannot open it because
 *             its own pid, in another container, is this process's; the sentence names an
 *             alternative
 *   -ENODEV, -ENOSYS  no CUDA driver here, too old a driver, or its context is lost
 *   -EDQUOT   as for fa_buffer_new(); whole allocations count
 * After a reconnect the allocations are shared again. If that fails (the memory was freed, or the
 * new daemon has another GPU or none), fa_attention() with its buffers returns -ESTALE, and they
 * can only be freed.
 */
int fa_buffer_import_cuda(struct fa_client *client, uint64_t ptr, uint64_t bytes, uint32_t flags,
                          struct fa_buffer **ret_buffer);

/* Makes the daemon close the CUDA allocations that no buffer uses. */
int fa_cuda_trim(struct fa_client *client);

/* Returns the address in this process, page-aligned; valid until fa_buffer_free(). NULL if the
 * buffer is GPU memory. */
void *fa_buffer_data(struct fa_buffer *buffer);
/* Returns the device pointer in this process (a CUdeviceptr); 0 if the buffer is not GPU memory. */
uint64_t fa_buffer_device_data(struct fa_buffer *buffer);
/* Returns the buffer's size. */
uint64_t fa_buffer_bytes(struct fa_buffer *buffer);

/* Frees the buffer. It is unmapped here at once; the daemon keeps the memory until requests in
 * flight on it have ended. Takes NULL, returns NULL. */
struct fa_buffer *fa_buffer_free(struct fa_buffer *buffer);

/* ---- tensors */

enum fa_dtype {
	FA_F32 = 1,
	FA_F16 = 2,
	FA_BF16 = 3,
	/* 8-bit float with 4 bits of exponent: in fa_attention() and fa_pages_attend(). */
	FA_E4M3 = 4,
	/* Integers: of masks and in fa_pages_attend(). */
	FA_I32 = 5,
	FA_I64 = 6,
};

/* Returns the bytes of an element; 0: unknown dtype. */
uint32_t fa_dtype_bytes(uint32_t dtype);

/*
 * A view into a buffer, outermost dimension first. The first rank entries of shape and strides are
 * used. All strides 0: dense. Otherwise the innermost stride is 1, and the others are 0 (broadcast,
 * inputs only) or positive.
 */
struct fa_tensor {
	struct fa_buffer *buffer;
	uint64_t offset; /* bytes; a multiple of the element size */
	uint32_t dtype;  /* enum fa_dtype */
	uint32_t rank;
	int64_t shape[4];
	int64_t strides[4]; /* elements */
};

/* Fills *ret_tensor with a dense tensor. @shape has @rank entries, at most 4, and is copied. Checks
 * nothing; fa_attention() does. */
void fa_tensor_init(struct fa_tensor *ret_tensor, struct fa_buffer *buffer, uint64_t offset,
                    uint32_t dtype, uint32_t rank, const int64_t *shape);
/*
 * Fills *ret_tensor with the tensor at an address, of the CPU or of the GPU, that lies in a buffer
 * of this client: finds the buffer, in a time that grows with their number. @shape and @strides
 * have @rank entries and are copied; @strides NULL: dense. The rest is checked by fa_attention().
 * The tensor is valid as long as the buffer.
 *   -EINVAL  the address is in no buffer
 */
int fa_tensor_from_pointer(struct fa_client *client, const void *ptr, uint32_t dtype, uint32_t rank,
                           const int64_t *shape, const int64_t *strides,
                           struct fa_tensor *ret_tensor);

/* Returns the bytes of a dense tensor; 0 if the size overflows, a dimension is negative, or dtype
 * or rank is invalid. */
uint64_t fa_tensor_bytes(uint32_t dtype, uint32_t rank, const int64_t *shape);

/* ---- attention */

#define FA_ATTENTION_CAUSAL (1u << 0) /* row i sees keys up to i + n_k - n_q */
#define FA_ATTENTION_WINDOW (1u << 1) /* window_left and window_right apply */

/*
 * Local and strided blocks by numbers, as vLLM's block-sparse attention has them; block_tokens 0: no
 * pattern. A row at position p of its sequence sees key j only if, with quotients rounded down,
 *   p / block_tokens - j / block_tokens < local_blocks, or
 *   j / block_tokens + (first_head + h) * head_step + 1 is a multiple of vert_stride
 * for query head h. If head_step is negative, KV heads count instead: the product is then
 * (first_head + h) / group * -head_step, where group query heads share a KV head. -EINVAL for
 * numbers out of range.
 */
struct fa_block_pattern {
	uint32_t block_tokens; /* a multiple of 16 */
	uint32_t local_blocks;
	uint32_t vert_stride; /* at least 1 */
	int32_t head_step;
	uint32_t first_head; /* the number of q's first head, where processes share the heads */
	uint32_t reserved;   /* 0 */
};

/*
 * out = softmax(s) v, per sequence and head h, with the softmax in fp32. For row i and key j:
 *   s = scale * q[i] . k[j]
 *   s = softcap * tanh(s / softcap)                     if softcap is not 0
 *   s = s - alibi_slopes[h] * |j - (i + n_k - n_q)|     if alibi_slopes
 *   s = -inf                                            if row i does not see key j
 *   out[i] = sum over j of exp(s) v[j] / (sum over j of exp(s) + exp(sinks[h]) if sinks)
 *
 * Batch form:  q [batch, n_q, heads, dim], k [batch, n_k, kv_heads, dim],
 *   v [batch, n_k, kv_heads, dim_v], out [batch, n_q, heads, dim_v],
 *   lse (optional) fp32 [batch, heads, n_q].
 * Ragged form: the same without the batch dimension; sequence b has tokens
 *   cu_seqlens[b] … cu_seqlens[b + 1] - 1 of its tensor; lse [heads, tokens].
 * heads is a multiple of kv_heads; dim is a multiple of 8 up to 576, dim_v one up to 512. q, k, v
 * and out have the same dtype, or q, k and v are FA_E4M3 (q_scales). lse is the natural logarithm of the softmax's denominator. A row
 * that sees no key has output 0 and lse -inf (with sinks: the sink). A request without rows (batch
 * 0, no queries) succeeds.
 *
 * out and lse must not share memory with each other or with what is read: q, k, v, masks and scales
 * (-EINVAL). So out cannot be q.
 * Tensors whose rows alternate in one block of memory share none. Nor must they share memory with
 * tensors of requests in flight in other streams, which is not checked.
 */
struct fa_attention {
	uint32_t size; /* sizeof(struct fa_attention) */
	uint32_t flags;
	uint32_t stream; /* 0: the stream that always exists */
	uint32_t batch;  /* ragged form: number of sequences, at most 4096; 0: batch form */
	struct fa_tensor q, k, v, out;
	struct fa_tensor lse; /* buffer NULL: not wanted */
	float scale;          /* 0: 1/sqrt(dim) */
	float softcap;        /* s = softcap * tanh(s / softcap); 0: none */
	/* Visible keys before and after the row's own; -1: all. Without FA_ATTENTION_WINDOW 0 or
	 * -1. */
	int64_t window_left, window_right;
	const uint32_t *cu_seqlens_q; /* [batch + 1], from 0, ascending; copied by the call */
	const uint32_t *cu_seqlens_k;
	const float *alibi_slopes; /* [heads, at most 1024] or NULL; finite; copied */
	/* [heads, at most 1024] or NULL; finite, or -infinity for a head without a sink; copied */
	const float *sinks;
	uint64_t timeout_ns; /* after which the request ends with -ETIMEDOUT; 0: no limit */
	const struct fa_gates *gates; /* what the request waits for and signals; NULL: nothing */
	/* Row i at p = i + n_k - n_q sees only keys j of its chunk: those with the same
	 * j / chunk_tokens, rounded down, as p has. 0: no chunks. */
	uint64_t chunk_tokens;
	/* One for each sequence, or NULL; copied. FA_ATTENTION_CAUSAL hides none of a sequence's
	 * first prefix_lengths[b] keys from any row. Only with FA_ATTENTION_CAUSAL. */
	const uint32_t *prefix_lengths;
	/*
	 * A block-sparse mask in compressed rows: row i of a sequence is in row block
	 * i / block_rows, key j in key block j / block_keys, and row block r sees the key blocks
	 * block_columns[block_offsets[r]] to block_columns[block_offsets[r + 1] - 1], which ascend.
	 *   block_offsets  FA_I32 [batch or 1, heads or 1, ceil(n_q / block_rows) + 1]
	 *   block_columns  FA_I32 [batch or 1, heads or 1, n]
	 * A size of 1 is shared by all sequences, or heads; n_q is that of the longest sequence.
	 * Blocks have 64 or 128 rows and keys; 0 and buffers NULL: no such mask. Time is in
	 * proportion to the blocks that are seen.
	 *
	 * The daemon does not check these numbers; the kernel bounds them as it reads them. An offset
	 * counts as the nearest number from 0 to n. Of a list count only as many entries as the
	 * sequence has key blocks, and of these not those that are no key block of the sequence, or
	 * not above all before them.
	 */
	uint32_t block_rows, block_keys;
	struct fa_tensor block_offsets, block_columns;
	/* FA_I32 [batch or 1, heads or 1, n_q, words]: row i sees key j if bit j % 32 of word
	 * j / 32 is set. Keys behind the words are hidden. Buffer NULL: no such mask. */
	struct fa_tensor mask;
	struct fa_block_pattern pattern;
	/*
	 * q, k and v may be FA_E4M3, with out of FA_BF16, FA_F16 or FA_F32: an element is then
	 * code * scale, in fp32. Scales are FA_F32 [batch or 1, tokens or 1, heads or 1], where a size
	 * of 1 is shared; q_scales has q's heads, k_scales and v_scales have the KV heads. In the
	 * ragged form the tokens are those of all sequences, and not both of batch and tokens may be
	 * above 1. The heads have stride 1, as the innermost dimension of every tensor. Buffer NULL:
	 * all are 1. The daemon does not check the numbers: products follow IEEE, so that a NaN or an
	 * infinity reaches the rows that see it. Weights are not rounded. Only the CPU computes this;
	 * other backends refuse it (-ENOTSUP).
	 */
	struct fa_tensor q_scales, k_scales, v_scales;
};

/* Identifies one request of one client. Plain data: may be copied, and needs no freeing. */
struct fa_ticket {
	uint64_t value;
	uint32_t stream;
	uint32_t client;
};

/*
 * Submits a request. With @ret_ticket, returns once the request was sent; with NULL, waits for its
 * end like fa_wait() and returns its result. Errors that can be found without the daemon (-EINVAL)
 * are returned at once, others by fa_wait(). Requests of one stream run in order, so a request may
 * read what the previous one wrote. Until a request ends, its buffers must not be freed and its
 * inputs must not be changed.
 *   -EAGAIN   with @ret_ticket: max_requests are in flight; wait for one of them
 *   -ENOTSUP  no kernel supports the request, or the daemon is older than a field that is used
 *   -EDQUOT   CPU backend, few rows over many keys: the threads' shared scratch memory, charged to
 *             this user's bytes until the request ends, exceeds them
 *   -ESTALE   a buffer is GPU memory that was lost at a reconnect
 */
int fa_attention(struct fa_client *client, const struct fa_attention *attention,
                 struct fa_ticket *ret_ticket);

/* fa_pages_attend.flags */
#define FA_PAGES_CAUSAL (1u << 0)
#define FA_PAGES_WINDOW (1u << 1) /* window_left and window_right apply */
/* A sequence's results do not depend, to the bit, on the other sequences. */
#define FA_PAGES_DETERMINISTIC (1u << 2)

/*
 * Attention over keys and values in pages that the caller manages, in buffers of its own, as engines
 * do. out is as for fa_attention(), for each sequence b with n_k = lengths[b] keys, and as many rows
 * as cu_q says; the last row is aligned with the last key. Key j of sequence b is token
 * j % page_tokens of page table[b][j / page_tokens]; lengths count the keys that this request
 * appends, too.
 *
 * table, lengths, cu_q and slots are tensors: the GPU's own work may fill them, and the daemon does
 * not read them before the request runs. Numbers out of bounds are no error. They are bounded where
 * they are read: a length to [0, max_k], a page to the last one, rows to those of q; a row that
 * several sequences claim is undefined, and one that none claims is not written. So no table makes a
 * kernel touch other memory than that of the tensors, not even one that changes meanwhile.
 */
struct fa_pages_attend {
	uint32_t size; /* sizeof(struct fa_pages_attend) */
	uint32_t flags;
	uint32_t stream;
	/* Rows of the sequence that has most. Without cu_q: 0, or the rows of each. */
	uint32_t max_q;
	/* Keys of the longest sequence, at most 2^24; 0: as many as the table has room for. The
	 * closer it is, the better kernels divide the work. */
	uint32_t max_k;
	uint32_t reserved;       /* 0 */
	struct fa_tensor q, out; /* [rows, heads, dim], [rows, heads, dim_v] */
	struct fa_tensor lse;    /* fp32 [heads, rows]; buffer NULL: not wanted */
	/*
	 * k [pages, page_tokens, kv_heads, dim] and v [.., dim_v], with any strides: heads may come
	 * before tokens, and K and V may be parts of one tensor. page_tokens is 1 to 256; multiples
	 * of 16 with rows aligned to 16 bytes are fastest. Of q's dtype, or both FA_E4M3: then an
	 * element is code * scale.
	 */
	struct fa_tensor k, v;
	struct fa_tensor table;   /* FA_I32 [batch, columns]; batch is at most 4096 */
	struct fa_tensor lengths; /* FA_I32 [batch] */
	/* FA_I32 [batch + 1]: sequence b has rows cu_q[b] to cu_q[b + 1] - 1; buffer NULL: all have
	 * the same number of rows. */
	struct fa_tensor cu_q;
	/* Rows that are written to pages before attention, [tokens, kv_heads, dim] of q's dtype:
	 * row i to token slots[i] % page_tokens of page slots[i] / page_tokens. A slot that is
	 * negative or beyond the pages is skipped. Buffer NULL: nothing is written. */
	struct fa_tensor k_new, v_new;
	struct fa_tensor slots; /* FA_I64 [tokens] */
	/* fp32 [kv_heads], only with FA_E4M3; buffer NULL: 1 */
	struct fa_tensor k_scales, v_scales;
	float scale;                       /* 0: 1/sqrt(dim) */
	float softcap;                     /* 0: none */
	int64_t window_left, window_right; /* as for fa_attention() */
	const float *alibi_slopes;         /* [heads] or NULL; finite; copied */
	const float *sinks;                /* [heads] or NULL, as for fa_attention(); copied */
	uint64_t timeout_ns;
	const struct fa_gates *gates;
	uint64_t chunk_tokens; /* as for fa_attention() */
	/* FA_I32 [batch]: as for fa_attention(), only with FA_PAGES_CAUSAL; negative: 0. Buffer
	 * NULL: all are 0. */
	struct fa_tensor prefix_lengths;
	struct fa_block_pattern pattern;
};

/*
 * Submits attention over the caller's own pages, like fa_attention(). out and lse, and k and v if
 * they are written, must not share memory with other tensors of the request (-EINVAL), except that V
 * may be the front of K if v_new is absent.
 *   -ENOTSUP  no kernel supports the request, or the daemon is older than this call
 * Other errors are those of fa_attention().
 */
int fa_pages_attend(struct fa_client *client, const struct fa_pages_attend *attend,
                    struct fa_ticket *ret_ticket);

struct fa_completion {
	uint32_t size;
	int32_t status;     /* what fa_wait() returned */
	uint64_t queued_ns; /* these are CLOCK_MONOTONIC; 0: that point was never reached */
	uint64_t started_ns;
	uint64_t finished_ns;
};

/*
 * Waits for a request to end, at most @timeout_ns (UINT64_MAX: no limit, 0: does not wait), and
 * returns its result; its output may be read then. Any thread may call it, any number of times.
 * Never reconnects.
 *
 * @ret_completion may be NULL; set its size before the call. It is filled if the request has ended,
 * with an error or without. If requests go by the socket, asking for it costs the trip that a
 * spinning wait saves. If the device has signalled the end, its times follow with the daemon's
 * record microseconds later; the call then waits for that record even with timeout 0, at most
 * 100 ms.
 *   -EAGAIN      not finished in time; the request goes on
 *   -ECANCELED, -ETIMEDOUT (the request's own), -ECONNRESET, -EINVAL, -ENOTSUP: its result
 *   -ESTALE      the result is no longer stored: 4096 later requests of its stream have ended
 */
int fa_wait(struct fa_client *client, const struct fa_ticket *ticket, uint64_t timeout_ns,
            struct fa_completion *ret_completion);

/*
 * Submits a request that computes nothing. It ends when all earlier requests of its stream have
 * ended and the values that @gates (may be NULL) wait for have been reached. Tickets, waiting and
 * errors are as for fa_attention().
 */
int fa_marker(struct fa_client *client, uint32_t stream, const struct fa_gates *gates,
              struct fa_ticket *ret_ticket);

/* Asks the daemon to end a request early. 0: the daemon was asked, and the request ends with
 * -ECANCELED unless it ends first. -ENOENT: the request had already ended. */
int fa_cancel(struct fa_client *client, const struct fa_ticket *ticket);

/*
 * Lets event loops wait. fa_fd() returns a descriptor, or a negative errno. The descriptor is
 * readable if requests have ended or the connection was lost since the last fa_dispatch(),
 * whichever thread noticed. Then call fa_dispatch(), which never waits, and fa_wait() with timeout
 * 0. The descriptor belongs to the client and stays the same across reconnects. fa_dispatch()
 * returns 0, or -ECONNRESET (-EPROTO) while the connection is lost.
 */
int fa_fd(struct fa_client *client);
int fa_dispatch(struct fa_client *client);

/*
 * Makes and frees streams. Requests of one stream run in order, those of different streams
 * concurrently. Stream 0 always exists. A stream of @priority > 0 goes before other streams of this
 * client (decode); on a GPU its kernels go before those of all clients. Streams are freed with the
 * client. Numbers of freed ones do not come back.
 *   -EDQUOT        max_streams exist
 *   -EBUSY (free)  requests are in flight
 *   -ENOENT (free) no such stream
 */
int fa_stream_new(struct fa_client *client, int priority, uint32_t *ret_stream);
int fa_stream_free(struct fa_client *client, uint32_t stream);

/* ---- administration */

/*
 * Stores the daemon's state as zero-terminated JSON, freed by the caller with fa_free() or free().
 * -ENOMEM.
 *
 * All numbers are integers: _bytes in bytes, _ns in nanoseconds, all others counts. Keys under "may
 * change", and unlisted ones, may go or change their meaning in the next release; all others are
 * stable. New keys may appear anywhere.
 *
 * Root, the daemon's own user and its observer (fad.conf) see everything. Other users do not see
 * what is marked "all:", and see only the sessions, tenants, caches and sequences of their own
 * tenant, with the names and pids of all its sessions. A tenant is a user in a cgroup. In a
 * cgroup's name, '?' and two hexadecimal digits stand for a byte that is not text, or for '?'
 * itself. A list has at most 128 entries; of sessions and tenants the caller's own come first.
 *
 *   version, backend, device  strings; device: its name
 *   mps               "on", "off" or "unknown": whether the daemon runs under MPS; GPUs only
 *   gpu_modules       modules of GPU kernels in the daemon's build
 *   gpu_unused        a string, if the CPU computes though there seems to be a GPU: the reason
 *   pid, uid, threads  of the daemon
 *   generation        fa_info.generation
 *   uptime_ns         since the daemon started
 *   draining          true: it finishes requests in flight and exits
 *   connections       of all users, now
 *   sessions_total, tenants_total  visible to the caller, including those beyond the lists
 *   all: connections_total, connections_refused  since the start
 *   all: charges_refused  how often a limit of fad.conf refused something, since the start
 *   all: buffers, buffers_max   of all users, and their limit
 *   all: rings        sessions with a request ring (fa_options.flags)
 *   all: ring_requests  messages that came by rings, since the start
 *   requests          an object: of all users, since the start
 *     submitted, launched, finished  launched: given to the device, including requests that the
 *                     daemon adds to steps
 *     failed, cancelled  of the finished: ended with an error, with -ECANCELED
 *     busy_ns         sum of the times from the start on the device until the end was seen; with
 *                     concurrent requests it exceeds the elapsed time
 *     took, took_ns, waited, waited_ns, ran, ran_ns, prefix_lookups, prefix_hits, prefix_tokens,
 *     prefix_matched  as for a tenant, of all clients since the start
 *     all: client_finished, client_failed, client_cancelled, client_busy_ns  the sums of these
 *                     counters over all tenants
 *   limits            an object: connections (of all users), uid_factor (all tenants of a user
 *                     together may have this many times a tenant's limits), session_buffers,
 *                     session_streams, session_requests, session_out_bytes, session_steps (of a
 *                     session), pool_bytes, sequences, caches (of a tenant, in the KV cache).
 *                     2^63 - 1: no limit
 *   sessions          a list of objects
 *     session         its number, fa_info.session
 *     name            fa_options.name
 *     pid, uid, cgroup  of the process that connected
 *     buffers, buffer_bytes  registered
 *     gpu_buffers     of these, GPU memory that the client can use itself
 *     timeline        true: the session has one
 *     streams, requests, steps  open; in flight; neither committed nor aborted
 *     finished, failed, cancelled  its requests, as above, without those that the daemon added
 *     busy_ns         as above, including requests that the daemon added
 *     took_ns         sum of the times from a request's arrival until the device finished it,
 *                     waits for other requests and gates included; only requests that the device
 *                     was given
 *     took            histogram of these times: entry i counts the requests of up to 2^(10 + i) ns
 *                     that no earlier entry counts; entry 24 has no bound. Trailing zeros are left
 *                     out
 *     waited, waited_ns  the same of the times until the device began
 *     shared_prefixes  how often attention on a GPU was planned to read a prefix that sequences of
 *                     a step share once; each layer counts
 *     ring_bytes, ring_requests  if it has a ring: its size, messages that came by it
 *     messages, errors  messages received, including the ring's; errors sent as replies
 *   tenants           a list of objects. Root and the daemon's user also see some tenants without a
 *                     session, whose counters continue when they come back
 *     uid, cgroup     who it is; cgroup "" if unknown
 *     sessions, buffers, buffer_bytes, device_bytes, pieces, fds, requests, step_bytes, gates,
 *     timelines       in use now. device_bytes: memory of the device; pieces: allocations of
 *                     buffers that have several; fds: descriptors of the daemon; requests: in
 *                     flight; step_bytes: memory of steps in flight; gates: of requests in flight
 *     limits          an object of the same keys: the limits
 *     finished, failed, cancelled, busy_ns, took, took_ns, waited, waited_ns  of all its sessions,
 *                     ended ones included
 *     ran, ran_ns     the same of the times on the device
 *     prefix_lookups, prefix_hits  fa_sequence_attach() and fa_prefix_find(); those that matched
 *     prefix_tokens, prefix_matched  tokens that they looked up, and found
 *   pool              an object, if the daemon has a KV cache
 *     chunk_bytes, chunks_max  size of a chunk, and the limit of chunks
 *     used_bytes, idle_bytes   pages in sequences and steps; pages that are only published
 *     caches, sequences  how many (users other than root and the daemon's own see these four of
 *                     their tenant)
 *     all: chunks, chunks_free  with memory; of no cache
 *     all: used_pages, idle_pages, free_pages  of all caches
 *     all: shared_pages  of the used: in several sequences or steps
 *     all: steps, evicted_pages  in flight; published pages evicted since the start
 *     all: tenants_total  tenants with a session or something in the pool
 *     tenants         a list of objects: uid, cgroup, used_bytes, idle_bytes, caches, sequences
 *   caches            a list of objects, if there is a pool
 *     cache, name, uid, session  cache: its number; name "": none; session 0: owned by no session
 *     mode            fa_cache_options.mode
 *     layers, kv_heads, head_dim, head_dim_v, page_tokens, page_bytes
 *     dtype           "fp32", "fp16" or "bf16"
 *     store           "plain", "e4m3" or "int8"
 *     used_pages, idle_pages, free_pages, max_pages  as for the pool; max_pages 0: no limit
 *     sequences       how many
 *   sequences         a list of objects, if there is a pool
 *     sequence, name, cache, uid, session, mode  as for caches
 *     length, first   tokens; the first token that was not dropped
 *     steps           in flight
 *   may change: sessions: state, out_messages, out_bytes, ring_doorbells, ring_asleep; sequences:
 *                     planned; pool: generation, chunks_unkept, quarantined_pages,
 *                     sessions_awaited; rings_polled, ring_doorbells; details (for people)
 */
int fa_status(struct fa_client *client, char **ret_json);

/* Frees memory returned by functions that name fa_free(), for languages without C's free(). Takes
 * NULL, returns NULL. Any thread, with or without clients. */
void *fa_free(void *memory);

/* Asks the daemon to finish requests in flight and exit. -EPERM: the caller is neither root nor the
 * daemon's own user. */
int fa_daemon_drain(struct fa_client *client);

#include "faclient_kv.h"
#include "faclient_timeline.h"

#ifdef __GNUC__
#pragma GCC diagnostic pop
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
