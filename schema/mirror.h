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

static_assert(sizeof(struct fa_wire_step_item) == sizeof(wire::StepItem), "StepItem");
static_assert(alignof(struct fa_wire_step_item) == alignof(wire::StepItem), "StepItem");
static_assert(offsetof(struct fa_wire_step_item, n_new) == 8, "StepItem.n_new");

static_assert(sizeof(struct fa_wire_gate) == sizeof(wire::Gate), "Gate");
static_assert(alignof(struct fa_wire_gate) == alignof(wire::Gate), "Gate");
static_assert(offsetof(struct fa_wire_gate, reserved) == 4, "Gate.reserved");
static_assert(offsetof(struct fa_wire_gate, value) == 8, "Gate.value");

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
MIRROR_TAG(CACHE_CREATE, CacheCreate);
MIRROR_TAG(CACHE_FIND, CacheFind);
MIRROR_TAG(CACHE_REMOVE, CacheRemove);
MIRROR_TAG(CACHE_REPLY, CacheReply);
MIRROR_TAG(SEQUENCE_CREATE, SequenceCreate);
MIRROR_TAG(SEQUENCE_FIND, SequenceFind);
MIRROR_TAG(SEQUENCE_FORK, SequenceFork);
MIRROR_TAG(SEQUENCE_SET_NAME, SequenceSetName);
MIRROR_TAG(SEQUENCE_TRUNCATE, SequenceTruncate);
MIRROR_TAG(SEQUENCE_DROP, SequenceDrop);
MIRROR_TAG(SEQUENCE_FREE, SequenceFree);
MIRROR_TAG(SEQUENCE_INFO, SequenceInfo);
MIRROR_TAG(SEQUENCE_REPLY, SequenceReply);
MIRROR_TAG(SEQUENCE_PUBLISH, SequencePublish);
MIRROR_TAG(SEQUENCE_ATTACH, SequenceAttach);
MIRROR_TAG(SEQUENCE_COPY, SequenceCopy);
MIRROR_TAG(STEP_BEGIN, StepBegin);
MIRROR_TAG(STEP_REPLY, StepReply);
MIRROR_TAG(STEP_ATTEND, StepAttend);
MIRROR_TAG(STEP_END, StepEnd);
MIRROR_TAG(RING_SETUP, RingSetup);
MIRROR_TAG(RING_REPLY, RingReply);
MIRROR_TAG(MARKER, Marker);
MIRROR_TAG(TIMELINE_SETUP, TimelineSetup);
MIRROR_TAG(TIMELINE_REPLY, TimelineReply);
MIRROR_TAG(STEP_ATTEND_LAYERS, StepAttendLayers);
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
MIRROR_FIELD(CacheCreate, mode, cache_create, mode);
MIRROR_FIELD(CacheCreate, ttl_ns, cache_create, ttl_ns);
MIRROR_FIELD(CacheCreate, dtype, cache_create, dtype);
MIRROR_FIELD(CacheCreate, flags, cache_create, flags);
MIRROR_FIELD(CacheCreate, layers, cache_create, layers);
MIRROR_FIELD(CacheCreate, kv_heads, cache_create, kv_heads);
MIRROR_FIELD(CacheCreate, head_dim, cache_create, head_dim);
MIRROR_FIELD(CacheCreate, head_dim_v, cache_create, head_dim_v);
MIRROR_FIELD(CacheCreate, page_tokens, cache_create, page_tokens);
MIRROR_FIELD(CacheCreate, max_pages, cache_create, max_pages);
MIRROR_FIELD(CacheCreate, store, cache_create, store);
MIRROR_FIELD(CacheFind, cache, cache_find, cache);
MIRROR_FIELD(CacheRemove, cache, cache_remove, cache);
MIRROR_FIELD(CacheReply, cache, cache_reply, cache);
MIRROR_FIELD(CacheReply, mode, cache_reply, mode);
MIRROR_FIELD(CacheReply, dtype, cache_reply, dtype);
MIRROR_FIELD(CacheReply, flags, cache_reply, flags);
MIRROR_FIELD(CacheReply, layers, cache_reply, layers);
MIRROR_FIELD(CacheReply, kv_heads, cache_reply, kv_heads);
MIRROR_FIELD(CacheReply, head_dim, cache_reply, head_dim);
MIRROR_FIELD(CacheReply, head_dim_v, cache_reply, head_dim_v);
MIRROR_FIELD(CacheReply, page_tokens, cache_reply, page_tokens);
MIRROR_FIELD(CacheReply, page_bytes, cache_reply, page_bytes);
MIRROR_FIELD(CacheReply, max_pages, cache_reply, max_pages);
MIRROR_FIELD(CacheReply, used_pages, cache_reply, used_pages);
MIRROR_FIELD(CacheReply, idle_pages, cache_reply, idle_pages);
MIRROR_FIELD(CacheReply, sequences, cache_reply, sequences);
MIRROR_FIELD(CacheReply, store, cache_reply, store);
MIRROR_FIELD(SequenceCreate, cache, sequence_create, cache);
MIRROR_FIELD(SequenceFork, sequence, sequence_fork, sequence);
MIRROR_FIELD(SequenceFork, tokens, sequence_fork, tokens);
MIRROR_FIELD(SequenceSetName, sequence, sequence_set_name, sequence);
MIRROR_FIELD(SequenceSetName, mode, sequence_set_name, mode);
MIRROR_FIELD(SequenceSetName, ttl_ns, sequence_set_name, ttl_ns);
MIRROR_FIELD(SequenceTruncate, sequence, sequence_truncate, sequence);
MIRROR_FIELD(SequenceTruncate, tokens, sequence_truncate, tokens);
MIRROR_FIELD(SequenceDrop, sequence, sequence_drop, sequence);
MIRROR_FIELD(SequenceDrop, first, sequence_drop, first);
MIRROR_FIELD(SequenceFree, sequence, sequence_free, sequence);
MIRROR_FIELD(SequenceInfo, sequence, sequence_info, sequence);
MIRROR_FIELD(SequenceReply, sequence, sequence_reply, sequence);
MIRROR_FIELD(SequenceReply, cache, sequence_reply, cache);
MIRROR_FIELD(SequenceReply, length, sequence_reply, length);
MIRROR_FIELD(SequenceReply, planned, sequence_reply, planned);
MIRROR_FIELD(SequenceReply, first, sequence_reply, first);
MIRROR_FIELD(SequenceReply, step, sequence_reply, step);
MIRROR_FIELD(SequenceReply, mode, sequence_reply, mode);
MIRROR_FIELD(SequenceReply, matched, sequence_reply, matched);
MIRROR_FIELD(SequencePublish, sequence, sequence_publish, sequence);
MIRROR_FIELD(SequencePublish, flags, sequence_publish, flags);
MIRROR_FIELD(SequenceAttach, sequence, sequence_attach, sequence);
MIRROR_FIELD(SequenceAttach, flags, sequence_attach, flags);
MIRROR_FIELD(SequenceCopy, stream, sequence_copy, stream);
MIRROR_FIELD(SequenceCopy, value, sequence_copy, value);
MIRROR_FIELD(SequenceCopy, sequence, sequence_copy, sequence);
MIRROR_FIELD(SequenceCopy, flags, sequence_copy, flags);
MIRROR_FIELD(SequenceCopy, layer, sequence_copy, layer);
MIRROR_FIELD(SequenceCopy, first, sequence_copy, first);
MIRROR_FIELD(StepBegin, step, step_begin, step);
MIRROR_FIELD(StepReply, step, step_reply, step);
MIRROR_FIELD(StepReply, number, step_reply, number);
MIRROR_FIELD(StepAttend, stream, step_attend, stream);
MIRROR_FIELD(StepAttend, value, step_attend, value);
MIRROR_FIELD(StepAttend, step, step_attend, step);
MIRROR_FIELD(StepAttend, cache, step_attend, cache);
MIRROR_FIELD(StepAttend, layer, step_attend, layer);
MIRROR_FIELD(StepAttend, flags, step_attend, flags);
MIRROR_FIELD(StepAttend, scale, step_attend, scale);
MIRROR_FIELD(StepAttend, softcap, step_attend, softcap);
MIRROR_FIELD(StepAttend, window_left, step_attend, window_left);
MIRROR_FIELD(StepAttend, window_right, step_attend, window_right);
MIRROR_FIELD(StepAttend, rotary_dim, step_attend, rotary_dim);
MIRROR_FIELD(StepAttend, rotary_base, step_attend, rotary_base);
MIRROR_FIELD(StepAttend, rotary_scale, step_attend, rotary_scale);
MIRROR_FIELD(StepEnd, stream, step_end, stream);
MIRROR_FIELD(StepEnd, value, step_end, value);
MIRROR_FIELD(StepEnd, step, step_end, step);
MIRROR_FIELD(StepEnd, flags, step_end, flags);
MIRROR_FIELD(RingSetup, bytes, ring_setup, bytes);
MIRROR_FIELD(RingReply, bytes, ring_reply, bytes);
MIRROR_FIELD(RingReply, results_bytes, ring_reply, results_bytes);
MIRROR_FIELD(RingReply, records, ring_reply, records);
MIRROR_FIELD(Marker, stream, marker, stream);
MIRROR_FIELD(Marker, value, marker, value);
MIRROR_FIELD(TimelineReply, slots, timeline_reply, slots);
MIRROR_FIELD(TimelineReply, in_bytes, timeline_reply, in_bytes);
MIRROR_FIELD(TimelineReply, out_bytes, timeline_reply, out_bytes);
MIRROR_FIELD(StepAttendLayers, n_layers, step_attend_layers, n_layers);
MIRROR_FIELD(StepAttendLayers, q_bytes, step_attend_layers, q_bytes);
MIRROR_FIELD(StepAttendLayers, k_bytes, step_attend_layers, k_bytes);
MIRROR_FIELD(StepAttendLayers, v_bytes, step_attend_layers, v_bytes);
MIRROR_FIELD(StepAttendLayers, out_bytes, step_attend_layers, out_bytes);
MIRROR_FIELD(StepAttendLayers, lse_bytes, step_attend_layers, lse_bytes);
MIRROR_FIELD(StepAttendLayers, wait_increment, step_attend_layers, wait_increment);
MIRROR_FIELD(StepAttendLayers, signal_increment, step_attend_layers, signal_increment);
MIRROR_FIELD(Gate, slot, gate, slot);
MIRROR_FIELD(Gate, reserved, gate, reserved);
MIRROR_FIELD(Gate, value, gate, value);
MIRROR_FIELD(Message, id, message, id);
MIRROR_FIELD(Message, timeout_ns, message, timeout_ns);
MIRROR_FIELD(Message, fds, message, fds);

#undef MIRROR_FIELD

/* Vectors and arrays are given and taken as they lie in the message. */
static_assert(FLATBUFFERS_LITTLEENDIAN, "little endian");
