/* Values that samples have in common. */
#pragma once

#include "schema/wire.h"

#define STRING(literal)                                                                            \
	{                                                                                          \
		.text = (literal), .length = sizeof(literal) - 1                                   \
	}

#define TEXT_64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define TEXT_256 TEXT_64 TEXT_64 TEXT_64 TEXT_64
#define TEXT_1024 TEXT_256 TEXT_256 TEXT_256 TEXT_256

#define N(array) (sizeof(array) / sizeof((array)[0]))

static const uint32_t cu_seqlens_q[] = { 0, 1, 128, 129, 4096 };
static const uint32_t cu_seqlens_k[] = { 0, 512, 513, 2048, UINT32_MAX };
static const float alibi_slopes[] = { 0.5f, 0.25f, 0.125f, 0x1p-126f, -1.0f, 3.5f, 1e30f, 1.0f };
static const float sinks[] = { -1.5f, 0.0f, 2.0f, -0x1.fffffep127f };
static const uint32_t most_sequences[FA_WIRE_SEQUENCES_MAX + 1] = {
	[1] = 7,
	[FA_WIRE_SEQUENCES_MAX] = 77777,
};
static const float most_heads[FA_WIRE_HEADS_MAX] = {
	[1] = 7.5f,
	[FA_WIRE_HEADS_MAX - 1] = -77.75f,
};

static const float three_scales[] = { 0x1p-100f, -0.0f, 1e38f };
static const uint8_t extra[] = { 0, 255, 7, 'x', 128 };
static const struct fa_wire_step_item step_items[] = {
	{ .sequence = 0x123456789abcdef0, .n_new = 0x87654321 },
	{ .sequence = UINT64_MAX, .n_new = 1, .flags = 0xffffffff },
	{ 0 },
};

static const struct fa_wire_place places[] = {
	{ .offset = 0x1f2e3d4c5b6a7988, .buffer = 0x89abcdef, .reserved = 0x01234567 },
	{ .offset = UINT64_MAX, .buffer = UINT32_MAX, .reserved = UINT32_MAX },
	{ 0 },
};
static const struct fa_wire_place most_places[FA_WIRE_LAYERS_MAX] = {
	[1] = { .offset = 7 },
	[FA_WIRE_LAYERS_MAX - 1] = { .offset = 77, .buffer = 777 },
};
static const uint32_t most_pages[FA_WIRE_PAGES_MAX] = {
	[1] = 7,
	[FA_WIRE_PAGES_MAX - 1] = UINT32_MAX,
};

static const struct fa_wire_gate waits[] = {
	{ .slot = FA_WIRE_GATE_OUT | 63, .reserved = 0xf1e2d3c4, .value = UINT64_MAX },
	{ .slot = 7, .value = 0x1020304050607080 },
	{ 0 },
};
static const struct fa_wire_gate signals[FA_WIRE_GATES_MAX] = {
	[0] = { .slot = 5, .value = 1 },
	[FA_WIRE_GATES_MAX - 1] = { .slot = UINT32_MAX, .reserved = UINT32_MAX, .value = 3 },
};
