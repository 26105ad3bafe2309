/*
 * The protocol as C structs, which wire.cc converts to FlatBuffers and back. Any thread; nothing
 * here allocates, logs or keeps state. Strings and vectors of a decoded message point into its
 * bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Supported protocol versions. */
#define FA_WIRE_VERSION_MIN 1
#define FA_WIRE_VERSION_MAX 1

/* Limits of one message. */
#define FA_WIRE_BYTES_MAX 65536
#define FA_WIRE_FDS_MAX 8
#define FA_WIRE_NAME_BYTES_MAX 64   /* without the terminating zero */
#define FA_WIRE_TEXT_BYTES_MAX 1024 /* error texts */
#define FA_WIRE_SEQUENCES_MAX 4096  /* cu_seqlens have one more */
#define FA_WIRE_HEADS_MAX 1024      /* of alibi_slopes and sinks */
#define FA_WIRE_RANK_MAX 4
#define FA_WIRE_HANDLE_BYTES 64
#define FA_WIRE_PIECES_MAX 4096      /* allocations of one buffer */
#define FA_WIRE_FIXED_BYTES_MAX 3200 /* see fa_wire_encode() */

/* The union tags of fad.fbs. */
enum fa_wire_type {
	FA_WIRE_NONE,
	/* requests */
	FA_WIRE_HELLO,
	FA_WIRE_PING,
	FA_WIRE_BUFFER_REGISTER,
	FA_WIRE_BUFFER_FREE,
	FA_WIRE_STREAM_CREATE,
	FA_WIRE_STREAM_FREE,
	FA_WIRE_ATTENTION,
	FA_WIRE_CANCEL,
	FA_WIRE_STATUS,
	FA_WIRE_DRAIN,
	/* replies */
	FA_WIRE_REPLY,
	FA_WIRE_HELLO_REPLY,
	FA_WIRE_BUFFER_REPLY,
	FA_WIRE_COMPLETION,
	FA_WIRE_STATUS_REPLY,
	/* added later */
	FA_WIRE_BUFFER_PIECES,
	/* the KV cache */
	FA_WIRE_CACHE_CREATE,
	FA_WIRE_CACHE_FIND,
	FA_WIRE_CACHE_REMOVE,
	FA_WIRE_CACHE_REPLY,
	FA_WIRE_SEQUENCE_CREATE,
	FA_WIRE_SEQUENCE_FIND,
	FA_WIRE_SEQUENCE_FORK,
	FA_WIRE_SEQUENCE_SET_NAME,
	FA_WIRE_SEQUENCE_TRUNCATE,
	FA_WIRE_SEQUENCE_DROP,
	FA_WIRE_SEQUENCE_FREE,
	FA_WIRE_SEQUENCE_INFO,
	FA_WIRE_SEQUENCE_REPLY,
	FA_WIRE_SEQUENCE_PUBLISH,
	FA_WIRE_SEQUENCE_ATTACH,
	FA_WIRE_SEQUENCE_COPY,
	FA_WIRE_STEP_BEGIN,
	FA_WIRE_STEP_REPLY,
	FA_WIRE_STEP_ATTEND,
	FA_WIRE_STEP_END,
	/* the request path */
	FA_WIRE_RING_SETUP,
	FA_WIRE_RING_REPLY,
	FA_WIRE_MARKER,
	FA_WIRE_TIMELINE_SETUP,
	FA_WIRE_TIMELINE_REPLY,
	FA_WIRE_STEP_ATTEND_LAYERS,
	FA_WIRE_PREFIX_FIND,
	FA_WIRE_PREFIX_REPLY,
	FA_WIRE_SEQUENCE_PAGES,
	FA_WIRE_PAGES_ATTEND,
	FA_WIRE_SEQUENCE_STATE,
	_FA_WIRE_TYPE_N,
};

enum fa_wire_dtype {
	FA_WIRE_DTYPE_F32 = 1,
	FA_WIRE_DTYPE_F16 = 2,
	FA_WIRE_DTYPE_BF16 = 3,
	/* Only where a message says so. */
	FA_WIRE_DTYPE_E4M3 = 4,
	FA_WIRE_DTYPE_I32 = 5,
	FA_WIRE_DTYPE_I64 = 6,
};

enum fa_wire_buffer_kind {
	FA_WIRE_BUFFER_HOST_FD = 1,  /* a memfd of the client's, sent along */
	FA_WIRE_BUFFER_ARENA = 2,    /* the daemon's memory; the reply has its fd */
	FA_WIRE_BUFFER_CUDA_IPC = 3, /* the client's device memory, by IPC handle */
	FA_WIRE_BUFFER_CUDA_FD = 4,  /* the same, by the driver's fds */
};

#define FA_WIRE_BUFFER_READ_ONLY (1u << 0) /* BufferRegister.flags: the daemon never writes */

#define FA_WIRE_ATTENTION_CAUSAL (1u << 0) /* Attention.flags: aligned to the bottom right */

struct fa_wire_secret {
	uint64_t lo, hi;
};

/* A tensor. offset: bytes from the start of the buffer. shape and strides: elements, outermost
 * first; entries from rank on are 0. */
struct fa_wire_view {
	uint64_t offset;
	int64_t shape[FA_WIRE_RANK_MAX];
	int64_t strides[FA_WIRE_RANK_MAX];
	uint32_t buffer;
	uint8_t dtype;
	uint8_t rank;
	uint16_t reserved;
};

/* A terminating zero follows; text NULL: absent. */
struct fa_wire_string {
	const char *text;
	size_t length;
};

/* First message of a connection. The daemon picks the highest common version. */
struct fa_wire_hello {
	uint16_t version_min, version_max;
	uint64_t features;
	struct fa_wire_string name; /* shown by factl */
	/* To resume a session lost when the daemon died. */
	bool has_resume;                     /* the next two are given */
	struct fa_wire_secret resume_secret; /* from its HelloReply */
	uint64_t resume_generation;
};

/*
 * buffer: chosen by the client; not 0, not in use in this session. Which memory becomes the
 * buffer depends on kind:
 *   HOST_FD   [offset, offset + bytes) of one fd; offset is a multiple of the page size
 *   ARENA     new memory; no fd, offset 0
 *   CUDA_IPC  [offset, offset + bytes) of the allocation that handle names; no fd
 *   CUDA_FD   [offset, offset + bytes) of n_pieces adjacent allocations with an fd each.
 *             piece_bytes: the lengths of those whose fds this message carries, perhaps none;
 *             the others follow in BufferPieces. Other messages may come in between, except a
 *             second registration that waits for pieces.
 * Answered by BufferReply (ARENA: with one fd) once the memory is mapped, or by Reply with an
 * error.
 */
struct fa_wire_buffer_register {
	uint32_t buffer;
	uint8_t kind;
	uint32_t flags;
	uint64_t offset;
	uint64_t bytes;
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* CUDA_IPC; zeros: absent */
	uint32_t pid;      /* CUDA_IPC: the client's getpid() or 0; only for error texts */
	uint32_t n_pieces; /* CUDA_FD: 1 to FA_WIRE_PIECES_MAX; else 0 */
	uint64_t piece_bytes[FA_WIRE_FDS_MAX];
	size_t n_piece_bytes;
};

/*
 * At least one more piece for the registration of buffer. Answered by Reply: 0; -ENOENT if no
 * registration of buffer waits for pieces; any other error also ends the registration.
 */
struct fa_wire_buffer_pieces {
	uint32_t buffer;
	uint64_t piece_bytes[FA_WIRE_FDS_MAX]; /* of each fd of this message */
	size_t n_piece_bytes;
};

/* The id is free at once, the memory when requests in flight have ended. A registration that waits
 * for pieces ends with -ECANCELED. */
struct fa_wire_buffer_free {
	uint32_t buffer;
};

/* stream: chosen by the client, 1 to 63, not in use; stream 0 always exists. priority: 0 normal,
 * > 0 high (decode). */
struct fa_wire_stream_create {
	uint32_t stream;
	int8_t priority;
};

/* -EBUSY while requests of the stream are in flight. A new stream with the same id continues its
 * values. */
struct fa_wire_stream_free {
	uint32_t stream;
};

/*
 * q, k, v, out: [batch, tokens, heads, dim], or [tokens, heads, dim] with both cu_seqlens, of
 * batch + 1 entries; of one dtype, or q, k and v of e4m3. lse: fp32, [batch, heads, tokens] or
 * [heads, tokens]; absent if its rank is 0. value: 1 for the first request of the stream, then one
 * more each time, even if a request was refused. Answered by Completion, also on errors.
 */
struct fa_wire_attention {
	uint32_t stream;
	uint32_t flags;
	uint64_t value;
	struct fa_wire_view q, k, v, out, lse;
	float scale;                       /* 0: 1/sqrt(dim of q) */
	float softcap;                     /* 0: none */
	int64_t window_left, window_right; /* -1: unbounded */
	const uint32_t *cu_seqlens_q, *cu_seqlens_k;
	size_t n_cu_seqlens_q, n_cu_seqlens_k;
	const float *alibi_slopes, *sinks; /* per query head */
	size_t n_alibi_slopes, n_sinks;
	uint64_t chunk_tokens;          /* 0: none */
	const uint32_t *prefix_lengths; /* per sequence, only with causal */
	size_t n_prefix_lengths;
	/* As struct fa_attention_blocks and fa_attention_bits; n_q is that of the longest sequence.
	 *   block_offsets  int32 [batch or 1, heads or 1, ceil(n_q / block_rows) + 1]
	 *   block_columns  int32 [batch or 1, heads or 1, columns]; both rank 0 if block_rows is 0
	 *   mask           int32 [batch or 1, heads or 1, n_q, words], or rank 0 */
	uint32_t block_rows, block_keys;
	struct fa_wire_view block_offsets, block_columns, mask;
	uint32_t pattern_block_tokens; /* 0: no pattern; these five: struct fa_attention_pattern */
	uint32_t pattern_local_blocks, pattern_vert_stride;
	int32_t pattern_head_step;
	uint32_t pattern_first_head;
	/* Only where q, k and v are of e4m3, rank 0: 1. fp32 [batch or 1, tokens or 1, heads or 1], as
	 * struct fa_attention_scales; with cu_seqlens the tokens are the batch's, and not both of
	 * batch and tokens may be above 1. */
	struct fa_wire_view q_scales, k_scales, v_scales;
};

/* HelloReply.features: Attention's q, k and v may be of e4m3, with scales. */
#define FA_WIRE_FEATURE_E4M3 (1ull << 7)

/* HelloReply.features: Attention has blocks and mask, and Attention, StepAttend and PagesAttend have
 * patterns. */
#define FA_WIRE_FEATURE_BLOCKS (1ull << 6)

/* HelloReply.features: Attention, StepAttend and PagesAttend have chunk_tokens and
 * prefix_lengths. */
#define FA_WIRE_FEATURE_MASKS (1ull << 5)

/* HelloReply.features: PagesAttend. */
#define FA_WIRE_FEATURE_PAGES_ATTEND (1ull << 3)

#define FA_WIRE_PAGES_CAUSAL (1u << 0)
#define FA_WIRE_PAGES_DETERMINISTIC (1u << 1)

/*
 * Attention over pages in the client's buffers (struct fa_paged_own in kernels/paged.h, which says
 * how the numbers in table, lengths, cu_q and slots are bounded). Answered by Completion.
 *   q, out    [rows, heads, dim]; lse: fp32 [heads, rows], or rank 0
 *   k, v      [pages, page_tokens, kv_heads, dim] of q's dtype, or both of e4m3
 *   table     int32 [batch, columns]; lengths: int32 [batch]
 *   cu_q      int32 [batch + 1], or rank 0: each sequence has rows / batch rows
 *   max_q     rows of a sequence; max_k: tokens of a sequence, 0: as many as the table has room for
 *   k_new, v_new  [tokens, kv_heads, dim] of q's dtype, appended before attention, or rank 0
 *   slots     int64 [tokens], if there is k_new or v_new
 *   k_scales, v_scales  fp32 [kv_heads], only with e4m3; rank 0: 1
 *   prefix_lengths  int32 [batch], only with causal; or rank 0
 */
struct fa_wire_pages_attend {
	uint32_t stream;
	uint32_t flags; /* FA_WIRE_PAGES_* */
	uint64_t value;
	struct fa_wire_view q, k, v, out, lse, table, lengths, cu_q;
	uint32_t max_q, max_k;
	struct fa_wire_view k_new, v_new, slots, k_scales, v_scales;
	float scale, softcap;
	int64_t window_left, window_right;
	const float *alibi_slopes, *sinks;
	size_t n_alibi_slopes, n_sinks;
	uint64_t chunk_tokens;
	struct fa_wire_view prefix_lengths;
	uint32_t pattern_block_tokens; /* 0: no pattern; these five: fa_attention_pattern */
	uint32_t pattern_local_blocks, pattern_vert_stride;
	int32_t pattern_head_step;
	uint32_t pattern_first_head;
};

/* Cancels a request. Answered by Reply: 0 if the request was in flight, whose Completion then says
 * -ECANCELED unless it ended before; -ENOENT if it has finished or never existed. */
struct fa_wire_cancel {
	uint32_t stream;
	uint64_t value;
};

struct fa_wire_reply {
	int32_t status;             /* 0 or a negative errno */
	struct fa_wire_string text; /* if status < 0 */
};

struct fa_wire_limits {
	uint64_t message_bytes;
	uint64_t buffers;      /* of a session */
	uint64_t buffer_bytes; /* of the tenant */
	uint64_t streams;      /* of a session */
	uint64_t requests;     /* of a session, in flight */
};

/* One fd: the completion page (common/completion.h). */
struct fa_wire_hello_reply {
	uint16_t version;
	uint64_t features;
	struct fa_wire_string daemon_version;
	uint64_t generation; /* grows with each start of the daemon */
	struct fa_wire_string backend;
	struct fa_wire_string device_name;
	struct fa_wire_secret device_uuid;
	uint64_t session; /* for logs; proves nothing */
	struct fa_wire_secret secret;
	/* Hello's session was resumed, with caches, sequences and durable tokens. Buffers, streams
	 * and steps are gone. */
	bool resumed;
	struct fa_wire_limits limits;
	uint32_t pid; /* of the daemon */
};

struct fa_wire_buffer_reply {
	uint32_t buffer;
	uint64_t bytes;
	/* ARENA: size of the fd's allocation of the CUDA driver; 0: a memfd. */
	uint64_t piece_bytes;
};

/* Times: CLOCK_MONOTONIC of the daemon, ns; 0: the request did not get so far. */
struct fa_wire_completion {
	uint32_t stream;
	int32_t status;
	uint64_t value;
	uint64_t queued_ns, started_ns, finished_ns;
	struct fa_wire_string text;
};

/* One fd: a sealed memfd with `bytes` of JSON. */
struct fa_wire_status_reply {
	uint64_t bytes;
};

#include "schema/wire_kv.h"
#include "schema/wire_ring.h"
#include "schema/wire_timeline.h"

/*
 * id: chosen by the client, repeated in the answer. timeout_ns: a request that has not finished so
 * long after its arrival ends with -ETIMEDOUT; 0: none. fds: descriptors sent with the packet,
 * checked by the receiver. waits, signals: only for requests of streams (wire_timeline.h).
 */
struct fa_wire_message {
	uint64_t id;
	uint64_t timeout_ns;
	uint8_t fds;
	const struct fa_wire_gate *waits, *signals;
	size_t n_waits, n_signals;
	enum fa_wire_type type;
	union {
		struct fa_wire_hello hello;
		struct fa_wire_buffer_register buffer_register;
		struct fa_wire_buffer_free buffer_free;
		struct fa_wire_stream_create stream_create;
		struct fa_wire_stream_free stream_free;
		struct fa_wire_attention attention;
		struct fa_wire_pages_attend pages_attend;
		struct fa_wire_cancel cancel;
		struct fa_wire_reply reply;
		struct fa_wire_hello_reply hello_reply;
		struct fa_wire_buffer_reply buffer_reply;
		struct fa_wire_completion completion;
		struct fa_wire_status_reply status_reply;
		struct fa_wire_buffer_pieces buffer_pieces;
		struct fa_wire_cache_create cache_create;
		struct fa_wire_cache_find cache_find;
		struct fa_wire_cache_remove cache_remove;
		struct fa_wire_cache_reply cache_reply;
		struct fa_wire_sequence_create sequence_create;
		struct fa_wire_sequence_find sequence_find;
		struct fa_wire_sequence_fork sequence_fork;
		struct fa_wire_sequence_set_name sequence_set_name;
		struct fa_wire_sequence_truncate sequence_truncate;
		struct fa_wire_sequence_drop sequence_drop;
		struct fa_wire_sequence_free sequence_free;
		struct fa_wire_sequence_info sequence_info;
		struct fa_wire_sequence_reply sequence_reply;
		struct fa_wire_sequence_publish sequence_publish;
		struct fa_wire_sequence_attach sequence_attach;
		struct fa_wire_prefix_find prefix_find;
		struct fa_wire_prefix_reply prefix_reply;
		struct fa_wire_sequence_copy sequence_copy;
		struct fa_wire_sequence_pages sequence_pages;
		struct fa_wire_sequence_state sequence_state;
		struct fa_wire_step_begin step_begin;
		struct fa_wire_step_reply step_reply;
		struct fa_wire_step_attend step_attend;
		struct fa_wire_step_end step_end;
		struct fa_wire_ring_setup ring_setup;
		struct fa_wire_ring_reply ring_reply;
		struct fa_wire_marker marker;
		struct fa_wire_timeline_reply timeline_reply;
		struct fa_wire_step_attend_layers step_attend_layers;
	};
};

/*
 * Encodes @message into @buffer (8-byte aligned, @size bytes). FlatBuffers grow downwards: the
 * message ends at the end of the buffer and starts at @ret_bytes, 8-byte aligned. The encoder
 * needs more room than the message: FA_WIRE_FIXED_BYTES_MAX and, for each string and vector, its
 * bytes and 24 are always enough.
 *
 * Absent fields: strings without text, vectors without entries, views and handles that are all
 * zero. Lengths of strings and vectors are not compared with the limits above. Returns 0 or
 *   -EMSGSIZE  it does not fit, or would be longer than FA_WIRE_BYTES_MAX
 *   -EINVAL    unknown type, misaligned buffer, or more than FA_WIRE_FDS_MAX piece_bytes
 */
int fa_wire_encode(const struct fa_wire_message *message, void *buffer, size_t size,
                   const void **ret_bytes, size_t *ret_length);

/*
 * Verifies and decodes @bytes, which are 8-byte aligned and must not change meanwhile. Size,
 * depth, the number of tables and the lengths of strings and vectors are limited. Absent fields
 * are zero (windows: -1), empty vectors are NULL. Returns 0 or
 *   -EBADMSG   not a valid message; @ret_message is untouched
 *   -ENOSYS    valid, but of an unknown type: id, timeout_ns, fds and the type's number are set
 *   -EMSGSIZE  valid, but a string or vector is too long: id, timeout_ns, fds and type are set
 */
int fa_wire_decode(const void *bytes, size_t length, struct fa_wire_message *ret_message);

/* Like "Attention"; "unknown" for no type. */
const char *fa_wire_type_name(enum fa_wire_type type);

#ifdef __cplusplus
}
#endif
