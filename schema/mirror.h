/*
 * Part of wire.cc: proof that the structs of wire.h mirror those of fad.fbs.
 * Generated members are private, so layouts are compared by size, and values
 * are copied one by one.
 */
#pragma once

#include "schema/wire.h"

#include <cstddef>
#include <type_traits>
#include <utility>

static_assert(sizeof(struct fa_wire_view) == sizeof(wire::View), "View");
static_assert(alignof(struct fa_wire_view) == alignof(wire::View), "View");
static_assert(offsetof(struct fa_wire_view, shape) == 8, "View.shape");
static_assert(offsetof(struct fa_wire_view, strides) == 40, "View.strides");
static_assert(offsetof(struct fa_wire_view, buffer) == 72, "View.buffer");
static_assert(offsetof(struct fa_wire_view, dtype) == 76, "View.dtype");
static_assert(offsetof(struct fa_wire_view, rank) == 77, "View.rank");
static_assert(offsetof(struct fa_wire_view, reserved) == 78, "View.reserved");
static_assert(sizeof(struct fa_wire_secret) == sizeof(wire::Secret), "Secret");
static_assert(alignof(struct fa_wire_secret) == alignof(wire::Secret), "Secret");
static_assert(offsetof(struct fa_wire_secret, hi) == 8, "Secret.hi");
static_assert(sizeof(fa_wire_buffer_register::handle) == sizeof(wire::Handle), "Handle");

#define MIRROR_TAG(NAME, Name)                                                                     \
	static_assert(FA_WIRE_##NAME == static_cast<int>(wire::Body::Name), #Name)

MIRROR_TAG(NONE, NONE);
MIRROR_TAG(HELLO, Hello);
MIRROR_TAG(PING, Ping);
MIRROR_TAG(BUFFER_REGISTER, BufferRegister);
MIRROR_TAG(BUFFER_FREE, BufferFree);
MIRROR_TAG(STREAM_CREATE, StreamCreate);
MIRROR_TAG(STREAM_FREE, StreamFree);
MIRROR_TAG(ATTENTION, Attention);
MIRROR_TAG(CANCEL, Cancel);
MIRROR_TAG(STATUS, Status);
MIRROR_TAG(DRAIN, Drain);
MIRROR_TAG(REPLY, Reply);
MIRROR_TAG(HELLO_REPLY, HelloReply);
MIRROR_TAG(BUFFER_REPLY, BufferReply);
MIRROR_TAG(COMPLETION, Completion);
MIRROR_TAG(STATUS_REPLY, StatusReply);
MIRROR_TAG(BUFFER_PIECES, BufferPieces);
static_assert(_FA_WIRE_TYPE_N == static_cast<int>(wire::Body::MAX) + 1, "Body");

#undef MIRROR_TAG

/* Every field has the C type that its accessor returns. */
#define MIRROR_FIELD(Table, accessor, c_struct, member)                                            \
	static_assert(std::is_same<decltype(std::declval<const wire::Table &>().accessor()),       \
	                           decltype(fa_wire_##c_struct::member)>::value,                   \
	              #Table "." #accessor)

MIRROR_FIELD(Secret, lo, secret, lo);
MIRROR_FIELD(Secret, hi, secret, hi);
MIRROR_FIELD(View, offset, view, offset);
MIRROR_FIELD(View, buffer, view, buffer);
MIRROR_FIELD(View, dtype, view, dtype);
MIRROR_FIELD(View, rank, view, rank);
MIRROR_FIELD(View, reserved, view, reserved);
MIRROR_FIELD(Hello, version_min, hello, version_min);
MIRROR_FIELD(Hello, version_max, hello, version_max);
MIRROR_FIELD(Hello, features, hello, features);
MIRROR_FIELD(Hello, resume_generation, hello, resume_generation);
MIRROR_FIELD(BufferRegister, buffer, buffer_register, buffer);
MIRROR_FIELD(BufferRegister, kind, buffer_register, kind);
MIRROR_FIELD(BufferRegister, flags, buffer_register, flags);
MIRROR_FIELD(BufferRegister, offset, buffer_register, offset);
MIRROR_FIELD(BufferRegister, bytes, buffer_register, bytes);
MIRROR_FIELD(BufferRegister, pid, buffer_register, pid);
MIRROR_FIELD(BufferRegister, n_pieces, buffer_register, n_pieces);
MIRROR_FIELD(BufferFree, buffer, buffer_free, buffer);
MIRROR_FIELD(StreamCreate, stream, stream_create, stream);
MIRROR_FIELD(StreamCreate, priority, stream_create, priority);
MIRROR_FIELD(StreamFree, stream, stream_free, stream);
MIRROR_FIELD(Attention, stream, attention, stream);
MIRROR_FIELD(Attention, flags, attention, flags);
MIRROR_FIELD(Attention, value, attention, value);
MIRROR_FIELD(Attention, scale, attention, scale);
MIRROR_FIELD(Attention, softcap, attention, softcap);
MIRROR_FIELD(Attention, window_left, attention, window_left);
MIRROR_FIELD(Attention, window_right, attention, window_right);
MIRROR_FIELD(Cancel, stream, cancel, stream);
MIRROR_FIELD(Cancel, value, cancel, value);
MIRROR_FIELD(Reply, status, reply, status);
MIRROR_FIELD(Limits, message_bytes, limits, message_bytes);
MIRROR_FIELD(Limits, buffers, limits, buffers);
MIRROR_FIELD(Limits, buffer_bytes, limits, buffer_bytes);
MIRROR_FIELD(Limits, streams, limits, streams);
MIRROR_FIELD(Limits, requests, limits, requests);
MIRROR_FIELD(HelloReply, version, hello_reply, version);
MIRROR_FIELD(HelloReply, features, hello_reply, features);
MIRROR_FIELD(HelloReply, generation, hello_reply, generation);
MIRROR_FIELD(HelloReply, session, hello_reply, session);
MIRROR_FIELD(HelloReply, resumed, hello_reply, resumed);
MIRROR_FIELD(BufferReply, buffer, buffer_reply, buffer);
MIRROR_FIELD(BufferReply, bytes, buffer_reply, bytes);
MIRROR_FIELD(BufferReply, piece_bytes, buffer_reply, piece_bytes);
MIRROR_FIELD(BufferPieces, buffer, buffer_pieces, buffer);
MIRROR_FIELD(Completion, stream, completion, stream);
MIRROR_FIELD(Completion, status, completion, status);
MIRROR_FIELD(Completion, value, completion, value);
MIRROR_FIELD(Completion, queued_ns, completion, queued_ns);
MIRROR_FIELD(Completion, started_ns, completion, started_ns);
MIRROR_FIELD(Completion, finished_ns, completion, finished_ns);
MIRROR_FIELD(StatusReply, bytes, status_reply, bytes);
MIRROR_FIELD(Message, id, message, id);
MIRROR_FIELD(Message, timeout_ns, message, timeout_ns);
MIRROR_FIELD(Message, fds, message, fds);

#undef MIRROR_FIELD

/* Vectors and arrays are given and taken as they lie in the message. */
static_assert(FLATBUFFERS_LITTLEENDIAN, "little endian");
