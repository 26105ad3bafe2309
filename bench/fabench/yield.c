/*
 * yield: decode steps while another client's prefill has the GPU, and preemption's cost to the
 * prefill. The step: one layer, append and attend, 32 sequences of 1,024 tokens, high priority,
 * random times. The prefill: a prompt of 16k tokens, then of 128k. Both bf16, 32/8 heads, head dim
 * 128.
 *
 *   idle        a step without prefills
 *   decode      a step beside prefills, which are preempted
 *   decode-off  the same with a daemon that never preempts (FAD_TUNE_PREEMPT_WORK_NS)
 *   off         a prefill of that daemon, without steps
 *   alone       a preemptible prefill, without steps
 *   beside      a prefill beside the steps of "decode"
 *
 * All alternate. The client spins, and sends an empty request before each step, so no wake-up is
 * measured. Preempted prefills must give the same bits. Needs 6 GB of GPU and 2 GB of host memory.
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"
#include "bench/lib/decode-client.h"
#include "bench/lib/prefiller.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 4
#define ROUNDS_QUICK 1
#define SAMPLES 400 /* step samples per round */
#define SAMPLES_OFF 30
#define SAMPLES_QUICK 5
#define WARM_UP 20
#define SPIN_NS (20 * FA_NS_PER_MS)
#define REST_NS (2 * FA_NS_PER_MS)
#define PREFILL_MS 500
#define PREFILL_MS_LONG 1200
#define PREFILL_MS_QUICK 50
#define LONG_TOKENS 65536
/* No launch takes this long, so nothing is preempted. */
#define NEVER_NS "1000000000000000"

static const struct fa_inproc_decode_shape usual = {
	.layers = 1,
	.heads = 32,
	.kv_heads = 8,
	.dim = 128,
	.page_tokens = 64,
	.batch = 32,
	.length = 1024,
};

static const struct fa_inproc_decode_shape quick = {
	.layers = 1,
	.heads = 8,
	.kv_heads = 2,
	.dim = 128,
	.page_tokens = 64,
	.batch = 2,
	.length = 64,
};

static const uint32_t usual_tokens[] = { 16384, 131072 }, quick_tokens[] = { 128, 256 };

#define PROMPTS (sizeof(usual_tokens) / sizeof(usual_tokens[0]))

/* ON: the daemon that preempts; OFF: the one that never does. */
enum {
	ON,
	OFF,
	DAEMONS
};

enum {
	IDLE,
	BESIDE,
	BESIDE_OFF,
	STEPS
};

struct yield_bench {
	struct fa_bench *bench;
	struct fa_inproc_gpu *gpu;
	struct fa_error error;
	struct fa_decode_tensors tensors;
	int n_daemons;
	struct fa_bench_daemon daemons[DAEMONS];
	struct fa_decode_client clients[DAEMONS];
	struct fa_prefiller *prefiller;
	uint32_t tokens;
	uint64_t random;
};

/* Samples for one prompt length. */
struct samples {
	uint64_t *ns[STEPS];
	size_t n[STEPS];
	/* time of a prefill, per round */
	double alone_ns[ROUNDS], off_ns[ROUNDS], beside_ns[ROUNDS];
	int rounds;
};

/* ---- steps */

static void rest(struct yield_bench *b)
{
	uint64_t ns;

	b->random = b->random * 6364136223846793005u + 1442695040888963407u;
	ns = REST_NS / 2 + (b->random >> 33) % REST_NS;
	(void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ .tv_nsec = (long)ns }, NULL);
}

/* Runs @n steps at random times. @ret_ns may be NULL. */
static int run_steps(struct yield_bench *b, int daemon, size_t n, uint64_t *ret_ns)
{
	struct fa_decode_client *c = &b->clients[daemon];
	uint64_t start_ns;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		rest(b);
		r = fa_marker(c->client, c->attend.stream, NULL, NULL);
		if (r < 0)
			return fa_fail(&b->error, r, "a marker: %s", fa_error());
		start_ns = fa_now_ns();
		r = fa_decode_client_attend(c, 0, true, NULL, &b->error, NULL);
		if (ret_ns)
			ret_ns[i] = fa_now_ns() - start_ns;
	}
	return r;
}

static int sample_steps(struct yield_bench *b, struct samples *samples, int kind, size_t n)
{
	const int r = run_steps(b, kind == BESIDE_OFF ? OFF : ON, n,
	                        samples->ns[kind] + samples->n[kind]);

	samples->n[kind] += n;
	return r;
}

/* ---- prefills */

static void sleep_ms(uint64_t ms)
{
	const uint64_t until_ns = fa_deadline_ns(ms * FA_NS_PER_MS);

	for (uint64_t now; (now = fa_now_ns()) < until_ns;)
		(void)poll(NULL, 0, (int)((until_ns - now) / FA_NS_PER_MS) + 1);
}

static int sample_prefills(struct yield_bench *b, int daemon, double *ret_ns)
{
	int r;

	r = fa_prefiller_go(b->prefiller, daemon, &b->error);
	if (r < 0)
		return r;
	sleep_ms(b->bench->quick            ? PREFILL_MS_QUICK
	         : b->tokens >= LONG_TOKENS ? PREFILL_MS_LONG
	                                    : PREFILL_MS);
	return fa_prefiller_stop(b->prefiller, &b->error, ret_ns);
}

static int sample_both(struct yield_bench *b, struct samples *samples, int kind, size_t n,
                       double *ret_ns)
{
	int r;

	r = fa_prefiller_go(b->prefiller, kind == BESIDE_OFF ? OFF : ON, &b->error);
	if (r == 0)
		r = sample_steps(b, samples, kind, n);
	return r < 0 ? r : fa_prefiller_stop(b->prefiller, &b->error, ret_ns);
}

/* ---- rounds and results */

static int run_round(struct yield_bench *b, struct samples *samples)
{
	const size_t n = b->bench->quick ? SAMPLES_QUICK : SAMPLES;
	const size_t n_off = b->bench->quick ? SAMPLES_QUICK : SAMPLES_OFF;
	const int round = samples->rounds;
	double unused;
	int r;

	r = sample_steps(b, samples, IDLE, n);
	if (r == 0)
		r = sample_both(b, samples, BESIDE, n, &samples->beside_ns[round]);
	/* The second daemon finds a warmer GPU, so alternate the order. */
	if (r == 0 && b->n_daemons > OFF && round % 2 == 0)
		r = sample_prefills(b, OFF, &samples->off_ns[round]);
	if (r == 0)
		r = sample_prefills(b, ON, &samples->alone_ns[round]);
	if (r == 0 && b->n_daemons > OFF && round % 2 == 1)
		r = sample_prefills(b, OFF, &samples->off_ns[round]);
	if (r == 0 && b->n_daemons > OFF)
		r = sample_both(b, samples, BESIDE_OFF, n_off, &unused);
	samples->rounds++;
	return r;
}

static int add(struct yield_bench *b, const char *kind, const char *suffix, double ns,
               const char *peer, double peer_ns)
{
	char prompt[16], name[96];

	if (b->tokens % 1024 == 0)
		snprintf(prompt, sizeof(prompt), "%uk", b->tokens / 1024);
	else
		snprintf(prompt, sizeof(prompt), "%u", b->tokens);
	snprintf(name, sizeof(name), "yield/prefill-%s/%s%s%s", prompt, kind,
	         b->bench->mps ? "-mps" : "", suffix);
	return fa_bench_add(b->bench, name, ns / 1e3, "us", peer, peer ? peer_ns / ns : 0);
}

static int report_steps(struct yield_bench *b, struct samples *samples)
{
	static const char *const names[STEPS] = { "idle", "decode", "decode-off" };
	static const struct {
		const char *suffix;
		double percent;
	} points[] = { { "", 50 }, { "-p99", 99 } };
	int r = 0;

	for (int kind = 0; kind < STEPS; kind++)
		for (size_t i = 0; i < 2 && r == 0 && samples->n[kind]; i++)
			r = add(b, names[kind], points[i].suffix,
			        (double)fa_bench_percentile(samples->ns[kind], samples->n[kind],
			                                    points[i].percent),
			        kind == IDLE ? NULL : "idle",
			        (double)fa_bench_percentile(samples->ns[IDLE], samples->n[IDLE],
			                                    points[i].percent));
	return r;
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Rounds with fewer than two prefills have no time, and count as 0. */
static double median(double *values, int n)
{
	int first = 0;

	qsort(values, (size_t)n, sizeof(*values), compare_doubles);
	while (first < n && values[first] == 0)
		first++;
	return first == n ? 0 : values[first + (n - first) / 2];
}

static int report(struct yield_bench *b, struct samples *samples)
{
	const double off = median(samples->off_ns, samples->rounds);
	const double alone = median(samples->alone_ns, samples->rounds);
	const double beside = median(samples->beside_ns, samples->rounds);
	int r;

	r = report_steps(b, samples);
	if (r == 0 && off > 0)
		r = add(b, "off", "", off, NULL, 0);
	if (r == 0 && alone > 0)
		r = add(b, "alone", "", alone, off > 0 ? "off" : NULL, off);
	if (r == 0 && beside > 0)
		r = add(b, "beside", "", beside, alone > 0 ? "alone" : NULL, alone);
	return r < 0 ? fa_fail(&b->error, r, "no memory") : 0;
}

static int measure(struct yield_bench *b, uint32_t tokens)
{
	const int rounds = b->bench->quick ? ROUNDS_QUICK : ROUNDS;
	struct fa_prefiller_options options = { .tokens = tokens };
	struct samples samples = { 0 };
	int r = 0;

	b->tokens = tokens;
	for (int daemon = 0; daemon < b->n_daemons; daemon++)
		options.sockets[daemon] = b->daemons[daemon].socket;
	for (int kind = 0; kind < STEPS && r == 0; kind++) {
		samples.ns[kind] = calloc((size_t)rounds * SAMPLES, sizeof(uint64_t));
		if (!samples.ns[kind])
			r = fa_fail(&b->error, -ENOMEM, "no memory");
	}
	/* The daemon preempts only for a stream that has sent requests. */
	for (int daemon = 0; daemon < b->n_daemons && r == 0; daemon++)
		r = run_steps(b, daemon, b->bench->quick ? 1 : WARM_UP, NULL);
	if (r == 0)
		r = fa_prefiller_start(&options, &b->error, &b->prefiller);
	while (r == 0 && samples.rounds < rounds)
		r = run_round(b, &samples);
	b->prefiller = fa_prefiller_free(b->prefiller);
	if (r == 0)
		r = report(b, &samples);
	for (int kind = 0; kind < STEPS; kind++)
		free(samples.ns[kind]);
	return r;
}

/* With --socket, or without a fad-tunable, there is no daemon that never preempts. */
static int start_daemons(struct yield_bench *b)
{
	const char *environment = getenv("FAD_TUNE_PREEMPT_WORK_NS");
	char *usual_ns = environment ? strdup(environment) : NULL;
	const bool tunable = !b->bench->socket && fa_bench_daemon_is_tunable();
	int r = 0;

	/* By default --quick's launches are too short to be preempted. */
	if (b->bench->quick && !environment)
		setenv("FAD_TUNE_PREEMPT_WORK_NS", "0", 1);
	if (b->bench->socket)
		fa_bench_log(b->bench, "fabench yield: with --socket there is no daemon without "
		                       "preemption to compare with");
	else if (!tunable)
		fa_bench_log(b->bench, "fabench yield: without fad-tunable there is no daemon "
		                       "without preemption to compare with");
	while (r == 0 && b->n_daemons < (tunable ? DAEMONS : 1)) {
		const int daemon = b->n_daemons;

		if (daemon == OFF)
			setenv("FAD_TUNE_PREEMPT_WORK_NS", NEVER_NS, 1);
		r = tunable ? fa_bench_daemon_start_tunable(b->bench, &b->daemons[daemon])
		            : fa_bench_daemon_start(b->bench, &b->daemons[daemon]);
		if (r < 0) {
			fa_fail(&b->error, r, "the daemon does not start");
			break;
		}
		b->n_daemons++;
		r = fa_decode_client_open(&b->tensors, b->daemons[daemon].socket, 0, SPIN_NS,
		                          &b->error, &b->clients[daemon]);
	}
	if (usual_ns)
		setenv("FAD_TUNE_PREEMPT_WORK_NS", usual_ns, 1);
	else
		unsetenv("FAD_TUNE_PREEMPT_WORK_NS");
	free(usual_ns);
	return r;
}

static int run_all(struct yield_bench *b)
{
	int r;

	r = fa_decode_tensors_new(b->gpu, b->bench->quick ? &quick : &usual, &b->error,
	                          &b->tensors);
	if (r < 0)
		return r;
	r = start_daemons(b);
	for (size_t i = 0; i < PROMPTS && r == 0; i++)
		r = measure(b, b->bench->quick ? quick_tokens[i] : usual_tokens[i]);
	for (int daemon = 0; daemon < b->n_daemons; daemon++) {
		fa_decode_client_close(&b->clients[daemon]);
		if (fa_bench_daemon_stop(&b->daemons[daemon]) < 0 && r == 0)
			r = fa_fail(&b->error, -EIO, "a daemon did not exit cleanly");
	}
	return r;
}

int fa_bench_yield(struct fa_bench *bench)
{
	struct yield_bench b = { .bench = bench, .random = 1 };
	int r;

	r = fa_inproc_gpu_open(&b.error, &b.gpu);
	if (r == 0) {
		fa_bench_set_gpu(bench, b.gpu->name);
		r = run_all(&b);
	}
	if (r < 0)
		fprintf(stderr, "fabench yield: %s\n", b.error.text);
	if (b.gpu)
		fa_decode_tensors_free(b.gpu, &b.tensors);
	fa_inproc_gpu_close(b.gpu);
	return r;
}
