/*
 * What clients wait when the daemon dies: from its SIGKILL to the first answer of the one that
 * comes after it, about a sequence that was there before. The pool is full, of one cache: most
 * of it in one sequence, which many have forked.
 */
#include "tools/bench.h"

#include "client/faclient.h"
#include "common/clock.h"
#include "tools/bench-daemon.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define DEATHS 20
#define FORKS 1000
#define FORK_TOKENS 4096
#define PAGE_TOKENS 64
#define STEP_TOKENS ((uint64_t)1 << 19)
#define POOL_BYTES_MAX ((uint64_t)64 << 30)
#define RECONNECT_NS (30 * FA_NS_PER_SEC)

struct restart {
	struct fa_bench *bench;
	struct fa_bench_daemon daemon;
	struct fa_client *client;
	uint64_t sequence;
	uint64_t bytes; /* of its pages */
};

static int failed(const struct restart *r, const char *what, int code)
{
	fa_bench_say(r->bench, "fabench: %s: %s", what, fa_error());
	return code;
}

/* Tokens that nobody has computed: it is their pages that count. -ENOMEM: there is no room. */
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

/* The pages of a model with 8 billion parameters, until the pool has no more. */
static int fill(struct restart *r)
{
	struct fa_cache_options options = {
		.size = sizeof(options),
		.dtype = FA_F16,
		.layers = 32,
		.kv_heads = 8,
		.head_dim = 128,
		.page_tokens = PAGE_TOKENS,
	};
	const uint64_t token_bytes = 2ull * 32 * 8 * 128 * 2;
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
	for (int i = 0; i < (r->bench->quick ? 10 : FORKS); i++) {
		code = fa_sequence_fork(r->client, r->sequence,
		                        held < FORK_TOKENS ? held : FORK_TOKENS, &fork);
		if (code < 0)
			return failed(r, "the sequence cannot be forked", code);
	}
	return 0;
}

static int die(struct restart *r, uint64_t *ret_ns)
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
	/* The first may still be lost with the old one. */
	do
		code = fa_sequence_info(r->client, r->sequence, &info);
	while (code == -ECONNRESET);
	*ret_ns = fa_now_ns() - start;
	return code < 0 ? failed(r, "the sequence is not there any more", code) : 0;
}

static int measure(struct restart *r)
{
	const int n = r->bench->quick ? 2 : DEATHS;
	struct fa_info info = { .size = sizeof(info) };
	uint64_t samples[DEATHS], bytes = r->bytes >> 20;
	char name[96];
	int code = 0;

	for (int i = 0; i < n && code == 0; i++)
		code = die(r, &samples[i]);
	if (code == 0)
		code = fa_info(r->client, &info);
	if (code < 0)
		return code;
	fa_bench_say(r->bench, "%llu MiB of pages, %d deaths, %llu sessions resumed",
	             (unsigned long long)bytes, n, (unsigned long long)info.resumed);
	snprintf(name, sizeof(name), "restart/%s/first-answer", info.backend);
	code = fa_bench_add(r->bench, name,
	                    (double)fa_bench_percentile(samples, (size_t)n, 50) / FA_NS_PER_MS,
	                    "ms", NULL, 0);
	snprintf(name, sizeof(name), "restart/%s/first-answer-worst", info.backend);
	if (code == 0)
		code = fa_bench_add(r->bench, name, (double)samples[n - 1] / FA_NS_PER_MS, "ms",
		                    NULL, 0);
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

	if (bench->socket) {
		fa_bench_say(bench, "fabench: restart kills its daemon: it starts one, and does "
		                    "not go with --socket");
		return -EINVAL;
	}
	code = fa_bench_daemon_start_supervised(bench, &r.daemon);
	if (code < 0)
		return code;
	options.socket = r.daemon.socket;
	code = fa_connect(&options, &r.client);
	if (code < 0) {
		failed(&r, "the daemon cannot be reached", code);
	} else {
		code = fill(&r);
		if (code == 0)
			code = measure(&r);
		fa_disconnect(r.client);
	}
	if (fa_bench_daemon_stop(&r.daemon) < 0 && code == 0)
		code = -EIO;
	return code;
}
