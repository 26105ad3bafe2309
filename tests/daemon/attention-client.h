/* A client that submits the same attention again and again, in its stream 0 and in one more, by
 * raw.h. Each stream has one request at a time whose result is checked. */
#pragma once

#include "tests/lib/attention.h"
#include "tests/lib/raw.h"

#include <stdint.h>

struct attention_client {
	struct fa_raw raw;
	struct fa_raw_buffer buffer;
	struct fa_case attention;
	uint64_t values[2]; /* value of each stream's last request */
};

/* Returns a case that is computed quickly. */
struct fa_case attention_client_small_case(void);
/*
 * Returns a case that takes longer. On a GPU its bf16 kernels are preemptible, its fp32 kernels are
 * not.
 */
struct fa_case attention_client_long_case(enum fa_wire_dtype dtype);

/* Connects, and registers a buffer for @attention. */
void attention_client_open(struct attention_client *client, const char *socket,
                           struct fa_case attention);
void attention_client_close(struct attention_client *client);

/*
 * Waits for the last request of @stream and checks its result, then submits a request with new
 * numbers.
 */
void attention_client_submit(struct attention_client *client, uint32_t stream);
void attention_client_expect(struct attention_client *client, uint32_t stream);
