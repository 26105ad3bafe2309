/*
 * cpu: the CPU attention kernels, without a daemon. Prefill is compared with a matrix multiply
 * (OpenBLAS, if installed), causal and block-sparse prefill also with full prefill, decode with reading K and V, and
 * with what the machine allows: reading, or the arithmetic at three quarters of the matrix
 * multiply's speed. The same threads run all in turn; medians count. The caller is the team's member 0; the others wait
 * at the barrier between measurements.
 */
#include "bench/fabench/bench.h"
#include "common/clock.h"
#include "kernels/attention.h"
#include "kernels/paged.h"

#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 256
#define ROUNDS 9
#define SGEMM_SIZE 2048
#define SGEMM_PART 0.75      /* the part of the matrix multiply's speed that decode can reach */
#define READ_AHEAD_WORDS 512 /* the fastest */
#define SETTLE_US 60000      /* OpenBLAS threads spin after a call */

/* ---- a team */

struct team {
	unsigned int n_threads, n_started;
	pthread_t threads[THREADS_MAX];
	pthread_barrier_t barrier;
	bool has_barrier;
	cpu_set_t allowed;
	/* written between barriers */
	void (*work)(struct team *team, unsigned int member);
	bool ends;

	const struct fa_cpu_isa *isa;
	const struct fa_attention_params *params;
	int64_t n_tiles;
	atomic_int_fast64_t next_tile;
	void *scratch[THREADS_MAX];
	void *workspace;

	const struct fa_paged_request *paged;

	const uint64_t *words;
	size_t n_words;
	atomic_uint_fast64_t sum; /* keeps reads from being optimised away */
};

struct member {
	struct team *team;
	unsigned int number;
};

/* Binds this thread to the member's processor: the kernel may leave two threads on one. */
static void pin(const struct team *team, unsigned int number)
{
	unsigned int n = 0;
	cpu_set_t one;

	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &team->allowed) && n++ == number)
			CPU_SET(cpu, &one);
	if (CPU_COUNT(&one) == 1)
		(void)sched_setaffinity(0, sizeof(one), &one);
}

static void *member_main(void *userdata)
{
	struct member member = *(struct member *)userdata;

	free(userdata);
	pin(member.team, member.number);
	for (;;) {
		pthread_barrier_wait(&member.team->barrier);
		if (member.team->ends)
			return NULL;
		member.team->work(member.team, member.number);
		pthread_barrier_wait(&member.team->barrier);
	}
}

static void team_deinit(struct team *team)
{
	/* A team that lacks threads cannot pass the barrier: its threads keep waiting. */
	if (team->has_barrier && team->n_started == team->n_threads) {
		team->ends = true;
		pthread_barrier_wait(&team->barrier);
		for (unsigned int i = 1; i < team->n_threads; i++)
			pthread_join(team->threads[i], NULL);
		pthread_barrier_destroy(&team->barrier);
	}
	for (unsigned int i = 0; i < team->n_threads; i++)
		free(team->scratch[i]);
	free(team->workspace);
}

static int team_init(struct team *team)
{
	int n = 1;

	memset(team, 0, sizeof(*team));
	if (sched_getaffinity(0, sizeof(team->allowed), &team->allowed) == 0)
		n = CPU_COUNT(&team->allowed);
	team->n_threads = n < THREADS_MAX ? (unsigned int)n : THREADS_MAX;
	team->workspace = aligned_alloc(64, FA_CPU_WORKSPACE_BYTES_MAX);
	if (!team->workspace)
		return -ENOMEM;
	for (unsigned int i = 0; i < team->n_threads; i++) {
		team->scratch[i] = aligned_alloc(64, FA_CPU_SCRATCH_BYTES_MAX);
		if (!team->scratch[i])
			return -ENOMEM;
	}
	if (pthread_barrier_init(&team->barrier, NULL, team->n_threads) != 0)
		return -ENOMEM;
	team->has_barrier = true;
	team->n_started = 1;
	for (unsigned int i = 1; i < team->n_threads; i++) {
		struct member *member = malloc(sizeof(*member));

		if (!member)
			return -ENOMEM;
		*member = (struct member){ .team = team, .number = i };
		if (pthread_create(&team->threads[i], NULL, member_main, member) != 0) {
			free(member);
			return -EAGAIN;
		}
		team->n_started++;
	}
	return 0;
}

static uint64_t team_time(struct team *team, void (*work)(struct team *team, unsigned int member))
{
	uint64_t start, ns;

	team->work = work;
	atomic_store(&team->next_tile, 0);
	pin(team, 0);
	start = fa_now_ns();
	pthread_barrier_wait(&team->barrier);
	work(team, 0);
	pthread_barrier_wait(&team->barrier);
	ns = fa_now_ns() - start;
	/* OpenBLAS's threads inherit the caller's processors. */
	(void)sched_setaffinity(0, sizeof(team->allowed), &team->allowed);
	return ns;
}

static void attend(struct team *team, unsigned int member)
{
	for (;;) {
		int64_t tile = atomic_fetch_add(&team->next_tile, 1);

		if (tile >= team->n_tiles)
			return;
		fa_cpu_attention_tile(team->isa, team->params, team->workspace, tile,
		                      team->scratch[member], NULL);
	}
}

static void attend_paged(struct team *team, unsigned int member)
{
	for (;;) {
		int64_t tile = atomic_fetch_add(&team->next_tile, 1);

		if (tile >= team->n_tiles)
			return;
		fa_cpu_paged_tile(team->isa, team->paged, team->workspace, tile,
		                  team->scratch[member], NULL);
	}
}

static void read_words(struct team *team, unsigned int member)
{
	size_t begin = team->n_words * member / team->n_threads;
	size_t end = team->n_words * (member + 1) / team->n_threads;
	uint64_t sums[8] = { 0 };

	for (size_t i = begin; i + 8 <= end; i += 8) {
		__builtin_prefetch(team->words + i + READ_AHEAD_WORDS);
		for (size_t j = 0; j < 8; j++)
			sums[j] += team->words[i + j];
	}
	for (size_t j = 1; j < 8; j++)
		sums[0] += sums[j];
	atomic_fetch_add(&team->sum, sums[0]);
}

/* ---- OpenBLAS */

typedef void sgemm_fn(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);

struct blas {
	sgemm_fn *sgemm; /* NULL: not installed */
	float *a, *b, *c;
};

static void fill(float *to, size_t n)
{
	uint32_t state = 1;

	for (size_t i = 0; i < n; i++) {
		state = state * 1664525u + 1013904223u;
		to[i] = (float)(state >> 8) * 0x1p-23f - 1;
	}
}

static void blas_deinit(struct blas *blas)
{
	/* The library stays loaded: its threads cannot be unloaded safely. */
	free(blas->a);
	free(blas->b);
	free(blas->c);
}

static int blas_init(struct blas *blas, unsigned int n_threads)
{
	const size_t n = (size_t)SGEMM_SIZE * SGEMM_SIZE;
	void (*set_threads)(int n);
	void *library;

	*blas = (struct blas){ 0 };
	library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return 0;
	blas->sgemm = (sgemm_fn *)dlsym(library, "cblas_sgemm");
	set_threads = (void (*)(int))dlsym(library, "openblas_set_num_threads");
	if (!blas->sgemm || !set_threads) {
		blas->sgemm = NULL;
		return 0;
	}
	set_threads((int)n_threads);
	blas->a = malloc(n * sizeof(float));
	blas->b = malloc(n * sizeof(float));
	blas->c = calloc(n, sizeof(float));
	if (!blas->a || !blas->b || !blas->c)
		return -ENOMEM;
	fill(blas->a, n);
	fill(blas->b, n);
	return 0;
}

static uint64_t blas_time(struct blas *blas)
{
	const int n = SGEMM_SIZE, row_major = 101, as_it_is = 111;
	uint64_t start = fa_now_ns(), ns;

	blas->sgemm(row_major, as_it_is, as_it_is, n, n, n, 1, blas->a, n, blas->b, n, 0, blas->c,
	            n);
	ns = fa_now_ns() - start;
	usleep(SETTLE_US);
	return ns;
}

static double blas_flops(void)
{
	return 2.0 * SGEMM_SIZE * SGEMM_SIZE * SGEMM_SIZE;
}

/* ---- requests */

struct shape {
	int32_t heads, kv_heads, head_dim;
	int64_t n_q, n_k;
	int32_t page; /* tokens in a page; 0: tensors */
};

struct request {
	struct fa_attention_params params;
	/* The same keys and values in pages, which lie in a random order. */
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request paged;
	uint32_t *table;
	uint32_t cu_new[2], length, length_before, table_start;
	char *memory; /* k and v are adjacent, to be read in one go */
	size_t kv_bytes;
	const char *kv;
};

static const char *dtype_name(enum fa_attention_dtype dtype)
{
	static const char *const names[] = {
		[FA_ATTENTION_F32] = "fp32",
		[FA_ATTENTION_F16] = "fp16",
		[FA_ATTENTION_BF16] = "bf16",
	};

	return names[dtype];
}

static struct fa_attention_tensor tensor(char **memory, int64_t tokens, int32_t heads, int32_t dim,
                                         size_t bytes)
{
	struct fa_attention_tensor made = {
		.data = *memory,
		.stride_batch = tokens * heads * dim,
		.stride_token = (int64_t)heads * dim,
		.stride_head = dim,
	};

	*memory += (size_t)made.stride_batch * bytes;
	return made;
}

static int request_init(struct request *request, enum fa_attention_dtype dtype,
                        const struct shape *shape)
{
	size_t bytes = dtype == FA_ATTENTION_F32 ? 4 : 2;
	size_t n_q = (size_t)shape->n_q * (size_t)(shape->heads * shape->head_dim);
	size_t n_k = (size_t)shape->n_k * (size_t)(shape->kv_heads * shape->head_dim);
	size_t n = 2 * n_q + 2 * n_k;
	struct fa_attention_params *params = &request->params;
	char *at;

	memset(request, 0, sizeof(*request));
	request->memory = aligned_alloc(4096,
	                                (n * bytes + FA_PAGED_SLOT_BYTES + 4095) / 4096 * 4096);
	if (!request->memory)
		return -ENOMEM;
	if (dtype == FA_ATTENTION_F32) {
		fill((float *)request->memory, n);
	} else {
		uint16_t *half = (uint16_t *)request->memory;
		/* Random sign and fraction; magnitudes are from 1/2 to 1. */
		uint16_t exponent = dtype == FA_ATTENTION_F16 ? 0x3800 : 0x3f00;
		uint16_t others = dtype == FA_ATTENTION_F16 ? 0x83ff : 0x807f;
		uint32_t state = 1;

		for (size_t i = 0; i < n; i++) {
			state = state * 1664525u + 1013904223u;
			half[i] = (uint16_t)((state >> 16 & others) | exponent);
		}
	}

	at = request->memory;
	*params = (struct fa_attention_params){
		.dtype = dtype,
		.batch = 1,
		.heads = shape->heads,
		.kv_heads = shape->kv_heads,
		.head_dim = shape->head_dim,
		.head_dim_v = shape->head_dim,
		.seqlen_q = shape->n_q,
		.seqlen_k = shape->n_k,
		.scale = 1 / sqrtf((float)shape->head_dim),
		.window_left = -1,
		.window_right = -1,
	};
	params->q = tensor(&at, shape->n_q, shape->heads, shape->head_dim, bytes);
	params->out = tensor(&at, shape->n_q, shape->heads, shape->head_dim, bytes);
	at += (size_t)(-(uintptr_t)at % FA_PAGED_SLOT_BYTES);
	request->kv = at;
	request->kv_bytes = 2 * n_k * bytes;
	params->k = tensor(&at, shape->n_k, shape->kv_heads, shape->head_dim, bytes);
	params->v = tensor(&at, shape->n_k, shape->kv_heads, shape->head_dim, bytes);
	return 0;
}

static int request_page(struct request *request, const struct shape *shape)
{
	const struct fa_attention_params *params = &request->params;
	const uint32_t pages = (uint32_t)(shape->n_k / shape->page);
	const uint32_t slots = (uint32_t)(request->kv_bytes / pages / FA_PAGED_SLOT_BYTES);
	uint32_t state = 1;

	request->table = malloc(pages * sizeof(*request->table));
	if (!request->table)
		return -ENOMEM;
	for (uint32_t i = 0; i < pages; i++) {
		uint32_t j;

		state = state * 1664525u + 1013904223u;
		j = (state >> 8) % (i + 1);
		request->table[i] = request->table[j];
		request->table[j] = i * slots;
	}
	request->cu_new[1] = (uint32_t)shape->n_q;
	request->length = (uint32_t)shape->n_k;
	request->length_before = (uint32_t)(shape->n_k - shape->n_q);
	request->cache = (struct fa_paged_cache){
		.pool = (void *)request->kv,
		.dtype = params->dtype,
		.layers = 1,
		.kv_heads = shape->kv_heads,
		.head_dim = shape->head_dim,
		.head_dim_v = shape->head_dim,
		.page_tokens = shape->page,
		.layer_stride = (int64_t)slots * FA_PAGED_SLOT_BYTES,
		.v_offset = (int64_t)slots * FA_PAGED_SLOT_BYTES / 2,
	};
	request->step = (struct fa_paged_step){
		.batch = 1,
		.cu_new = request->cu_new,
		.lengths = &request->length,
		.lengths_before = &request->length_before,
		.table = request->table,
		.table_start = &request->table_start,
		.table_entries = pages,
	};
	request->paged = (struct fa_paged_request){
		.op = FA_PAGED_ATTEND,
		.attention = {
			.cache = &request->cache,
			.step = &request->step,
			.heads = shape->heads,
			.q = params->q,
			.out = params->out,
			.scale = params->scale,
			.causal = true,
			.window_left = -1,
			.window_right = -1,
		},
	};
	return 0;
}

static void request_deinit(struct request *request)
{
	free(request->table);
	free(request->memory);
}

static uint64_t request_time(struct team *team, struct request *request, bool causal)
{
	if (request->table) {
		team->paged = &request->paged;
		team->n_tiles = fa_cpu_paged_begin(team->isa, &request->paged, team->workspace);
		return team_time(team, attend_paged);
	}
	request->params.causal = causal;
	team->params = &request->params;
	team->n_tiles = fa_cpu_attention_tiles(team->isa, &request->params);
	fa_cpu_attention_begin(team->isa, team->params, team->workspace);
	return team_time(team, attend);
}

static double median(uint64_t *ns, size_t n)
{
	return (double)fa_bench_percentile(ns, n, 50) * 1e-9;
}

/* ---- benchmarks */

static bool wanted(const struct fa_bench *bench, const char *name)
{
	if (bench->only && fnmatch(bench->only, name, 0) != 0)
		return false;
	if (bench->list)
		puts(name);
	return !bench->list;
}

static int bench_prefill(struct fa_bench *bench, struct team *team, struct blas *blas,
                         enum fa_attention_dtype dtype, const struct shape *shape)
{
	const size_t rounds = bench->quick ? 1 : ROUNDS;
	uint64_t sgemm[ROUNDS], full[ROUNDS], causal[ROUNDS];
	struct request request;
	double rate, rate_causal, rate_sgemm = 0, t_full, t_causal;
	const char *peer = blas->sgemm ? "sgemm" : NULL;
	char name[96], name_causal[96];
	int r;

	snprintf(name, sizeof(name), "cpu/%s/d%d-h%d-s%lld/full", dtype_name(dtype),
	         shape->head_dim, shape->heads, (long long)shape->n_q);
	snprintf(name_causal, sizeof(name_causal), "cpu/%s/d%d-h%d-s%lld/causal", dtype_name(dtype),
	         shape->head_dim, shape->heads, (long long)shape->n_q);
	if (!wanted(bench, name) && !wanted(bench, name_causal))
		return 0;
	r = request_init(&request, dtype, shape);
	if (r < 0)
		return r;

	request_time(team, &request, false); /* fault in all pages */
	for (size_t i = 0; i < rounds; i++) {
		sgemm[i] = blas->sgemm ? blas_time(blas) : 0;
		full[i] = request_time(team, &request, false);
		causal[i] = request_time(team, &request, true);
	}
	t_full = median(full, rounds);
	t_causal = median(causal, rounds);
	rate_causal = fa_attention_flops(&request.params) / t_causal;
	request.params.causal = false;
	rate = fa_attention_flops(&request.params) / t_full;
	if (blas->sgemm)
		rate_sgemm = blas_flops() / median(sgemm, rounds);
	request_deinit(&request);

	r = fa_bench_add(bench, name, rate * 1e-9, "GFLOP/s", peer, peer ? rate / rate_sgemm : 0);
	if (r == 0)
		r = fa_bench_add(bench, name_causal, rate_causal * 1e-9, "GFLOP/s", peer,
		                 peer ? rate_causal / rate_sgemm : 0);
	if (r == 0)
		r = fa_bench_add(bench, name_causal, t_causal * 1e3, "ms", "full",
		                 t_full / t_causal);
	return r;
}

/* A quarter of the blocks of 128 tokens, a random one of each four, in lists of each head's own: the
 * ratio is the speed relative to all keys. */
static int bench_blocks(struct fa_bench *bench, struct team *team, enum fa_attention_dtype dtype,
                        const struct shape *shape)
{
	const size_t rounds = bench->quick ? 1 : ROUNDS;
	const int32_t n = (int32_t)(shape->n_q / 128), each = n / 4;
	const size_t lists = (size_t)shape->heads * (size_t)(n + 1);
	uint64_t full[ROUNDS], some[ROUNDS];
	struct fa_attention_blocks blocks;
	struct request request;
	uint32_t state = 1;
	int32_t *memory;
	double rate;
	char name[96];
	int r;

	snprintf(name, sizeof(name), "cpu/%s/d%d-h%d-s%lld/blocks", dtype_name(dtype),
	         shape->head_dim, shape->heads, (long long)shape->n_q);
	if (!wanted(bench, name))
		return 0;
	memory = calloc(lists + (size_t)shape->heads * (size_t)(n * each), sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	r = request_init(&request, dtype, shape);
	if (r < 0) {
		free(memory);
		return r;
	}
	blocks = (struct fa_attention_blocks){
		.rows = 128,
		.keys = 128,
		.offsets = memory,
		.columns = memory + lists,
		.n_columns = n * each,
		.offsets_stride_head = n + 1,
		.columns_stride_head = n * each,
	};
	for (int32_t h = 0; h < shape->heads; h++) {
		for (int32_t i = 0; i <= n; i++)
			memory[h * (n + 1) + i] = i * each;
		for (int32_t i = 0; i < n * each; i++) {
			state = state * 1664525u + 1013904223u;
			memory[lists + (size_t)(h * n * each + i)] = i % each * 4 +
			                                             (int32_t)(state >> 30);
		}
	}

	request_time(team, &request, false); /* fault in all pages */
	for (size_t i = 0; i < rounds; i++) {
		request.params.blocks = (struct fa_attention_blocks){ 0 };
		full[i] = request_time(team, &request, false);
		request.params.blocks = blocks;
		some[i] = request_time(team, &request, false);
	}
	rate = fa_attention_flops(&request.params) / 4 / median(some, rounds);
	r = fa_bench_add(bench, name, rate * 1e-9, "GFLOP/s", "full",
	                 median(full, rounds) / 4 / median(some, rounds));
	request_deinit(&request);
	free(memory);
	return r;
}

/* A few new tokens on many keys, causally. */
static int bench_extend(struct fa_bench *bench, struct team *team, struct blas *blas,
                        enum fa_attention_dtype dtype, const struct shape *shape)
{
	const size_t rounds = bench->quick ? 1 : ROUNDS;
	uint64_t sgemm[ROUNDS], extend[ROUNDS];
	struct request request;
	double rate, rate_sgemm = 0;
	char name[96];
	int r;

	snprintf(name, sizeof(name), "cpu/%s/d%d-h%d.%d-q%lld-c%lld/extend", dtype_name(dtype),
	         shape->head_dim, shape->heads, shape->kv_heads, (long long)shape->n_q,
	         (long long)shape->n_k);
	if (!wanted(bench, name))
		return 0;
	r = request_init(&request, dtype, shape);
	if (r < 0)
		return r;
	request_time(team, &request, true); /* fault in all pages */
	for (size_t i = 0; i < rounds; i++) {
		sgemm[i] = blas->sgemm ? blas_time(blas) : 0;
		extend[i] = request_time(team, &request, true);
	}
	rate = fa_attention_flops(&request.params) / median(extend, rounds);
	if (blas->sgemm)
		rate_sgemm = blas_flops() / median(sgemm, rounds);
	request_deinit(&request);
	return fa_bench_add(bench, name, rate * 1e-9, "GFLOP/s", blas->sgemm ? "sgemm" : NULL,
	                    blas->sgemm ? rate / rate_sgemm : 0);
}

static int bench_decode(struct fa_bench *bench, struct team *team, struct blas *blas,
                        enum fa_attention_dtype dtype, const struct shape *shape)
{
	const size_t rounds = bench->quick ? 1 : ROUNDS;
	uint64_t sgemm[ROUNDS], decode[ROUNDS], reading[ROUNDS];
	struct request request;
	char name[96], page[16] = "";
	double rate, rate_reading, allowed, flops;
	int r;

	if (shape->page)
		snprintf(page, sizeof(page), "-p%d", shape->page);
	snprintf(name, sizeof(name), "cpu/%s/d%d-h%d.%d-c%lld%s/decode", dtype_name(dtype),
	         shape->head_dim, shape->heads, shape->kv_heads, (long long)shape->n_k, page);
	if (!wanted(bench, name))
		return 0;
	r = request_init(&request, dtype, shape);
	if (r == 0 && shape->page)
		r = request_page(&request, shape);
	if (r < 0)
		return r;
	team->words = (const uint64_t *)request.kv;
	team->n_words = request.kv_bytes / sizeof(uint64_t);
	request_time(team, &request, false); /* fault in all pages */
	for (size_t i = 0; i < rounds; i++)
		sgemm[i] = blas->sgemm ? blas_time(blas) : 0;
	for (size_t i = 0; i < rounds; i++) {
		reading[i] = team_time(team, read_words);
		decode[i] = request_time(team, &request, false);
	}
	rate = (double)request.kv_bytes / median(decode, rounds);
	rate_reading = (double)request.kv_bytes / median(reading, rounds);
	flops = fa_attention_flops(&request.params);
	allowed = rate_reading;
	if (blas->sgemm) {
		double computing = SGEMM_PART * blas_flops() / median(sgemm, rounds) *
		                   (double)request.kv_bytes / flops;

		allowed = computing < allowed ? computing : allowed;
	}
	request_deinit(&request);

	r = fa_bench_add(bench, name, rate * 1e-9, "GB/s", "read", rate / rate_reading);
	if (r == 0 && blas->sgemm)
		r = fa_bench_add(bench, name, rate * 1e-9, "GB/s", "allowed", rate / allowed);
	return r;
}

static int bench_all(struct fa_bench *bench, struct team *team, struct blas *blas)
{
	static const struct shape prefill[] = {
		{ .heads = 8, .kv_heads = 8, .head_dim = 128, .n_q = 2048, .n_k = 2048 },
		{ .heads = 8, .kv_heads = 8, .head_dim = 64, .n_q = 2048, .n_k = 2048 },
	};
	static const struct shape blocks[] = {
		{ .heads = 2, .kv_heads = 2, .head_dim = 128, .n_q = 8192, .n_k = 8192 },
		{ .heads = 2, .kv_heads = 2, .head_dim = 64, .n_q = 8192, .n_k = 8192 },
	};
	static const struct shape extend[] = {
		{ .heads = 32, .kv_heads = 8, .head_dim = 128, .n_q = 16, .n_k = 8192 },
		{ .heads = 32, .kv_heads = 8, .head_dim = 128, .n_q = 64, .n_k = 8192 },
		{ .heads = 4, .kv_heads = 1, .head_dim = 128, .n_q = 64, .n_k = 32768 },
	};
	static const struct shape decode[] = {
		{ .heads = 8, .kv_heads = 8, .head_dim = 128, .n_q = 1, .n_k = 32768 },
		{ .heads = 32, .kv_heads = 8, .head_dim = 128, .n_q = 1, .n_k = 32768 },
		{ .heads = 40, .kv_heads = 8, .head_dim = 128, .n_q = 1, .n_k = 32768 },
		{ .heads = 1, .kv_heads = 1, .head_dim = 128, .n_q = 1, .n_k = 131072 },
		{ .heads = 8, .kv_heads = 1, .head_dim = 128, .n_q = 1, .n_k = 131072 },
		{ .heads = 8, .kv_heads = 1, .head_dim = 64, .n_q = 1, .n_k = 131072 },
		{ .heads = 32, .kv_heads = 8, .head_dim = 128, .n_q = 1, .n_k = 32768, .page = 16 },
		{ .heads = 32, .kv_heads = 8, .head_dim = 128, .n_q = 1, .n_k = 32768, .page = 64 },
	};
	int r = 0;

	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16 && r == 0; dtype++) {
		for (size_t i = 0; i < sizeof(prefill) / sizeof(prefill[0]) && r == 0; i++) {
			struct shape shape = prefill[i];

			if (bench->quick)
				shape.n_q = shape.n_k = 256;
			r = bench_prefill(bench, team, blas, (enum fa_attention_dtype)dtype,
			                  &shape);
		}
		for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]) && r == 0; i++) {
			struct shape shape = blocks[i];

			if (bench->quick)
				shape.n_q = shape.n_k = 512;
			r = bench_blocks(bench, team, (enum fa_attention_dtype)dtype, &shape);
		}
		for (size_t i = 0; i < sizeof(extend) / sizeof(extend[0]) && r == 0; i++) {
			struct shape shape = extend[i];

			if (bench->quick)
				shape.n_k = 1024;
			r = bench_extend(bench, team, blas, (enum fa_attention_dtype)dtype, &shape);
		}
		for (size_t i = 0; i < sizeof(decode) / sizeof(decode[0]) && r == 0; i++) {
			struct shape shape = decode[i];

			if (bench->quick)
				shape.n_k = 1024;
			r = bench_decode(bench, team, blas, (enum fa_attention_dtype)dtype, &shape);
		}
	}
	return r;
}

int fa_bench_cpu(struct fa_bench *bench)
{
	struct team team;
	struct blas blas = { 0 };
	char text[256] = "";
	int r;

	r = team_init(&team);
	if (r == 0)
		r = blas_init(&blas, team.n_threads);
	if (r == 0)
		r = fa_cpu_isa_select(text, sizeof(text), &team.isa);
	if (r < 0) {
		fprintf(stderr, "fabench cpu: %s\n", text[0] ? text : strerror(-r));
	} else {
		fa_bench_log(bench, "cpu: %s kernels, %u threads%s", fa_cpu_isa_name(team.isa),
		             team.n_threads,
		             blas.sgemm ? "" : ", no libopenblas.so.0 to compare with");
		r = bench_all(bench, &team, &blas);
		if (r < 0)
			fprintf(stderr, "fabench cpu: %s\n", strerror(-r));
	}
	blas_deinit(&blas);
	team_deinit(&team);
	return r;
}
