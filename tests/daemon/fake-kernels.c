#include "fake-kernels.h"

#include "common/clock.h"
#include "kernels/paged.h"
#include "tests/lib/pause.h"

#include <unistd.h>

struct fa_cpu_isa {
	const char *name;
};

static const struct fa_cpu_isa fake = { "fake" };

double fa_attention_flops(const struct fa_attention_params *params)
{
	return 0;
}

int fa_attention_check(const struct fa_attention_params *params, char *text, size_t text_bytes)
{
	return 0;
}

int fa_cpu_isa_select(char *text, size_t text_bytes, const struct fa_cpu_isa **ret_isa)
{
	*ret_isa = &fake;
	return 0;
}

const char *fa_cpu_isa_name(const struct fa_cpu_isa *isa)
{
	return isa->name;
}

int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params)
{
	return ((struct fake_job *)params->q.data)->n_tiles;
}

size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params)
{
	return ((struct fake_job *)params->q.data)->scratch_bytes;
}

size_t fa_cpu_attention_workspace_bytes(const struct fa_cpu_isa *isa,
                                        const struct fa_attention_params *params)
{
	return ((struct fake_job *)params->q.data)->workspace_bytes;
}

void fa_cpu_attention_begin(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                            void *workspace)
{
	struct fake_workspace *begun = workspace;

	begun->job = params->q.data;
	begun->n_ran = 0;
}

static bool run_tile(struct fake_job *job, int64_t tile, void *scratch)
{
	uint8_t *bytes = scratch;
	uint64_t never = 0, begin_ns = fa_now_ns();

	atomic_compare_exchange_strong(&job->first_ran_ns, &never, begin_ns);
	if (tile < 0 || tile >= job->n_tiles ||
	    (job->before && job->before->n_ran != job->before->n_tiles))
		job->wrong = true;
	if (tile < (int64_t)sizeof(job->ran) && atomic_fetch_add(&job->ran[tile], 1) > 0)
		job->wrong = true;
	if (job->scratch_bytes) {
		if ((uintptr_t)bytes % 64)
			job->wrong = true;
		bytes[0] = bytes[job->scratch_bytes - 1] = (uint8_t)tile;
	}
	while (job->gate && !*job->gate)
		fa_test_pause_ns(FA_NS_PER_MS / 5);
	if (job->read)
		(void)*job->read;
	if (job->tile_ns)
		fa_test_pause_ns(job->tile_ns);
	/* Another tile that used the scratch meanwhile has changed it. */
	if (job->scratch_bytes && bytes[0] != (uint8_t)tile)
		job->wrong = true;
	atomic_fetch_add(&job->ran_ns, fa_now_ns() - begin_ns);
	atomic_fetch_add(&job->n_ran, 1);
	return true;
}

bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	struct fake_job *job = params->q.data;
	struct fake_workspace *begun = workspace;

	if (!begun != !job->workspace_bytes || (uintptr_t)workspace % 64)
		job->wrong = true;
	else if (begun && begun->job != job)
		job->wrong = true;
	else if (begun)
		atomic_fetch_add(&begun->n_ran, 1);
	return run_tile(job, tile, scratch);
}

/* ---- paged requests: q.data of their attention is the job */

int fa_paged_check(const struct fa_paged_request *request, char *text, size_t text_bytes)
{
	return 0;
}

int fa_paged_check_cache(const struct fa_paged_cache *cache, char *text, size_t text_bytes)
{
	return 0;
}

size_t fa_cpu_paged_scratch_bytes(const struct fa_cpu_isa *isa,
                                  const struct fa_paged_request *request)
{
	return ((struct fake_job *)request->attention.q.data)->scratch_bytes;
}

size_t fa_cpu_paged_workspace_bytes(const struct fa_cpu_isa *isa,
                                    const struct fa_paged_request *request)
{
	return sizeof(struct fake_job *);
}

int64_t fa_cpu_paged_begin(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                           void *workspace)
{
	struct fake_job *job = request->attention.q.data;

	fa_test_work_us(job->begin_ns / FA_NS_PER_US);
	if (job->begin_read)
		(void)*job->begin_read;
	*(struct fake_job **)workspace = job;
	return job->n_tiles;
}

bool fa_cpu_paged_tile(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                       void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	struct fake_job *job = request->attention.q.data;

	if (*(struct fake_job **)workspace != job)
		job->wrong = true;
	return run_tile(job, tile, scratch);
}

void fa_paged_page_bytes(const struct fa_paged_cache *cache, int64_t *ret_k_bytes,
                         int64_t *ret_v_bytes)
{
	*ret_k_bytes = *ret_v_bytes = 0;
}
