/*
 * Decode launches that also append new tokens: results and the whole pool must have the bits of a
 * separate append and attention, over pages with NaN in place of new tokens.
 *
 * test-paged-append [--seed N] [--random N] [--every N] [--small]
 *
 * Skips (77) without a GPU.
 */
#include "tests/gpu/draw.h"
#include "tests/gpu/paged-fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER 1 /* the tested layer */
#define ELEMENT_BYTES 2

struct way {
	int32_t sms;    /* 0: the GPU's own */
	bool carried;   /* a short table is in the launch */
	bool gap;       /* between rows of k and of v */
	bool separate;  /* k is [head][token][dim] */
	bool pinned;    /* k and v are in host memory */
	bool splits;    /* use kernels for pieces */
	uint32_t ready; /* bitmap: new tokens are in pages already */
};

struct scene {
	struct paged_problem problem;
	struct paged_device device;
	struct paged_gpu_plan plan, append_plan;
	struct fa_paged_request append;
	uint32_t before[PAGED_BATCH_MAX];
	char *tensors[2]; /* k and v; poison between rows */
	size_t tensor_bytes[2];
	uint64_t device_tensors[2];
	bool pinned;
	char *pool; /* before the append, with poison for new tokens */
	char *by_two_pool, *by_two_out, *by_two_lse, *now;
};

static bool can_append(const struct scene *scene)
{
	return fa_cuda_paged_can_append(&scene->plan.plan, &scene->device.request.attention,
	                                &scene->append.append);
}

static int32_t dim_of(const struct paged_spec *spec, int j)
{
	return j ? spec->head_dim_v : spec->head_dim;
}

static void take_out(struct scene *scene, int32_t b)
{
	const struct paged_problem *problem = &scene->problem;
	const struct fa_attention_tensor *const to[] = { &scene->append.append.k,
		                                         &scene->append.append.v };
	for (uint32_t i = 0; i < problem->spec.n_new[b]; i++)
		for (int32_t h = 0; h < problem->spec.kv_heads; h++)
			for (int j = 0; j < 2; j++) {
				const size_t row_bytes = (size_t)dim_of(&problem->spec, j) *
				                         ELEMENT_BYTES;
				const int64_t token = scene->before[b] + i;
				const char *const from = j ? paged_v(problem, LAYER, b, token, h)
				                           : paged_k(problem, LAYER, b, token, h);
				const int64_t at = ((int64_t)problem->cu_new[b] + i) *
				                           to[j]->stride_token +
				                   h * to[j]->stride_head;

				memcpy(scene->tensors[j] + at * ELEMENT_BYTES, from, row_bytes);
				memset(scene->pool + (from - (char *)problem->cache.pool), 0xff,
				       row_bytes);
			}
}

static void make_tensors(struct scene *scene, const struct way *way)
{
	const struct paged_problem *problem = &scene->problem;
	const struct paged_spec *spec = &problem->spec;
	const int64_t tokens = problem->cu_new[spec->batch];
	struct fa_attention_tensor *const to[] = { &scene->append.append.k,
		                                   &scene->append.append.v };

	for (int j = 0; j < 2; j++) {
		const int64_t row = dim_of(spec, j) + (way->gap ? 8 * (1 + j) : 0);

		to[j]->stride_head = row;
		to[j]->stride_token = row * spec->kv_heads;
		if (way->separate && j == 0) {
			to[j]->stride_token = row;
			to[j]->stride_head = row * tokens;
		}
		scene->tensor_bytes[j] = (size_t)(tokens * row * spec->kv_heads) * ELEMENT_BYTES;
		scene->tensors[j] = aligned_alloc(4096,
		                                  (scene->tensor_bytes[j] + 4096) / 4096 * 4096);
		memset(scene->tensors[j], 0xff, scene->tensor_bytes[j]);
	}
	for (int32_t b = 0; b < spec->batch; b++)
		if (scene->before[b] < spec->lengths[b])
			take_out(scene, b);
	for (int j = 0; j < 2; j++) {
		scene->device_tensors[j] =
			scene->pinned
				? paged_gpu_pin(paged_device_gpu, scene->tensors[j],
		                                scene->tensor_bytes[j])
				: paged_device_upload(scene->tensors[j], scene->tensor_bytes[j]);
		to[j]->data = POINTER(scene->device_tensors[j]);
	}
}

static void scene_init(struct scene *scene, const struct paged_spec *spec, const struct way *way)
{
	struct fa_cuda_chip chip = *paged_gpu_chip(paged_device_gpu);
	struct paged_problem *problem = &scene->problem;

	memset(scene, 0, sizeof(*scene));
	paged_init(problem, spec);
	for (int32_t b = 0; b < spec->batch; b++)
		scene->before[b] = way->ready >> b & 1 ? spec->lengths[b] : problem->before[b];
	paged_device_init(&scene->device, problem);
	scene->device.step.lengths_before = scene->before;
	scene->device.step.host_table = way->carried ? problem->table : NULL;
	scene->append.op = FA_PAGED_APPEND;
	scene->append.append.cache = &scene->device.cache;
	scene->append.append.step = &scene->device.step;
	scene->append.append.layer = LAYER;
	scene->pool = malloc(problem->pool_bytes);
	scene->by_two_pool = malloc(problem->pool_bytes);
	scene->now = malloc(problem->pool_bytes);
	scene->by_two_out = malloc(problem->out_bytes + 1);
	scene->by_two_lse = malloc(problem->lse_bytes + 1);
	memcpy(scene->pool, problem->cache.pool, problem->pool_bytes);
	scene->pinned = way->pinned;
	make_tensors(scene, way);
	chip.share_early = true;
	chip.pack = -1; /* packed rows never append */
	if (way->sms)
		chip.sms = way->sms;
	paged_plan(&scene->device, problem, &chip, &scene->plan);
	if (paged_gpu_plan(paged_device_gpu, &chip, &scene->append, &scene->append_plan) < 0)
		paged_fail("%s: no plan to append", paged_describe(problem));
}

static void scene_deinit(struct scene *scene)
{
	paged_gpu_plan_free(paged_device_gpu, &scene->plan);
	paged_gpu_plan_free(paged_device_gpu, &scene->append_plan);
	for (int j = 0; j < 2; j++) {
		if (scene->pinned)
			paged_gpu_unpin(paged_device_gpu, scene->tensors[j]);
		else
			paged_gpu_free(paged_device_gpu, scene->device_tensors[j]);
		free(scene->tensors[j]);
	}
	free(scene->pool);
	free(scene->by_two_pool);
	free(scene->by_two_out);
	free(scene->by_two_lse);
	free(scene->now);
	paged_device_deinit(&scene->device);
	paged_deinit(&scene->problem);
}

static void fetch(struct scene *scene, void *pool)
{
	struct paged_problem *problem = &scene->problem;

	paged_gpu_sync(paged_device_gpu);
	paged_gpu_download(paged_device_gpu, problem->out, scene->device.out, problem->out_bytes);
	paged_gpu_download(paged_device_gpu, problem->lse, scene->device.lse, problem->lse_bytes);
	paged_gpu_download(paged_device_gpu, pool, scene->device.pool, problem->pool_bytes);
}

static void poison_results(const struct scene *scene)
{
	paged_gpu_fill(paged_device_gpu, scene->device.out, 0xff, scene->problem.out_bytes);
	paged_gpu_fill(paged_device_gpu, scene->device.lse, 0xff, scene->problem.lse_bytes);
	paged_gpu_poison_shared(paged_device_gpu);
}

static void run_two(struct scene *scene)
{
	struct paged_problem *problem = &scene->problem;

	paged_gpu_upload(paged_device_gpu, scene->device.pool, scene->pool, problem->pool_bytes);
	poison_results(scene);
	paged_gpu_launch(paged_device_gpu, &scene->append_plan, &scene->append);
	paged_gpu_launch(paged_device_gpu, &scene->plan, &scene->device.request);
	fetch(scene, scene->by_two_pool);
	memcpy(scene->by_two_out, problem->out, problem->out_bytes);
	memcpy(scene->by_two_lse, problem->lse, problem->lse_bytes);
	if (memcmp(scene->by_two_pool, problem->cache.pool, problem->pool_bytes) != 0)
		paged_fail("%s: append has not made the pool that there was",
		           paged_describe(problem));
}

/* @again: the new tokens are in the pages already. */
static void run_one(struct scene *scene, bool again)
{
	struct paged_problem *problem = &scene->problem;

	if (!again)
		paged_gpu_upload(paged_device_gpu, scene->device.pool, scene->pool,
		                 problem->pool_bytes);
	poison_results(scene);
	paged_gpu_launch_append(paged_device_gpu, &scene->plan, &scene->device.request,
	                        &scene->append.append);
	fetch(scene, scene->now);
	if (memcmp(scene->now, scene->by_two_pool, problem->pool_bytes) != 0)
		paged_fail("%s on %s: another pool%s", paged_describe(problem),
		           scene->plan.plan.decode->symbol, again ? ", the second time" : "");
	if (memcmp(problem->out, scene->by_two_out, problem->out_bytes) != 0 ||
	    memcmp(problem->lse, scene->by_two_lse, problem->lse_bytes) != 0)
		paged_fail("%s on %s: other bits than by two launches%s", paged_describe(problem),
		           scene->plan.plan.decode->symbol, again ? ", the second time" : "");
}

/* @joined: chip-specific kernels must do it in one launch. */
static void check(const struct paged_spec *spec, const struct way *way, bool joined)
{
	static struct scene scene;
	static int number;

	if (number++ % paged_options.every || !fa_draw())
		return;
	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	scene_init(&scene, spec, way);
	/* Portable kernels never append, nor do those of two fragments at head dim 64. */
	joined = joined && paged_gpu_chip(paged_device_gpu)->arch == 90 &&
	         (scene.plan.plan.decode->dim != 64 || scene.plan.plan.decode->rows == 16);
	if (can_append(&scene) != joined)
		paged_fail("%s: one launch %s do it", paged_describe(&scene.problem),
		           joined ? "cannot" : "would");
	if (joined && (scene.plan.plan.decode->kind == FA_CUDA_PAGED_SPLIT) != way->splits)
		paged_fail("%s: %s is not what should compute it", paged_describe(&scene.problem),
		           scene.plan.plan.decode->symbol);
	run_two(&scene);
	if (joined) {
		run_one(&scene, false);
		run_one(&scene, true);
	}
	paged_judge(&scene.problem, "an append and attention", PAGED_ROUNDS_WEIGHTS_FAST);
	scene_deinit(&scene);
	paged_passed++;
}

static const int32_t dims[] = { 128, 64, 256 };
static const int32_t pages[] = { 16, 64, 256, 48, 128 };
static const int32_t groups[] = { 4, 1, 8, 3, 16, 5, 2, 7 };

static struct paged_spec spec_of(int i)
{
	struct paged_spec spec = {
		.dtype = i / 3 % 2 ? FA_ATTENTION_F16 : FA_ATTENTION_BF16,
		.kv_heads = 1 + i % 2,
		.head_dim = dims[i % 3],
		.head_dim_v = dims[i % 3],
		.page_tokens = pages[i % 5],
		.layer_major = i % 2,
		.gaps = i % 4 == 1,
		.causal = true,
	};

	spec.heads = spec.kv_heads * groups[i % 8];
	return spec;
}

static void numbers(void)
{
	for (int i = 0; i < 48; i++) {
		struct paged_spec spec = spec_of(i);
		const struct way way = {
			.sms = i % 4 == 3   ? 1
			       : i % 4 == 2 ? 7 + i
			                    : 0,
			.carried = i % 3 == 1,
			.gap = i % 5 == 2,
			.separate = i % 7 == 3,
			.pinned = i % 6 == 5,
			.ready = i % 4 == 1 ? 4 : 0,
		};

		spec.batch = 3 + i % 2 * 6;
		for (int32_t b = 0; b < spec.batch; b++) {
			static const uint32_t old[] = { 0, 15, 16, 60, 63, 64, 250, 128, 1 };

			spec.n_new[b] = b == 1 && i % 3 ? 0 : 1 + (uint32_t)(i + 5 * b) % 16;
			spec.lengths[b] = old[(i + b) % 9] + spec.n_new[b];
		}
		check(&spec, &way, true);
	}
}

/* Tokens that no row sees are appended, too, even if infinite or NaN. */
static void features(void)
{
	for (int i = 0; i < 30; i++) {
		struct paged_spec spec = spec_of(i);
		const struct way way = { .sms = i % 3 == 1 ? 0 : 5, .carried = i % 2 };

		spec.batch = 4;
		for (int32_t b = 0; b < spec.batch; b++) {
			spec.n_new[b] = 1 + (uint32_t)(7 * i + 11 * b) % 47;
			spec.lengths[b] = spec.n_new[b] + (uint32_t)(37 * i + 91 * b) % 300;
			spec.first[b] = b == 2 ? (spec.lengths[b] - spec.n_new[b]) / 2 : 0;
		}
		spec.causal = i % 6 != 5;
		spec.left_1 = i % 3 == 2 ? 1 + 5 * i : 0;
		spec.right_1 = i % 6 == 5 ? 3 : 0;
		spec.tree = i % 4 == 2;
		if (spec.tree)
			spec.n_new[0] = 70, spec.lengths[0] = 70 + 10 * (uint32_t)i;
		spec.softcap = i % 8 == 7 ? 20 : 0;
		spec.alibi = i % 5 == 3;
		spec.sinks = i % 5 == 1;
		spec.broken = i % 3 == 1 ? 5 : 0;
		check(&spec, &way, true);
	}
}

/* Kernels for pieces give the same bits whatever is in the step; prefixes are shared, too. */
static void splits(void)
{
	for (int i = 0; i < 12; i++) {
		struct paged_spec spec = spec_of(i % 3 == 1 ? i + 1 : i);
		const struct way way = { .sms = 5, .carried = i >= 6, .splits = true };

		spec.kv_heads = 2;
		spec.heads = 8;
		spec.page_tokens = 32;
		spec.batch = 6;
		spec.deterministic = i < 6;
		for (int32_t b = 0; b < spec.batch; b++) {
			const uint32_t old = (uint32_t)(17 * i + 29 * b) % 90;

			spec.n_new[b] = 1 + (uint32_t)(i + b) % (i < 6 ? 9 : 3);
			spec.lengths[b] = spec.n_new[b] + old + (i < 6 ? 0 : 512);
			if (i >= 6 && b > 0) {
				spec.prefix_of_1[b] = 1;
				spec.prefix_pages[b] = 16;
			}
		}
		check(&spec, &way, true);
	}
}

/*
 * A launch of one sequence that carries everything signals its parts one by one. The new tokens are
 * alone, share a tile, span several thread blocks, or are the only tokens.
 */
static void alone(void)
{
	static const uint32_t old[] = { 400, 0, 63, 64, 900, 130, 1, 250, 640 };

	for (int i = 0; i < 36; i++) {
		struct paged_spec spec = spec_of(i);
		const struct way way = {
			.sms = i % 3 ? 5 + i : 0,
			.carried = true,
			.gap = i % 5 == 2,
		};

		spec.kv_heads = 1 << i % 4;
		spec.heads = spec.kv_heads * groups[i % 8];
		spec.batch = 1;
		spec.n_new[0] = i % 4 ? 1 : 1 + (uint32_t)i;
		spec.lengths[0] = old[i % 9] + spec.n_new[0];
		check(&spec, &way, true);
	}
}

static void apart(void)
{
	for (int i = 0; i < 7; i++) {
		struct paged_spec spec = spec_of(i);
		const struct way way = { .sms = 5 };

		spec.batch = 2;
		spec.n_new[0] = 1, spec.lengths[0] = 100;
		spec.n_new[1] = 3, spec.lengths[1] = 70;
		switch (i) {
		case 0: /* new tokens are hidden */
		case 1:
			spec.first[i] = spec.lengths[i];
			break;
		case 2: /* many rows in one sequence, few in another */
			spec.n_new[1] = 60;
			break;
		case 3: /* no kernel has 96 columns */
			spec.head_dim = spec.head_dim_v = 96;
			break;
		case 4: /* V is the first columns of K */
			spec.v_in_k = true;
			spec.head_dim = spec.head_dim_v = 128;
			break;
		case 5: /* V is narrower */
			spec.head_dim = 128;
			spec.head_dim_v = 64;
			break;
		default: /* all new tokens are in pages already */
			spec.n_new[0] = spec.n_new[1] = 0;
			break;
		}
		check(&spec, &way, false);
	}
}

static void random_one(uint64_t seed)
{
	struct paged_spec spec;
	struct way way = { 0 };

	problem_seed(seed);
	spec = spec_of((int)problem_random(1000));
	spec.kv_heads = (int32_t)problem_pick(1, 3);
	spec.heads = spec.kv_heads * (int32_t)problem_pick(1, 9);
	spec.page_tokens = (int32_t)(16 * problem_pick(1, 16));
	spec.batch = (int32_t)problem_pick(1, 12);
	for (int32_t b = 0; b < spec.batch; b++) {
		spec.n_new[b] = problem_one_in(2)   ? 1
		                : problem_one_in(4) ? 0
		                                    : problem_pick(1, problem_one_in(2) ? 16 : 47);
		spec.lengths[b] = spec.n_new[b] + problem_pick(0, problem_one_in(4) ? 1000 : 150);
		if (problem_one_in(4))
			spec.first[b] = problem_pick(0, spec.lengths[b] - spec.n_new[b]);
		way.ready |= (uint32_t)problem_one_in(5) << b;
	}
	if (!spec.n_new[0]) {
		spec.n_new[0] = 1;
		spec.lengths[0]++;
	}
	spec.causal = problem_one_in(2);
	spec.left_1 = problem_one_in(3) ? problem_pick(1, 100) : 0;
	spec.right_1 = problem_one_in(3) ? problem_pick(1, 60) : 0;
	spec.tree = problem_one_in(4);
	spec.alibi = problem_one_in(5);
	spec.no_lse = problem_one_in(8);
	spec.deterministic = spec.head_dim != 64 && problem_one_in(4);
	spec.broken = problem_one_in(4) ? (int32_t)problem_pick(1, 6) : 0;
	way.splits = spec.deterministic;
	way.sms = problem_one_in(2) ? (int32_t)problem_pick(1, 140) : 0;
	way.carried = problem_one_in(2);
	way.gap = problem_one_in(3);
	way.separate = problem_one_in(3);
	way.pinned = problem_one_in(5);
	check(&spec, &way, true);
}

static void run(void)
{
	numbers();
	paged_report("numbers");
	features();
	paged_report("features");
	splits();
	paged_report("pieces");
	alone();
	paged_report("alone");
	paged_options.every = 1;
	apart();
	paged_report("apart");
	for (int i = 0; i < paged_options.count; i++)
		random_one(paged_options.seed + (uint64_t)i);
	paged_report("random");
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run);
}
