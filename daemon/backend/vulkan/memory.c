#include "daemon/backend/vulkan/memory.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((uint64_t)4096)
/* What a device that does not answer costs at most. */
#define SETTLE_NS (10 * FA_NS_PER_SEC)

/* Returns the first type of @allowed with all of @wanted, or UINT32_MAX. */
static uint32_t find_type(const struct fa_device *device, uint32_t allowed,
                          VkMemoryPropertyFlags wanted)
{
	for (uint32_t i = 0; i < device->memory_types.memoryTypeCount; i++)
		if (allowed >> i & 1 &&
		    (device->memory_types.memoryTypes[i].propertyFlags & wanted) == wanted)
			return i;
	return UINT32_MAX;
}

/* What each kind of memory had best have, and what it must have. */
static const VkMemoryPropertyFlags wanted[][2] = {
	[FA_VK_MEMORY_HOST] = {
		VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
			VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
		VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
	},
	[FA_VK_MEMORY_ARGUMENTS] = {
		VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
			VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
		VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
	},
	[FA_VK_MEMORY_DEVICE] = { VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0 },
};

static VkResult allocate(struct fa_device *device, const struct fa_vk_memory_want *want,
                         const void *next, uint64_t bytes, uint32_t allowed,
                         VkDeviceMemory *ret_memory)
{
	const VkMemoryAllocateFlagsInfo flags = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
		.pNext = next,
		.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
	};
	VkMemoryAllocateInfo memory = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
		.pNext = &flags,
		.allocationSize = bytes,
	};
	VkResult result = VK_ERROR_FEATURE_NOT_PRESENT;
	uint32_t heap, tried = UINT32_MAX;

	/* What is exported is imported as the same type of memory. */
	for (int i = 0; i < (want->exported || want->fd >= 0 ? 1 : 2) && result != VK_SUCCESS;
	     i++) {
		memory.memoryTypeIndex = find_type(device, allowed, wanted[want->kind][i]);
		if (memory.memoryTypeIndex == UINT32_MAX || memory.memoryTypeIndex == tried)
			continue;
		tried = memory.memoryTypeIndex;
		heap = device->memory_types.memoryTypes[tried].heapIndex;
		result = bytes > device->memory_types.memoryHeaps[heap].size
		                 ? VK_ERROR_OUT_OF_DEVICE_MEMORY
		                 : device->driver.AllocateMemory(device->device, &memory, NULL,
		                                                 ret_memory);
	}
	return result;
}

VkResult fa_vk_memory_make(struct fa_device *device, const struct fa_vk_memory_want *want,
                           VkBuffer *ret_buffer, VkDeviceMemory *ret_memory, uint64_t *ret_at)
{
	const bool fd = want->kind == FA_VK_MEMORY_DEVICE && (want->exported || want->fd >= 0);
	const VkExternalMemoryHandleTypeFlagBits type =
		fd ? VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT
		   : VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
	const VkExternalMemoryBufferCreateInfo external = {
		.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
		.handleTypes = type,
	};
	const VkBufferCreateInfo buffer = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
		.pNext = want->host || fd ? &external : NULL,
		.size = want->bytes,
		.usage = FA_VK_BUFFER_USAGE,
	};
	const VkImportMemoryHostPointerInfoEXT pointer = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
		.handleType = type,
		.pHostPointer = want->host,
	};
	const VkImportMemoryFdInfoKHR descriptor = {
		.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
		.handleType = type,
		.fd = want->fd,
	};
	const VkExportMemoryAllocateInfo exported = {
		.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
		.handleTypes = type,
	};
	VkBufferDeviceAddressInfo address = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
	};
	VkMemoryRequirements needs;
	VkResult result;

	result = device->driver.CreateBuffer(device->device, &buffer, NULL, ret_buffer);
	if (result != VK_SUCCESS)
		return result;
	device->driver.GetBufferMemoryRequirements(device->device, *ret_buffer, &needs);
	result = allocate(device, want,
	                  want->host             ? (const void *)&pointer
	                  : fd && want->exported ? (const void *)&exported
	                  : fd                   ? (const void *)&descriptor
	                                         : NULL,
	                  want->host ? want->bytes : needs.size,
	                  needs.memoryTypeBits & (want->host ? want->host_types : UINT32_MAX),
	                  ret_memory);
	if (result == VK_SUCCESS)
		result = device->driver.BindBufferMemory(device->device, *ret_buffer, *ret_memory,
		                                         0);
	if (result != VK_SUCCESS)
		return result;
	address.buffer = *ret_buffer;
	*ret_at = device->driver.GetBufferDeviceAddress(device->device, &address);
	return VK_SUCCESS;
}

void fa_vk_memory_settle(struct fa_device *device)
{
	const uint64_t value = atomic_load(&device->seen);
	const VkSemaphoreWaitInfo wait = {
		.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
		.semaphoreCount = 1,
		.pSemaphores = &device->timeline,
		.pValues = &value,
	};

	if (value)
		(void)device->driver.WaitSemaphores(device->device, &wait, SETTLE_NS);
}

/* ---- imports */

struct fa_vk_import *fa_vk_import_free(struct fa_device *device, struct fa_vk_import *import)
{
	/* A lost device may still use it; the process is about to end. */
	if (!import || device->lost)
		return NULL;
	fa_vk_memory_settle(device);
	device->driver.DestroyBuffer(device->device, import->buffer, NULL);
	device->driver.FreeMemory(device->device, import->memory, NULL);
	if (import->mapped)
		(void)munmap(import->mapped, import->mapped_bytes);
	free(import);
	return NULL;
}

int fa_vk_import_new(struct fa_device *device, void *host, uint64_t bytes, struct fa_error *error,
                     struct fa_vk_import **ret_import)
{
	VkMemoryHostPointerPropertiesEXT properties = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT,
	};
	struct fa_vk_memory_want want = { .kind = FA_VK_MEMORY_HOST, .host = host, .fd = -1 };
	struct fa_vk_import *import;
	VkResult result;

	import = fa_new(struct fa_vk_import);
	if (!import)
		return fa_fail(error, -ENOMEM, "no memory for an import");
	/* The memory's last page is whole, though the caller may use a part of it. */
	want.bytes = (bytes + device->import_alignment - 1) / device->import_alignment *
	             device->import_alignment;
	result = device->driver.GetMemoryHostPointerPropertiesEXT(
		device->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, host,
		&properties);
	want.host_types = properties.memoryTypeBits;
	if (result == VK_SUCCESS)
		result = fa_vk_memory_make(device, &want, &import->buffer, &import->memory,
		                           &import->at);
	if (result != VK_SUCCESS) {
		fa_vk_import_free(device, import);
		if (result == VK_ERROR_OUT_OF_HOST_MEMORY ||
		    result == VK_ERROR_OUT_OF_DEVICE_MEMORY)
			return fa_vk_fail(device, error, result, "memory cannot be imported");
		return fa_fail(
			error, -ENOTSUP,
			"the Vulkan driver cannot import this memory (%s); another driver, or "
			"the backend cpu or cuda, may",
			fa_vk_error_name(result));
	}
	*ret_import = import;
	return 0;
}

/* Copies memory that nobody can write any more to memory of the driver's. */
static int copy_new(struct fa_device *device, const void *mapped, uint64_t bytes,
                    struct fa_error *error, struct fa_vk_import **ret_import)
{
	const struct fa_vk_memory_want want = {
		.kind = FA_VK_MEMORY_ARGUMENTS,
		.bytes = bytes,
		.fd = -1,
	};
	struct fa_vk_import *import;
	VkResult result;
	void *host;

	import = fa_new(struct fa_vk_import);
	if (!import)
		return fa_fail(error, -ENOMEM, "no memory for an import");
	result = fa_vk_memory_make(device, &want, &import->buffer, &import->memory, &import->at);
	if (result == VK_SUCCESS)
		result = device->driver.MapMemory(device->device, import->memory, 0, VK_WHOLE_SIZE,
		                                  0, &host);
	if (result != VK_SUCCESS) {
		fa_vk_import_free(device, import);
		return fa_vk_fail(device, error, result,
		                  "the Vulkan driver has no memory for a copy of sealed memory");
	}
	memcpy(host, mapped, bytes);
	*ret_import = import;
	return 0;
}

/*
 * Drivers pin pages for writing, also those that kernels only read. So a memfd is mapped for writing, which
 * kernels do nowhere but in tensors that were checked to be writable; one that is sealed is copied, as its
 * contents stay as they are. Returns what is mapped in *ret_mapped.
 */
static int import_read_only(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                            struct fa_error *error, void **ret_mapped,
                            struct fa_vk_import **ret_import)
{
	const int seals = fcntl(fd, F_GET_SEALS);
	void *mapped;
	int r;

	mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
	if (mapped != MAP_FAILED) {
		r = fa_vk_import_new(device, mapped, bytes, error, ret_import);
	} else if (errno != EACCES && errno != EPERM) {
		return fa_fail(error, -errno, "%" PRIu64 " bytes of the memfd cannot be mapped: %m",
		               bytes);
	} else if (seals < 0 || !(seals & F_SEAL_WRITE)) {
		return fa_fail(
			error, -ENOTSUP,
			"this Vulkan driver cannot import memory that others may write and it "
			"may not; expected a memfd that is open for writing, or has F_SEAL_WRITE");
	} else {
		mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
		if (mapped == MAP_FAILED)
			return fa_fail(error, -errno,
			               "a sealed memfd cannot be mapped for reading: %m");
		r = copy_new(device, mapped, bytes, error, ret_import);
	}
	if (r < 0)
		(void)munmap(mapped, bytes);
	else
		*ret_mapped = mapped;
	return r;
}

int fa_vk_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                             bool read_only, struct fa_error *error,
                             struct fa_device_memory *ret_memory)
{
	const uint64_t unit = device->import_alignment > PAGE ? device->import_alignment : PAGE;
	const uint64_t before = offset % PAGE;
	struct fa_vk_import *import = NULL;
	uint64_t mapped_bytes;
	void *mapped = NULL;
	int r;

	/* Drivers import whole pages, and these may want larger ones than the processor's. */
	if (unit > PAGE)
		return fa_fail(error, -ENOTSUP,
		               "the Vulkan driver imports memory in units of %" PRIu64
		               " bytes; expected %" PRIu64,
		               unit, PAGE);
	mapped_bytes = (before + bytes + PAGE - 1) / PAGE * PAGE;
	if (read_only && !device->imports_read_only) {
		r = import_read_only(device, fd, offset - before, mapped_bytes, error, &mapped,
		                     &import);
	} else {
		mapped = mmap(NULL, mapped_bytes, PROT_READ | (read_only ? 0 : PROT_WRITE),
		              MAP_SHARED, fd, (off_t)(offset - before));
		if (mapped == MAP_FAILED)
			return fa_fail(error, -errno,
			               "%" PRIu64 " bytes at %" PRIu64
			               " of the memfd cannot be mapped %s: %m",
			               bytes, offset, read_only ? "for reading" : "for writing");
		r = fa_vk_import_new(device, mapped, mapped_bytes, error, &import);
		if (r < 0)
			(void)munmap(mapped, mapped_bytes);
	}
	if (r < 0)
		return r;
	/* Clients' tensors stay out of core dumps. */
	(void)madvise(mapped, mapped_bytes, MADV_DONTDUMP);
	import->mapped = mapped;
	import->mapped_bytes = mapped_bytes;
	*ret_memory = (struct fa_device_memory){
		.address = (void *)(uintptr_t)(import->at + before),
		.bytes = bytes,
		.writable = !read_only,
		.backend = import,
	};
	return 0;
}

int fa_vk_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                           struct fa_device_memory *ret_memory, int *ret_fd,
                           uint64_t *ret_piece_bytes)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	r = fa_memfd_new("fad-arena", bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "%" PRIu64 " bytes of memory cannot be made: %s", bytes,
		               fa_memfd_explain(r, why, sizeof(why)));
	r = fa_vk_memory_import_host(device, fd, 0, bytes, false, error, ret_memory);
	if (r < 0)
		return r;
	*ret_fd = fa_steal_fd(&fd);
	*ret_piece_bytes = 0;
	return 0;
}

void fa_vk_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                          size_t n)
{
	for (size_t i = 0; i < n; i++) {
		fa_vk_import_free(device, memories[i]->backend);
		*memories[i] = (struct fa_device_memory){ 0 };
	}
}

const void *fa_vk_memory_host(struct fa_device *device, const struct fa_device_memory *memory)
{
	const struct fa_vk_import *import = memory->backend;

	return (const char *)import->mapped + ((uint64_t)(uintptr_t)memory->address - import->at);
}
