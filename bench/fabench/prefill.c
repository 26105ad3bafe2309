/*
 * prefill: the GPU's attention kernels alone, in this process. A sample: flush L2 by reading, start
 * a spin kernel so that the host runs ahead, event, kernel, event; medians count. boost: the GPU
 * idles four times as long as it works; sustained: after a second of load. All cells have 16,384
 * tokens and heads * head dim = 2048. bare: read bandwidth. bench/race.py compares with other
 * implementations.
 */
#include "bench/fabench/bench.h"
#include "bench/lib/inproc-gpu.h"

#include "common/clock.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOKENS 16384
#define WIDTH 2048
#define SAMPLES 20
#define SPIN_NS (100 * FA_NS_PER_US)
#define LOAD_NS FA_NS_PER_SEC

struct prefill {
	struct fa_bench *bench;
	struct fa_inproc_gpu *gpu;
	struct fa_error error;
	CUdeviceptr tensors[4]; /* q, k, v, out: the same size in every cell */
	uint64_t samples[SAMPLES];
};

static int fail(struct prefill *p)
{
	return fa_fail(&p->error, -EIO, "the GPU fails");
}

static int make_tensors(struct prefill *p, enum fa_attention_dtype dtype)
{
	const struct fa_cudriver *driver = &p->gpu->driver;
	const size_t n = (size_t)TOKENS * WIDTH;
	uint16_t *values = malloc(n * 2);
	uint64_t state = 1;
	int r = 0;

	if (!values)
		return fa_fail(&p->error, -ENOMEM, "no memory");
	for (int t = 0; t < 3 && r == 0; t++) {
		for (size_t i = 0; i < n; i++) {
			/*
			 * The sum of four uniform numbers is about normal. Sums between 2^-14 and 4
			 * become fp16 and bf16 by cutting off low bits.
			 */
			float value, sum = 0;
			uint32_t bits;

			state = state * 6364136223846793005u + 1442695040888963407u;
			for (int part = 0; part < 4; part++)
				sum += (float)(state >> (16 * part) & 0xffff) / 65536;
			value = (sum - 2) * 1.7320508f;
			memcpy(&bits, &value, sizeof(bits));
			if (dtype == FA_ATTENTION_BF16)
				values[i] = (uint16_t)(bits >> 16);
			else if (fabsf(value) < 0x1p-14f)
				values[i] = 0;
			else
				values[i] = (uint16_t)((bits >> 16 & 0x8000) |
				                       ((bits & 0x7fffffff) - (112u << 23)) >> 13);
		}
		if (driver->cuMemcpyHtoD(p->tensors[t], values, n * 2) != CUDA_SUCCESS)
			r = fail(p);
	}
	free(values);
	if (r == 0 && driver->cuCtxSynchronize() != CUDA_SUCCESS)
		r = fail(p);
	return r;
}

/* Times one launch of @params; NULL: the bare read. */
static int sample(struct prefill *p, const struct fa_attention_params *params, double *ret_ns)
{
	int r;

	if (fa_inproc_gpu_read(p->gpu) < 0 || fa_inproc_gpu_spin(p->gpu, SPIN_NS) < 0 ||
	    fa_inproc_gpu_time_start(p->gpu) < 0)
		return fail(p);
	r = params ? fa_inproc_gpu_launch(p->gpu, params, &p->error) : fa_inproc_gpu_read(p->gpu);
	if (r < 0)
		return r;
	return fa_inproc_gpu_time_stop(p->gpu, ret_ns) < 0 ? fail(p) : 0;
}

static int load(struct prefill *p, const struct fa_attention_params *params, double ns)
{
	const uint64_t begin_ns = fa_now_ns();
	int r;

	while (fa_now_ns() - begin_ns < LOAD_NS) {
		for (int i = 0; i < 1 + (int)(5e7 / ns); i++) {
			r = fa_inproc_gpu_launch(p->gpu, params, &p->error);
			if (r < 0)
				return r;
		}
		if (p->gpu->driver.cuStreamSynchronize(p->gpu->stream) != CUDA_SUCCESS)
			return fail(p);
	}
	return 0;
}

static void rest(double ns)
{
	const struct timespec time = { (time_t)(ns / 1e9), (long)fmod(ns, 1e9) };

	nanosleep(&time, NULL);
}

static int median(struct prefill *p, const struct fa_attention_params *params, bool sustained,
                  double *ret_ns)
{
	const size_t n = p->bench->quick ? 3 : SAMPLES;
	double ns;
	int r;

	r = sample(p, params, &ns);
	if (r == 0 && sustained)
		r = load(p, params, ns);
	for (size_t i = 0; i < n && r == 0; i++) {
		r = sample(p, params, &ns);
		p->samples[i] = (uint64_t)ns;
		if (!sustained)
			rest(4 * (ns + 3e5));
	}
	*ret_ns = (double)fa_bench_percentile(p->samples, n, 50);
	return r;
}

static int cell(struct prefill *p, enum fa_attention_dtype dtype, int dim, int tokens, bool causal,
                bool sustained)
{
	struct fa_attention_tensor tensors[4];
	struct fa_attention_params params;
	char name[80];
	double ns;
	int r;

	for (int t = 0; t < 4; t++)
		tensors[t] = (struct fa_attention_tensor){
			.data = (void *)(uintptr_t)p->tensors[t],
			.stride_batch = (int64_t)tokens * WIDTH,
			.stride_token = WIDTH,
			.stride_head = dim,
		};
	params = (struct fa_attention_params){
		.dtype = dtype,
		.batch = TOKENS / tokens,
		.heads = WIDTH / dim,
		.kv_heads = WIDTH / dim,
		.head_dim = dim,
		.head_dim_v = dim,
		.seqlen_q = tokens,
		.seqlen_k = tokens,
		.q = tensors[0],
		.k = tensors[1],
		.v = tensors[2],
		.out = tensors[3],
		.scale = 1 / sqrtf((float)dim),
		.causal = causal,
		.window_left = -1,
		.window_right = -1,
	};
	r = median(p, &params, sustained, &ns);
	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "prefill/%s/d%d-s%d/%s%s",
	         dtype == FA_ATTENTION_BF16 ? "bf16" : "fp16", dim, tokens,
	         causal ? "causal" : "full", sustained ? "-sustained" : "");
	return fa_bench_add(p->bench, name, fa_attention_flops(&params) / ns / 1e3, "TFLOP/s", NULL,
	                    0);
}

static int run(struct prefill *p)
{
	static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_BF16, FA_ATTENTION_F16 };
	const int longest = p->bench->quick ? 512 : TOKENS;
	double ns;
	int r;

	for (int t = 0; t < 4; t++)
		if (p->gpu->driver.cuMemAlloc(&p->tensors[t], (size_t)TOKENS * WIDTH * 2))
			return fa_fail(&p->error, -ENOMEM, "the GPU has no memory for the tensors");
	r = median(p, NULL, false, &ns);
	if (r == 0)
		r = fa_bench_add(p->bench, "prefill/read/512MiB/bare",
		                 (double)FA_INPROC_GPU_FLUSH_BYTES / ns, "GB/s", NULL, 0);
	for (size_t d = 0; d < 2 && r == 0; d++) {
		r = make_tensors(p, dtypes[d]);
		for (int sustained = 0; sustained < 2; sustained++)
			for (int dim = 64; dim <= 256; dim *= 2)
				for (int causal = 0; causal < 2; causal++)
					for (int n = 512; n <= longest && r == 0; n *= 2)
						r = cell(p, dtypes[d], dim, n, causal, sustained);
	}
	return r;
}

int fa_bench_prefill(struct fa_bench *bench)
{
	struct prefill p = { .bench = bench };
	int r;

	r = fa_inproc_gpu_open(&p.error, &p.gpu);
	if (r == 0) {
		snprintf(bench->device, sizeof(bench->device), "%s", p.gpu->name);
		r = run(&p);
	}
	if (r < 0)
		fprintf(stderr, "fabench prefill: %s\n", p.error.text);
	for (int t = 0; t < 4; t++)
		if (p.tensors[t])
			(void)p.gpu->driver.cuMemFree(p.tensors[t]);
	fa_inproc_gpu_close(p.gpu);
	return r;
}
