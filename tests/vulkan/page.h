/*
 * Memory that a test shares with the layer in the daemon: which Vulkan calls are to fail, and how many failed.
 * The file of FAD_TEST_VULKAN_PAGE; processes without it have no faults.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum fa_test_vulkan_call {
	FA_TEST_VULKAN_ALLOCATE, /* vkAllocateMemory */
	FA_TEST_VULKAN_COMPILE,  /* vkCreateComputePipelines */
	FA_TEST_VULKAN_SUBMIT,   /* vkQueueSubmit: nothing is submitted */
	FA_TEST_VULKAN_WAIT, /* vkWaitSemaphores: VK_TIMEOUT at once, other results after the end */
	_FA_TEST_VULKAN_CALLS,
};

struct fa_test_vulkan_rule {
	_Atomic uint64_t skip;  /* so many calls succeed first */
	_Atomic uint64_t times; /* then so many fail */
	_Atomic int32_t result; /* a VkResult */
	_Atomic uint64_t n_calls, n_failed;
};

struct fa_test_vulkan_page {
	struct fa_test_vulkan_rule rules[_FA_TEST_VULKAN_CALLS];
	/* The driver is as NVIDIA's: imports of what is mapped for reading alone fail, and so do all that follow. */
	_Atomic uint32_t pins_for_writing, no_imports;
	/* The next buffer has no bytes, which the validation layers are to see. */
	_Atomic uint32_t mistake;
	/* The device says that it is a GPU. */
	_Atomic uint32_t is_gpu;
};
