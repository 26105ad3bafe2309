/*
 * The protocol as plain C structs. wire.cc turns them into FlatBuffers and back
 * and is the only file that sees generated code; nothing here allocates, logs
 * or keeps state.
 *
 * Strings and vectors of a decoded message point into the bytes it was decoded
 * from and live as long as those.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Protocol versions that this code speaks. */
#define FA_WIRE_VERSION_MIN 1
#define FA_WIRE_VERSION_MAX 1

/* Limits of one message. */
#define FA_WIRE_BYTES_MAX 65536
#define FA_WIRE_FDS_MAX 8
#define FA_WIRE_NAME_BYTES_MAX 64   /* Hello.name, without the terminating zero */
#define FA_WIRE_TEXT_BYTES_MAX 1024 /* error sentences */
#define FA_WIRE_SEQUENCES_MAX 4096  /* cu_seqlens have at most this many + 1 entries */
#define FA_WIRE_HEADS_MAX 1024      /* entries of alibi_slopes and sinks */
#define FA_WIRE_RANK_MAX 4
#define FA_WIRE_HANDLE_BYTES 64
#define FA_WIRE_PIECES_MAX 4096      /* allocations of one buffer */
#define FA_WIRE_FIXED_BYTES_MAX 2048 /* see fa_wire_encode() */

/* The numbers are the protocol's: they equal the union tags of fad.fbs. */
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
	/* requests that were added later */
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
	_FA_WIRE_TYPE_N,
};

/* Data types of tensors. */
enum fa_wire_dtype {
	FA_WIRE_DTYPE_F32 = 1,
	FA_WIRE_DTYPE_F16 = 2,
	FA_WIRE_DTYPE_BF16 = 3,
};

/* Kinds of buffers. */
enum fa_wire_buffer_kind {
	FA_WIRE_BUFFER_HOST_FD = 1,  /* the client's memfd travels with the message */
	FA_WIRE_BUFFER_ARENA = 2,    /* the daemon makes the memory, its fd comes with the reply */
	FA_WIRE_BUFFER_CUDA_IPC = 3, /* the client's device memory, by a handle */
	FA_WIRE_BUFFER_CUDA_FD = 4,  /* the same, by descriptors of the driver's */
};

#define FA_WIRE_BUFFER_READ_ONLY (1u << 0) /* BufferRegister.flags: never written by the daemon */

#define FA_WIRE_ATTENTION_CAUSAL (1u << 0) /* Attention.flags: mask aligned to the bottom right */

struct fa_wire_secret {
	uint64_t lo, hi;
};

/*
 * offset in bytes from the start of the buffer; shape in elements and strides
 * in elements, outermost first, rank entries of each are used; the rest is 0.
 */
struct fa_wire_view {
	uint64_t offset;
	int64_t shape[FA_WIRE_RANK_MAX];
	int64_t strides[FA_WIRE_RANK_MAX];
	uint32_t buffer;
	uint8_t dtype;
	uint8_t rank;
	uint16_t reserved;
};

/* A string that is length bytes long, followed by a zero byte; NULL if absent. */
struct fa_wire_string {
	const char *text;
	size_t length;
};

/* First message of a connection. The daemon picks the highest common version. */
struct fa_wire_hello {
	uint16_t version_min, version_max;
	uint64_t features;
	struct fa_wire_string name; /* for people: shown by factl */
	/* The session that this client had, if the daemon died under it. */
	bool has_resume;                     /* the two fields below are given */
	struct fa_wire_secret resume_secret; /* from the HelloReply of the lost session */
	uint64_t resume_generation;
};

/*
 * buffer: an id of the client's choosing, not 0, not in use in this session.
 * kind HOST_FD: one fd, [offset, offset + bytes) of it is mapped; offset is a
 * multiple of the page size. kind ARENA: no fd, offset 0. kind CUDA_IPC: no fd,
 * [offset, offset + bytes) of the allocation that handle stands for. kind CUDA_FD:
 * [offset, offset + bytes) of n_pieces allocations side by side, in order, with an
 * fd each; piece_bytes says how long those are whose fds travel with this message,
 * which may be none. The others follow in BufferPieces. Other messages may come in
 * between, but no second registration that has to wait for pieces.
 * Answered by BufferReply (with one fd for ARENA) once the memory is there, or by
 * Reply with an error.
 */
struct fa_wire_buffer_register {
	uint32_t buffer;
	uint8_t kind;
	uint32_t flags;
	uint64_t offset;
	uint64_t bytes;
	uint8_t handle[FA_WIRE_HANDLE_BYTES]; /* CUDA_IPC; all zero: absent */
	uint32_t pid;      /* CUDA_IPC: the client's getpid(), 0: not said; explains failures */
	uint32_t n_pieces; /* CUDA_FD: 1 to FA_WIRE_PIECES_MAX; else 0 */
	uint64_t piece_bytes[FA_WIRE_FDS_MAX];
	size_t n_piece_bytes;
};

/*
 * More pieces of the registration of buffer that waits for them, at least one.
 * Answered by Reply: 0; -ENOENT if none of that buffer waits (any more); or another
 * error, with which the registration ends as well.
 */
struct fa_wire_buffer_pieces {
	uint32_t buffer;
	uint64_t piece_bytes[FA_WIRE_FDS_MAX]; /* of each fd that travels with this message */
	size_t n_piece_bytes;
};

/* The id is free at once; memory goes when work in flight on it has ended. A
 * registration that waits for pieces is given up: it ends with -ECANCELED. */
struct fa_wire_buffer_free {
	uint32_t buffer;
};

/* stream: an id of the client's choosing, 1…63, not in use; stream 0 is always
 * there. priority: 0 normal, > 0 high (decode). */
struct fa_wire_stream_create {
	uint32_t stream;
	int8_t priority;
};

/* Refused with -EBUSY while requests of the stream are in flight. A stream
 * created under the same id later goes on counting where this one stopped. */
struct fa_wire_stream_free {
	uint32_t stream;
};

/*
 * q, k, v, out: rank 4 [batch, tokens, heads, dim], or rank 3
 * [tokens, heads, dim] with cu_seqlens of batch + 1 entries each. lse (present
 * if its rank is not 0): fp32, [batch, heads, tokens] or [heads, tokens].
 * value: 1 for the first request of the stream, then one more each time, also
 * when the one before was refused. Answered by Completion, errors as well.
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
	const float *alibi_slopes, *sinks; /* one a query head, fp32 */
	size_t n_alibi_slopes, n_sinks;
};

/* Reply 0: it was in flight, and its Completion says -ECANCELED unless it was
 * faster. -ENOENT: it is finished, or never was. */
struct fa_wire_cancel {
	uint32_t stream;
	uint64_t value;
};

struct fa_wire_reply {
	int32_t status;             /* 0 or a negative errno */
	struct fa_wire_string text; /* the sentence, if status < 0 */
};

struct fa_wire_limits {
	uint64_t message_bytes;
	uint64_t buffers;      /* buffers of one session */
	uint64_t buffer_bytes; /* bytes of all buffers of the tenant */
	uint64_t streams;      /* streams of one session */
	uint64_t requests;     /* requests in flight of one session */
};

/* Carries one fd: the completion page (common/completion.h). */
struct fa_wire_hello_reply {
	uint16_t version;
	uint64_t features;
	struct fa_wire_string daemon_version;
	uint64_t generation; /* grows with every start of the daemon */
	struct fa_wire_string backend;
	struct fa_wire_string device_name;
	struct fa_wire_secret device_uuid;
	uint64_t session; /* for people and logs; no proof of anything */
	struct fa_wire_secret secret;
	/* This is the session that Hello named: its caches, sequences and their durable tokens
	 * are all there. Buffers and streams have to be made anew, steps in flight are gone. */
	bool resumed;
	struct fa_wire_limits limits;
};

struct fa_wire_buffer_reply {
	uint32_t buffer;
	uint64_t bytes;
	/* ARENA: the fd is one allocation of that many bytes of the driver's; 0: a memfd. */
	uint64_t piece_bytes;
};

/* Times are nanoseconds of the daemon's CLOCK_MONOTONIC; 0: never came so far. */
struct fa_wire_completion {
	uint32_t stream;
	int32_t status;
	uint64_t value;
	uint64_t queued_ns, started_ns, finished_ns;
	struct fa_wire_string text;
};

/* Carries one fd: a sealed memfd with that many bytes of JSON. */
struct fa_wire_status_reply {
	uint64_t bytes;
};

#include "schema/wire_kv.h"
#include "schema/wire_ring.h"
#include "schema/wire_timeline.h"

/*
 * id: chosen by the client, repeated in the answer. timeout_ns: 0 none, else the
 * request ends with -ETIMEDOUT if it is not finished that long after it came.
 * fds: how many descriptors travel with the packet; the receiver checks. waits,
 * signals: of requests of streams alone (wire_timeline.h).
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
		struct fa_wire_sequence_copy sequence_copy;
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
 * Encodes @message into @buffer (8-byte aligned, @size bytes). FlatBuffers grow
 * downwards: the message ends where the buffer ends and starts at @ret_bytes,
 * which is 8-byte aligned. Returns 0, -EMSGSIZE if it does not fit or would be
 * longer than FA_WIRE_BYTES_MAX, -EINVAL if the type is none of ours or the
 * buffer is misaligned. Part of the buffer is the encoder's working space: one
 * of FA_WIRE_FIXED_BYTES_MAX, plus the bytes of each string and vector and 24,
 * is always enough; one that the message would just fill may not be.
 * Lengths of strings and vectors are not checked against the limits above.
 * Absent is what says nothing: a string without text, a vector without entries,
 * a view or handle that is all zero. -EINVAL as well: more piece_bytes than fit.
 */
int fa_wire_encode(const struct fa_wire_message *message, void *buffer, size_t size,
                   const void **ret_bytes, size_t *ret_length);

/*
 * Verifies @bytes (8-byte aligned, private to the caller: nobody else may write
 * them meanwhile) and reads them. Bounded in size, depth and number of tables;
 * vector and string lengths are checked against the limits above. What is absent is zero (windows:
 * -1), an empty vector is NULL. Returns 0 or
 *   -EBADMSG  not a valid message; @ret_message is not touched
 *   -ENOSYS   valid, but of a type this code does not know: id, timeout_ns and
 *             fds are set, type is the unknown number
 *   -EMSGSIZE valid, but a string or vector is longer than allowed: id,
 *             timeout_ns, fds and type are set
 */
int fa_wire_decode(const void *bytes, size_t length, struct fa_wire_message *ret_message);

/* "Attention" for FA_WIRE_ATTENTION; "unknown" for numbers that are none. */
const char *fa_wire_type_name(enum fa_wire_type type);

#ifdef __cplusplus
}
#endif
