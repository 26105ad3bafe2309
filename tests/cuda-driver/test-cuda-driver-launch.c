/* Kernels of the tests' CUDA driver: a planned launch computes what the CPU kernels do, and a
 * launch that a GPU would fault on fails. */
#include "kernels/cuda/plan.h"
#include "tests/cuda-driver/child.h"
#include "tests/cuda-driver/image.h"
#include "tests/lib/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEQLEN 37
#define HEADS 4
#define KV_HEADS 2
#define DIM 64
#define BATCH 2

static const struct fa_cuda_chip chip = { .arch = 90, .shared_bytes_max = 232448, .l2_bytes = 1 };

/* A request in fp32, with tensors [batch][token][head][dim] on the host and on the GPU. */
struct problem {
	float q[BATCH * SEQLEN * HEADS * DIM], out[BATCH * SEQLEN * HEADS * DIM];
	float k[BATCH * SEQLEN * KV_HEADS * DIM], v[BATCH * SEQLEN * KV_HEADS * DIM];
	float lse[BATCH * HEADS * SEQLEN];
	uint32_t cu_seqlens[BATCH + 1];
	float slopes[HEADS], sinks[HEADS];
};

static struct problem problem;

#define AT(base, member) ((void *)((base) + offsetof(struct problem, member)))

static struct fa_attention_params params_of(uintptr_t base)
{
	return (struct fa_attention_params){
		.dtype = FA_ATTENTION_F32,
		.batch = BATCH,
		.heads = HEADS,
		.kv_heads = KV_HEADS,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.seqlen_q = SEQLEN,
		.seqlen_k = SEQLEN,
		.q = { AT(base, q), SEQLEN * HEADS * DIM, HEADS * DIM, DIM },
		.k = { AT(base, k), SEQLEN * KV_HEADS * DIM, KV_HEADS * DIM, DIM },
		.v = { AT(base, v), SEQLEN * KV_HEADS * DIM, KV_HEADS * DIM, DIM },
		.out = { AT(base, out), SEQLEN * HEADS * DIM, HEADS * DIM, DIM },
		.lse = AT(base, lse),
		.lse_stride_batch = HEADS * SEQLEN,
		.lse_stride_head = SEQLEN,
		.lse_stride_token = 1,
		.scale = 0.125f,
		.window_left = -1,
		.window_right = -1,
	};
}

static void problem_fill(void)
{
	struct fa_test_random random = { 7 };
	float *at = (float *)&problem;

	for (size_t i = 0; i < sizeof(problem) / sizeof(float); ++i)
		at[i] = (float)((double)fa_test_random_below(&random, 2000) / 1000 - 1);
	problem.cu_seqlens[0] = 0;
	problem.cu_seqlens[1] = 5;
	problem.cu_seqlens[2] = 5 + SEQLEN;
}

static CUmodule module_load(enum fa_cuda_image which)
{
	const struct fa_fake_image image = { FA_FAKE_IMAGE_MAGIC, which };
	CUmodule module;

	fa_cu(cuModuleLoadData(&module, &image));
	return module;
}

static CUfunction function_get(const struct fa_cuda_kernel *kernel, CUmodule module)
{
	CUfunction function;

	fa_cu(cuModuleGetFunction(&function, module, kernel->symbol));
	fa_cu(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
	                         kernel->shared_bytes));
	return function;
}

static CUresult launch(CUfunction function, const struct fa_cuda_launch *plan)
{
	void *args[] = { (void *)&plan->args };

	return cu.cuLaunchKernel(function, plan->grid, 1, 1, (unsigned int)plan->kernel->threads, 1,
	                         1, (unsigned int)plan->kernel->shared_bytes, NULL, args, NULL);
}

static void plan_make(const struct fa_attention_params *params, struct fa_cuda_launch *ret_plan)
{
	char text[256] = "";

	if (fa_cuda_attention_plan(&chip, params, text, sizeof(text), ret_plan) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", text);
}

/* Computes a request with the CPU kernels on the host's copy. */
static void compute(const struct fa_attention_params *params)
{
	const struct fa_cpu_isa *isa;
	char text[256];
	void *scratch = aligned_alloc(64, FA_CPU_SCRATCH_BYTES_MAX);
	void *workspace = aligned_alloc(64, FA_CPU_WORKSPACE_BYTES_MAX);

	fa_check(scratch && workspace);
	fa_check_eq(fa_cpu_isa_select(text, sizeof(text), &isa), 0);
	fa_cpu_attention_begin(isa, params, workspace);
	for (int64_t tile = 0; tile < fa_cpu_attention_tiles(isa, params); ++tile)
		fa_check(fa_cpu_attention_tile(isa, params, workspace, tile, scratch, NULL));
	free(workspace);
	free(scratch);
}

static void same(const float *got, const float *want, size_t n)
{
	for (size_t i = 0; i < n; ++i)
		if (!(fabsf(got[i] - want[i]) <= 1e-5f) && got[i] != want[i])
			fa_test_fail(__FILE__, __LINE__, "element %zu is %g, not %g", i,
			             (double)got[i], (double)want[i]);
}

static void results_case(int socket)
{
	static struct problem got;
	CUmodule module = module_load(FA_CUDA_IMAGE_SM80_F32);
	struct fa_cuda_launch plan;
	CUdeviceptr at;

	fa_cu(cuMemAlloc(&at, sizeof(problem)));
	for (int i = 0; i < 32; ++i) {
		struct fa_attention_params on_gpu = params_of(at);
		struct fa_attention_params on_host = params_of((uintptr_t)&problem);

		problem_fill();
		fa_cu(cuMemcpyHtoD(at, &problem, sizeof(problem)));
#define SET(member, value) on_gpu.member = on_host.member = value
		SET(causal, i & 1);
		SET(window_left, i & 2 ? 3 : -1);
		SET(softcap, i & 4 ? 0.5f : 0);
#undef SET
		if (i & 8) {
			on_gpu.alibi_slopes = AT(at, slopes);
			on_host.alibi_slopes = problem.slopes;
			on_gpu.sinks = AT(at, sinks);
			on_host.sinks = problem.sinks;
		}
		if (i & 16) {
			on_gpu.cu_seqlens_q = on_gpu.cu_seqlens_k = AT(at, cu_seqlens);
			on_host.cu_seqlens_q = on_host.cu_seqlens_k = problem.cu_seqlens;
			on_gpu.lse_stride_head = on_host.lse_stride_head = 5 + SEQLEN;
		}
		/* A plan of this type does not read cu_seqlens. */
		plan_make(&on_gpu, &plan);
		fa_check_eq(launch(function_get(plan.kernel, module), &plan), CUDA_SUCCESS);
		fa_cu(cuMemcpyDtoH(&got, at, sizeof(got)));
		compute(&on_host);
		same(got.out, problem.out, sizeof(got.out) / sizeof(float));
		same(got.lse, problem.lse, sizeof(got.lse) / sizeof(float));
	}
	fa_check_eq(fa_test_cuda_kernels(cu_page), 32);
	fa_check_eq(fa_test_cuda_misuses(cu_page), 0);
	fa_cu(cuModuleUnload(module));
	fa_cu(cuMemFree(at));
}

static void results(void **state)
{
	fa_cuda_alone(results_case);
}

/* Every row of the table of kernels is in its module, and in no other. */
static void table_case(int socket)
{
	CUfunction function;

	for (size_t i = 0; i < fa_cuda_kernels_count; ++i) {
		const struct fa_cuda_kernel *kernel = &fa_cuda_kernels[i];
		CUmodule module = module_load(kernel->image);
		CUmodule other = module_load((kernel->image + 1) % FA_CUDA_IMAGES);

		function_get(kernel, module);
		fa_check_eq(cu.cuModuleGetFunction(&function, other, kernel->symbol),
		            CUDA_ERROR_NOT_FOUND);
		fa_cu(cuModuleUnload(module));
		fa_cu(cuModuleUnload(other));
	}
	fa_check_eq(cu.cuModuleLoadData((CUmodule *)&function, "no image of this driver's"),
	            CUDA_ERROR_INVALID_IMAGE);
}

static void table(void **state)
{
	fa_cuda_alone(table_case);
}

/* A wrong launch is refused by the launching call. */
static void refused_case(int socket)
{
	CUmodule module = module_load(FA_CUDA_IMAGE_SM80_F32);
	struct fa_cuda_launch plan, bad;
	struct fa_attention_params params;
	CUfunction function, fresh;
	CUdeviceptr at;
	void *args[] = { &bad.args };

	fa_cu(cuMemAlloc(&at, sizeof(problem)));
	params = params_of(at);
	plan_make(&params, &plan);
	function = function_get(plan.kernel, module);
	fa_cu(cuModuleGetFunction(&fresh, module, plan.kernel->symbol));
	/* A kernel that needs more shared memory than the default is refused. */
	if (plan.kernel->shared_bytes > 48 << 10)
		fa_check_eq(launch(fresh, &plan), CUDA_ERROR_INVALID_VALUE);

	bad = plan;
	bad.grid += 1;
	fa_check_eq(launch(function, &bad), CUDA_ERROR_INVALID_VALUE);
	bad = plan;
	bad.args.blocks_m += 1;
	fa_check_eq(launch(function, &bad), CUDA_ERROR_INVALID_VALUE);
	bad = plan;
	bad.args.head_dim = 2 * plan.kernel->dim;
	fa_check_eq(launch(function, &bad), CUDA_ERROR_INVALID_VALUE);
	bad = plan;
	fa_check_eq(cu.cuLaunchKernel(function, bad.grid, 1, 1, 32, 1, 1,
	                              (unsigned int)bad.kernel->shared_bytes, NULL, args, NULL),
	            CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuLaunchKernel(function, bad.grid, 1, 1, (unsigned int)bad.kernel->threads,
	                              1, 1, 16, NULL, args, NULL),
	            CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(fa_test_cuda_misuses(cu_page), 5);
	fa_check_eq(launch(function, &plan), CUDA_SUCCESS);
	fa_cu(cuCtxSynchronize());
}

static void refused(void **state)
{
	fa_cuda_alone(refused_case);
}

/* Launches a spoilt request. The launch succeeds, and the context is lost when the kernel runs. */
static void lost_by(void (*spoil)(struct fa_cuda_attention *args, CUdeviceptr at), CUresult want)
{
	CUmodule module = module_load(FA_CUDA_IMAGE_SM80_F32);
	struct fa_attention_params params;
	struct fa_cuda_launch plan;
	CUdeviceptr at;

	fa_cu(cuMemAlloc(&at, sizeof(problem)));
	fa_cu(cuMemsetD8(at, 0, sizeof(problem)));
	params = params_of(at);
	plan_make(&params, &plan);
	spoil(&plan.args, at);
	fa_check_eq(launch(function_get(plan.kernel, module), &plan), CUDA_SUCCESS);
	fa_check_eq(cu.cuCtxSynchronize(), want);
	fa_check_eq(fa_test_cuda_misuses(cu_page), 1);
}

static void spoil_end(struct fa_cuda_attention *args, CUdeviceptr at)
{
	args->sinks = (const float *)(at + sizeof(problem) - 8);
}

static void spoil_stride(struct fa_cuda_attention *args, CUdeviceptr at)
{
	args->k.stride_token *= 100;
}

static void spoil_null(struct fa_cuda_attention *args, CUdeviceptr at)
{
	args->v.data = NULL;
}

static void spoil_free(struct fa_cuda_attention *args, CUdeviceptr at)
{
	fa_cu(cuMemFree(at));
}

static void spoil_alignment(struct fa_cuda_attention *args, CUdeviceptr at)
{
	args->q.data = (const void *)(at + 4);
}

#define LOST(name, want)                                                                           \
	static void name##_case(int socket)                                                        \
	{                                                                                          \
		lost_by(spoil_##name, want);                                                       \
	}                                                                                          \
	static void lost_by_##name(void **state)                                                   \
	{                                                                                          \
		fa_cuda_alone(name##_case);                                                        \
	}

LOST(end, CUDA_ERROR_ILLEGAL_ADDRESS)
LOST(stride, CUDA_ERROR_ILLEGAL_ADDRESS)
LOST(null, CUDA_ERROR_ILLEGAL_ADDRESS)
LOST(free, CUDA_ERROR_ILLEGAL_ADDRESS)
LOST(alignment, CUDA_ERROR_MISALIGNED_ADDRESS)

/* ---- maps */

/* Returns a ragged bf16 request, for the kernel of this chip. */
static struct fa_attention_params mapped_params(CUdeviceptr at)
{
	struct fa_attention_params params = params_of(at);

	params.dtype = FA_ATTENTION_BF16;
	params.cu_seqlens_q = params.cu_seqlens_k = AT(at, cu_seqlens);
	params.lse_stride_head = 5 + SEQLEN;
	return params;
}

/* Launches @plan with its first map replaced by @spoilt. */
static CUresult launch_mapped(CUfunction function, const struct fa_cuda_launch *plan,
                              const struct fa_cuda_map *spoilt)
{
	struct fa_cuda_maps maps;
	void *args[] = { (void *)&plan->args, &maps };

	memset(&maps, 0, sizeof(maps));
	for (uint32_t i = 0; i < plan->n_maps; ++i) {
		const struct fa_cuda_map *map = i || !spoilt ? &plan->maps[i] : spoilt;

		if (map->data)
			fa_check_eq(fa_cudriver_encode_tensor_map(&cu, map->data, map->dims,
			                                          map->strides, map->box,
			                                          &maps.maps[i]),
			            CUDA_SUCCESS);
	}
	return cu.cuLaunchKernel(function, plan->grid, 1, 1, (unsigned int)plan->kernel->threads, 1,
	                         1, (unsigned int)plan->kernel->shared_bytes, NULL, args, NULL);
}

/* Launches with maps of other tensors than the arguments' are refused. */
static void maps_case(int socket)
{
	struct fa_attention_params params;
	struct fa_cuda_launch plan;
	struct fa_cuda_map map;
	CUfunction function;
	CUmodule module;
	CUdeviceptr at;

	fa_cu(cuMemAlloc(&at, sizeof(problem)));
	problem_fill();
	fa_cu(cuMemcpyHtoD(at, &problem, sizeof(problem)));
	params = mapped_params(at);
	plan_make(&params, &plan);
	fa_check_eq(plan.n_maps, FA_CUDA_MAPS);
	module = module_load(plan.kernel->image);
	function = function_get(plan.kernel, module);
	fa_check_eq(launch_mapped(function, &plan, NULL), CUDA_SUCCESS);
	fa_cu(cuCtxSynchronize());
	fa_check_eq(fa_test_cuda_misuses(cu_page), 0);

#define SPOILT(change)                                                                             \
	do {                                                                                       \
		map = plan.maps[0];                                                                \
		change;                                                                            \
		fa_check_eq(launch_mapped(function, &plan, &map), CUDA_ERROR_INVALID_VALUE);       \
	} while (0)
	SPOILT(map.data = (const char *)map.data + 16);
	SPOILT(map.data = NULL); /* the map was never encoded */
	SPOILT(map.dims[0] -= 8);
	SPOILT(map.dims[2] += 1);
	SPOILT(map.dims[3] += 1);
	SPOILT(map.strides[0] += 16);
	SPOILT(map.strides[1] += 16);
	SPOILT(map.box[0] = 32);
	SPOILT(map.box[1] += 1);
#undef SPOILT
	fa_check_eq(fa_test_cuda_misuses(cu_page), 9);

	/* Lengths in tables are checked only when the kernel runs. */
	map = plan.maps[0];
	map.dims[1] -= 1;
	fa_check_eq(launch_mapped(function, &plan, &map), CUDA_SUCCESS);
	fa_check_eq(cu.cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
	fa_check_eq(fa_test_cuda_misuses(cu_page), 10);
}

static void maps(void **state)
{
	fa_cuda_alone(maps_case);
}

/* The driver refuses to encode invalid maps. */
static void encode_case(int socket)
{
	static const struct fa_cuda_map good = {
		.data = (const void *)0x1000,
		.dims = { 64, 100, 2, 3 },
		.strides = { 256, 128, 25600 },
		.box = { 64, 64, 1, 1 },
	};
	CUtensorMap encoded;
	struct fa_cuda_map map;

#define ENCODE(result, change)                                                                     \
	do {                                                                                       \
		map = good;                                                                        \
		change;                                                                            \
		fa_check_eq(fa_cudriver_encode_tensor_map(&cu, map.data, map.dims, map.strides,    \
		                                          map.box, &encoded),                      \
		            result);                                                               \
	} while (0)
	ENCODE(CUDA_SUCCESS, (void)0);
	ENCODE(CUDA_SUCCESS, map.strides[2] = ((uint64_t)1 << 40) - 16);
	ENCODE(CUDA_SUCCESS, map.dims[1] = (uint64_t)1 << 32);
	ENCODE(CUDA_SUCCESS, map.box[1] = 256);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.data = (const void *)0x1008);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.strides[0] += 8);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.strides[2] = (uint64_t)1 << 40);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.dims[1] = 0);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.dims[1] = ((uint64_t)1 << 32) + 1);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.box[1] = 257);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.box[1] = 0);
	ENCODE(CUDA_ERROR_INVALID_VALUE, map.box[0] = 128);
#undef ENCODE
}

static void encode(void **state)
{
	fa_cuda_alone(encode_case);
}

/* ---- time */

/* Kernels can be held, take time, and fault. */
static void held_case(int socket)
{
	CUmodule module = module_load(FA_CUDA_IMAGE_SM80_F32);
	struct fa_attention_params params;
	struct fa_cuda_launch plan;
	CUfunction function;
	CUdeviceptr at;
	uint64_t begin;

	fa_cu(cuMemAlloc(&at, sizeof(problem)));
	fa_cu(cuMemsetD8(at, 0, sizeof(problem)));
	params = params_of(at);
	plan_make(&params, &plan);
	function = function_get(plan.kernel, module);
	fa_test_cuda_hold(cu_page, true);
	fa_check_eq(launch(function, &plan), CUDA_SUCCESS);
	fa_check_eventually(fa_test_cuda_kernels(cu_page) == 1);
	fa_test_quiet_ms(20);
	fa_check_eq(cu.cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	fa_test_cuda_hold(cu_page, false);
	fa_cu(cuCtxSynchronize());

	fa_test_cuda_kernel_us(cu_page, 30000);
	begin = fa_now_ns();
	fa_check_eq(launch(function, &plan), CUDA_SUCCESS);
	fa_cu(cuCtxSynchronize());
	fa_check(fa_now_ns() - begin >= 30 * FA_NS_PER_MS);

	fa_test_cuda_fail(cu_page, "kernel:2=700");
	fa_check_eq(launch(function, &plan), CUDA_SUCCESS);
	fa_cu(cuCtxSynchronize());
	fa_check_eq(launch(function, &plan), CUDA_SUCCESS);
	fa_check_eq(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	fa_check_eq(cu.cuStreamQuery(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void held(void **state)
{
	fa_cuda_alone(held_case);
}

static struct fa_test_cuda cuda;

static int setup(void **state)
{
	fa_test_cuda_begin(&cuda);
	return 0;
}

static int teardown(void **state)
{
	fa_test_cuda_end(&cuda);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(results),        cmocka_unit_test(table),
		cmocka_unit_test(refused),        cmocka_unit_test(lost_by_end),
		cmocka_unit_test(lost_by_stride), cmocka_unit_test(lost_by_null),
		cmocka_unit_test(lost_by_free),   cmocka_unit_test(lost_by_alignment),
		cmocka_unit_test(held),           cmocka_unit_test(maps),
		cmocka_unit_test(encode),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
