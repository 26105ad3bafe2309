/*
 * restart: clients' wait when the daemon dies: from SIGKILL to the successor's first answer about
 * an existing sequence, and to a short one's first token (append, attend in all layers, commit).
 * The pool is full but for a page, mostly of one sequence and its forks.
 */
#include "bench/fabench/bench.h"

#include "bench/fabench/daemon.h"
#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define DEATHS 20
#define FORKS 1000
#define FORK_TOKENS 4096
#define PAGE_TOKENS 64
#define STEP_TOKENS ((uint64_t)1 << 19)
#define LAYERS 32
#define HEADS 32
#define KV_HEADS 8
#define DIM 128
#define ROW_BYTES ((uint64_t)HEADS * DIM * 2)
#define POOL_BYTES_MAX ((uint64_t)64 << 30)
#define RECONNECT_NS (30 * FA_NS_PER_SEC)

struct restart {
	struct fa_bench *bench;
	struct fa_bench_daemon daemon;
	struct fa_client *client;
	uint64_t sequence;
	uint64_t bytes;     /* bytes of its pages */
	uint64_t continued; /* the short sequence */
	struct fa_buffer *buffer;
};

static int failed(const struct restart *r, const char *what, int code)
{
	fa_bench_log(r->bench, "fabench: %s: %s", what, fa_error());
	return code;
}

/* Adds tokens without computing them: only their pages matter. -ENOMEM: the pool is full. */
static int grow(struct restart *r, uint64_t tokens)
{
	const struct fa_step_item item = { .sequence = r->sequence, .n_new = (uint32_t)tokens };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;
	int code;

	code = fa_step_begin(r->client, &options, &step);
	if (code < 0)
		return code;
	code = fa_step_commit(step, NULL, NULL);
	fa_step_free(step);
	return code;
}

/* Fills the pool with pages of a model with 8 billion parameters. */
static int fill(struct restart *r)
{
	struct fa_cache_options options = {
		.size = sizeof(options),
		.dtype = FA_F16,
		.layers = LAYERS,
		.kv_heads = KV_HEADS,
		.head_dim = DIM,
		.page_tokens = PAGE_TOKENS,
	};
	const uint64_t token_bytes = 2ull * LAYERS * KV_HEADS * DIM * 2;
	uint64_t cache, fork, tokens = STEP_TOKENS, held = 0;
	int code;

	code = fa_cache_create(r->client, &options, &cache);
	if (code == 0)
		code = fa_sequence_create(r->client, cache, &r->sequence);
	if (code < 0)
		return failed(r, "there is no cache", code);
	while (tokens >= PAGE_TOKENS) {
		code = -ENOMEM;
		if ((held + tokens) * token_bytes <= POOL_BYTES_MAX)
			code = grow(r, tokens);
		if (code == 0)
			held += tokens;
		else if (code == -ENOMEM || code == -EINVAL)
			tokens /= 2;
		else
			return failed(r, "the pool cannot be filled", code);
	}
	r->bytes = held * token_bytes;
	/* Free a page for the fork that continues. */
	code = fa_sequence_truncate(r->client, r->sequence, held - PAGE_TOKENS);
	if (code == 0)
		code = fa_sequence_fork(r->client, r->sequence, PAGE_TOKENS + 1, &r->continued);
	if (code < 0)
		return failed(r, "there is no page to spare", code);
	for (int i = 0; i < (r->bench->quick ? 10 : FORKS); i++) {
		code = fa_sequence_fork(r->client, r->sequence,
		                        held < FORK_TOKENS ? held : FORK_TOKENS, &fork);
		if (code < 0)
			return failed(r, "the sequence cannot be forked", code);
	}
	return 0;
}

static int append(struct restart *r)
{
	const struct fa_step_item item = { .sequence = r->continued, .n_new = 1 };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	const int64_t q_shape[] = { 1, HEADS, DIM }, kv_shape[] = { 1, KV_HEADS, DIM };
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
	struct fa_ticket ticket;
	struct fa_step *step;
	int code;

	fa_tensor_init(&attend.q, r->buffer, 0, FA_F16, 3, q_shape);
	fa_tensor_init(&attend.k_new, r->buffer, ROW_BYTES, FA_F16, 3, kv_shape);
	fa_tensor_init(&attend.v_new, r->buffer, 2 * ROW_BYTES, FA_F16, 3, kv_shape);
	fa_tensor_init(&attend.out, r->buffer, 3 * ROW_BYTES, FA_F16, 3, q_shape);
	code = fa_step_begin(r->client, &options, &step);
	if (code < 0)
		return code;
	for (uint32_t layer = 0; layer < LAYERS && code == 0; ++layer) {
		attend.layer = layer;
		code = fa_step_attend(step, &attend, &ticket);
	}
	if (code == 0)
		code = fa_step_commit(step, NULL, NULL);
	fa_step_free(step);
	return code;
}

static int die(struct restart *r, uint64_t *ret_ns, uint64_t *ret_token_ns)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	uint64_t start;
	pid_t pid;
	int code;

	code = fa_bench_daemon_process(&r->daemon, &pid);
	if (code < 0)
		return failed(r, "the daemon does not answer", code);
	start = fa_now_ns();
	if (kill(pid, SIGKILL) < 0)
		return -errno;
	/* The old daemon may have lost the first request, so ask again. */
	do
		code = fa_sequence_info(r->client, r->sequence, &info);
	while (code == -ECONNRESET);
	*ret_ns = fa_now_ns() - start;
	if (code < 0)
		return failed(r, "the sequence is not there any more", code);
	/* A GPU backend holds freed pages for a moment, so try again. */
	do
		code = append(r);
	while (code == -ENOMEM && fa_now_ns() - start < RECONNECT_NS);
	*ret_token_ns = fa_now_ns() - start;
	return code < 0 ? failed(r, "no token can be appended", code) : 0;
}

static int measure(struct restart *r)
{
	const int n = r->bench->quick ? 2 : DEATHS;
	struct fa_info info = { .size = sizeof(info) };
	uint64_t samples[DEATHS], tokens[DEATHS], bytes = r->bytes >> 20;
	char name[96];
	int code = 0;

	for (int i = 0; i < n && code == 0; i++)
		code = die(r, &samples[i], &tokens[i]);
	if (code == 0)
		code = fa_info(r->client, &info);
	if (code < 0)
		return code;
	fa_bench_log(r->bench, "%llu MiB of pages, %d deaths, %llu sessions resumed",
	             (unsigned long long)bytes, n, (unsigned long long)info.resumed);
	snprintf(name, sizeof(name), "restart/%s/first-answer", info.backend);
	code = fa_bench_add(r->bench, name,
	                    (double)fa_bench_percentile(samples, (size_t)n, 50) / FA_NS_PER_MS,
	                    "ms", NULL, 0);
	snprintf(name, sizeof(name), "restart/%s/first-answer-worst", info.backend);
	if (code == 0)
		code = fa_bench_add(r->bench, name, (double)samples[n - 1] / FA_NS_PER_MS, "ms",
		                    NULL, 0);
	snprintf(name, sizeof(name), "restart/%s/first-token", info.backend);
	if (code == 0)
		code = fa_bench_add(r->bench, name,
		                    (double)fa_bench_percentile(tokens, (size_t)n, 50) /
		                            FA_NS_PER_MS,
		                    "ms", NULL, 0);
	snprintf(name, sizeof(name), "restart/%s/pages", info.backend);
	if (code == 0)
		code = fa_bench_add(r->bench, name, (double)bytes, "MiB", NULL, 0);
	return code;
}

int fa_bench_restart(struct fa_bench *bench)
{
	struct fa_options options = {
		.size = sizeof(options),
		.name = "fabench",
		.reconnect_ns = RECONNECT_NS,
	};
	struct restart r = { .bench = bench };
	int code;

	/* The benchmark kills the daemon, so `fabench all` leaves out a daemon that was named. */
	if (bench->socket)
		return -ENODEV;
	code = fa_bench_daemon_start_supervised(bench, &r.daemon);
	if (code < 0)
		return code;
	options.socket = r.daemon.socket;
	code = fa_connect(&options, &r.client);
	if (code < 0) {
		failed(&r, "the daemon cannot be reached", code);
	} else {
		code = fa_buffer_new(r.client, 4 * ROW_BYTES, 0, &r.buffer);
		if (code == 0)
			code = fill(&r);
		if (code == 0)
			code = measure(&r);
		fa_disconnect(r.client);
	}
	if (fa_bench_daemon_stop(&r.daemon) < 0 && code == 0)
		code = -EIO;
	return code;
}
