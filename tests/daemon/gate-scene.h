/*
 * What tests of GPU gates begin with: a daemon over the tests' driver, under what looks like MPS;
 * and clients that ask for requests behind gates. One daemon at a time.
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
	WANTED = 9, /* the client's slots */
	ANOTHER = 10,
	READY = 11,
	FOR_EVER_US = 600 * 1000 * 1000,
};

/* A client with a sequence in a step whose tokens are there in all layers. */
struct engine {
	struct kv_client client;
	struct fa_timeline_in *in;
	uint64_t sequence;
	uint32_t numbers[OLD + TOKENS];
};

extern struct fa_test_cuda cuda;
extern struct fa_test_daemon daemon_;
extern struct fa_test_cuda_page *page; /* the daemon's */
extern int priority;                   /* of streams that engines make */

/* Of a group of tests; serve() is a daemon once more. */
void serve(void);
int gates_start(void **state);
int gates_stop(void **state);

/* A client whose slots the device knows. Its end: the step's, whose tokens are all there. */
void engine_begin(struct engine *engine);
void engine_end(struct engine *engine);

/* Attention over what is there, which is one kernel, behind @n gates; or behind WANTED's @value. */
uint64_t attend(struct engine *engine, uint32_t layer, const struct fa_wire_gate *gates, uint32_t n,
                const float **ret_out);
uint64_t attend_at(struct engine *engine, uint64_t value, const float **ret_out);
/* Two requests, the first for @value; waits until a gate has begun, and returns what was before. */
struct fa_test_cuda_gates ask_two(struct engine *engine, uint64_t value, uint64_t *requests,
                                  const float **outs);

void check_out(const struct engine *engine, uint32_t layer, const float *out);
bool is_untouched(const float *out);

void write_slot(struct engine *engine, uint32_t slot, uint64_t value);
uint64_t slot(const struct engine *engine); /* WANTED */

/* Waits until gates have begun so often since @before. */
void wait_began(const struct fa_test_cuda_gates *before, uint32_t n);
/* Lets the engine come back to gates that the device gave up. */
void let_pass(struct engine *engine);
/* The step has failed with what was asked for: another, and its tokens. */
void begin_again(struct engine *engine, int status);
