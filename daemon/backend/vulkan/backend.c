/* The Vulkan backend: opens and closes its device, and defines the table of backend functions. */
#include "common/clock.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/context.h"
#include "daemon/backend/vulkan/memory.h"
#include "daemon/backend/vulkan/pipelines.h"
#include "daemon/backend/vulkan/pool.h"
#include "daemon/backend/vulkan/prepare.h"
#include "daemon/backend/vulkan/queue.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many works of a queue may be outstanding: enough to last while the engine wakes up. */
#define DEPTH 8
/* How long a GPU may go on with a killed process's part. */
#define LINGER_NS (FA_NS_PER_SEC / 2)

static struct fa_device *vk_close(struct fa_device *device)
{
	if (!device)
		return NULL;
	if (device->layout)
		fa_vk_queue_close(device);
	if (device->lost)
		return NULL;
	if (device->device && device->driver.DestroyBuffer) {
		fa_vk_pool_close(device);
		fa_vk_blobs_close(device);
		fa_vk_pipelines_close(device);
	}
	fa_vk_context_close(device);
	pthread_cond_destroy(&device->work_available);
	pthread_mutex_destroy(&device->mutex);
	free(device);
	return NULL;
}

static int vk_open(const struct fa_device_config *config, struct fa_error *error,
                   struct fa_device **ret_device)
{
	const uint64_t begin_ns = fa_now_ns();
	struct fa_device *device;
	int r;

	device = calloc(1, sizeof(*device));
	if (!device)
		return fa_fail(error, -ENOMEM, "no memory for a Vulkan device");
	device->config = *config;
	pthread_mutex_init(&device->mutex, NULL);
	pthread_cond_init(&device->work_available, NULL);
	fa_list_init(&device->done);
	r = fa_vk_context_open(device, error);
	if (r == 0)
		r = fa_vk_pipelines_open(device, error);
	if (r == 0)
		r = fa_vk_queue_open(device, error);
	if (r < 0) {
		vk_close(device);
		return r;
	}
	device->opened_ns = fa_now_ns() - begin_ns;
	*ret_device = device;
	return 0;
}

static void vk_describe(struct fa_device *device, struct fa_device_info *ret_info)
{
	const struct fa_vulkan_matrices *m = &device->matrices;
	struct fa_device_info info = {
		.backend = "vulkan",
		.depth = DEPTH,
		.polled = device->is_gpu, /* which costs less time than waking the engine */
		.linger_ns = device->is_gpu ? LINGER_NS : 0,
	};
	char kernels[80] = "scalar kernels";

	if (m->f16)
		snprintf(kernels, sizeof(kernels),
		         "matrices of %" PRIu32 "x%" PRIu32 "x%" PRIu32
		         " (%s), else scalar kernels",
		         m->m, m->n, m->k, m->bf16 ? "fp16, bf16" : "fp16");
	/* If the text is too long, cut off the end of the model's name, not the tier. */
	snprintf(info.name, sizeof(info.name), "%.45s (%s)", device->properties.deviceName,
	         m->f16 ? "matrices" : "scalar");
	snprintf(info.details, sizeof(info.details),
	         "%.120s, Vulkan %u.%u.%u, %s%s, opened in %u ms", device->driver_name,
	         VK_API_VERSION_MAJOR(device->properties.apiVersion),
	         VK_API_VERSION_MINOR(device->properties.apiVersion),
	         VK_API_VERSION_PATCH(device->properties.apiVersion), kernels,
	         device->imports_read_only ? "" : ", sealed memory is copied",
	         (unsigned int)(device->opened_ns / FA_NS_PER_MS));
	memcpy(info.uuid, device->uuid, sizeof(info.uuid));
	*ret_info = info;
}

static int vk_check(struct fa_device *device, const struct fa_attention_params *params,
                    struct fa_error *error)
{
	char *text = error ? error->text : NULL;
	const size_t bytes = error ? sizeof(error->text) : 0;
	int r;

	r = fa_attention_check(params, text, bytes);
	if (r == 0)
		r = fa_vulkan_check_attention(params, text, bytes);
	return r < 0 ? r
	             : fa_vk_check_keys(device, params->seqlen_k, params->head_dim,
	                                params->head_dim_v, error);
}

static int vk_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                                struct fa_error *error)
{
	int r;

	r = fa_paged_check_cache(cache, error->text, sizeof(error->text));
	return r < 0 ? r : fa_vulkan_check_cache(cache, error->text, sizeof(error->text));
}

const struct fa_device_ops fa_device_vulkan = {
	.name = "vulkan",
	.open = vk_open,
	.close = vk_close,
	.describe = vk_describe,
	.memory_import_host = fa_vk_memory_import_host,
	.memory_new_arena = fa_vk_memory_new_arena,
	.memory_release = fa_vk_memory_release,
	.memory_host = fa_vk_memory_host,
	.pool_open = fa_vk_pool_open,
	.pool_close = fa_vk_pool_close,
	.pool_chunk_add = fa_vk_pool_chunk_add,
	.pool_chunk_adopt = fa_vk_pool_chunk_adopt,
	.pool_chunk_remove = fa_vk_pool_chunk_remove,
	.paged_cache_check = vk_paged_cache_check,
	.paged_prepare = fa_vk_paged_prepare,
	.paged_release = fa_vk_release,
	.check = vk_check,
	.attention_prepare = fa_vk_attention_prepare,
	.attention_release = fa_vk_release,
	.group_new = fa_vk_group_new,
	.group_free = fa_vk_group_free,
	.queue_new = fa_vk_queue_new,
	.queue_free = fa_vk_queue_free,
	.launch = fa_vk_launch,
	.cancel = fa_vk_cancel,
	.reap = fa_vk_reap,
	.health = fa_vk_health,
	.is_lost = fa_vk_is_lost,
};
