#include "daemon/backend/vulkan/prepare.h"

#include "common/cleanup.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/queue.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Lavapipe leaves the loops of a workgroup after so many rounds in all, without a word, so that results are
 * wrong. */
#define LAVAPIPE_ROUNDS 65535

/* The word that stops kernels has the beginning of a blob to itself. */
#define STOP_BYTES 64

static int prepared_new(struct fa_device *device, struct fa_device_work *work,
                        unsigned int n_dispatches, uint64_t bytes, struct fa_error *error,
                        struct fa_vk_prepared **ret_prepared)
{
	struct fa_vk_prepared *prepared;
	int r;

	prepared = calloc(1, sizeof(*prepared) + n_dispatches * sizeof(prepared->dispatches[0]));
	if (!prepared)
		return fa_fail(error, -ENOMEM, "no memory for a request");
	work->prepared = prepared;
	r = fa_vk_blob_new(device, FA_VK_MEMORY_ARGUMENTS, STOP_BYTES + bytes, error,
	                   &prepared->blob);
	if (r < 0)
		return r;
	memset(prepared->blob->host, 0, STOP_BYTES);
	work->host_bytes = prepared->blob->bytes;
	*ret_prepared = prepared;
	return 0;
}

/* Returns true if append writes q to the backend's memory, where attention reads it. */
static bool wants_q(const struct fa_paged_request *request)
{
	return request->op == FA_PAGED_APPEND && request->append.heads &&
	       !request->append.q_out.data;
}

static uint64_t q_bytes(const struct fa_paged_append *append)
{
	const uint64_t bytes = append->cache->dtype == FA_ATTENTION_F32 ? 4 : 2;

	return (uint64_t)append->step->cu_new[append->step->batch] * (uint64_t)append->heads *
	       (uint64_t)append->cache->head_dim * bytes;
}

static void put_q(struct fa_device_work *work, uint64_t at)
{
	void *q = (void *)(uintptr_t)at;

	for (uint32_t i = 0; i < work->n_paged; i++) {
		struct fa_paged_request *request = &work->paged[i];

		if (wants_q(request))
			request->append.q_out.data = q;
		else if (request->op == FA_PAGED_ATTEND && !request->attention.q.data)
			request->attention.q.data = q;
	}
}

/* Plans with or without memory, and stores the dispatches unless @prepared is NULL. Returns their number. */
static unsigned int plan(struct fa_device *device, const struct fa_device_work *work,
                         struct fa_vulkan_writer *writer, struct fa_vk_prepared *prepared)
{
	const struct fa_vulkan_pool pool = {
		.chunks = device->pool.base ? device->pool.chunks->at : 0,
		.chunk_shift = device->pool.base
		                       ? (uint32_t)__builtin_ctzll(device->pool.chunk_bytes)
		                       : 0,
	};
	unsigned int n = 0;

	if (work->op == FA_DEVICE_ATTENTION) {
		fa_vulkan_plan_attention(work->params, writer);
		if (prepared)
			memcpy(prepared->dispatches, writer->dispatches,
			       writer->n_dispatches * sizeof(writer->dispatches[0]));
		return writer->n_dispatches;
	}
	for (uint32_t i = 0; i < work->n_paged; i++) {
		writer->n_dispatches = 0;
		fa_vulkan_plan_paged(&pool, &work->paged[i], writer);
		if (prepared)
			memcpy(prepared->dispatches + n, writer->dispatches,
			       writer->n_dispatches * sizeof(writer->dispatches[0]));
		n += writer->n_dispatches;
	}
	return n;
}

static int prepare(struct fa_device *device, struct fa_device_work *work, uint64_t q_bytes,
                   struct fa_error *error)
{
	struct fa_vulkan_writer writer = {
		.matrices = &device->matrices,
		.splits = &device->splits,
	};
	struct fa_vk_prepared *prepared = NULL;
	unsigned int n;
	int r;

	n = plan(device, work, &writer, NULL);
	r = prepared_new(device, work, n, writer.used, error, &prepared);
	if (r < 0)
		return r;
	if (q_bytes) {
		r = fa_vk_blob_new(device, FA_VK_MEMORY_DEVICE, q_bytes, error, &prepared->q);
		if (r < 0)
			return r;
		put_q(work, prepared->q->at);
		work->host_bytes += prepared->q->bytes;
	}
	if (writer.parts_bytes) {
		r = fa_vk_blob_new(device, FA_VK_MEMORY_DEVICE, writer.parts_bytes, error,
		                   &prepared->parts);
		if (r < 0)
			return r;
		work->host_bytes += prepared->parts->bytes;
	}
	writer = (struct fa_vulkan_writer){
		.host = prepared->blob->host + STOP_BYTES,
		.at = prepared->blob->at + STOP_BYTES,
		.stop = prepared->blob->at,
		.matrices = &device->matrices,
		.splits = &device->splits,
		.parts = prepared->parts ? prepared->parts->at : 0,
	};
	prepared->n_dispatches = plan(device, work, &writer, prepared);
	return 0;
}

int fa_vk_check_keys(const struct fa_device *device, int64_t n_k, int32_t head_dim,
                     int32_t head_dim_v, struct fa_error *error)
{
	const int64_t most = fa_vulkan_keys_of(LAVAPIPE_ROUNDS, head_dim, head_dim_v);

	if (!device->is_lavapipe || n_k <= most)
		return 0;
	return fa_fail(error, -ENOTSUP,
	               "%" PRId64 " keys are too many for Mesa's lavapipe with head dims %" PRId32
	               " and %" PRId32 ": at most %" PRId64
	               ", as it leaves longer loops early; the backend cpu has no such limit",
	               n_k, head_dim, head_dim_v, most);
}

static int check_keys(const struct fa_device *device, const struct fa_paged_request *request,
                      struct fa_error *error)
{
	const struct fa_paged_attention *p = &request->attention;
	const struct fa_paged_own_attention *own = &request->own_attention;
	int64_t longest = 0, in_table;

	if (request->op == FA_PAGED_ATTEND) {
		for (int32_t b = 0; b < p->step->batch; b++)
			longest = p->step->lengths[b] > longest ? p->step->lengths[b] : longest;
		return fa_vk_check_keys(device, longest, p->cache->head_dim, p->cache->head_dim_v,
		                        error);
	}
	if (request->op != FA_PAGED_ATTEND_OWN)
		return 0;
	in_table = (int64_t)own->table_columns * own->pages->page_tokens;
	longest = own->max_k < in_table ? own->max_k : in_table;
	return fa_vk_check_keys(device, longest, own->pages->head_dim, own->pages->head_dim_v,
	                        error);
}

int fa_vk_attention_prepare(struct fa_device *device, struct fa_device_work *work,
                            struct fa_error *error)
{
	return prepare(device, work, 0, error);
}

int fa_vk_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                        struct fa_error *error)
{
	uint64_t q = 0, bytes;
	int r;

	for (uint32_t i = 0; i < work->n_paged; i++) {
		r = fa_paged_check(&work->paged[i], error->text, sizeof(error->text));
		if (r == 0)
			r = fa_vulkan_check_paged(&work->paged[i], error->text,
			                          sizeof(error->text));
		if (r == 0)
			r = check_keys(device, &work->paged[i], error);
		if (r < 0)
			return r;
		bytes = wants_q(&work->paged[i]) ? q_bytes(&work->paged[i].append) : 0;
		q = bytes > q ? bytes : q;
	}
	return prepare(device, work, q, error);
}

void fa_vk_release(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_vk_prepared *prepared = fa_steal_ptr(work->prepared);

	if (!prepared)
		return;
	fa_vk_blob_free(device, prepared->blob);
	fa_vk_blob_free(device, prepared->q);
	fa_vk_blob_free(device, prepared->parts);
	free(prepared);
}
