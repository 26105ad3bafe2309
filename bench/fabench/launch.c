/*
 * launch: the daemon threads' work for a decode step's layers on a GPU: 64 sequences of 4,096
 * tokens; 64 of 9,216 that share nothing, or all but the last 1,024 ("-s8192"); one of 1,024. bf16,
 * 32/8 heads, head dim 128. The first layer is planned, and prefixes are found; the others reuse
 * its plan.
 *
 *   tables    put the step's page table where the GPU reads it
 *   prepare   check and plan a request, upload its arrays (loop thread)
 *   launch    all driver calls (engine thread)
 *   first     prepare and launch of the first layer; "next": of each other one
 *
 * Layers attend only, or also append ("-append"), with one kernel or two. The GPU is idle at each
 * launch. Medians; one thread, no daemon. In fabench-launch only, as the daemon and libfaclient
 * have functions of the same name.
 */
#include "bench/fabench/bench.h"

#include "common/clock.h"
#include "daemon/backend/device.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_MAX 64u
#define LAYERS 8
#define LAYERS_QUICK 2
#define HEADS 32
#define KV_HEADS 8
#define DIM 128
#define PAGE_TOKENS 64u
#define ELEMENT_BYTES 2

#define CHUNK_BYTES ((uint64_t)256 << 20)
#define STEPS 200
#define STEPS_QUICK 2
#define WARM_UP 3
#define WARM_UP_QUICK 1

#define Q_BYTES ((uint64_t)BATCH_MAX * HEADS * DIM * ELEMENT_BYTES)
#define K_BYTES ((uint64_t)BATCH_MAX * KV_HEADS * DIM * ELEMENT_BYTES)
#define PAGE_K_BYTES ((uint64_t)PAGE_TOKENS * KV_HEADS * DIM * ELEMENT_BYTES)

static const struct shape {
	uint32_t batch, length; /* sequences, tokens of each sequence */
	uint32_t shared;        /* tokens of the common prefix; the same shape with 0 precedes */
} shapes[] = { { 64, 4096, 0 }, { 64, 9216, 0 }, { 64, 9216, 8192 }, { 1, 1024, 0 } },
  quick_shapes[] = { { 64, 64, 0 }, { 64, 128, 0 }, { 64, 128, 64 }, { 1, 64, 0 } };

#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct launch_bench {
	struct fa_bench *bench;
	bool prepares_only;
	struct fa_error error;
	const struct fa_device_ops *ops;
	struct fa_device *device;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct fa_device_memory tensors; /* q, out, k, v */
	const struct shape *shape;
	uint32_t pages; /* pages per sequence */
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	uint32_t cu_new[BATCH_MAX + 1], lengths[BATCH_MAX], lengths_before[BATCH_MAX];
	uint32_t table_start[BATCH_MAX];
	uint32_t *table;
	/* Times of first-prepare if nothing is shared, without and with append. */
	double unshared_ns[2];
};

struct samples {
	uint64_t *tables, *first_prepare, *first_launch, *next_prepare, *next_launch;
	size_t n, n_next;
};

static void notify(void *userdata)
{
}

static uint32_t pages_of(const struct shape *shape)
{
	return (shape->length + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* Makes a pool with enough pages for the largest shape; all layers use the same pages. */
static int make_pool(struct launch_bench *b)
{
	const struct shape *all = b->bench->quick ? quick_shapes : shapes;
	uint32_t chunks, pages = 0;
	bool zeroed;
	void *base;
	int r, fd;

	for (size_t i = 0; i < SHAPES; i++)
		if (pages < all[i].batch * pages_of(&all[i]))
			pages = all[i].batch * pages_of(&all[i]);
	chunks = (uint32_t)((2 * PAGE_K_BYTES * pages + CHUNK_BYTES - 1) / CHUNK_BYTES);
	r = b->ops->pool_open(b->device, CHUNK_BYTES, chunks, &b->error, &base);
	for (uint32_t i = 0; i < chunks && r == 0; i++) {
		r = b->ops->pool_chunk_add(b->device, i, &b->error, &zeroed, &fd);
		if (r == 0)
			close(fd);
	}
	if (r < 0)
		return r;
	b->cache = (struct fa_paged_cache){
		.pool = base,
		.dtype = FA_ATTENTION_BF16,
		.layers = LAYERS,
		.kv_heads = KV_HEADS,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.page_tokens = (int32_t)PAGE_TOKENS,
		.layer_stride = 0,
		.v_offset = (int64_t)PAGE_K_BYTES,
	};
	return 0;
}

static int make_step(struct launch_bench *b, const struct shape *shape)
{
	const uint32_t n = shape->batch * pages_of(shape), shared = shape->shared / PAGE_TOKENS;

	b->shape = shape;
	b->pages = pages_of(shape);
	free(b->table);
	b->table = calloc(n, sizeof(*b->table));
	if (!b->table)
		return fa_fail(&b->error, -ENOMEM, "no memory");
	for (uint32_t i = 0; i < n; i++) {
		const uint32_t page = i % b->pages < shared ? i % b->pages : i;

		b->table[i] = (uint32_t)(page * (2 * PAGE_K_BYTES / FA_PAGED_SLOT_BYTES));
	}
	for (uint32_t i = 0; i <= shape->batch; i++)
		b->cu_new[i] = i;
	for (uint32_t i = 0; i < shape->batch; i++) {
		b->lengths[i] = shape->length;
		b->lengths_before[i] = shape->length - 1;
		b->table_start[i] = i * b->pages;
	}
	b->step = (struct fa_paged_step){
		.batch = (int32_t)shape->batch,
		.cu_new = b->cu_new,
		.lengths = b->lengths,
		.lengths_before = b->lengths_before,
		.table_start = b->table_start,
		.table_entries = n,
		.host_table = b->table,
	};
	return 0;
}

static struct fa_attention_tensor tensor(const struct launch_bench *b, uint64_t at, int32_t heads)
{
	return (struct fa_attention_tensor){ .data = (char *)b->tensors.address + at,
		                             .stride_token = (int64_t)heads * DIM,
		                             .stride_head = DIM };
}

/* Makes the requests that the daemon makes of a StepAttend. */
static uint32_t make_requests(const struct launch_bench *b, int32_t layer, bool append,
                              struct fa_paged_request requests[2])
{
	uint32_t n = 0;

	if (append)
		requests[n++] = (struct fa_paged_request){
			.op = FA_PAGED_APPEND,
			.append = { .cache = &b->cache,
			            .step = &b->step,
			            .layer = layer,
			            .k = tensor(b, 2 * Q_BYTES, KV_HEADS),
			            .v = tensor(b, 2 * Q_BYTES + K_BYTES, KV_HEADS) },
		};
	requests[n++] = (struct fa_paged_request){
		.op = FA_PAGED_ATTEND,
		.attention = { .cache = &b->cache,
		               .step = &b->step,
		               .layer = layer,
		               .heads = HEADS,
		               .q = tensor(b, 0, HEADS),
		               .out = tensor(b, Q_BYTES, HEADS),
		               .scale = 1 / sqrtf(DIM),
		               .causal = true,
		               .window_left = -1,
		               .window_right = -1 },
	};
	return n;
}

static int wait(struct launch_bench *b, struct fa_device_work *work)
{
	struct fa_list done;

	fa_list_init(&done);
	while (fa_list_empty(&done)) {
		b->ops->reap(b->device, &done);
		if (b->ops->health && b->ops->health(b->device, &b->error) < 0)
			return -ENODEV;
	}
	fa_list_remove(&work->link);
	if (work->status < 0)
		b->error = work->error;
	return work->status;
}

static int run_layer(struct launch_bench *b, struct fa_device_tables *tables, int32_t layer,
                     bool append, uint64_t *ret_prepare_ns, uint64_t *ret_launch_ns)
{
	struct fa_paged_request requests[2];
	struct fa_device_work work = {
		.op = FA_DEVICE_PAGED, .paged = requests, .tables = tables, .reuse_plan = true
	};
	uint64_t start_ns, prepared_ns;
	int r;

	work.n_paged = make_requests(b, layer, append, requests);
	start_ns = fa_now_ns();
	r = b->ops->paged_prepare(b->device, &work, &b->error);
	prepared_ns = fa_now_ns();
	*ret_prepare_ns = prepared_ns - start_ns;
	*ret_launch_ns = 0;
	/* Only planning allocates metadata. */
	if (r == 0 && layer > 0 && work.metadata_bytes)
		r = fa_fail(&b->error, -EPROTO, "layer %d of %u sequences was planned again", layer,
		            b->shape->batch);
	/* --quick has prefixes that are not worth sharing. */
	if (r == 0 && !b->bench->quick && (work.shared_prefixes > 0) != (b->shape->shared > 0))
		r = fa_fail(&b->error, -EPROTO,
		            "%u prefixes were found among sequences that share "
		            "%u tokens",
		            work.shared_prefixes, b->shape->shared);
	if (r == 0 && !b->prepares_only) {
		r = b->ops->launch(b->device, b->queue, &work);
		*ret_launch_ns = fa_now_ns() - prepared_ns;
		if (r == 0)
			r = wait(b, &work);
	}
	b->ops->paged_release(b->device, &work);
	return r;
}

/* Runs a step and keeps its times as sample @i; @i < 0: warm-up, without samples. */
static int run_step(struct launch_bench *b, bool append, int i, struct samples *samples)
{
	const size_t bytes = b->step.table_entries * sizeof(*b->table);
	const int32_t layers = b->bench->quick ? LAYERS_QUICK : LAYERS;
	uint64_t start_ns = fa_now_ns(), prepare_ns, launch_ns;
	struct fa_device_tables *tables;
	int r;

	r = b->ops->tables_new(b->device, bytes, &b->error, &tables);
	if (r < 0)
		return r;
	memcpy(tables->data, b->table, bytes);
	b->step.table = tables->data;
	if (i >= 0)
		samples->tables[i] = fa_now_ns() - start_ns;
	for (int32_t layer = 0; layer < layers && r == 0; layer++) {
		r = run_layer(b, tables, layer, append, &prepare_ns, &launch_ns);
		if (i < 0 || r < 0)
			continue;
		if (layer == 0) {
			samples->first_prepare[i] = prepare_ns;
			samples->first_launch[i] = launch_ns;
		} else {
			samples->next_prepare[samples->n_next] = prepare_ns;
			samples->next_launch[samples->n_next++] = launch_ns;
		}
	}
	b->ops->tables_free(b->device, tables);
	return r;
}

/* Adds a result. @unshared_ns: the time to compare with; 0: none. */
static int add(struct launch_bench *b, bool append, const char *what, double ns, double unshared_ns)
{
	char shared[16] = "", name[96];

	if (b->shape->shared)
		snprintf(shared, sizeof(shared), "-s%u", b->shape->shared);
	snprintf(name, sizeof(name), "launch/decode-b%u-c%u%s%s/%s", b->shape->batch,
	         b->shape->length, shared, append ? "-append" : "", what);
	return fa_bench_add(b->bench, name, ns / 1e3, "us", unshared_ns > 0 ? "unshared" : NULL,
	                    unshared_ns > 0 ? unshared_ns / ns : 0);
}

static int report(struct launch_bench *b, bool append, struct samples *s)
{
	const double tables = (double)fa_bench_percentile(s->tables, s->n, 50);
	const double prepare = (double)fa_bench_percentile(s->first_prepare, s->n, 50);
	const double launch = (double)fa_bench_percentile(s->first_launch, s->n, 50);
	const double next_prepare = (double)fa_bench_percentile(s->next_prepare, s->n_next, 50);
	const double next_launch = (double)fa_bench_percentile(s->next_launch, s->n_next, 50);
	const double unshared = b->shape->shared ? b->unshared_ns[append] : 0;
	int r;

	if (!b->shape->shared)
		b->unshared_ns[append] = prepare;
	r = add(b, append, "tables", tables, 0);
	if (r == 0)
		r = add(b, append, "first-prepare", prepare, unshared);
	if (r == 0)
		r = add(b, append, "next-prepare", next_prepare, 0);
	if (r == 0 && !b->prepares_only)
		r = add(b, append, "first-launch", launch, 0);
	if (r == 0 && !b->prepares_only)
		r = add(b, append, "first", prepare + launch, 0);
	if (r == 0 && !b->prepares_only)
		r = add(b, append, "next-launch", next_launch, 0);
	if (r == 0 && !b->prepares_only)
		r = add(b, append, "next", next_prepare + next_launch, 0);
	return r < 0 ? fa_fail(&b->error, r, "no memory") : 0;
}

static int measure(struct launch_bench *b, bool append)
{
	const int n = b->bench->quick ? STEPS_QUICK : STEPS;
	uint64_t *ns = calloc((size_t)n * (3 + 2 * (LAYERS - 1)), sizeof(*ns));
	struct samples samples = {
		.tables = ns,
		.first_prepare = ns + n,
		.first_launch = ns + 2 * (size_t)n,
		.next_prepare = ns + 3 * (size_t)n,
		.next_launch = ns + (size_t)n * (3 + LAYERS - 1),
		.n = (size_t)n,
	};
	int r = ns ? 0 : fa_fail(&b->error, -ENOMEM, "no memory");

	for (int i = b->bench->quick ? -WARM_UP_QUICK : -WARM_UP; i < n && r == 0; i++)
		r = run_step(b, append, i, &samples);
	if (r == 0)
		r = report(b, append, &samples);
	free(ns);
	return r;
}

static int open_device(struct launch_bench *b)
{
	const struct fa_device_config config = { .notify = notify };
	struct fa_device_info info;
	uint64_t piece_bytes;
	int r, fd;

	r = fa_device_open("cuda", &config, &b->error, &b->ops, &b->device);
	if (r < 0)
		return -ENODEV;
	b->ops->describe(b->device, &info);
	fa_bench_set_gpu(b->bench, info.name);
	r = b->ops->memory_new_arena(b->device, 2 * Q_BYTES + 2 * K_BYTES, &b->error, &b->tensors,
	                             &fd, &piece_bytes);
	if (r < 0)
		return r;
	close(fd);
	r = make_pool(b);
	if (r == 0)
		r = b->ops->group_new(b->device, &b->error, &b->group);
	return r == 0 ? b->ops->queue_new(b->device, b->group, 1, &b->error, &b->queue) : r;
}

static void close_device(struct launch_bench *b)
{
	if (!b->device)
		return;
	if (b->queue)
		b->ops->queue_free(b->device, b->queue);
	if (b->group)
		b->ops->group_free(b->device, b->group);
	if (b->tensors.address) {
		struct fa_device_memory *memory = &b->tensors;

		b->ops->memory_release(b->device, &memory, 1);
	}
	b->ops->close(b->device);
	free(b->table);
}

int fa_bench_launch(struct fa_bench *bench, bool prepares_only)
{
	struct launch_bench b = { .bench = bench, .prepares_only = prepares_only };
	int r;

	r = open_device(&b);
	for (size_t i = 0; i < SHAPES && r == 0; i++) {
		r = make_step(&b, bench->quick ? &quick_shapes[i] : &shapes[i]);
		if (r == 0)
			r = measure(&b, false);
		if (r == 0)
			r = measure(&b, true);
	}
	if (r < 0)
		fa_bench_log(bench, "fabench-launch: %s", b.error.text);
	close_device(&b);
	return r;
}
