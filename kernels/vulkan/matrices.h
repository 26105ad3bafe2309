/* The SPIR-V of kernels that use matrices, where the build has them. Pure functions, any thread. */
#pragma once

#include "kernels/vulkan/writer.h"

/* No bytes: the build has left the kernel out. */
struct fa_vulkan_code fa_vulkan_matrix_code(enum fa_vulkan_kernel kernel);
