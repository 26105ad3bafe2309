/*
 * Tests which GPU kernel a request gets and how it is launched, without a GPU. Prints the table of
 * built kernels.
 */
#include "tests/unit/cuda-plan-scene.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_table(void **state)
{
	static const char *const dtypes[] = { "", "f32", "f16", "bf16" };
	static const char *const kinds[] = {
		[FA_CUDA_FULL] = "full",     [FA_CUDA_BAND] = "band",
		[FA_CUDA_WINDOW] = "window", [FA_CUDA_CAP] = "cap",
		[FA_CUDA_RICH] = "rich",     [FA_CUDA_MASKED] = "masked",
		[FA_CUDA_PACKED] = "packed", [FA_CUDA_PACKED_RAGGED] = "packed_ragged"
	};
	bool images[FA_CUDA_IMAGES] = { false };

	printf("%-40s %4s %4s %7s %6s\n", "kernel", "arch", "rows", "threads", "shared");
	for (size_t i = 0; i < fa_cuda_kernels_count; i++) {
		const struct fa_cuda_kernel *k = &fa_cuda_kernels[i];
		char symbol[80];

		printf("%-40s %4d %4d %7d %6d\n", k->symbol, k->arch, k->rows, k->threads,
		       k->shared_bytes);
		snprintf(symbol, sizeof(symbol), "fa_sm%d_forward_%s_d%d_v%d_%s", k->arch,
		         dtypes[k->dtype], k->dim, k->dim_v, kinds[k->kind]);
		/* Only a kernel for short sequences has a suffix after these. */
		assert_memory_equal(k->symbol, symbol, strlen(symbol));
		assert_true(k->symbol[strlen(symbol)] == '\0' || k->seqlen_k_max < INT32_MAX);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(k->symbol, fa_cuda_kernels[j].symbol);
		assert_true(k->rows > 0 && k->threads % 32 == 0 && k->threads <= 1024);
		assert_true(k->shared_bytes > 0 && k->shared_bytes <= hopper.shared_bytes_max);
		assert_in_range(k->image, 0, FA_CUDA_IMAGES - 1);
		images[k->image] = true;
	}
	for (int i = 0; i < FA_CUDA_IMAGES; i++)
		assert_true(images[i]);
}

/* Kernels by wgmma add sinks, but for one without registers. */
static bool adds_sinks(const struct fa_cuda_kernel *kernel)
{
	return kernel->keys &&
	       (kernel->kind != FA_CUDA_BAND || kernel->dim != 64 || kernel->keys < 128);
}

/* Every request that fa_attention_check() accepts has a kernel, on every chip above. */
static void test_every_combination(void **state)
{
	static const float values[64] = { 1 };
	unsigned int n = 0;

	for (size_t c = 0; c < COUNT(chips); c++)
		for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++)
			for (int dim = 8; dim <= FA_ATTENTION_HEAD_DIM_MAX; dim += 8)
				for (int dim_v = 8; dim_v <= FA_ATTENTION_HEAD_DIM_V_MAX;
				     dim_v += 8)
					for (int features = 0; features < 128; features++) {
						struct fa_attention_params params = usual(
							(enum fa_attention_dtype)dtype, dim);
						struct fa_cuda_launch launch;

						params.head_dim_v = dim_v;
						params.causal = features & 1;
						params.window_left = features & 2 ? 17 : -1;
						params.window_right = features & 4 ? 5 : -1;
						params.softcap = features & 8 ? 30 : 0;
						params.alibi_slopes = features & 16 ? values : NULL;
						params.sinks = features & 32 ? values : NULL;
						params.scale *= features & 64 ? -1 : 1;
						launch = plan_on(chips[c], &params);
						if (launch.kernel->dtype != params.dtype ||
						    launch.kernel->dim < dim ||
						    !fa_cuda_kernel_runs(launch.kernel, chips[c]) ||
						    launch.kernel->dim_v * launch.args.slices <
						            dim_v ||
						    ((features & 8 || features & 16 ||
						      features & 64 ||
						      (features & 32 &&
						       !adds_sinks(launch.kernel))) &&
						     launch.kernel->kind != FA_CUDA_RICH &&
						     launch.kernel->kind != FA_CUDA_CAP) ||
						    ((!(features & 8) || features & 16) &&
						     launch.kernel->kind == FA_CUDA_CAP) ||
						    ((features & ~32) > 0 &&
						     launch.kernel->kind == FA_CUDA_FULL))
							fail_msg("%s for dtype %d dim %d/%d "
							         "features %d",
							         launch.kernel->symbol, dtype, dim,
							         dim_v, features);
						n++;
					}
	print_message("%u combinations\n", n);
}

static void test_choice(void **state)
{
	static const struct {
		int dtype, dim, dim_v, slices;
		const struct fa_cuda_chip *chip;
		const char *symbol;
	} cases[] = {
		{ FA_ATTENTION_BF16, 64, 64, 1, &hopper,
		  "fa_sm90_forward_bf16_d64_v64_full_short" },
		{ FA_ATTENTION_F16, 64, 64, 1, &hopper, "fa_sm90_forward_f16_d64_v64_full_short" },
		{ FA_ATTENTION_F32, 64, 64, 1, &hopper, "fa_sm80_forward_f32_d64_v64_rich" },
		{ FA_ATTENTION_BF16, 8, 8, 1, &hopper, "fa_sm90_forward_bf16_d64_v64_full_short" },
		{ FA_ATTENTION_BF16, 72, 72, 1, &hopper, "fa_sm90_forward_bf16_d96_v96_full" },
		{ FA_ATTENTION_BF16, 104, 104, 1, &hopper, "fa_sm90_forward_bf16_d128_v128_full" },
		{ FA_ATTENTION_BF16, 192, 128, 1, &hopper, "fa_sm90_forward_bf16_d192_v128_full" },
		{ FA_ATTENTION_BF16, 192, 192, 1, &hopper, "fa_sm90_forward_bf16_d192_v192_full" },
		{ FA_ATTENTION_BF16, 200, 192, 1, &hopper, "fa_sm90_forward_bf16_d256_v256_full" },
		{ FA_ATTENTION_BF16, 256, 512, 2, &hopper, "fa_sm90_forward_bf16_d256_v256_full" },
		{ FA_ATTENTION_BF16, 128, 512, 4, &hopper, "fa_sm90_forward_bf16_d128_v128_full" },
		/* sm_90a kernels run on no other chip. */
		{ FA_ATTENTION_BF16, 64, 64, 1, &ampere, "fa_sm80_forward_bf16_d64_v64_full" },
		{ FA_ATTENTION_F16, 64, 64, 1, &ampere, "fa_sm80_forward_f16_d64_v64_full" },
		{ FA_ATTENTION_F32, 64, 64, 1, &ampere, "fa_sm80_forward_f32_d64_v64_rich" },
		{ FA_ATTENTION_F32, 72, 64, 1, &ampere, "fa_sm80_forward_f32_d128_v128_rich" },
		{ FA_ATTENTION_F32, 256, 512, 2, &ampere, "fa_sm80_forward_f32_d256_v256_rich" },
		{ FA_ATTENTION_BF16, 8, 8, 1, &ampere, "fa_sm80_forward_bf16_d64_v64_full" },
		{ FA_ATTENTION_BF16, 72, 72, 1, &ampere, "fa_sm80_forward_bf16_d96_v96_full" },
		{ FA_ATTENTION_BF16, 104, 104, 1, &ampere, "fa_sm80_forward_bf16_d128_v128_full" },
		{ FA_ATTENTION_BF16, 192, 128, 1, &ampere, "fa_sm80_forward_bf16_d192_v128_full" },
		{ FA_ATTENTION_BF16, 192, 192, 1, &ampere, "fa_sm80_forward_bf16_d192_v192_full" },
		{ FA_ATTENTION_BF16, 256, 256, 1, &ampere, "fa_sm80_forward_bf16_d256_v256_rich" },
		{ FA_ATTENTION_BF16, 256, 512, 2, &ampere, "fa_sm80_forward_bf16_d256_v256_rich" },
		{ FA_ATTENTION_BF16, 128, 512, 4, &ampere, "fa_sm80_forward_bf16_d128_v128_full" },
		/* Wide tiles of Q, K and V do not fit every chip. */
		{ FA_ATTENTION_BF16, 256, 256, 1, &small, "fa_sm80_forward_bf16_d256_v256_rich" },
		{ FA_ATTENTION_BF16, 128, 128, 1, &small, "fa_sm80_forward_bf16_d128_v128_full" },
		{ FA_ATTENTION_BF16, 128, 128, 1, &later, "fa_sm80_forward_bf16_d128_v128_full" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct fa_attention_params params = usual((enum fa_attention_dtype)cases[i].dtype,
		                                          cases[i].dim);
		struct fa_cuda_launch launch;

		params.head_dim_v = cases[i].dim_v;
		launch = plan_on(cases[i].chip, &params);
		assert_string_equal(launch.kernel->symbol, cases[i].symbol);
		assert_int_equal(launch.args.slices, cases[i].slices);
	}
}

/* MLA in plain form: the keys of few rows are divided. */
static void test_plain_mla(void **state)
{
	struct fa_cuda_chip chip = hopper;

	chip.workspace = true;
	for (int dtype = FA_ATTENTION_F16; dtype <= FA_ATTENTION_BF16; dtype++) {
		struct fa_attention_params params = usual((enum fa_attention_dtype)dtype, 192);
		const bool bf16 = dtype == FA_ATTENTION_BF16;
		struct fa_cuda_launch launch;

		params.head_dim_v = 128;
		params.batch = 1;
		params.heads = params.kv_heads = 16;
		params.causal = true;
		params.seqlen_q = 64;
		params.seqlen_k = 32768;
		launch = plan_on(&chip, &params);
		assert_string_equal(launch.kernel->symbol,
		                    bf16 ? "fa_sm90_forward_bf16_d192_v128_packed"
		                         : "fa_sm90_forward_f16_d192_v128_packed");
		assert_true(launch.packed.parts > 1);
		assert_int_equal(launch.maps[FA_CUDA_MAP_K].dims[0], 192);
		assert_int_equal(launch.maps[FA_CUDA_MAP_V].dims[0], 128);
		params.seqlen_q = 4096;
		assert_int_equal(plan_on(&chip, &params).kernel->kind, FA_CUDA_BAND);
		/* Other widths of V are not packed. */
		params.seqlen_q = 64;
		params.head_dim_v = 120;
		assert_string_equal(plan_on(&chip, &params).kernel->symbol,
		                    bf16 ? "fa_sm90_forward_bf16_d192_v128_band"
		                         : "fa_sm90_forward_f16_d192_v128_band");
		params.head_dim_v = 192;
		assert_string_equal(plan_on(&chip, &params).kernel->symbol,
		                    bf16 ? "fa_sm90_forward_bf16_d192_v192_band"
		                         : "fa_sm90_forward_f16_d192_v192_band");
		/* A soft cap takes the kernel for head dim 256. */
		params.head_dim_v = 128;
		params.softcap = 30;
		assert_int_equal(plan_on(&chip, &params).kernel->kind, FA_CUDA_CAP);
		assert_int_equal(plan_on(&chip, &params).kernel->dim, 256);
	}
}

static void test_kinds(void **state)
{
	static const float values[6] = { 1 };
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);

	assert_int_equal(kind(&params), FA_CUDA_FULL);
	params.causal = true;
	assert_int_equal(kind(&params), FA_CUDA_BAND);
	params.softcap = 20;
	assert_int_equal(kind(&params), FA_CUDA_CAP);
	params.scale = -1;
	params.sinks = values;
	assert_int_equal(kind(&params), FA_CUDA_CAP);
	params.alibi_slopes = values;
	assert_int_equal(kind(&params), FA_CUDA_RICH);

	params = usual(FA_ATTENTION_BF16, 128);
	params.alibi_slopes = values;
	assert_int_equal(kind(&params), FA_CUDA_RICH);
	params = usual(FA_ATTENTION_BF16, 128);
	params.sinks = values;
	assert_int_equal(kind(&params), FA_CUDA_FULL);
	params.causal = true;
	assert_int_equal(kind(&params), FA_CUDA_BAND);
	assert_int_equal(plan_on(&ampere, &params).kernel->kind, FA_CUDA_RICH);
	params = usual(FA_ATTENTION_BF16, 128);
	params.scale = 0;
	assert_int_equal(kind(&params), FA_CUDA_RICH);
	params.scale = -1;
	assert_int_equal(kind(&params), FA_CUDA_RICH);
}

/* A window that hides nothing counts as none. */
static void test_windows(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);
	struct fa_cuda_launch launch;

	launch = plan(&params);
	assert_int_equal(launch.args.window_left, FA_CUDA_WINDOW_MAX);
	assert_int_equal(launch.args.window_right, FA_CUDA_WINDOW_MAX);
	assert_false(launch.args.longest_last);

	params.window_left = 299;  /* the last row stands at key 299 */
	params.window_right = 299; /* the first at key 0 */
	assert_int_equal(kind(&params), FA_CUDA_FULL);
	params.window_left = INT64_MAX;
	params.window_right = INT64_MAX;
	assert_int_equal(kind(&params), FA_CUDA_FULL);

	params.window_left = 298;
	launch = plan(&params);
	assert_int_equal(launch.kernel->kind, FA_CUDA_BAND);
	assert_int_equal(launch.args.window_left, 298);
	assert_int_equal(launch.args.window_right, FA_CUDA_WINDOW_MAX);
	assert_true(launch.args.longest_last);

	params.window_left = -1;
	params.window_right = 298;
	launch = plan(&params);
	assert_int_equal(launch.kernel->kind, FA_CUDA_BAND);
	assert_int_equal(launch.args.window_left, FA_CUDA_WINDOW_MAX);
	assert_int_equal(launch.args.window_right, 298);

	params.causal = true; /* the narrower counts */
	assert_int_equal(plan(&params).args.window_right, 0);
	params.window_right = 0;
	params.causal = false;
	assert_int_equal(plan(&params).args.window_right, 0);

	/* With one query row, at the last key, a causal mask hides nothing. */
	params = usual(FA_ATTENTION_BF16, 128);
	params.seqlen_q = 1;
	params.causal = true;
	assert_int_equal(kind(&params), FA_CUDA_FULL);

	/* Sides too large for int32 sums count as unbounded, in the longest sequence, too. */
	params = usual(FA_ATTENTION_BF16, 128);
	params.seqlen_k = FA_CUDA_SEQLEN_MAX;
	params.window_left = FA_CUDA_SEQLEN_MAX - 2;
	assert_int_equal(plan(&params).args.window_left, FA_CUDA_SEQLEN_MAX - 2);
	params.window_left++;
	assert_int_equal(plan(&params).args.window_left, FA_CUDA_WINDOW_MAX);
}

/* On some chips narrow windows have their own kernel, which does not pair row blocks. */
static void test_narrow(void **state)
{
	static const float values[64] = { 1 };
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 64);
	struct fa_cuda_launch launch;

	params.seqlen_q = params.seqlen_k = 4096;
	params.window_left = 2047;
	params.causal = true; /* 2,048 keys */
	launch = plan(&params);
	assert_string_equal(launch.kernel->symbol, "fa_sm90_forward_bf16_d64_v64_window");
	assert_false(launch.args.pairs);
	assert_int_equal(launch.args.units_m, 22);
	assert_int_equal(plan_on(&ampere, &params).kernel->kind, FA_CUDA_BAND);
	params.window_left = 2048;
	launch = plan(&params);
	assert_string_equal(launch.kernel->symbol, "fa_sm90_forward_bf16_d64_v64_band");
	assert_true(launch.args.pairs);
	params.causal = false;
	params.window_left = 1700;
	params.window_right = 347;
	assert_int_equal(kind(&params), FA_CUDA_WINDOW);
	params.window_right = 348;
	assert_int_equal(kind(&params), FA_CUDA_BAND);
	/* The same limit where windows are wide and the blocks have many tiles. */
	params.seqlen_q = params.seqlen_k = 16384;
	params.window_left = 3000;
	params.window_right = 71;
	assert_int_equal(kind(&params), FA_CUDA_WINDOW);
	params.window_right = 72;
	assert_int_equal(kind(&params), FA_CUDA_BAND);
	params.seqlen_q = params.seqlen_k = 4096;
	/* A window with one bounded side hides a triangle. */
	params.window_left = -1;
	params.window_right = 0;
	assert_int_equal(kind(&params), FA_CUDA_BAND);
	params.window_left = 0;
	params.window_right = -1;
	assert_int_equal(kind(&params), FA_CUDA_BAND);
	params.window_right = 10;
	assert_int_equal(kind(&params), FA_CUDA_WINDOW);
	params.alibi_slopes = values;
	assert_int_equal(kind(&params), FA_CUDA_RICH);
	assert_false(plan(&params).args.pairs);
	params = usual(FA_ATTENTION_BF16, 128);
	params.window_left = params.window_right = 10;
	launch = plan(&params);
	assert_string_equal(launch.kernel->symbol, "fa_sm90_forward_bf16_d128_v128_band");
	assert_false(launch.args.pairs);
}

static void check_aligned(const struct fa_attention_params *params, bool aligned)
{
	const struct fa_cuda_launch launch = plan(params);

	assert_int_equal(launch.args.aligned, aligned);
	if (!aligned)
		assert_int_equal(launch.kernel->kind, FA_CUDA_RICH);
	else if (params->dtype != FA_ATTENTION_F32)
		assert_int_equal(launch.kernel->kind, FA_CUDA_FULL);
}

static void test_alignment(void **state)
{
	for (int dtype = FA_ATTENTION_F32; dtype <= FA_ATTENTION_BF16; dtype++) {
		const struct fa_attention_params base = usual((enum fa_attention_dtype)dtype, 128);
		const int bytes = dtype == FA_ATTENTION_F32 ? 4 : 2, whole = 16 / bytes;

		check_aligned(&base, true);
		for (int i = 0; i < 4; i++) {
			struct fa_attention_params params = base;
			struct fa_attention_tensor *tensor = i == 0   ? &params.q
			                                     : i == 1 ? &params.k
			                                     : i == 2 ? &params.v
			                                              : &params.out;
			const struct fa_attention_tensor before = *tensor;
			int64_t *const strides[] = { &tensor->stride_batch, &tensor->stride_token,
				                     &tensor->stride_head };

			for (size_t s = 0; s < COUNT(strides); s++) {
				*strides[s] += whole;
				check_aligned(&params, true);
				*strides[s] -= 1;
				check_aligned(&params, false);
				*tensor = before;
			}
			tensor->data = (char *)tensor->data + 16;
			check_aligned(&params, true);
			tensor->data = (char *)tensor->data - 8;
			check_aligned(&params, false);
			*tensor = before;

			/* Rows are so far apart that offsets within a tile do not fit. */
			tensor->stride_token = (4 << 20) / bytes - whole;
			check_aligned(&params, true);
			tensor->stride_token += whole;
			check_aligned(&params, false);
			/* Negative strides count as too far apart. */
			tensor->stride_token = -before.stride_token;
			check_aligned(&params, false);
		}
	}
}

/* Strides of dims of size 1 are never used, so they cannot be wrong. */
static void test_alignment_of_one(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_F16, 128);
	struct fa_attention_tensor *tensors[] = { &params.q, &params.k, &params.v, &params.out };

	params.batch = params.heads = params.kv_heads = 1;
	params.seqlen_q = params.seqlen_k = 1;
	for (size_t i = 0; i < 4; i++)
		tensors[i]->stride_batch = tensors[i]->stride_token = tensors[i]->stride_head = 3;
	check_aligned(&params, true);
	params.batch = 2;
	check_aligned(&params, false);
	params.batch = 1;
	params.seqlen_k = 2;
	check_aligned(&params, false);
	params.seqlen_k = 1;
	params.heads = 2;
	check_aligned(&params, false);
}

/* Short sequences of keys have their own kernels, for any number of queries. */
static void test_lengths(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 64);

	params.seqlen_k = 1536;
	assert_string_equal(plan(&params).kernel->symbol,
	                    "fa_sm90_forward_bf16_d64_v64_full_short");
	params.seqlen_k = 1537;
	assert_string_equal(plan(&params).kernel->symbol, "fa_sm90_forward_bf16_d64_v64_full");
	/* 12 triples of 3 blocks of 128 rows run at once, 66 of 2 do so barely. */
	params.causal = true;
	assert_string_equal(plan(&params).kernel->symbol, "fa_sm90_forward_bf16_d64_v64_band_few");
	params.seqlen_q = 256;
	params.batch = 11;
	assert_string_equal(plan(&params).kernel->symbol, "fa_sm90_forward_bf16_d64_v64_band_few");
	params.batch = 12;
	assert_string_equal(plan(&params).kernel->symbol,
	                    "fa_sm90_forward_bf16_d64_v64_band_short");
	params.seqlen_k = 3073;
	assert_string_equal(plan(&params).kernel->symbol, "fa_sm90_forward_bf16_d64_v64_band");
}

static void refused(const struct fa_cuda_chip *chip, const struct fa_attention_params *params,
                    const char *part)
{
	struct fa_cuda_launch launch;
	char text[256] = "";

	memset(&launch, 0x5a, sizeof(launch));
	assert_int_equal(fa_attention_check(params, text, sizeof(text)), 0);
	assert_int_equal(fa_cuda_attention_plan(chip, params, text, sizeof(text), &launch),
	                 -ENOTSUP);
	if (!strstr(text, part))
		fail_msg("'%s' does not say '%s'", text, part);
	for (size_t i = 0; i < sizeof(launch); i++)
		assert_int_equal(((unsigned char *)&launch)[i], 0x5a);
}

/* Masks that no kernel has are refused by name; chunks as long as the sequence hide nothing. */
static void test_masks(void **state)
{
	static const uint32_t prefixes[16], cu[] = { 0, 2048 };
	struct fa_attention_params params = usual(FA_ATTENTION_BF16, 128);

	params.batch = 1;
	params.causal = true;
	params.seqlen_q = params.seqlen_k = 2048;
	params.chunk_tokens = 2047;
	refused(&hopper, &params, "chunk_tokens 2047 is not supported by GPU kernels");
	params.chunk_tokens = 2048;
	plan(&params);
	params.seqlen_q = 2049;
	refused(&hopper, &params, "chunk_tokens 2048");
	params.seqlen_q = 2048;
	params.cu_seqlens_q = params.cu_seqlens_k = cu;
	refused(&hopper, &params, "chunk_tokens 2048");
	params.chunk_tokens = 0;
	params.prefix_lengths = prefixes;
	refused(&hopper, &params, "prefix_lengths are not supported by GPU kernels");
}

static void test_bounds(void **state)
{
	struct fa_attention_params params = usual(FA_ATTENTION_F16, 64);

	params.batch = 1;
	params.seqlen_q = params.seqlen_k = FA_CUDA_SEQLEN_MAX;
	plan(&params);
	params.seqlen_k++;
	refused(&hopper, &params, "seqlen_k is 536870913");
	params.seqlen_k--;
	params.seqlen_q++;
	refused(&hopper, &params, "seqlen_q is 536870913");

	/* 2^29 rows are 2^22 row blocks, so 511 heads fit into a grid and 512 do not. */
	params.seqlen_q = FA_CUDA_SEQLEN_MAX;
	params.kv_heads = 1;
	params.heads = 511;
	assert_int_equal(plan_on(&ampere, &params).grid, 511u << 22);
	/* Blocks of 192 rows take long, so each is a thread block. */
	assert_int_equal(plan(&params).grid, 511u * 2796203);
	params.heads = 512;
	refused(&ampere, &params, "more than 2147483647 blocks");

	/* Refused: more triples than a grid has blocks. */
	params.seqlen_q = 1;
	params.heads = 65536;
	params.batch = 32767;
	assert_int_equal(plan_on(&ampere, &params).grid, 32767u << 16);
	params.batch = 32768;
	refused(&hopper, &params, "batch 32768");
	params.head_dim_v = 512;
	params.batch = 16384;
	refused(&hopper, &params, "batch 16384");
	params.batch = INT32_MAX;
	params.seqlen_q = 0;
	refused(&hopper, &params, "batch 2147483647");
}

static void test_chips(void **state)
{
	const struct fa_attention_params params = usual(FA_ATTENTION_F16, 64);
	const struct fa_cuda_chip cramped = { .arch = 90, .shared_bytes_max = 1024 };

	struct fa_cuda_chip portable = hopper, next = hopper;

	refused(&turing, &params, "compute capability 7.5");
	refused(&cramped, &params, "1024 bytes of shared memory");

	/* Kernels for sm_90a run on compute capability 9.0 alone, if they could be loaded. */
	assert_int_equal(plan_on(&hopper, &params).kernel->arch, 90);
	next.arch = 91;
	assert_int_equal(plan_on(&next, &params).kernel->arch, 80);
	next.arch = 89;
	assert_int_equal(plan_on(&next, &params).kernel->arch, 80);
	portable.portable = true;
	assert_int_equal(plan_on(&portable, &params).kernel->arch, 80);
	for (size_t i = 0; i < fa_cuda_kernels_count; i++)
		assert_int_equal(fa_cuda_kernel_is_special(&fa_cuda_kernels[i]),
		                 fa_cuda_kernels[i].arch == 90);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),     cmocka_unit_test(test_every_combination),
		cmocka_unit_test(test_choice),    cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_windows),   cmocka_unit_test(test_narrow),
		cmocka_unit_test(test_alignment), cmocka_unit_test(test_alignment_of_one),
		cmocka_unit_test(test_lengths),   cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_masks),     cmocka_unit_test(test_chips),
		cmocka_unit_test(test_plain_mla),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
