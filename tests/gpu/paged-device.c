#include "tests/gpu/paged-device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

jmp_buf paged_failure;
struct paged_gpu *paged_device_gpu;

/* ---- the functions that paged-problem.c calls */

void paged_fail(const char *format, ...)
{
	va_list args;

	printf("FAIL ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	longjmp(paged_failure, 1);
}

uint64_t paged_device_upload(const void *from, size_t bytes)
{
	const uint64_t to = paged_gpu_alloc(paged_device_gpu, bytes);

	if (!to)
		paged_fail("no memory for %zu bytes", bytes);
	paged_gpu_upload(paged_device_gpu, to, from, bytes);
	return to;
}

static size_t tree_words(const struct paged_problem *problem)
{
	size_t words = 0;

	for (int32_t b = 0; b < problem->spec.batch; b++) {
		const size_t n_new = problem->spec.n_new[b];

		if (problem->tree_start[b] != FA_PAGED_NO_TREE)
			words = problem->tree_start[b] + n_new * ((n_new + 31) / 32);
	}
	return words;
}

void paged_device_init(struct paged_device *device, const struct paged_problem *problem)
{
	const struct paged_spec *spec = &problem->spec;
	struct fa_paged_attention *p = &device->request.attention;
	const size_t tokens = problem->cu_new[spec->batch];

	memset(device, 0, sizeof(*device));
	device->request = problem->request;
	device->cache = problem->cache;
	device->step = problem->step;
	device->pool = paged_device_upload(problem->cache.pool, problem->pool_bytes);
	device->table = paged_device_upload(problem->table, problem->step.table_entries * 4);
	device->q = paged_device_upload(problem->q, problem->q_bytes);
	device->out = paged_device_upload(problem->out, problem->out_bytes);
	device->lse = paged_device_upload(problem->lse, problem->lse_bytes);
	device->slopes = paged_device_upload(problem->slopes, sizeof(problem->slopes));
	device->sinks = paged_device_upload(problem->sinks, sizeof(problem->sinks));
	device->cache.pool = POINTER(device->pool);
	device->step.table = POINTER(device->table);
	device->step.host_table = NULL;
	p->cache = &device->cache;
	p->step = &device->step;
	p->q.data = POINTER(device->q);
	p->out.data = POINTER(device->out);
	p->lse = p->lse ? POINTER(device->lse) : NULL;
	p->alibi_slopes = p->alibi_slopes ? POINTER(device->slopes) : NULL;
	p->sinks = p->sinks ? POINTER(device->sinks) : NULL;
	if (p->tree) {
		device->tree = paged_device_upload(problem->tree, tree_words(problem) * 4);
		device->positions = paged_device_upload(problem->positions, tokens * 4);
		p->tree = POINTER(device->tree);
		p->positions = POINTER(device->positions);
	}
}

void paged_device_deinit(struct paged_device *device)
{
	paged_gpu_free(paged_device_gpu, device->pool);
	paged_gpu_free(paged_device_gpu, device->table);
	paged_gpu_free(paged_device_gpu, device->tree);
	paged_gpu_free(paged_device_gpu, device->positions);
	paged_gpu_free(paged_device_gpu, device->q);
	paged_gpu_free(paged_device_gpu, device->out);
	paged_gpu_free(paged_device_gpu, device->lse);
	paged_gpu_free(paged_device_gpu, device->slopes);
	paged_gpu_free(paged_device_gpu, device->sinks);
}

void paged_device_run(struct paged_device *device, struct paged_problem *problem,
                      const struct paged_gpu_plan *plan)
{
	paged_gpu_fill(paged_device_gpu, device->out, 0xff, problem->out_bytes);
	paged_gpu_fill(paged_device_gpu, device->lse, 0xff, problem->lse_bytes);
	paged_gpu_poison_shared(paged_device_gpu);
	paged_gpu_launch(paged_device_gpu, plan, &device->request);
	paged_gpu_sync(paged_device_gpu);
	paged_gpu_download(paged_device_gpu, problem->out, device->out, problem->out_bytes);
	paged_gpu_download(paged_device_gpu, problem->lse, device->lse, problem->lse_bytes);
}

void paged_device_hide_table(struct paged_device *device, const struct paged_problem *problem)
{
	device->step.host_table = problem->table;
	paged_gpu_fill(paged_device_gpu, device->table, 0xfe, problem->step.table_entries * 4);
}

void paged_device_show_table(struct paged_device *device, const struct paged_problem *problem)
{
	device->step.host_table = NULL;
	paged_gpu_upload(paged_device_gpu, device->table, problem->table,
	                 problem->step.table_entries * 4);
}
