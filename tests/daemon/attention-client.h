/*
 * A raw client that submits the same attention again and again, in stream 0 and in one more, one
 * request per stream at a time.
 */
#pragma once

#include "tests/lib/attention.h"
#include "tests/lib/raw.h"

#include <stdint.h>

struct attention_client {
	struct fa_raw raw;
	struct fa_raw_buffer buffer;
	struct fa_case attention;
	uint64_t values[2]; /* of each stream's last request */
};

/* Is computed quickly. */
struct fa_case attention_client_small_case(void);
/* Takes longer. On a GPU the bf16 kernels are preemptible, the fp32 kernels are not. */
struct fa_case attention_client_long_case(enum fa_wire_dtype dtype);

/* Connects, and registers a buffer for @attention. */
void attention_client_open(struct attention_client *client, const char *socket,
                           struct fa_case attention);
void attention_client_close(struct attention_client *client);

/* Waits for the last request of @stream and checks it, then submits one with new numbers. */
void attention_client_submit(struct attention_client *client, uint32_t stream);
void attention_client_expect(struct attention_client *client, uint32_t stream);
