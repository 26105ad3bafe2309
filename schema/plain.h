/*
 * Part of wire.cc: StepAttend without vectors and gates, which is what a decode step asks for in
 * each layer. FlatBuffers' builder takes longer than all else that asking costs, so it is
 * written, and read, by its place in the one form that is written here: a message as any other,
 * that any reader of FlatBuffers takes, with all numbers there whatever they are.
 */
#pragma once

#include "schema/wire.h"

#include <cstddef>
#include <cstring>

namespace
{

/* Message and StepAttend as they lie; a view that is absent leaves no gap. */
struct PlainStepAttend {
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

#define PLAIN_AT(field) offsetof(struct PlainStepAttend, field)
/* Of the tables' beginnings. */
#define PLAIN_IN_MESSAGE(field) (uint16_t)(PLAIN_AT(field) - PLAIN_AT(message_to_vtable))
#define PLAIN_IN_BODY(field) (uint16_t)(PLAIN_AT(field) - PLAIN_AT(to_vtable))

static_assert(FLATBUFFERS_LITTLEENDIAN, "numbers are stored as they are");
static_assert(PLAIN_AT(value) == PLAIN_AT(to_vtable) + 4 && PLAIN_AT(views) == 184 &&
                      sizeof(struct fa_wire_view) == 80 &&
                      sizeof(struct PlainStepAttend) == 184 + 7 * 80,
              "no padding but that which has a name");

/* Where the vtable of StepAttend says where a field is. */
#define PLAIN_ENTRY(FIELD) (wire::StepAttend::VT_##FIELD / sizeof(uint16_t))

/* All but the numbers, the views, and what their number makes of it. */
constexpr struct PlainStepAttend plain_form()
{
	struct PlainStepAttend form = {};

	form.root = PLAIN_AT(message_to_vtable);
	form.identifier[0] = 'F';
	form.identifier[1] = 'A';
	form.identifier[2] = 'D';
	form.identifier[3] = 'M';
	form.message_vtable[0] = sizeof(form.message_vtable);
	form.message_vtable[1] = PLAIN_IN_MESSAGE(pad_type);
	form.message_vtable[wire::Message::VT_ID / 2] = PLAIN_IN_MESSAGE(id);
	form.message_vtable[wire::Message::VT_TIMEOUT_NS / 2] = PLAIN_IN_MESSAGE(timeout_ns);
	form.message_vtable[wire::Message::VT_BODY_TYPE / 2] = PLAIN_IN_MESSAGE(body_type);
	form.message_vtable[wire::Message::VT_BODY / 2] = PLAIN_IN_MESSAGE(to_body);
	form.message_to_vtable = PLAIN_AT(message_to_vtable) - PLAIN_AT(message_vtable);
	form.to_body = PLAIN_AT(to_vtable) - PLAIN_AT(to_body);
	form.body_type = FA_WIRE_STEP_ATTEND;
	form.vtable[0] = sizeof(form.vtable);
	form.vtable[PLAIN_ENTRY(STREAM)] = PLAIN_IN_BODY(stream);
	form.vtable[PLAIN_ENTRY(VALUE)] = PLAIN_IN_BODY(value);
	form.vtable[PLAIN_ENTRY(STEP)] = PLAIN_IN_BODY(step);
	form.vtable[PLAIN_ENTRY(CACHE)] = PLAIN_IN_BODY(cache);
	form.vtable[PLAIN_ENTRY(LAYER)] = PLAIN_IN_BODY(layer);
	form.vtable[PLAIN_ENTRY(FLAGS)] = PLAIN_IN_BODY(flags);
	form.vtable[PLAIN_ENTRY(SCALE)] = PLAIN_IN_BODY(scale);
	form.vtable[PLAIN_ENTRY(SOFTCAP)] = PLAIN_IN_BODY(softcap);
	form.vtable[PLAIN_ENTRY(WINDOW_LEFT)] = PLAIN_IN_BODY(window_left);
	form.vtable[PLAIN_ENTRY(WINDOW_RIGHT)] = PLAIN_IN_BODY(window_right);
	form.vtable[PLAIN_ENTRY(ROTARY_DIM)] = PLAIN_IN_BODY(rotary_dim);
	form.vtable[PLAIN_ENTRY(ROTARY_BASE)] = PLAIN_IN_BODY(rotary_base);
	form.vtable[PLAIN_ENTRY(ROTARY_SCALE)] = PLAIN_IN_BODY(rotary_scale);
	form.to_vtable = PLAIN_AT(to_vtable) - PLAIN_AT(vtable);
	return form;
}

constexpr struct PlainStepAttend PLAIN_STEP_ATTEND = plain_form();

/* The views, in the order in which they lie. */
constexpr struct {
	size_t entry;
	struct fa_wire_view fa_wire_step_attend::*view;
} PLAIN_VIEWS[7] = {
	{ PLAIN_ENTRY(Q), &fa_wire_step_attend::q },
	{ PLAIN_ENTRY(K), &fa_wire_step_attend::k },
	{ PLAIN_ENTRY(V), &fa_wire_step_attend::v },
	{ PLAIN_ENTRY(OUT), &fa_wire_step_attend::out },
	{ PLAIN_ENTRY(LSE), &fa_wire_step_attend::lse },
	{ PLAIN_ENTRY(COS), &fa_wire_step_attend::cos },
	{ PLAIN_ENTRY(SIN), &fa_wire_step_attend::sin },
};

static_assert(wire::Message::VT_BODY + 2 == sizeof(PlainStepAttend::message_vtable) &&
                      wire::StepAttend::VT_SIN + 2 == sizeof(PlainStepAttend::vtable),
              "the vtables end with these");
/* Who adds a field to what is asked adds it here, or to is_plain_step_attend(). */
static_assert(sizeof(struct fa_wire_step_attend) == 696 &&
                      wire::StepAttend::VT_POSITIONS == wire::StepAttend::VT_SIN + 2 &&
                      wire::Message::VT_SIGNALS == wire::Message::VT_BODY + 4,
              "all fields are known here");
static_assert(sizeof(struct PlainStepAttend) <= FIXED_BYTES[FA_WIRE_STEP_ATTEND], "room for all");

/* View @i is there, behind @n others; returns how many they are then. */
size_t plain_view_add(uint16_t vtable[24], size_t n, size_t i)
{
	vtable[PLAIN_VIEWS[i].entry] = (uint16_t)(PLAIN_IN_BODY(views) + n * sizeof(wire::View));
	return n + 1;
}

/* With @n views; returns the bytes of the message. */
size_t plain_length(uint16_t vtable[24], size_t n)
{
	const size_t length = PLAIN_AT(views) + n * sizeof(wire::View);

	vtable[1] = (uint16_t)(length - PLAIN_AT(to_vtable));
	return length;
}

bool is_plain_step_attend(const struct fa_wire_message *message, uint32_t type)
{
	const auto &attend = message->step_attend;

	return type == FA_WIRE_STEP_ATTEND && !message->fds && !message->n_waits &&
	       !message->n_signals && !attend.n_alibi_slopes && !attend.n_sinks &&
	       !attend.n_positions;
}

/* Ends at @end; returns how long it is. */
size_t plain_step_attend_write(const struct fa_wire_message *message, uint8_t *end)
{
	const auto &attend = message->step_attend;
	const struct fa_wire_view *views[7];
	uint16_t vtable[24];
	size_t n = 0, length;
	uint8_t *start;

	memcpy(vtable, PLAIN_STEP_ATTEND.vtable, sizeof(vtable));
	for (size_t i = 0; i < 7; ++i) {
		const struct fa_wire_view *view = &(attend.*PLAIN_VIEWS[i].view);

		if (!ViewWriter::is_present(*view))
			continue;
		views[n] = view;
		n = plain_view_add(vtable, n, i);
	}
	length = plain_length(vtable, n);

	start = end - length;
	auto *plain = reinterpret_cast<struct PlainStepAttend *>(start);
	memcpy(start, &PLAIN_STEP_ATTEND, PLAIN_AT(views));
	memcpy(plain->vtable, vtable, sizeof(vtable));
	plain->id = message->id;
	plain->timeout_ns = message->timeout_ns;
	plain->value = attend.value;
	plain->cache = attend.cache;
	plain->window_left = attend.window_left;
	plain->window_right = attend.window_right;
	plain->rotary_base = attend.rotary_base;
	plain->rotary_scale = attend.rotary_scale;
	plain->stream = attend.stream;
	plain->step = attend.step;
	plain->layer = attend.layer;
	plain->flags = attend.flags;
	plain->scale = attend.scale;
	plain->softcap = attend.softcap;
	plain->rotary_dim = attend.rotary_dim;
	for (size_t i = 0; i < n; ++i)
		memcpy(&plain->views[i], views[i], sizeof(*views[i]));
	return length;
}

/*
 * Whether the bytes are a message of that form; then @ret_message is it. They may be anything,
 * and every one that says where others are is looked at before: what differs in the least is
 * left to the reader that knows all forms.
 */
bool plain_step_attend_read(const uint8_t *bytes, size_t length,
                            struct fa_wire_message *__restrict ret_message)
{
	auto *plain = reinterpret_cast<const struct PlainStepAttend *>(bytes);
	const auto &known = PLAIN_STEP_ATTEND;
	auto &attend = ret_message->step_attend;
	uint16_t vtable[24];
	size_t n = 0;

	if (length < PLAIN_AT(views) || memcmp(bytes, &known, PLAIN_AT(id)) != 0 ||
	    plain->body_type != known.body_type || plain->to_vtable != known.to_vtable)
		return false;
	memcpy(vtable, known.vtable, sizeof(vtable));
	for (size_t i = 0; i < 7; ++i)
		if (plain->vtable[PLAIN_VIEWS[i].entry])
			n = plain_view_add(vtable, n, i);
	if (length != plain_length(vtable, n) || memcmp(plain->vtable, vtable, sizeof(vtable)) != 0)
		return false;

	ret_message->id = plain->id;
	ret_message->timeout_ns = plain->timeout_ns;
	ret_message->fds = 0;
	ret_message->waits = ret_message->signals = nullptr;
	ret_message->n_waits = ret_message->n_signals = 0;
	ret_message->type = FA_WIRE_STEP_ATTEND;
	attend.stream = plain->stream;
	attend.value = plain->value;
	attend.step = plain->step;
	attend.cache = plain->cache;
	attend.layer = plain->layer;
	attend.flags = plain->flags;
	attend.scale = plain->scale;
	attend.softcap = plain->softcap;
	attend.window_left = plain->window_left;
	attend.window_right = plain->window_right;
	attend.alibi_slopes = attend.sinks = nullptr;
	attend.positions = nullptr;
	attend.n_alibi_slopes = attend.n_sinks = attend.n_positions = 0;
	attend.rotary_dim = plain->rotary_dim;
	attend.rotary_base = plain->rotary_base;
	attend.rotary_scale = plain->rotary_scale;
	n = 0;
	for (const auto &at : PLAIN_VIEWS) {
		attend.*at.view = {};
		if (plain->vtable[at.entry])
			attend.*at.view = plain->views[n++];
	}
	return true;
}

} // namespace
