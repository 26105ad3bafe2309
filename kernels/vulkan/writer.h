/*
 * Memory that kernels read besides tensors, and the dispatches of a request. Pure C, any thread; knows
 * nothing of Vulkan.
 *
 * A request is planned twice by the same calls: once without memory, to learn how much it needs, and
 * once into memory that the device reads.
 */
#pragma once

#include "kernels/paged.h"

#define FA_VULKAN_CONSTANTS 6
#define FA_VULKAN_DISPATCHES_MAX 2 /* of a request */

enum fa_vulkan_kernel {
	FA_VULKAN_ATTEND,
	FA_VULKAN_TOKENS,
	FA_VULKAN_PAGES,
	FA_VULKAN_MERGE,
	_FA_VULKAN_KERNEL_N,
};

/* The kernels' SPIR-V. */
struct fa_vulkan_code {
	const uint32_t *words;
	size_t bytes;
};
struct fa_vulkan_code fa_vulkan_code(enum fa_vulkan_kernel kernel);

struct fa_vulkan_dispatch {
	enum fa_vulkan_kernel kernel;
	uint32_t constants[FA_VULKAN_CONSTANTS]; /* specialisation constants from 0 on */
	uint64_t arguments;                      /* address for the device */
	uint64_t groups;                         /* workgroups, in any order */
	double flops;                            /* of one workgroup, about */
};

/* Memory that the device reads. */
struct fa_vulkan_writer {
	char *host;    /* NULL: only counts */
	uint64_t at;   /* the same for the device */
	uint64_t stop; /* address for the device of the word that cancels the request */
	size_t used;
	struct fa_vulkan_dispatch dispatches[FA_VULKAN_DISPATCHES_MAX];
	unsigned int n_dispatches;
};

/* Copies @bytes to the writer's memory; returns their address for the device, or 0 for NULL. */
uint64_t fa_vulkan_put(struct fa_vulkan_writer *writer, const void *data, size_t bytes);

/* Reserves @bytes that the caller fills. *ret_host is NULL if the writer only counts. */
uint64_t fa_vulkan_reserve(struct fa_vulkan_writer *writer, size_t bytes, void **ret_host);

struct fa_vulkan_dispatch *fa_vulkan_add(struct fa_vulkan_writer *writer,
                                         enum fa_vulkan_kernel kernel, uint64_t arguments,
                                         uint64_t groups);
