/* Makes Vulkan calls of daemons fail that are started from now on (layer.c). */
#pragma once

#include "tests/vulkan/page.h"

struct fa_test_vulkan {
	char dir[48];
	struct fa_test_vulkan_page *page;
};

/* Makes the page, and sets FAD_TEST_VULKAN_PAGE. */
void fa_test_vulkan_begin(struct fa_test_vulkan *vulkan);
void fa_test_vulkan_end(struct fa_test_vulkan *vulkan);

/* After @skip calls, the next @times fail with @result, a VkResult. */
void fa_test_vulkan_fail(struct fa_test_vulkan *vulkan, enum fa_test_vulkan_call call,
                         uint64_t skip, uint64_t times, int32_t result);
uint64_t fa_test_vulkan_failed(const struct fa_test_vulkan *vulkan, enum fa_test_vulkan_call call);
