#include "daemon/backend/vulkan/prepare.h"

#include "common/cleanup.h"
#include "daemon/backend/vulkan/memory.h"
#include "daemon/backend/vulkan/queue.h"

#include <errno.h>
#include <string.h>

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
	r = fa_vk_blob_new(device, STOP_BYTES + bytes, error, &prepared->blob);
	if (r < 0)
		return r;
	memset(prepared->blob->host, 0, STOP_BYTES);
	work->host_bytes = prepared->blob->bytes;
	*ret_prepared = prepared;
	return 0;
}

static void writer_init(struct fa_vulkan_writer *writer, const struct fa_vk_blob *blob)
{
	*writer = (struct fa_vulkan_writer){
		.host = blob->host + STOP_BYTES,
		.at = blob->at + STOP_BYTES,
		.stop = blob->at,
	};
}

int fa_vk_attention_prepare(struct fa_device *device, struct fa_device_work *work,
                            struct fa_error *error)
{
	struct fa_vulkan_writer writer = { 0 };
	struct fa_vk_prepared *prepared = NULL;
	int r;

	fa_vulkan_plan_attention(work->params, &writer);
	r = prepared_new(device, work, writer.n_dispatches, writer.used, error, &prepared);
	if (r < 0)
		return r;
	writer_init(&writer, prepared->blob);
	fa_vulkan_plan_attention(work->params, &writer);
	prepared->n_dispatches = writer.n_dispatches;
	memcpy(prepared->dispatches, writer.dispatches,
	       writer.n_dispatches * sizeof(writer.dispatches[0]));
	return 0;
}

void fa_vk_release(struct fa_device *device, struct fa_device_work *work)
{
	struct fa_vk_prepared *prepared = fa_steal_ptr(work->prepared);

	if (!prepared)
		return;
	fa_vk_blob_free(device, prepared->blob);
	fa_vk_blob_free(device, prepared->q);
	free(prepared);
}
