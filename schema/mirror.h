/*
 * Part of wire.cc: proof that the structs and numbers of wire.h are those of fad.fbs. Generated
 * members are private, so layouts are compared by size and alignment. Reader::number() compares
 * types.
 */
#pragma once

#include "schema/wire.h"

#include <cstddef>

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
static_assert(offsetof(struct fa_wire_step_item, flags) == 12, "StepItem.flags");

static_assert(sizeof(struct fa_wire_place) == sizeof(wire::Place), "Place");
static_assert(alignof(struct fa_wire_place) == alignof(wire::Place), "Place");
static_assert(offsetof(struct fa_wire_place, buffer) == 8, "Place.buffer");
static_assert(offsetof(struct fa_wire_place, reserved) == 12, "Place.reserved");

static_assert(sizeof(struct fa_wire_gate) == sizeof(wire::Gate), "Gate");
static_assert(alignof(struct fa_wire_gate) == alignof(wire::Gate), "Gate");
static_assert(offsetof(struct fa_wire_gate, reserved) == 4, "Gate.reserved");
static_assert(offsetof(struct fa_wire_gate, value) == 8, "Gate.value");

#define MESSAGE(TAG, Table, member, fields) EMPTY(TAG, Table)
#define EMPTY(TAG, Table)                                                                          \
	static_assert(FA_WIRE_##TAG == static_cast<int>(wire::Body::Table), #Table);
#include "schema/messages.def"
static_assert(_FA_WIRE_TYPE_N == static_cast<int>(wire::Body::MAX) + 1, "Body");

/* Vectors and arrays are used in place. */
static_assert(FLATBUFFERS_LITTLEENDIAN, "little endian");
