/*
 * Memory that kernels read besides tensors, and the dispatches of a request. Pure C, any thread; knows
 * nothing of Vulkan.
 *
 * A request is planned twice by the same calls: once without memory, to learn how much it needs, and
 * once into memory that the device reads.
 */
#pragma once

#include "kernels/paged.h"

#define FA_VULKAN_CONSTANTS 12
#define FA_VULKAN_DISPATCHES_MAX 2 /* of a request */

enum fa_vulkan_kernel {
	FA_VULKAN_ATTEND,
	FA_VULKAN_TOKENS,
	FA_VULKAN_PAGES,
	FA_VULKAN_MERGE,
	FA_VULKAN_DECODE,
	FA_VULKAN_COMBINE,
	FA_VULKAN_MATRIX_F16,
	FA_VULKAN_MATRIX_BF16,
	_FA_VULKAN_KERNEL_N,
};

/* The kernels' SPIR-V. No bytes: the build has left the kernel out. */
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

/* How kernels use the device's matrices. */
struct fa_vulkan_matrices {
	bool f16, bf16;    /* the types there are products of, with sums in fp32 */
	uint32_t m, n, k;  /* of a matrix */
	uint32_t subgroup; /* invocations */
	bool exact; /* exp2 is not to be relied on, and subgroups run in lockstep, as on lavapipe */
	/* Of a workgroup: bytes that it may have; how it is divided with head dims of up to 64, and above. */
	uint32_t shared_bytes;
	struct {
		uint32_t subgroups, row_tiles, keys;
	} narrow, wide;
};

/* How the keys of few rows are split over workgroups. */
struct fa_vulkan_splits {
	uint32_t groups; /* workgroups that fill the device */
	uint32_t
		from_keys; /* shorter sequences are left to kernels that take less time to compile */
	uint32_t least_keys, most_keys; /* of a part */
	bool halves;                    /* the device's conversion of halves is exact */
};

/* Memory that the device reads. */
struct fa_vulkan_writer {
	char *host;    /* NULL: only counts */
	uint64_t at;   /* the same for the device */
	uint64_t stop; /* address for the device of the word that cancels the request */
	const struct fa_vulkan_matrices *matrices; /* NULL: the device has none */
	const struct fa_vulkan_splits *splits;     /* NULL: keys are not split */
	/* Address for the device of memory that it alone uses while the request runs, and how much is needed. */
	uint64_t parts, parts_bytes;
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
