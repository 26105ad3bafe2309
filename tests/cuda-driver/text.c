#include "tests/cuda-driver/text.h"

#include "common/timeline.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_US 20

struct fa_fake_text_kernel {
	const char *name;
	unsigned int n_params;
	CUresult (*run)(struct fa_fake_context *context, const uint64_t *params);
};

/* Returns the memory that a kernel uses, or NULL. Called with the lock held. */
static void *memory_find(const struct fa_fake_context *context, uint64_t at, size_t bytes,
                         bool write)
{
	const struct fa_fake_span span = { at, bytes, write };

	return fa_fake_span_is_good(context->device, &span) ? (void *)(uintptr_t)at : NULL;
}

/* ---- libfaclient's (client/timeline_kernels.c) */

static CUresult timeline_write(struct fa_fake_context *context, const uint64_t *params)
{
	uint64_t *slot, *base;

	fa_fake_lock();
	slot = memory_find(context, params[0], sizeof(*slot), true);
	base = memory_find(context, params[1], sizeof(*base), false);
	if (slot && base)
		__atomic_store_n(slot, *base + params[2], __ATOMIC_RELEASE);
	fa_fake_unlock();
	return slot && base ? CUDA_SUCCESS
	                    : fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "fa_timeline_write");
}

static CUresult timeline_wait(struct fa_fake_context *context, const uint64_t *params)
{
	uint64_t target = 0;

	for (bool first = true;; first = false) {
		const uint64_t *slot, *base;
		bool over;

		fa_fake_lock();
		slot = memory_find(context, params[0], sizeof(*slot), false);
		base = memory_find(context, params[1], sizeof(*base), false);
		if (first && base)
			target = *base + params[2];
		over = context->lost || context->ending ||
		       (slot &&
		        fa_timeline_reached(__atomic_load_n(slot, __ATOMIC_ACQUIRE), target));
		fa_fake_unlock();
		if (!slot || !base)
			return fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "fa_timeline_wait");
		if (over)
			return CUDA_SUCCESS;
		usleep(POLL_US);
	}
}

/* ---- tests/client/test-graph.c's */

/* (counter, x, n): counts up, and fills x with numbers of this count. */
static CUresult test_begin(struct fa_fake_context *context, const uint64_t *params)
{
	uint64_t *counter;
	float *x;

	fa_fake_lock();
	counter = memory_find(context, params[0], sizeof(*counter), true);
	x = memory_find(context, params[1], params[2] * sizeof(*x), true);
	if (counter && x) {
		++*counter;
		for (uint64_t i = 0; i < params[2]; ++i)
			x[i] = (float)(*counter % 4096 * 16 + i % 16);
	}
	fa_fake_unlock();
	return counter && x ? CUDA_SUCCESS
	                    : fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "fa_test_begin");
}

/* (counter, out, n, wrong): counts in wrong the numbers of out that are not of this count. */
static CUresult test_end(struct fa_fake_context *context, const uint64_t *params)
{
	uint64_t *counter, *wrong;
	const float *out;

	fa_fake_lock();
	counter = memory_find(context, params[0], sizeof(*counter), false);
	out = memory_find(context, params[1], params[2] * sizeof(*out), false);
	wrong = memory_find(context, params[3], sizeof(*wrong), true);
	for (uint64_t i = 0; counter && out && wrong && i < params[2]; ++i)
		*wrong += out[i] != (float)(*counter % 4096 * 16 + i % 16);
	fa_fake_unlock();
	return counter && out && wrong ? CUDA_SUCCESS
	                               : fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS, "fa_test_end");
}

static const struct fa_fake_text_kernel kernels[] = {
	{ "fa_timeline_write", 3, timeline_write },
	{ "fa_timeline_wait", 3, timeline_wait },
	{ "fa_test_begin", 3, test_begin },
	{ "fa_test_end", 4, test_end },
};

bool fa_fake_is_text(const void *data)
{
	return !strncmp(data, ".version ", strlen(".version "));
}

const struct fa_fake_text_kernel *fa_fake_text_kernel_find(const char *name)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); ++i)
		if (!strcmp(kernels[i].name, name))
			return &kernels[i];
	return NULL;
}

static CUresult text_run(struct fa_fake_op *op, struct fa_fake_context *context)
{
	const struct fa_fake_text_kernel *kernel = op->object;
	const CUresult result = fa_fake_enter_kernel();

	return result == CUDA_SUCCESS ? kernel->run(context, op->staged) : result;
}

CUresult fa_fake_text_launch(const struct fa_fake_text_kernel *kernel,
                             const CUDA_KERNEL_NODE_PARAMS_v2 *wanted, CUstream stream)
{
	struct fa_fake_op *op;
	uint64_t *params;

	if (!wanted->gridDimX || !wanted->blockDimX || !wanted->kernelParams)
		return CUDA_ERROR_INVALID_VALUE;
	params = calloc(FA_FAKE_TEXT_PARAMS, sizeof(*params));
	if (!params)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (unsigned int i = 0; i < kernel->n_params; ++i)
		memcpy(&params[i], wanted->kernelParams[i], sizeof(*params));
	op = fa_fake_op_new(text_run);
	if (op) {
		op->object = (void *)kernel;
		op->staged = params;
		op->staged_bytes = FA_FAKE_TEXT_PARAMS * sizeof(*params);
		op->again = true;
	} else {
		free(params);
	}
	return fa_fake_submit(stream, op);
}
