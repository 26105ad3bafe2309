/*
 * Copies between the pool and a client's own pages, both ways: on a GPU, or the emulator, with the
 * bytes that a plain computation expects, and nothing else written.
 *
 * test-paged-own-copy [--seed N] [--small]
 *
 * Skips (77) without a GPU.
 */
#include "tests/gpu/paged-fixture.h"
#include "tests/kernels/own-copy-problem.h"
#include "tests/kernels/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int32_t page_sizes[] = { 16, 1, 7, 64, 256, 5, 32 };

static void *copy_of(const void *memory, size_t bytes)
{
	void *copy = malloc(bytes);

	memcpy(copy, memory, bytes);
	return copy;
}

static void compare(const struct own_problem *own, uint64_t device, const char *expected,
                    size_t bytes, const char *what)
{
	char *back = malloc(bytes);

	paged_gpu_download(paged_device_gpu, back, device, bytes);
	for (size_t i = 0; i < bytes; i++)
		if (back[i] != expected[i])
			paged_fail("%s: byte %zu of %zu is %#x, not %#x (%s)", what, i, bytes,
			           (unsigned char)back[i], (unsigned char)expected[i],
			           paged_describe(own->problem));
	free(back);
}

/* The device's addresses of the client's tensors. */
static void relocate(const struct own_problem *own, uint64_t memory, void *const *from,
                     void **ret_to)
{
	for (int32_t l = 0; l < own->copy.n_layers; l++)
		ret_to[l] = POINTER(memory + (uint64_t)((const char *)from[l] - own->memory));
}

static void run_one(struct own_problem *own, struct paged_device *device, bool writes)
{
	struct paged_problem *problem = own->problem;
	struct fa_paged_step step = own->step;
	struct fa_paged_request request = {
		.op = writes ? FA_PAGED_WRITE_OWN : FA_PAGED_READ_OWN,
		.own_copy = own->copy,
	};
	void *k_data[OWN_LAYERS_MAX], *v_data[OWN_LAYERS_MAX];
	struct paged_gpu_plan plan;
	uint64_t memory;
	char *pool, *expected;

	if (writes)
		own_fill(own);
	else
		own_poison(own);
	memory = paged_device_upload(own->memory, own->bytes);
	pool = copy_of(problem->cache.pool, problem->pool_bytes);
	expected = copy_of(own->memory, own->bytes);
	own_expect(own, writes, pool, expected);

	step.table = POINTER(device->table);
	request.own_copy.cache = &device->cache;
	request.own_copy.step = &step;
	relocate(own, memory, own->k_data, k_data);
	relocate(own, memory, own->v_data, v_data);
	request.own_copy.k_data = own->copy.k_data ? k_data : NULL;
	request.own_copy.v_data = own->copy.v_data ? v_data : NULL;
	if (paged_gpu_plan(paged_device_gpu, paged_gpu_chip(paged_device_gpu), &request, &plan) < 0)
		paged_fail("no plan");
	paged_gpu_launch(paged_device_gpu, &plan, &request);
	paged_gpu_sync(paged_device_gpu);
	paged_gpu_plan_free(paged_device_gpu, &plan);
	compare(own, device->pool, pool, problem->pool_bytes,
	        writes ? "write: pool" : "read: pool");
	compare(own, memory, expected, own->bytes, writes ? "write: pages" : "read: pages");
	/* The next request finds what this one has written. */
	memcpy(problem->cache.pool, pool, problem->pool_bytes);
	paged_gpu_free(paged_device_gpu, memory);
	free(pool);
	free(expected);
}

/* @ways: -1, or the form of codes as in paged_way_of(). */
static void both_ways(int i, int ways)
{
	static struct paged_problem problem;
	static struct paged_device device;
	static struct own_problem own;
	struct paged_spec spec = paged_usual;
	uint32_t first, end;

	if (setjmp(paged_failure)) {
		paged_failed++;
		return;
	}
	spec.dtype = paged_dtypes[i % 3];
	spec.batch = 2;
	spec.n_new[0] = spec.n_new[1] = 1;
	spec.lengths[0] = 30;
	spec.lengths[1] = 333;
	spec.first[1] = 65;
	spec.page_tokens = 16 << i % 5;
	spec.layer_major = i % 2;
	spec.v_in_k = i % 7 == 6;
	spec.head_dim = i % 2 ? 128 : 72;
	spec.head_dim_v = i % 2 ? 128 : 40;
	if (ways >= 0) {
		spec = paged_way_of(&spec, ways);
		spec.head_dim = i % 2 ? 128 : 80;
		spec.head_dim_v = i % 2 ? 128 : 48;
	}
	if (i % 8 == 5)
		spec.head_dim = 576;
	paged_init(&problem, &spec);
	paged_device_init(&device, &problem);
	first = 65 + (uint32_t)problem_random(100);
	end = i % 3 == 1 ? 333 : first + 1 + (uint32_t)problem_random(160);
	own_init(&own, &problem, 1, first, end, i % OWN_LAYOUTS, page_sizes[i % 7]);
	if (i % 10 == 7)
		own.copy.k_data = NULL;
	if (i % 10 == 3)
		own.copy.v_data = NULL;
	run_one(&own, &device, false);
	if (!spec.v_in_k)
		run_one(&own, &device, true);
	own_deinit(&own);
	paged_device_deinit(&device);
	paged_deinit(&problem);
	paged_passed++;
}

static void run(void)
{
	for (int i = 0; i < (paged_options.small ? 42 : 105); i++)
		both_ways(i, -1);
	paged_report("plain pages");
	for (int i = 0; i < (paged_options.small ? 16 : 56); i++)
		both_ways(i, i % 8);
	paged_report("codes");
}

int main(int argc, char **argv)
{
	return paged_main(argc, argv, run);
}
