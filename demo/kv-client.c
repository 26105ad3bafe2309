/*
 * Begins, requests and commits steps one after another, checking every number. If the daemon dies
 * during a step, the client asks the next one whether it was committed and repeats it if not.
 */
#include "demo/kv-client.h"

#include "client/faclient.h"
#include "demo/process.h"
#include "demo/text.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 500 /* a prefill step's new tokens */

/* First token of the step during which the daemon is killed. */
#define PREFILL_KILL_AT 2000
#define BRANCH_KILL_AT 20

struct run {
	enum demo_role role;
	struct fa_client *client;
	struct demo_text *text;
	uint64_t sequence;
	struct fa_buffer *buffer;
	uint16_t *q, *k, *v, *out; /* in buffer, layer by layer */
	int64_t first, end;        /* this client's tokens */
	int64_t kill_at;           /* token; -1: the daemon was killed */
	int steps, retries;
	int timed; /* counted in seconds */
	double seconds;
	double error, fraction;
};

#define Q_NUMBERS ((size_t)CHUNK * DEMO_HEADS * DEMO_DIM)
#define KV_NUMBERS ((size_t)CHUNK * DEMO_KV_HEADS * DEMO_DIM)

/* ---- one step */

/* Requests all layers and the commit, without waiting. */
static int submit_step(struct run *run, struct fa_step *step, int64_t n, bool interrupt,
                       struct fa_ticket *ret_ticket)
{
	const int64_t q_shape[] = { n, DEMO_HEADS, DEMO_DIM };
	const int64_t kv_shape[] = { n, DEMO_KV_HEADS, DEMO_DIM };
	struct fa_step_attend attend = { .size = sizeof(attend),
		                         .flags = FA_STEP_CAUSAL,
		                         .rotary_dim = DEMO_DIM,
		                         .rotary_base = DEMO_ROTARY_BASE };
	const uint64_t q_at = 0, k_at = q_at + DEMO_LAYERS * Q_NUMBERS * 2;
	const uint64_t v_at = k_at + DEMO_LAYERS * KV_NUMBERS * 2;
	const uint64_t out_at = v_at + DEMO_LAYERS * KV_NUMBERS * 2;
	struct fa_ticket ticket;
	int r;

	for (uint32_t l = 0; l < DEMO_LAYERS; l++) {
		attend.layer = l;
		fa_tensor_init(&attend.q, run->buffer, q_at + l * Q_NUMBERS * 2, FA_F16, 3,
		               q_shape);
		fa_tensor_init(&attend.k_new, run->buffer, k_at + l * KV_NUMBERS * 2, FA_F16, 3,
		               kv_shape);
		fa_tensor_init(&attend.v_new, run->buffer, v_at + l * KV_NUMBERS * 2, FA_F16, 3,
		               kv_shape);
		fa_tensor_init(&attend.out, run->buffer, out_at + l * Q_NUMBERS * 2, FA_F16, 3,
		               q_shape);
		r = fa_step_attend(step, &attend, &ticket);
		if (r < 0)
			return r;
		/* Stops between two layers, so the step is never committed. */
		if (interrupt) {
			demo_client_say("midway");
			if (demo_client_wait("go") != 0)
				return -EPIPE;
			interrupt = false;
		}
	}
	return fa_step_commit(step, NULL, ret_ticket);
}

/* The daemon died during the step. */
static int check_committed(struct run *run, uint64_t number, bool *ret_done)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	int r = fa_sequence_info(run->client, run->sequence, &info);

	if (r < 0)
		return demo_client_fail("the sequence is lost: %s", fa_error());
	*ret_done = info.step == number;
	return 0;
}

static int run_step(struct run *run, int64_t n, bool kill, bool *ret_done)
{
	const struct fa_step_item item = { .sequence = run->sequence, .n_new = (uint32_t)n };
	struct fa_step_options options = { .size = sizeof(options), .n_items = 1, .items = &item };
	/* Decode is interrupted between layers, others with the whole step in flight. */
	bool interrupt = kill && run->role == DEMO_DECODE;
	struct fa_ticket ticket;
	struct fa_step *step;
	uint64_t number;
	int r;

	r = fa_step_begin(run->client, &options, &step);
	if (r < 0) {
		*ret_done = false;
		return r == -ECONNRESET ? 0
		                        : demo_client_fail("fad refused a step: %s", fa_error());
	}
	number = fa_step_number(step);
	r = submit_step(run, step, n, interrupt, &ticket);
	if (r == 0 && kill && !interrupt) {
		demo_client_say("midway");
		if (demo_client_wait("go") != 0)
			return 1;
	}
	if (r == 0)
		r = fa_wait(run->client, &ticket, UINT64_MAX, NULL);
	fa_step_free(step);
	*ret_done = r == 0;
	if (r == -ECONNRESET)
		return check_committed(run, number, ret_done);
	return r < 0 ? demo_client_fail("a step failed: %s", fa_error()) : 0;
}

static int write_tokens(struct run *run, int64_t first, int64_t n)
{
	bool done = false, interrupted = false;
	double start;

	for (int l = 0; l < DEMO_LAYERS; l++)
		for (int64_t i = 0; i < n; i++)
			demo_text_store(run->text, l, first + i,
			                run->q + l * Q_NUMBERS + i * DEMO_HEADS * DEMO_DIM,
			                run->k + l * KV_NUMBERS + i * DEMO_KV_HEADS * DEMO_DIM,
			                run->v + l * KV_NUMBERS + i * DEMO_KV_HEADS * DEMO_DIM);
	/* Unwritten numbers stay NaN. */
	memset(run->out, 0xff, DEMO_LAYERS * Q_NUMBERS * 2);
	start = demo_now();
	for (int tries = 0; !done; tries++) {
		bool kill = first == run->kill_at;

		if (tries > 3)
			return demo_client_fail("the daemon does not stay alive");
		if (kill)
			run->kill_at = -1;
		interrupted |= kill || tries > 0;
		if (run_step(run, n, kill, &done) != 0)
			return 1;
		run->retries += tries > 0;
	}
	/* The driver reports a restart's duration. */
	if (!interrupted) {
		run->seconds += demo_now() - start;
		run->timed++;
	}
	run->steps++;
	for (int l = 0; l < DEMO_LAYERS; l++)
		if (demo_text_check(run->text, l, first, n, run->out + l * Q_NUMBERS, &run->error,
		                    &run->fraction) < 0)
			return demo_client_fail("no memory");
	return 0;
}

/* ---- the client */

static int make_sequence(struct run *run)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .name = DEMO_CACHE,
		                            .dtype = FA_F16,
		                            .layers = DEMO_LAYERS,
		                            .kv_heads = DEMO_KV_HEADS,
		                            .head_dim = DEMO_DIM };
	uint64_t cache, text;

	if (run->role == DEMO_PREFILL) {
		if (fa_cache_create(run->client, &options, &cache) < 0 ||
		    fa_sequence_create(run->client, cache, &run->sequence) < 0)
			return demo_client_fail("no cache: %s", fa_error());
		return 0;
	}
	if (fa_sequence_find(run->client, DEMO_SEQUENCE, &text) < 0 ||
	    fa_sequence_fork(run->client, text, (uint64_t)run->first, &run->sequence) < 0)
		return demo_client_fail("no sequence: %s", fa_error());
	return 0;
}

static int make_buffer(struct run *run)
{
	if (fa_buffer_new(run->client, DEMO_LAYERS * (2 * Q_NUMBERS + 2 * KV_NUMBERS) * 2, 0,
	                  &run->buffer) < 0)
		return demo_client_fail("no memory: %s", fa_error());
	run->q = fa_buffer_data(run->buffer);
	run->k = run->q + DEMO_LAYERS * Q_NUMBERS;
	run->v = run->k + DEMO_LAYERS * KV_NUMBERS;
	run->out = run->v + DEMO_LAYERS * KV_NUMBERS;
	return 0;
}

static int report(struct run *run)
{
	struct fa_sequence_info sequence = { .size = sizeof(sequence) };
	struct fa_info info = { .size = sizeof(info) };
	bool right;

	if (fa_sequence_info(run->client, run->sequence, &sequence) < 0 ||
	    fa_info(run->client, &info) < 0)
		return demo_client_fail("%s", fa_error());
	right = run->fraction <= 1 && sequence.length == (uint64_t)run->end &&
	        info.reconnects == 1 && info.resumed == 1;
	printf("result %lld:%llu\t%d\t%d\t%.3f\t%.3g\t%.0f %%\t%llu/%llu\t%s\n",
	       (long long)(run->end - run->first), (unsigned long long)sequence.length, run->steps,
	       run->retries, run->seconds * 1e3 / run->timed, run->error, run->fraction * 100,
	       (unsigned long long)info.resumed, (unsigned long long)info.reconnects,
	       right ? "right" : "WRONG");
	fflush(stdout);
	return right ? 0 : 1;
}

static int run_client(struct run *run)
{
	struct fa_options options = { .size = sizeof(options), .name = demo_role_name(run->role) };
	int64_t chunk = run->role == DEMO_PREFILL ? CHUNK : 1;
	int status;

	if (fa_connect(&options, &run->client) < 0)
		return demo_client_fail("no connection to fad: %s", fa_error());
	if (demo_text_new((int)run->role, run->first, run->end, &run->text) < 0)
		return demo_client_fail("no memory");
	if (make_sequence(run) != 0 || make_buffer(run) != 0)
		return 1;
	for (int64_t i = run->first; i < run->end; i += chunk)
		if (write_tokens(run, i, chunk) != 0)
			return 1;
	if (run->role == DEMO_PREFILL &&
	    fa_sequence_set_name(run->client, run->sequence, DEMO_SEQUENCE, 0, 0) < 0)
		return demo_client_fail("no name: %s", fa_error());
	status = report(run);
	return demo_client_wait("stop") != 0 ? 1 : status;
}

const char *demo_role_name(enum demo_role role)
{
	static const char *const names[] = { "prefill", "decode", "fork" };

	return names[role];
}

int demo_role_run(enum demo_role role)
{
	struct run run = { .role = role };
	int status;

	run.first = role == DEMO_PREFILL  ? 0
	            : role == DEMO_DECODE ? DEMO_TEXT_TOKENS
	                                  : DEMO_FORK_AT;
	run.end = role == DEMO_PREFILL ? DEMO_TEXT_TOKENS : run.first + DEMO_BRANCH_TOKENS;
	run.kill_at = role == DEMO_PREFILL ? PREFILL_KILL_AT : run.first + BRANCH_KILL_AT;
	status = run_client(&run);
	fa_buffer_free(run.buffer);
	fa_disconnect(run.client);
	demo_text_free(run.text);
	return status;
}
