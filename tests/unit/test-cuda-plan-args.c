/* Tests what a planned launch tells its kernel: arguments, tensor maps, units, and the grid. */
#include "tests/unit/cuda-plan-scene.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_ragged(void **state)
{
	static const uint32_t cu_q[] = { 0, 0, 300 }, cu_k[] = { 0, 300, 300 };
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);
	struct fa_cuda_launch launch;

	params.cu_seqlens_q = cu_q;
	params.cu_seqlens_k = cu_k;
	params.q.stride_batch = params.k.stride_batch = 1; /* no batch stride exists */
	params.lse_stride_batch = 1;
	launch = plan(&params);
	assert_int_equal(launch.kernel->kind, FA_CUDA_FULL);
	assert_int_equal(launch.args.q.stride_batch, 0);
	assert_int_equal(launch.args.k.stride_batch, 0);
	assert_int_equal(launch.args.lse_stride_batch, 0);
	assert_ptr_equal(launch.args.cu_seqlens_q, cu_q);
	assert_ptr_equal(launch.args.cu_seqlens_k, cu_k);
}

static void test_arguments(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 64);
	float lse;
	struct fa_cuda_launch launch;

	params.head_dim_v = 512;
	params.lse = &lse;
	params.lse_stride_batch = 11;
	params.lse_stride_token = 22;
	params.lse_stride_head = 33;
	params.softcap = 30;
	launch = plan(&params);
	assert_ptr_equal(launch.args.v.data, params.v.data);
	assert_int_equal(launch.args.v.stride_batch, 2 * params.v.stride_batch);
	assert_int_equal(launch.args.v.stride_token, 2 * params.v.stride_token);
	assert_int_equal(launch.args.v.stride_head, 2 * params.v.stride_head);
	assert_ptr_equal(launch.args.lse, &lse);
	assert_int_equal(launch.args.lse_stride_batch, 11);
	assert_int_equal(launch.args.lse_stride_token, 22);
	assert_int_equal(launch.args.lse_stride_head, 33);
	assert_int_equal(launch.args.group, 3);
	assert_int_equal(launch.args.head_dim, 64);
	assert_int_equal(launch.args.head_dim_v, 512);
	assert_true(fabs(launch.args.scale_log2 - 0.125 / M_LN2) < 1e-6);
	assert_true(fabs(launch.args.cap_in - 0.125 / 30) < 1e-8);
	assert_true(fabs(launch.args.cap_out - 30 / M_LN2) < 1e-5);
	assert_int_equal(launch.args.triples, 2 * 6 * launch.args.slices);
	/* There are more units than SMs; each SM gets one block of threads. */
	assert_true(launch.args.units_m * launch.args.triples > hopper.sms);
	assert_int_equal(launch.grid, hopper.sms);
	assert_int_equal(launch.args.units_m, (launch.args.blocks_m + 1) / 2);
	assert_true((int64_t)launch.args.blocks_m * launch.kernel->rows >= 300);
	assert_true(((int64_t)launch.args.blocks_m - 1) * launch.kernel->rows < 300);
	assert_in_range(launch.args.section, 1, launch.args.triples);

	params.seqlen_q = 0;
	assert_int_equal(plan(&params).grid, 0);
	params.seqlen_q = 1;
	params.seqlen_k = 0;
	assert_true(plan(&params).grid > 0); /* zeros and -inf must be written */
}

/* Checks args.section: how many (sequence, head, slice of V) are processed together. It is as many
 * as have K and V that fit into half of L2, in whole groups of query heads. */
static void test_sections(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);
	struct fa_cuda_launch launch;

	params.batch = 64;
	params.causal = true;
	params.seqlen_q = params.seqlen_k = 4096; /* K and V of a head: 2 MiB */
	launch = plan(&params);
	assert_int_equal(launch.args.section, 12 * 3);
	params.seqlen_k = 1 << 20;
	assert_int_equal(plan(&params).args.section, 1);
	params.seqlen_k = 1;
	assert_int_equal(plan(&params).args.section, 64 * 6);
	params.seqlen_k = 0;
	assert_int_equal(plan(&params).args.section, 64 * 6);
	params.seqlen_k = 4096;
	params.causal = false;
	assert_int_equal(plan(&params).args.section, 1);
}

/* Checks the tensor maps, and which tensors TMA cannot load. */
static void test_maps(void **state)
{
	static const uint32_t cu_q[] = { 0, 7, 307 }, cu_k[] = { 0, 300, 301 };
	static const uint32_t cu_none[] = { 0, 0, 0 };
	uint32_t cu_many[] = { 0, 1u << 29, 2u << 29, 3u << 29, INT32_MAX - 256 };
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);
	struct fa_cuda_launch launch = plan(&params);
	const struct fa_cuda_map *q = &launch.maps[FA_CUDA_MAP_Q];
	const struct fa_cuda_map *k = &launch.maps[FA_CUDA_MAP_K];
	const struct fa_cuda_map *v = &launch.maps[FA_CUDA_MAP_V];

	assert_int_equal(launch.kernel->arch, 90);
	assert_int_equal(launch.n_maps, FA_CUDA_MAPS);
	assert_ptr_equal(q->data, params.q.data);
	assert_ptr_equal(k->data, params.k.data);
	assert_ptr_equal(v->data, params.v.data);
	assert_memory_equal(q->dims, ((uint64_t[]){ 128, 300, 6, 2 }), sizeof(q->dims));
	assert_memory_equal(k->dims, ((uint64_t[]){ 128, 300, 2, 2 }), sizeof(k->dims));
	assert_memory_equal(q->strides, ((uint64_t[]){ 1536, 256, 460800 }), sizeof(q->strides));
	assert_memory_equal(v->strides, ((uint64_t[]){ 512, 256, 153600 }), sizeof(v->strides));
	assert_memory_equal(q->box, ((uint32_t[]){ 64, 64, 1, 1 }), sizeof(q->box));
	assert_memory_equal(k->box, ((uint32_t[]){ 64, (uint32_t)launch.kernel->keys, 1, 1 }),
	                    sizeof(k->box));

	/* A ragged batch is mapped as one sequence; a map's columns are those of the tensor, not
	 * of the kernel. */
	params.head_dim = params.head_dim_v = 104;
	params.cu_seqlens_q = cu_q;
	params.cu_seqlens_k = cu_k;
	launch = plan(&params);
	assert_memory_equal(q->dims, ((uint64_t[]){ 104, 307, 6, 1 }), sizeof(q->dims));
	assert_memory_equal(v->dims, ((uint64_t[]){ 104, 301, 2, 1 }), sizeof(v->dims));

	/* Strides of dims of size 1 are ignored; TMA must support the others. */
	params = usual(FA_ATTENTION_BF16, 128);
	params.batch = 1;
	params.k.stride_batch = 1;
	assert_int_equal(plan(&params).n_maps, FA_CUDA_MAPS);
	params = usual(FA_ATTENTION_BF16, 128);
	params.k.stride_head = 0;
	assert_int_equal(plan(&params).n_maps, 0);
	params.k.stride_head = -128;
	assert_int_equal(plan(&params).n_maps, 0);
	params.k.stride_head = (int64_t)1 << 39;
	assert_int_equal(plan(&params).n_maps, 0);
	params.k.stride_head = ((int64_t)1 << 39) - 8;
	assert_int_equal(plan(&params).n_maps, FA_CUDA_MAPS);
	params.seqlen_k = 0;
	assert_int_equal(plan(&params).n_maps, 0);
	assert_int_equal(plan_on(&ampere, &params).n_maps, 0);

	/* Ragged batches: one as long as possible, and one without tokens. */
	params = usual(FA_ATTENTION_BF16, 128);
	params.batch = 4;
	params.seqlen_q = params.seqlen_k = FA_CUDA_SEQLEN_MAX;
	params.cu_seqlens_q = params.cu_seqlens_k = cu_many;
	assert_int_equal(plan(&params).n_maps, FA_CUDA_MAPS);
	cu_many[4]++;
	assert_int_equal(plan(&params).n_maps, 0);
	params.batch = 2;
	params.cu_seqlens_q = cu_q;
	params.cu_seqlens_k = cu_none;
	assert_int_equal(plan(&params).n_maps, 0);
}

/* Checks the units: row blocks that a thread block computes one after another. */
static void test_units(void **state)
{
	static const uint32_t cu[] = { 0, 300, 600 };
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);
	struct fa_cuda_launch launch = plan(&params);

	/* 12 triples, each with 3 blocks of 128 rows. */
	assert_false(launch.args.pairs);
	assert_int_equal(launch.args.units_m, 3);
	assert_int_equal(launch.grid, 36);
	/* A thread block has a pair only where there are more blocks than SMs. */
	params.causal = true;
	params.heads = params.kv_heads = 22; /* 132 blocks */
	launch = plan(&params);
	assert_false(launch.args.pairs);
	assert_int_equal(launch.args.units_m, 3);
	assert_int_equal(launch.grid, 132);
	params.heads = params.kv_heads = 23;
	launch = plan(&params);
	assert_true(launch.args.pairs);
	assert_int_equal(launch.args.units_m, 2);
	assert_int_equal(launch.grid, 92);
	params.heads = params.kv_heads = 6;

	/* At most one block of threads per SM, unless the sequences' lengths are unknown. */
	params.batch = 100;
	params.q.stride_batch = params.k.stride_batch = params.v.stride_batch = 0x10000;
	assert_int_equal(plan(&params).grid, 132);
	/* The grid has more thread blocks if one per SM would hold its SM too long; each gets 2
	 * or 3 units. */
	params.causal = false;
	params.seqlen_q = params.seqlen_k = 8192;
	params.batch = 4;
	params.heads = params.kv_heads = 8; /* 2048 units of 93 us */
	launch = plan(&params);
	assert_int_equal(launch.args.units_m * launch.args.triples, 2048);
	assert_int_equal(launch.grid, 7 * 132);
	params.batch = 1;
	params.seqlen_q = params.seqlen_k = 32768;
	assert_int_equal(plan(&params).grid, 2048);
	params.seqlen_q = params.seqlen_k = 300;
	params.batch = 2;
	params.heads = params.kv_heads = 200;
	params.cu_seqlens_q = params.cu_seqlens_k = cu;
	/* A ragged batch has 1,200 units, at most 10 for a thread block. */
	launch = plan(&params);
	assert_int_equal(launch.list_units, 10 * 132);
	assert_int_equal(launch.grid, 132);
}

/* Forced to divide blocks of packed rows, the plan still keeps to the counters of a workspace. */
static void test_packed_counters(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);
	struct fa_cuda_chip chip = hopper;
	struct fa_cuda_launch launch;
	char text[256];

	chip.workspace = true;
	chip.pack = 1; /* a part for each tile */
	params.batch = 3;
	params.seqlen_q = params.seqlen_k = 1024;
	params.heads = 24;
	params.kv_heads = 3; /* 576 blocks of rows */
	assert_int_equal(fa_cuda_attention_plan(&chip, &params, text, sizeof(text), &launch), 0);
	assert_int_not_equal(launch.kernel->kind, FA_CUDA_PACKED);
	params.batch = 1; /* 192 */
	assert_int_equal(fa_cuda_attention_plan(&chip, &params, text, sizeof(text), &launch), 0);
	assert_int_equal(launch.kernel->kind, FA_CUDA_PACKED);
	assert_int_equal(launch.packed.blocks * launch.packed.kv_heads, 192);
	assert_int_equal(launch.packed.parts, 8);
}

/* The polynomial for small dot products must match tanh over its whole range, and for the caps of
 * real models the range must not be empty. */
static void test_softcap_powers(void **state)
{
	static const float scales[] = { 1, 0.125f, 0.0625f, -0.0884f, 12, 1e-20f, 1e20f, 0 };
	static const float caps[] = { 1e-30f, 0.01f, 1,    5,    30,    50,
		                      1000,   1e5f,  1e6f, 1e9f, 1e30f, 3e38f };
	struct fa_cuda_attention none = { 0 };

	fa_cuda_attention_cap(&none, 0.125f, 0);
	assert_true(none.cap_in == 0 && none.cap_out == 0 && none.cap_square == 0);
	for (size_t n = 0; n < sizeof(scales) / sizeof(scales[0]); n++)
		for (size_t c = 0; c < sizeof(caps) / sizeof(caps[0]); c++) {
			struct fa_cuda_attention args = { 0 };
			float limit;

			fa_cuda_attention_cap(&args, scales[n], caps[c]);
			limit = sqrtf(args.cap_square);
			if (n < 4 && c > 0 && c < 10)
				assert_true(fabsf(limit * scales[n] / caps[c]) >
				            (c < 7 ? 0.9f : 0.05f));
			assert_true(args.cap_square >= 0 && args.cap_square < INFINITY);
			assert_true(fabsf(args.cap_large) < FLT_MAX / 4);
			assert_true(args.cap_powers[0] != 0);
			assert_true(fabsf(args.cap_large * args.cap_powers[0] - args.cap_out) <=
			            0x1p-22f * args.cap_out);
			for (int i = -4000; i <= 4000; i++) {
				/* Points spaced evenly and by constant factors. */
				const float dot = i % 2 ? limit * (float)i / 3999
				                        : copysignf(limit, (float)i) *
				                                  exp2f(-fabsf((float)i) / 100);
				const float y = fmaf(dot, dot, -args.cap_square);
				const double wanted = args.cap_out *
				                      tanh((double)args.cap_in * (double)dot);
				float factor = args.cap_powers[FA_CUDA_CAP_POWERS - 1];

				if (!(y < 0))
					continue;
				for (int k = FA_CUDA_CAP_POWERS - 2; k >= 0; k--)
					factor = fmaf(factor, y, args.cap_powers[k]);
				assert_true(fabs(fmaf(dot, factor, 0) - wanted) <=
				            0x1p-17 * fabs(wanted) + (double)FLT_MIN);
			}
			/* Without a polynomial, no dot product counts as small. */
			if (args.cap_square == 0)
				assert_true(!signbit(fmaf(0, 0, -args.cap_square)));
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ragged),         cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_sections),       cmocka_unit_test(test_maps),
		cmocka_unit_test(test_units),          cmocka_unit_test(test_packed_counters),
		cmocka_unit_test(test_softcap_powers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
