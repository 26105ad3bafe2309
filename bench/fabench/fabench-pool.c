/*
 * fabench-pool: the cost of KV pool bookkeeping. One thread, no daemon, no memory behind the pool.
 * Free pages are in random order, as after a while of use.
 *
 * pool/page/... is the mean of two million pages, in the best of five passes; open and state are
 * single values; the others are medians.
 */
#include "bench/fabench/bench.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/pool/cache.h"
#include "daemon/pool/hash.h"
#include "daemon/pool/page.h"
#include "daemon/pool/prefix.h"
#include "daemon/pool/prefix_index.h"
#include "daemon/pool/reclaim.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/step.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHUNK_BYTES ((uint64_t)256 << 20)
#define CHUNKS 256u /* 64 GiB */
#define QUICK_CHUNKS 32u
#define LONG_TOKENS 100000u
#define SEQUENCES 256u
#define SEQUENCE_TOKENS 4096u
#define PASSES 5u
#define ROUNDS 300u
#define QUICK_ROUNDS 10u

struct pool_bench {
	struct fa_bench *bench;
	struct fa_error error;
	int fd;
	struct fa_pool *pool;
	struct fa_actor actor;
	uint32_t n_chunks, n_rounds;
	uint64_t *times;
	uint64_t number; /* number of the last step */
};

static void close_pool(struct pool_bench *b)
{
	b->pool = fa_pool_free(b->pool);
	fa_close_fdp(&b->fd);
}

static int open_pool(struct pool_bench *b)
{
	const struct fa_pool_config config = { .chunk_bytes = CHUNK_BYTES,
		                               .max_chunks = b->n_chunks };
	int r;

	r = fa_pool_format(&config, &b->error, &b->fd);
	if (r >= 0)
		r = fa_pool_open(b->fd, NULL, &b->error, &b->pool);
	if (r >= 0)
		r = fa_pool_tenant_get(b->pool, 0, "", &b->error, &b->actor.tenant);
	for (uint32_t i = 0; r >= 0 && i < b->n_chunks; i++)
		r = fa_pool_chunk_add(b->pool, i, true, &b->error);
	if (r >= 0)
		fa_pool_quarantine_end(b->pool);
	return r;
}

/* Makes a cache whose pages have 32 KiB, the minimum, or 256 KiB. */
static int new_cache(struct pool_bench *b, uint32_t page_tokens, uint64_t *ret_id)
{
	const struct fa_pool_cache_config config = {
		.geometry = { .layers = 1,
		              .kv_heads = 8,
		              .head_dim = page_tokens == 16 ? 64 : 128,
		              .head_dim_v = page_tokens == 16 ? 64 : 128,
		              .dtype = FA_ATTENTION_BF16,
		              .page_tokens = page_tokens },
		.name = "bench",
		.mode = FA_MODE(FA_ADMIT_ALL, FA_ADMIT_ALL, 0),
	};

	return fa_pool_cache_new(b->pool, &b->actor, &config, 0, &b->error, ret_id);
}

static int add(struct pool_bench *b, const char *what, uint32_t page_tokens, const char *how,
               double value, const char *unit)
{
	char name[64];

	snprintf(name, sizeof(name), "pool/%s/p%u/%s", what, page_tokens, how);
	return fa_bench_add(b->bench, name, value, unit, NULL, 0);
}

static int add_median(struct pool_bench *b, const char *what, uint32_t page_tokens, const char *how)
{
	return add(b, what, page_tokens, how,
	           (double)fa_bench_percentile(b->times, b->n_rounds, 50) / FA_NS_PER_US, "us");
}

static void shuffle(uint32_t *values, uint32_t n)
{
	uint64_t state = 88172645463325252ull;

	for (uint32_t i = n; i > 1; i--) {
		uint32_t j, value;

		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		j = (uint32_t)(state % i);
		value = values[j];
		values[j] = values[i - 1];
		values[i - 1] = value;
	}
}

/* Allocates all pages of the pool to the cache, and frees them in random order. */
static int shuffle_free_pages(struct pool_bench *b, struct fa_pool_cache *cache,
                              uint32_t **ret_pages, uint32_t *ret_n)
{
	uint32_t n = b->n_chunks * cache->layout.pages_per_chunk;
	uint32_t *pages = malloc(n * sizeof(*pages));
	bool clear;
	int r;

	if (!pages)
		return -ENOMEM;
	cache->need_pages = n;
	r = fa_reclaim_pages(b->pool, cache, &b->error);
	cache->need_pages = 0;
	if (r < 0) {
		free(pages);
		return r;
	}
	for (uint32_t i = 0; i < n; i++)
		pages[i] = fa_page_take(b->pool, cache, b->actor.tenant, &clear);
	shuffle(pages, n);
	for (uint32_t i = 0; i < n; i++)
		fa_page_unref(b->pool, cache, pages[i]);
	*ret_pages = pages;
	*ret_n = n;
	return 0;
}

static void keep_min(uint64_t *least, uint64_t ns)
{
	if (ns < *least)
		*least = ns;
}

static int measure_pages(struct pool_bench *b, struct fa_pool_cache *cache, uint32_t *pages,
                         uint32_t n)
{
	static const char *const names[] = { "allocate", "share", "unshare", "release" };
	uint64_t least[] = { UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };
	int r = 0;

	for (uint32_t pass = 0; pass < PASSES; pass++) {
		uint64_t times[5];
		bool clear;

		times[0] = fa_now_ns();
		for (uint32_t i = 0; i < n; i++)
			pages[i] = fa_page_take(b->pool, cache, b->actor.tenant, &clear);
		times[1] = fa_now_ns();
		for (uint32_t i = 0; i < n; i++)
			fa_page_ref(b->pool, cache, pages[i]);
		times[2] = fa_now_ns();
		for (uint32_t i = 0; i < n; i++)
			fa_page_unref(b->pool, cache, pages[i]);
		times[3] = fa_now_ns();
		for (uint32_t i = 0; i < n; i++)
			fa_page_unref(b->pool, cache, pages[i]);
		times[4] = fa_now_ns();
		for (int i = 0; i < 4; i++)
			keep_min(&least[i], times[i + 1] - times[i]);
	}
	for (int i = 0; r >= 0 && i < 4; i++)
		r = add(b, "page", cache->layout.page_tokens, names[i], (double)least[i] / n, "ns");
	return r;
}

static int step(struct pool_bench *b, const struct fa_pool_step_item *items, uint32_t n,
                uint64_t *ret_ns, uint64_t *ret_commit_ns)
{
	struct fa_pool_step *planned = NULL;
	uint64_t start = fa_now_ns(), end;
	int r;

	r = fa_pool_step_plan(b->pool, &b->actor, items, n, ++b->number, 0, &b->error, &planned);
	if (r < 0)
		return r;
	end = fa_now_ns();
	*ret_ns = end - start;
	r = fa_pool_step_commit(b->pool, planned, &b->error);
	if (r < 0)
		return r;
	fa_pool_step_free(planned);
	*ret_commit_ns = fa_now_ns() - end;
	return 0;
}

static int measure_forks(struct pool_bench *b, uint64_t cache, uint32_t page_tokens)
{
	struct fa_pool_step_item item = { .n_tokens = LONG_TOKENS };
	uint64_t ns, commit_ns;
	int r;

	r = fa_pool_sequence_new(b->pool, &b->actor, cache, &b->error, &item.sequence);
	if (r >= 0)
		r = step(b, &item, 1, &ns, &commit_ns);
	for (uint32_t i = 0; r >= 0 && i < b->n_rounds; i++) {
		uint64_t fork, start = fa_now_ns();

		r = fa_pool_sequence_fork(b->pool, &b->actor, item.sequence, UINT64_MAX, &b->error,
		                          &fork);
		b->times[i] = fa_now_ns() - start;
		if (r >= 0)
			r = fa_pool_sequence_remove(b->pool, &b->actor, fork, &b->error);
	}
	if (r >= 0)
		r = add_median(b, "fork", page_tokens, "100k");
	if (r >= 0)
		r = fa_pool_sequence_remove(b->pool, &b->actor, item.sequence, &b->error);
	return r;
}

static int publish(struct pool_bench *b, uint64_t sequence, const uint32_t *tokens,
                   uint32_t n_tokens)
{
	_fa_cleanup_(fa_prefix_hashes_deinit) struct fa_prefix_hashes hashes = {};
	const struct fa_prefix_key key = {};
	uint64_t n_pages;
	int r;

	r = fa_prefix_hashes_init(b->pool, &b->actor, sequence, &key, n_tokens, &b->error, &hashes);
	if (r < 0)
		return r;
	fa_prefix_hashes_compute(&hashes, tokens);
	return fa_prefix_publish(b->pool, &b->actor, sequence, &hashes, n_tokens, &b->error,
	                         &n_pages);
}

static int attach(struct pool_bench *b, uint64_t sequence, const uint32_t *tokens,
                  uint32_t n_tokens)
{
	_fa_cleanup_(fa_prefix_hashes_deinit) struct fa_prefix_hashes hashes = {};
	const struct fa_prefix_key key = {};
	uint64_t n;
	int r;

	r = fa_prefix_hashes_init(b->pool, &b->actor, sequence, &key, n_tokens, &b->error, &hashes);
	if (r < 0)
		return r;
	fa_prefix_hashes_compute(&hashes, tokens);
	return fa_prefix_attach(b->pool, &b->actor, sequence, &hashes, &b->error, &n);
}

static int measure_prefixes(struct pool_bench *b, uint64_t cache, uint32_t page_tokens)
{
	_fa_cleanup_(fa_freep) uint32_t *tokens = calloc(LONG_TOKENS, sizeof(*tokens));
	struct fa_pool_step_item item = { .n_tokens = LONG_TOKENS };
	uint32_t rounds = b->n_rounds < 30 ? b->n_rounds : 30;
	uint64_t ns, commit_ns;
	int r;

	if (!tokens)
		return -ENOMEM;
	r = fa_pool_sequence_new(b->pool, &b->actor, cache, &b->error, &item.sequence);
	if (r >= 0)
		r = step(b, &item, 1, &ns, &commit_ns);
	if (r >= 0)
		r = publish(b, item.sequence, tokens, LONG_TOKENS);
	for (uint32_t i = 0; r >= 0 && i < rounds; i++) {
		uint64_t sequence, start;

		r = fa_pool_sequence_new(b->pool, &b->actor, cache, &b->error, &sequence);
		if (r < 0)
			break;
		start = fa_now_ns();
		r = attach(b, sequence, tokens, LONG_TOKENS);
		b->times[i] = fa_now_ns() - start;
		if (r >= 0)
			r = fa_pool_sequence_remove(b->pool, &b->actor, sequence, &b->error);
	}
	if (r >= 0)
		r = add(b, "attach", page_tokens, "100k",
		        (double)fa_bench_percentile(b->times, rounds, 50) / FA_NS_PER_US, "us");
	if (r >= 0)
		r = fa_pool_sequence_remove(b->pool, &b->actor, item.sequence, &b->error);
	return r;
}

/* Returns how many pages with these tokens the tenant would find. */
static uint32_t find(const struct fa_pool *pool, uint64_t cache, uint32_t page_tokens,
                     uint32_t tenant, const uint32_t *tokens, uint32_t n_tokens)
{
	uint8_t hash[FA_STATE_HASH_BYTES];
	uint32_t n;

	fa_pool_hash_prefix_begin(pool->header->secret, cache, tenant, NULL, 0, hash);
	for (n = 0; n < n_tokens / page_tokens; n++) {
		fa_pool_hash_prefix_next(tokens + n * page_tokens, page_tokens, hash);
		if (!fa_prefix_index_find(pool, hash))
			break;
	}
	return n;
}

/* Another tenant looks up tokens that others published and tokens that nobody did, in turn. The
 * times must not differ. */
static int measure_probes(struct pool_bench *b, uint64_t cache, uint32_t page_tokens)
{
	_fa_cleanup_(fa_freep) uint32_t *tokens = calloc(SEQUENCE_TOKENS, sizeof(*tokens));
	_fa_cleanup_(fa_freep) uint64_t *unknown = calloc(b->n_rounds, sizeof(*unknown));
	struct fa_pool_step_item item = { .n_tokens = SEQUENCE_TOKENS };
	struct fa_actor stranger = { .owner = 2 };
	uint64_t ns, commit_ns, found = 0;
	char name[64];
	int r;

	if (!tokens || !unknown)
		return -ENOMEM;
	r = fa_pool_sequence_new(b->pool, &b->actor, cache, &b->error, &item.sequence);
	if (r >= 0)
		r = step(b, &item, 1, &ns, &commit_ns);
	tokens[0] = 1;
	if (r >= 0)
		r = publish(b, item.sequence, tokens, SEQUENCE_TOKENS);
	if (r >= 0)
		r = fa_pool_tenant_get(b->pool, 1, "", &b->error, &stranger.tenant);
	for (uint32_t i = 0; r >= 0 && i < 2 * b->n_rounds; i++) {
		uint64_t start;

		tokens[0] = i % 2 ? 1 : 2 + i;
		start = fa_now_ns();
		/* A single lookup is too short for the clock, so time 64. */
		for (uint32_t j = 0; j < 64; j++)
			found += find(b->pool, cache, page_tokens, stranger.tenant, tokens,
			              SEQUENCE_TOKENS);
		(i % 2 ? b->times : unknown)[i / 2] = (fa_now_ns() - start) / 64;
	}
	if (r >= 0 && found)
		r = fa_fail(&b->error, -EPROTO, "a tenant found what another published");
	if (r < 0)
		return r;
	ns = fa_bench_percentile(b->times, b->n_rounds, 50);
	snprintf(name, sizeof(name), "pool/probe/p%u/published-by-another", page_tokens);
	r = fa_bench_add(b->bench, name, (double)ns, "ns", "unknown",
	                 (double)fa_bench_percentile(unknown, b->n_rounds, 50) / (double)ns);
	fa_pool_tenant_put(b->pool, stranger.tenant);
	if (r >= 0)
		r = fa_pool_sequence_remove(b->pool, &b->actor, item.sequence, &b->error);
	return r;
}

static int measure_steps(struct pool_bench *b, uint64_t cache, uint32_t page_tokens)
{
	struct fa_pool_step_item items[SEQUENCES];
	uint64_t *commits = calloc(b->n_rounds, sizeof(*commits)), ns, commit_ns;
	int r = commits ? 0 : -ENOMEM;

	for (uint32_t i = 0; r >= 0 && i < SEQUENCES; i++) {
		/* Sequences reach the ends of pages in different steps. */
		items[i] = (struct fa_pool_step_item){ .n_tokens = SEQUENCE_TOKENS - 64 + i % 64 };
		r = fa_pool_sequence_new(b->pool, &b->actor, cache, &b->error, &items[i].sequence);
	}
	if (r >= 0)
		r = step(b, items, SEQUENCES, &ns, &commit_ns);
	for (uint32_t i = 0; i < SEQUENCES; i++)
		items[i].n_tokens = 1;
	for (uint32_t i = 0; r >= 0 && i < b->n_rounds; i++)
		r = step(b, items, SEQUENCES, &b->times[i], &commits[i]);
	if (r >= 0)
		r = add_median(b, "plan", page_tokens, "b256-c4096");
	if (r >= 0)
		r = add(b, "commit", page_tokens, "b256-c4096",
		        (double)fa_bench_percentile(commits, b->n_rounds, 50) / FA_NS_PER_US, "us");
	for (uint32_t i = 0; r >= 0 && i < SEQUENCES; i++)
		r = fa_pool_sequence_remove(b->pool, &b->actor, items[i].sequence, &b->error);
	free(commits);
	return r;
}

/* Publishes all pages, in sequences of 4,096 tokens; measures the state's size and the time to
 * open it. */
static int measure_state(struct pool_bench *b, uint64_t cache, uint32_t page_tokens, uint32_t n)
{
	uint32_t tokens[SEQUENCE_TOKENS] = { 0 };
	struct stat st;
	int r = 0;

	for (uint32_t i = 0; r >= 0 && i + SEQUENCE_TOKENS / page_tokens <= n;
	     i += SEQUENCE_TOKENS / page_tokens) {
		struct fa_pool_step_item item = { .n_tokens = SEQUENCE_TOKENS };
		uint64_t ns, commit_ns;

		tokens[0] = i;
		r = fa_pool_sequence_new(b->pool, &b->actor, cache, &b->error, &item.sequence);
		if (r >= 0)
			r = step(b, &item, 1, &ns, &commit_ns);
		if (r >= 0)
			r = publish(b, item.sequence, tokens, SEQUENCE_TOKENS);
	}
	if (r < 0 || fstat(b->fd, &st) < 0)
		return r;
	r = add(b, "state", page_tokens, "published", (double)st.st_blocks * 512 / n, "B/page");
	b->pool = fa_pool_free(b->pool);
	if (r >= 0) {
		uint64_t start = fa_now_ns();

		r = fa_pool_open(b->fd, NULL, &b->error, &b->pool);
		if (r >= 0)
			r = add(b, "open", page_tokens, "published",
			        (double)(fa_now_ns() - start) / 1e6, "ms");
	}
	return r;
}

static int measure(struct pool_bench *b, uint32_t page_tokens)
{
	_fa_cleanup_(fa_freep) uint32_t *pages = NULL;
	struct fa_pool_cache *cache;
	uint64_t id;
	uint32_t n;
	int r;

	r = open_pool(b);
	if (r >= 0)
		r = new_cache(b, page_tokens, &id);
	if (r < 0)
		return r;
	cache = b->pool->caches[0]; /* the only one */
	r = shuffle_free_pages(b, cache, &pages, &n);
	if (r >= 0)
		r = measure_pages(b, cache, pages, n);
	if (r >= 0)
		r = measure_forks(b, id, page_tokens);
	if (r >= 0)
		r = measure_steps(b, id, page_tokens);
	if (r >= 0)
		r = measure_prefixes(b, id, page_tokens);
	if (r >= 0)
		r = measure_probes(b, id, page_tokens);
	if (r >= 0)
		r = measure_state(b, id, page_tokens, n);
	close_pool(b);
	return r;
}

static int bench_pool(struct fa_bench *bench)
{
	struct pool_bench b = {
		.bench = bench,
		.fd = -1,
		.actor = { .owner = 1 },
		.n_chunks = bench->quick ? QUICK_CHUNKS : CHUNKS,
		.n_rounds = bench->quick ? QUICK_ROUNDS : ROUNDS,
	};
	int r = 0;

	b.times = calloc(b.n_rounds, sizeof(*b.times));
	if (!b.times)
		r = -ENOMEM;
	for (uint32_t page_tokens = 16; r >= 0 && page_tokens <= 64; page_tokens *= 4)
		r = measure(&b, page_tokens);
	if (r < 0)
		fa_bench_log(bench, "pool: %s", b.error.text);
	free(b.times);
	return r;
}

static const char usage[] = "Usage: fabench-pool [--json] [--quick]\n"
			    "Measures the bookkeeping of the KV pool.\n"
			    "  --json   print JSON instead of lines\n"
			    "  --quick  run briefly, as a test; the numbers mean nothing\n";

int main(int argc, char **argv)
{
	struct fa_bench bench;
	int r;

	fa_bench_init(&bench);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json")) {
			bench.json = true;
		} else if (!strcmp(argv[i], "--quick")) {
			bench.quick = true;
		} else {
			bool asked = !strcmp(argv[i], "-h") || !strcmp(argv[i], "--help");

			fputs(usage, asked ? stdout : stderr);
			return asked ? 0 : 2;
		}
	}
	r = bench_pool(&bench);
	if (bench.json && fa_bench_print_json(&bench) < 0)
		r = -EIO;
	fa_bench_deinit(&bench);
	return r < 0;
}
