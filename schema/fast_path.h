/*
 * Part of wire.cc: Marker and StepAttend without FlatBuffers' builder and verifier, which cost more
 * than the rest of such a request. Messages without fds, gates, vectors and rotary_first have one
 * fixed layout, valid FlatBuffers with all other numbers present.
 */
#pragma once

#include "schema/wire.h"

#include <cstddef>
#include <cstring>

namespace
{

static_assert(FLATBUFFERS_LITTLEENDIAN, "numbers are stored as they are");

/* ---- Marker */

/* As the builder writes it; all numbers are present, and 0. */
constexpr uint8_t MARKER[80] = {
	0x1c, 0x00, 0x00, 0x00, 0x46, 0x41, 0x44, 0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x0e, 0x00, 0x1c, 0x00, 0x0c, 0x00, 0x14, 0x00, 0x00, 0x00, 0x07, 0x00, 0x08, 0x00,
	0x0e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x27, 0x1c, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x08, 0x00, 0x10, 0x00, 0x04, 0x00, 0x08, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};
constexpr size_t MARKER_TYPE = 0x23, MARKER_ID = 0x28, MARKER_TIMEOUT_NS = 0x30,
		 MARKER_STREAM = 0x44, MARKER_VALUE = 0x48;

static_assert(MARKER[MARKER_TYPE] == FA_WIRE_MARKER, "Message.body_type");

bool has_fds_or_gates(const struct fa_wire_message *message)
{
	return message->fds || message->n_waits || message->n_signals;
}

bool is_fast_marker(const struct fa_wire_message *message, uint32_t type)
{
	return type == FA_WIRE_MARKER && !has_fds_or_gates(message);
}

/* The message ends at @end. Returns its length. */
size_t fast_marker_write(const struct fa_wire_message *message, uint8_t *end)
{
	uint8_t *bytes = end - sizeof(MARKER);

	memcpy(bytes, MARKER, sizeof(MARKER));
	memcpy(bytes + MARKER_ID, &message->id, sizeof(message->id));
	memcpy(bytes + MARKER_TIMEOUT_NS, &message->timeout_ns, sizeof(message->timeout_ns));
	memcpy(bytes + MARKER_STREAM, &message->marker.stream, sizeof(message->marker.stream));
	memcpy(bytes + MARKER_VALUE, &message->marker.value, sizeof(message->marker.value));
	return sizeof(MARKER);
}

/* ---- StepAttend */

/* The fixed layout. Absent views leave no gap: the message ends earlier. */
struct FastStepAttend {
	uint32_t root;
	char identifier[4];
	uint16_t message_vtable[7], pad_vtable;
	int32_t message_to_vtable; /* Message begins */
	uint32_t to_body;
	uint64_t id, timeout_ns;
	uint8_t body_type, pad_type;
	uint16_t vtable[24], pad_body;
	int32_t to_vtable; /* StepAttend begins */
	uint64_t value, cache;
	int64_t window_left, window_right;
	double rotary_base, rotary_scale;
	uint32_t stream, step, layer, flags;
	float scale, softcap;
	uint32_t rotary_dim, pad_views;
	struct fa_wire_view views[7];
};

#define FAST_AT(field) offsetof(struct FastStepAttend, field)
/* Offsets in the Message table, and in StepAttend's. */
#define FAST_IN_MESSAGE(field) (uint16_t)(FAST_AT(field) - FAST_AT(message_to_vtable))
#define FAST_IN_BODY(field) (uint16_t)(FAST_AT(field) - FAST_AT(to_vtable))
/* A field's entry in the table's vtable. */
#define FAST_MESSAGE_ENTRY(FIELD) (wire::Message::VT_##FIELD / sizeof(uint16_t))
#define FAST_ENTRY(FIELD) (wire::StepAttend::VT_##FIELD / sizeof(uint16_t))

static_assert(FAST_AT(value) == FAST_AT(to_vtable) + 4 && FAST_AT(views) == 184 &&
                      sizeof(struct fa_wire_view) == 80 &&
                      sizeof(struct FastStepAttend) == 184 + 7 * 80,
              "no padding except the fields named pad");

/* These bytes are the same in all such messages. */
constexpr struct FastStepAttend fast_step_attend_template()
{
	struct FastStepAttend form = {};

	form.root = FAST_AT(message_to_vtable);
	form.identifier[0] = 'F';
	form.identifier[1] = 'A';
	form.identifier[2] = 'D';
	form.identifier[3] = 'M';
	form.message_vtable[0] = sizeof(form.message_vtable);
	form.message_vtable[1] = FAST_IN_MESSAGE(pad_type);
	form.message_vtable[FAST_MESSAGE_ENTRY(ID)] = FAST_IN_MESSAGE(id);
	form.message_vtable[FAST_MESSAGE_ENTRY(TIMEOUT_NS)] = FAST_IN_MESSAGE(timeout_ns);
	form.message_vtable[FAST_MESSAGE_ENTRY(BODY_TYPE)] = FAST_IN_MESSAGE(body_type);
	form.message_vtable[FAST_MESSAGE_ENTRY(BODY)] = FAST_IN_MESSAGE(to_body);
	form.message_to_vtable = FAST_AT(message_to_vtable) - FAST_AT(message_vtable);
	form.to_body = FAST_AT(to_vtable) - FAST_AT(to_body);
	form.body_type = FA_WIRE_STEP_ATTEND;
	form.vtable[0] = sizeof(form.vtable);
	form.vtable[FAST_ENTRY(STREAM)] = FAST_IN_BODY(stream);
	form.vtable[FAST_ENTRY(VALUE)] = FAST_IN_BODY(value);
	form.vtable[FAST_ENTRY(STEP)] = FAST_IN_BODY(step);
	form.vtable[FAST_ENTRY(CACHE)] = FAST_IN_BODY(cache);
	form.vtable[FAST_ENTRY(LAYER)] = FAST_IN_BODY(layer);
	form.vtable[FAST_ENTRY(FLAGS)] = FAST_IN_BODY(flags);
	form.vtable[FAST_ENTRY(SCALE)] = FAST_IN_BODY(scale);
	form.vtable[FAST_ENTRY(SOFTCAP)] = FAST_IN_BODY(softcap);
	form.vtable[FAST_ENTRY(WINDOW_LEFT)] = FAST_IN_BODY(window_left);
	form.vtable[FAST_ENTRY(WINDOW_RIGHT)] = FAST_IN_BODY(window_right);
	form.vtable[FAST_ENTRY(ROTARY_DIM)] = FAST_IN_BODY(rotary_dim);
	form.vtable[FAST_ENTRY(ROTARY_BASE)] = FAST_IN_BODY(rotary_base);
	form.vtable[FAST_ENTRY(ROTARY_SCALE)] = FAST_IN_BODY(rotary_scale);
	form.to_vtable = FAST_AT(to_vtable) - FAST_AT(vtable);
	return form;
}

constexpr struct FastStepAttend FAST_STEP_ATTEND = fast_step_attend_template();

/* In the order of FastStepAttend.views. */
constexpr struct {
	size_t entry;
	struct fa_wire_view fa_wire_step_attend::*view;
} FAST_VIEWS[7] = {
	{ FAST_ENTRY(Q), &fa_wire_step_attend::q },
	{ FAST_ENTRY(K), &fa_wire_step_attend::k },
	{ FAST_ENTRY(V), &fa_wire_step_attend::v },
	{ FAST_ENTRY(OUT), &fa_wire_step_attend::out },
	{ FAST_ENTRY(LSE), &fa_wire_step_attend::lse },
	{ FAST_ENTRY(COS), &fa_wire_step_attend::cos },
	{ FAST_ENTRY(SIN), &fa_wire_step_attend::sin },
};

static_assert(wire::Message::VT_BODY + 2 == sizeof(FastStepAttend::message_vtable) &&
                      wire::StepAttend::VT_SIN + 2 == sizeof(FastStepAttend::vtable),
              "BODY and SIN are the last entries of the vtables");
/* A field that is added to StepAttend is added here, or is_fast_step_attend() refuses it. */
static_assert(sizeof(struct fa_wire_step_attend) == 752 &&
                      wire::StepAttend::VT_POSITIONS == wire::StepAttend::VT_SIN + 2 &&
                      wire::StepAttend::VT_ROTARY_FIRST == wire::StepAttend::VT_POSITIONS + 2 &&
                      wire::StepAttend::VT_PREFIX_LENGTHS ==
                              wire::StepAttend::VT_ROTARY_FIRST + 4 &&
                      wire::StepAttend::VT_PATTERN_FIRST_HEAD ==
                              wire::StepAttend::VT_PREFIX_LENGTHS + 10 &&
                      wire::Message::VT_SIGNALS == wire::Message::VT_BODY + 4,
              "this file handles every field");
static_assert(sizeof(struct FastStepAttend) <= FRAME_BYTES + step_attend_bytes_max({}),
              "fa_wire_encode() has checked that it fits");

/* @n views are there already. Returns n + 1. */
size_t fast_view_add(uint16_t vtable[24], size_t n, size_t i)
{
	vtable[FAST_VIEWS[i].entry] = (uint16_t)(FAST_IN_BODY(views) + n * sizeof(wire::View));
	return n + 1;
}

/* Returns the length of a message with @n views. */
size_t fast_length(uint16_t vtable[24], size_t n)
{
	const size_t length = FAST_AT(views) + n * sizeof(wire::View);

	vtable[1] = (uint16_t)(length - FAST_AT(to_vtable));
	return length;
}

bool is_fast_step_attend(const struct fa_wire_message *message, uint32_t type)
{
	const auto &attend = message->step_attend;

	return type == FA_WIRE_STEP_ATTEND && !has_fds_or_gates(message) &&
	       !attend.n_alibi_slopes && !attend.n_sinks && !attend.n_positions &&
	       !attend.rotary_first && !attend.chunk_tokens && !attend.n_prefix_lengths &&
	       !attend.pattern_block_tokens && !attend.pattern_local_blocks &&
	       !attend.pattern_vert_stride && !attend.pattern_head_step &&
	       !attend.pattern_first_head;
}

/* The message ends at @end. Returns its length. */
size_t fast_step_attend_write(const struct fa_wire_message *message, uint8_t *end)
{
	const auto &attend = message->step_attend;
	const struct fa_wire_view *views[7];
	uint16_t vtable[24];
	size_t n = 0, length;
	uint8_t *start;

	memcpy(vtable, FAST_STEP_ATTEND.vtable, sizeof(vtable));
	for (size_t i = 0; i < 7; ++i) {
		const struct fa_wire_view *view = &(attend.*FAST_VIEWS[i].view);

		if (!view_is_present(*view))
			continue;
		views[n] = view;
		n = fast_view_add(vtable, n, i);
	}
	length = fast_length(vtable, n);

	start = end - length;
	auto *fast = reinterpret_cast<struct FastStepAttend *>(start);
	memcpy(start, &FAST_STEP_ATTEND, FAST_AT(views));
	memcpy(fast->vtable, vtable, sizeof(vtable));
	fast->id = message->id;
	fast->timeout_ns = message->timeout_ns;
	fast->value = attend.value;
	fast->cache = attend.cache;
	fast->window_left = attend.window_left;
	fast->window_right = attend.window_right;
	fast->rotary_base = attend.rotary_base;
	fast->rotary_scale = attend.rotary_scale;
	fast->stream = attend.stream;
	fast->step = attend.step;
	fast->layer = attend.layer;
	fast->flags = attend.flags;
	fast->scale = attend.scale;
	fast->softcap = attend.softcap;
	fast->rotary_dim = attend.rotary_dim;
	for (size_t i = 0; i < n; ++i)
		memcpy(&fast->views[i], views[i], sizeof(*views[i]));
	return length;
}

/*
 * False: the general decoder takes the message. @bytes are unverified: every offset must equal the
 * layout's.
 */
bool fast_step_attend_read(const uint8_t *bytes, size_t length,
                           struct fa_wire_message *__restrict ret_message)
{
	auto *fast = reinterpret_cast<const struct FastStepAttend *>(bytes);
	const auto &known = FAST_STEP_ATTEND;
	auto &attend = ret_message->step_attend;
	uint16_t vtable[24];
	size_t n = 0;

	if (length < FAST_AT(views) || memcmp(bytes, &known, FAST_AT(id)) != 0 ||
	    fast->body_type != known.body_type || fast->to_vtable != known.to_vtable)
		return false;
	memcpy(vtable, known.vtable, sizeof(vtable));
	for (size_t i = 0; i < 7; ++i)
		if (fast->vtable[FAST_VIEWS[i].entry])
			n = fast_view_add(vtable, n, i);
	if (length != fast_length(vtable, n) || memcmp(fast->vtable, vtable, sizeof(vtable)) != 0)
		return false;

	ret_message->id = fast->id;
	ret_message->timeout_ns = fast->timeout_ns;
	ret_message->fds = 0;
	ret_message->waits = ret_message->signals = nullptr;
	ret_message->n_waits = ret_message->n_signals = 0;
	ret_message->type = FA_WIRE_STEP_ATTEND;
	attend.stream = fast->stream;
	attend.value = fast->value;
	attend.step = fast->step;
	attend.cache = fast->cache;
	attend.layer = fast->layer;
	attend.flags = fast->flags;
	attend.scale = fast->scale;
	attend.softcap = fast->softcap;
	attend.window_left = fast->window_left;
	attend.window_right = fast->window_right;
	attend.alibi_slopes = attend.sinks = nullptr;
	attend.positions = nullptr;
	attend.n_alibi_slopes = attend.n_sinks = attend.n_positions = 0;
	attend.chunk_tokens = 0;
	attend.prefix_lengths = nullptr;
	attend.n_prefix_lengths = 0;
	attend.pattern_block_tokens = attend.pattern_local_blocks = 0;
	attend.pattern_vert_stride = attend.pattern_first_head = 0;
	attend.pattern_head_step = 0;
	attend.rotary_dim = fast->rotary_dim;
	attend.rotary_first = 0;
	attend.rotary_base = fast->rotary_base;
	attend.rotary_scale = fast->rotary_scale;
	n = 0;
	for (const auto &at : FAST_VIEWS) {
		attend.*at.view = {};
		if (fast->vtable[at.entry])
			attend.*at.view = fast->views[n++];
	}
	return true;
}

} // namespace
