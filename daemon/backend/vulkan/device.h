/* The Vulkan device's state. Each part says which threads use it. */
#pragma once

#include "daemon/backend/device.h"
#include "daemon/backend/vulkan/driver.h"
#include "daemon/base/fair_queue.h"
#include "kernels/vulkan/plan.h"

#include <pthread.h>

#define FA_VK_BLOB_SIZES 20 /* powers of two from FA_VK_BLOB_BYTES_MIN */
#define FA_VK_BLOB_BYTES_MIN 4096u

/* Where memory lies. */
enum fa_vk_memory_kind {
	FA_VK_MEMORY_HOST, /* the host's, which it may read */
	FA_VK_MEMORY_ARGUMENTS, /* which the host only writes; the device's, where the host can reach it */
	FA_VK_MEMORY_DEVICE, /* the device's; the host has no address of it */
	_FA_VK_MEMORY_N,
};

/* An allocation: one blob, or many small ones. */
struct fa_vk_slab {
	struct fa_vk_slab *next; /* of shared ones */
	uint32_t n_blobs;        /* that are not kept */
	VkBuffer buffer;
	VkDeviceMemory memory;
	char *host; /* NULL: not mapped */
	uint64_t at, bytes, used;
};

/* See blob.h. */
struct fa_vk_blob {
	struct fa_vk_blob *next; /* while it is kept */
	struct fa_vk_slab *slab;
	bool shares_slab;
	VkBuffer buffer;
	uint64_t offset; /* in the buffer */
	char *host;      /* NULL: FA_VK_MEMORY_DEVICE */
	uint64_t at;     /* address for the device */
	uint64_t bytes;
	enum fa_vk_memory_kind kind;
	unsigned int size; /* index of FA_VK_BLOB_SIZES */
};

/* See pool.h. */
struct fa_vk_pool {
	char *base; /* reserved addresses; NULL: not open */
	uint64_t chunk_bytes;
	uint32_t max_chunks;
	struct fa_vk_import **imports; /* [max_chunks] */
	struct fa_vk_blob *chunks;     /* uint64_t [max_chunks]: addresses for the device */
};

/* Where commands of one part are recorded. */
struct fa_vk_slot {
	VkCommandPool commands;
	VkCommandBuffer command;
	uint64_t value; /* of the timeline, once the part has ended; 0: the slot was never used */
};

/* Host memory that the device addresses. */
struct fa_vk_import {
	VkBuffer buffer;
	VkDeviceMemory memory;
	void *mapped; /* address and bytes to unmap; NULL: the caller's */
	uint64_t mapped_bytes;
	uint64_t at;
};

/* A compiled kernel. The device's thread makes and uses them. */
struct fa_vk_pipeline {
	enum fa_vulkan_kernel kernel;
	uint32_t constants[FA_VULKAN_CONSTANTS];
	VkPipeline pipeline;
};

/* What the device does with numbers of 32 bits if a kernel asks for it (shader.h). */
enum fa_vk_float_mode {
	FA_VK_FLOAT_DENORM_PRESERVE = 1,
	FA_VK_FLOAT_NAN_PRESERVE = 2,
	FA_VK_FLOAT_ROUND_TO_EVEN = 4,
};

struct fa_device {
	struct fa_device_config config;

	/* Set when the device is opened. */
	struct fa_vk_driver driver;
	VkInstance instance;
	VkPhysicalDevice physical;
	VkDevice device;
	VkQueue queue;
	uint32_t family;
	VkPhysicalDeviceMemoryProperties memory_types;
	VkPhysicalDeviceProperties properties;
	uint64_t uuid[2];
	uint32_t float_modes;      /* bits of enum fa_vk_float_mode */
	uint64_t import_alignment; /* of addresses and sizes; 0: nothing can be imported */
	bool imports_read_only;    /* also what is mapped for reading alone */
	bool exports_memory; /* the pool is in the device's memory, if that outlives the process */
	char driver_name[128];
	bool is_lavapipe;        /* Mesa's driver for the processor */
	bool is_gpu;             /* the device takes no time of the processor: threads may spin */
	uint64_t opened_ns;      /* how long that took */
	uint64_t groups_at_once; /* workgroups that may run beside one another, about */
	uint64_t hang_ns;        /* a part that takes longer is stopped */
	struct fa_vulkan_matrices matrices; /* none: it has neither f16 nor bf16 */
	struct fa_vulkan_splits splits;
	bool sets_subgroup; /* kernels with matrices ask for matrices.subgroup invocations */
	VkPipelineLayout layout;
	VkShaderModule modules[_FA_VULKAN_KERNEL_N];

	/* Used by the device's thread. */
	struct fa_vk_slot
		slots[2]; /* used by turns, as the end of a part may be seen before its semaphore */
	VkCommandBuffer command; /* of the slot that is recorded */
	VkSemaphore timeline;
	struct fa_vk_blob *end; /* a word that the device writes at the end of a part; NULL: none */
	uint64_t timeline_value;
	uint64_t signalled;               /* the timeline is known to have reached this value */
	double flops_per_ns;              /* estimated from what has run; bounds a submission */
	struct fa_vk_pipeline *pipelines; /* [n_pipelines], as many as kinds of requests came */
	unsigned int n_pipelines;

	/* Used by the loop thread. */
	struct fa_vk_blob *blobs[_FA_VK_MEMORY_N][FA_VK_BLOB_SIZES]; /* kept ones */
	struct fa_vk_slab *slabs[_FA_VK_MEMORY_N];                   /* shared ones */
	uint64_t blob_bytes;                                         /* of all allocations */
	struct fa_vk_pool pool;

	atomic_bool lost;     /* written with the mutex */
	atomic_uint n_came;   /* works that became ready so far */
	atomic_bool has_done; /* done is not empty; written with the mutex */
	_Atomic uint64_t
		seen; /* the timeline's value of the last part whose end was seen, maybe by the word alone */

	/* Guards what follows, and works. */
	pthread_mutex_t mutex;
	pthread_cond_t work_available;
	struct fa_fair_queue fair; /* ready works; unit: nanoseconds */
	struct fa_list done;       /* by fa_device_work.link */
	bool stop;
	struct fa_error lost_error;
	bool has_thread;
	pthread_t thread;
};

/* Fails with the text of a result. */
int fa_vk_fail(struct fa_device *device, struct fa_error *error, VkResult result,
               const char *doing);
