/*
 * Tests of GPU gates: one daemon at a time over the tests' driver, seemingly under MPS, and clients
 * with requests behind gates.
 */
#pragma once

#include "cuda-client.h"
#include "kv-client.h"

#include "common/timeline.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	STEP = 7,
	STREAM = 3,
	TOKENS = 2,
	OLD = 20,
	WANTED = 9, /* this and the next: numbers of the client's slots */
	ANOTHER = 10,
	READY = 11,
	FOR_EVER_US = 600 * 1000 * 1000,
};

/* A client with a step whose tokens are appended in all layers. */
struct engine {
	struct kv_client client;
	struct fa_timeline_in *in;
	uint64_t sequence;
	uint32_t numbers[OLD + TOKENS];
};

extern struct fa_test_cuda cuda;
extern struct fa_test_daemon daemon_;
extern struct fa_test_cuda_page *page; /* of the daemon's driver */
extern int priority;                   /* of the streams that clients create */

/* gates_start() and gates_stop() frame a group of tests; serve() starts the daemon again. */
void serve(void);
int gates_start(void **state);
int gates_stop(void **state);

/*
 * engine_begin() connects, and waits until the device knows the client's slots. engine_end() ends
 * the step and closes.
 */
void engine_begin(struct engine *engine);
void engine_end(struct engine *engine);

/* Attention that is one kernel: behind @n gates, or behind slot WANTED reaching @value. */
uint64_t attend(struct engine *engine, uint32_t layer, const struct fa_wire_gate *gates, uint32_t n,
                const float **ret_out);
uint64_t attend_at(struct engine *engine, uint64_t value, const float **ret_out);
/*
 * Submits two requests, the first behind @value, and waits until a gate has begun. Returns the
 * counts from before.
 */
struct fa_test_cuda_gates ask_two(struct engine *engine, uint64_t value, uint64_t *requests,
                                  const float **outs);

void check_out(const struct engine *engine, uint32_t layer, const float *out);
bool is_untouched(const float *out);

void write_slot(struct engine *engine, uint32_t slot, uint64_t value);
uint64_t slot(const struct engine *engine); /* the timeline slot WANTED */

/* Waits until @n more gates have begun than in @before. */
void wait_began(const struct fa_test_cuda_gates *before, uint32_t n);
/* Waits until the engine retries gates on which the device gave up. */
void let_pass(struct engine *engine);
/* The step must have failed with @status; begins another, and appends its tokens. */
void begin_again(struct engine *engine, int status);
