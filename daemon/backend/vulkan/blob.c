#include "daemon/backend/vulkan/blob.h"

#include "common/cleanup.h"
#include "daemon/backend/vulkan/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* Limits the memory of all works together, kept memory included. */
#define BLOB_BYTES_MAX ((uint64_t)1 << 30)
/* Smaller ones share an allocation, of which drivers have few and take long to make. */
#define SHARED_BYTES_MAX ((uint64_t)64 << 10)
#define SLAB_BYTES ((uint64_t)2 << 20)

static struct fa_vk_slab *slab_free(struct fa_device *device, struct fa_vk_slab *slab)
{
	if (!slab)
		return NULL;
	fa_vk_memory_settle(device);
	device->driver.DestroyBuffer(device->device, slab->buffer, NULL);
	device->driver.FreeMemory(device->device, slab->memory, NULL);
	device->blob_bytes -= slab->bytes;
	free(slab);
	return NULL;
}

/* Makes an allocation of @bytes for one blob or many. */
static struct fa_vk_slab *slab_new(struct fa_device *device, enum fa_vk_memory_kind kind,
                                   uint64_t bytes, struct fa_error *error)
{
	const struct fa_vk_memory_want want = { .kind = kind, .bytes = bytes, .fd = -1 };
	struct fa_vk_slab *slab;
	void *host = NULL;
	VkResult result;

	slab = fa_new(struct fa_vk_slab);
	if (!slab) {
		(void)fa_fail(error, -ENOMEM, "no memory for a request");
		return NULL;
	}
	result = fa_vk_memory_make(device, &want, &slab->buffer, &slab->memory, &slab->at);
	if (result == VK_SUCCESS && kind != FA_VK_MEMORY_DEVICE)
		result = device->driver.MapMemory(device->device, slab->memory, 0, VK_WHOLE_SIZE, 0,
		                                  &host);
	slab->host = host;
	slab->bytes = bytes;
	device->blob_bytes += bytes;
	if (result == VK_SUCCESS)
		return slab;
	(void)fa_vk_fail(device, error, result, "no memory for a request");
	return slab_free(device, slab);
}

/* Frees kept blobs in allocations that no other blob uses. */
static void free_blobs(struct fa_device *device, struct fa_vk_blob **list)
{
	while (*list) {
		struct fa_vk_blob *blob = *list;

		if (blob->slab->n_blobs) {
			list = &blob->next;
			continue;
		}
		*list = blob->next;
		if (!blob->shares_slab)
			slab_free(device, blob->slab);
		free(blob);
	}
}

/* Frees allocations that no blob uses. */
static void free_kept(struct fa_device *device)
{
	for (int kind = 0; kind < _FA_VK_MEMORY_N; kind++) {
		struct fa_vk_slab **list = &device->slabs[kind];

		for (int i = 0; i < FA_VK_BLOB_SIZES; i++)
			free_blobs(device, &device->blobs[kind][i]);
		while (*list) {
			struct fa_vk_slab *slab = *list;

			if (slab->n_blobs) {
				list = &slab->next;
				continue;
			}
			*list = slab->next;
			slab_free(device, slab);
		}
	}
}

void fa_vk_blobs_close(struct fa_device *device)
{
	free_kept(device);
}

/* Returns the slab in which a blob of @bytes has room, or NULL. */
static struct fa_vk_slab *find_slab(struct fa_device *device, enum fa_vk_memory_kind kind,
                                    uint64_t bytes, struct fa_error *error)
{
	struct fa_vk_slab *slab = device->slabs[kind];

	if (slab && slab->bytes - slab->used >= bytes)
		return slab;
	slab = slab_new(device, kind, SLAB_BYTES, error);
	if (slab) {
		slab->next = device->slabs[kind];
		device->slabs[kind] = slab;
	}
	return slab;
}

int fa_vk_blob_new(struct fa_device *device, enum fa_vk_memory_kind kind, uint64_t bytes,
                   struct fa_error *error, struct fa_vk_blob **ret_blob)
{
	struct fa_vk_slab *slab = NULL;
	struct fa_vk_blob *blob;
	unsigned int size = 0;
	uint64_t needed;

	while (size < FA_VK_BLOB_SIZES && (uint64_t)FA_VK_BLOB_BYTES_MIN << size < bytes)
		size++;
	if (size == FA_VK_BLOB_SIZES)
		return fa_fail(error, -ENOMEM,
		               "a request needs %" PRIu64
		               " bytes besides its tensors; at most %" PRIu64 " can be had",
		               bytes, (uint64_t)FA_VK_BLOB_BYTES_MIN << (FA_VK_BLOB_SIZES - 1));
	if (device->blobs[kind][size]) {
		blob = device->blobs[kind][size];
		device->blobs[kind][size] = blob->next;
		blob->slab->n_blobs++;
		*ret_blob = blob;
		return 0;
	}
	bytes = (uint64_t)FA_VK_BLOB_BYTES_MIN << size;
	needed = bytes > SHARED_BYTES_MAX ? bytes : SLAB_BYTES;
	if (device->blob_bytes + needed > BLOB_BYTES_MAX)
		free_kept(device);
	if (device->blob_bytes + needed > BLOB_BYTES_MAX)
		return fa_fail(
			error, -ENOMEM,
			"requests in flight are so large that there is no room for the %" PRIu64
			" bytes that go with this one",
			bytes);
	blob = fa_new(struct fa_vk_blob);
	if (!blob)
		return fa_fail(error, -ENOMEM, "no memory for a request");
	if (bytes > SHARED_BYTES_MAX)
		slab = slab_new(device, kind, bytes, error);
	else
		slab = find_slab(device, kind, bytes, error);
	if (!slab) {
		free(blob);
		return -ENOMEM;
	}
	blob->slab = slab;
	blob->shares_slab = bytes <= SHARED_BYTES_MAX;
	slab->n_blobs++;
	blob->kind = kind;
	blob->size = size;
	blob->bytes = bytes;
	blob->buffer = slab->buffer;
	blob->offset = slab->used;
	blob->at = slab->at + slab->used;
	blob->host = slab->host ? slab->host + slab->used : NULL;
	slab->used += bytes;
	*ret_blob = blob;
	return 0;
}

struct fa_vk_blob *fa_vk_blob_free(struct fa_device *device, struct fa_vk_blob *blob)
{
	if (!blob)
		return NULL;
	blob->slab->n_blobs--;
	blob->next = device->blobs[blob->kind][blob->size];
	device->blobs[blob->kind][blob->size] = blob;
	return NULL;
}
