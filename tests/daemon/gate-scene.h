/* For tests of GPU gates: a daemon over the tests' driver, seemingly under MPS, and clients with
 * requests behind gates. One daemon at a time. */
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

/* A client with a step whose tokens are appended in all layers. */
struct engine {
	struct kv_client client;
	struct fa_timeline_in *in;
	uint64_t sequence;
	uint32_t numbers[OLD + TOKENS];
};

extern struct fa_test_cuda cuda;
extern struct fa_test_daemon daemon_;
extern struct fa_test_cuda_page *page; /* the daemon's */
extern int priority;                   /* of the engines' streams */

/* Set-up and tear-down of a group of tests; serve() starts a daemon again. */
void serve(void);
int gates_start(void **state);
int gates_stop(void **state);

/* Connects a client whose slots the device knows; ends its step, and closes it. */
void engine_begin(struct engine *engine);
void engine_end(struct engine *engine);

/* Submits attention, one kernel, behind @n gates, or behind slot WANTED reaching @value. */
uint64_t attend(struct engine *engine, uint32_t layer, const struct fa_wire_gate *gates, uint32_t n,
                const float **ret_out);
uint64_t attend_at(struct engine *engine, uint64_t value, const float **ret_out);
/* Submits two requests, the first behind @value, and waits until a gate has begun. Returns the
 * counts before. */
struct fa_test_cuda_gates ask_two(struct engine *engine, uint64_t value, uint64_t *requests,
                                  const float **outs);

void check_out(const struct engine *engine, uint32_t layer, const float *out);
bool is_untouched(const float *out);

void write_slot(struct engine *engine, uint32_t slot, uint64_t value);
uint64_t slot(const struct engine *engine); /* WANTED */

/* Waits until @n gates have begun since @before. */
void wait_began(const struct fa_test_cuda_gates *before, uint32_t n);
/* Waits until the engine tries gates again that the device gave up. */
void let_pass(struct engine *engine);
/* The step has failed with @status: begins another, and appends its tokens. */
void begin_again(struct engine *engine, int status);
