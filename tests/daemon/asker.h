/*
 * A client that asks for attention again and again, in its stream 0 and in one more, and what it
 * asks for; the protocol is raw.h's. Each stream has one request at a time whose result is looked
 * at.
 */
#pragma once

#include "tests/lib/attention.h"
#include "tests/lib/raw.h"

#include <stdint.h>

struct asker {
	struct fa_raw raw;
	struct fa_raw_buffer buffer;
	struct fa_case attention;
	uint64_t values[2]; /* of each stream's last request */
};

/* What is done at once. */
struct fa_case asker_small_case(void);
/* What takes longer. On a GPU there are kernels of bf16 for it that give way, and none of fp32. */
struct fa_case asker_long_case(enum fa_wire_dtype dtype);

/* Connects, with a buffer for @attention. */
void asker_open(struct asker *asker, const char *socket, struct fa_case attention);
void asker_close(struct asker *asker);

/* Asks, with other numbers each time; the last request of @stream must have the right result. */
void asker_ask(struct asker *asker, uint32_t stream);
void asker_expect(struct asker *asker, uint32_t stream);
