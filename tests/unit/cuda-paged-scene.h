/* Plans steps over pages without a GPU, for chips of several kinds. */
#pragma once

#include "kernels/cuda/paged-plan.h"
#include "tests/unit/cuda-paged-usual.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BATCH_MAX 300

static const struct fa_cuda_chip h200 = {
	.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132
};
/* An H200 whose special kernels could not be loaded. */
static const struct fa_cuda_chip portable_h200 = { .arch = 90,
	                                           .shared_bytes_max = 232448,
	                                           .l2_bytes = 50 << 20,
	                                           .sms = 132,
	                                           .portable_paged = true };
/* An H200 on which few rows on many keys take the usual kernels. */
static const struct fa_cuda_chip unpacked_h200 = {
	.arch = 90, .shared_bytes_max = 232448, .l2_bytes = 50 << 20, .sms = 132, .pack = -1
};
static const struct fa_cuda_chip newer = {
	.arch = 100, .shared_bytes_max = 232448, .l2_bytes = 126 << 20, .sms = 148
};
static const struct fa_cuda_chip rtx = {
	.arch = 89, .shared_bytes_max = 101376, .l2_bytes = 72 << 20, .sms = 128
};

struct scene {
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_request request;
	uint32_t cu_new[BATCH_MAX + 1], lengths[BATCH_MAX], before[BATCH_MAX], first[BATCH_MAX];
	uint32_t table_start[BATCH_MAX], tree_start[BATCH_MAX];
	bool appends; /* new tokens are not in pages yet */
	char *blob;
	size_t blob_bytes;
};

static inline void scene_init(struct scene *scene, int32_t batch)
{
	memset(scene, 0, sizeof(*scene));
	scene->cache = usual_cache();
	scene->step = (struct fa_paged_step){
		.batch = batch,
		.cu_new = scene->cu_new,
		.lengths = scene->lengths,
		.lengths_before = scene->before,
		.first = scene->first,
		.table_start = scene->table_start,
		.table_entries = UINT32_MAX,
	};
	scene->request.op = FA_PAGED_ATTEND;
	scene->request.attention = usual_attention(&scene->cache, &scene->step);
}

static inline void scene_plan(struct scene *scene, const struct fa_cuda_chip *chip,
                              struct fa_cuda_paged_plan *plan)
{
	char text[256] = "";

	for (int32_t b = 0; b < scene->step.batch; b++)
		scene->before[b] = scene->lengths[b] -
		                   (scene->appends ? scene->cu_new[b + 1] - scene->cu_new[b] : 0);
	assert_int_equal(fa_paged_check(&scene->request, text, sizeof(text)), 0);
	scene->blob_bytes = fa_cuda_paged_blob_bytes(&scene->request);
	scene->blob = malloc(scene->blob_bytes + 64);
	memset(scene->blob, 0x5a, scene->blob_bytes + 64);
	assert_int_equal(
		fa_cuda_paged_plan(chip, &scene->request, scene->blob, text, sizeof(text), plan),
		0);
	assert_true(plan->blob_bytes <= scene->blob_bytes);
	for (int i = 0; i < 64; i++)
		assert_int_equal(scene->blob[scene->blob_bytes + (size_t)i], 0x5a);
}
