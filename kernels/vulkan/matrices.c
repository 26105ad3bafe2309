#include "kernels/vulkan/matrices.h"

#include "matrix_bf16.spv.h"
#include "matrix_f16.spv.h"

struct fa_vulkan_code fa_vulkan_matrix_code(enum fa_vulkan_kernel kernel)
{
	switch (kernel) {
	case FA_VULKAN_MATRIX_F16:
		return (struct fa_vulkan_code){ matrix_f16_spv, sizeof(matrix_f16_spv) };
	case FA_VULKAN_MATRIX_BF16:
		return (struct fa_vulkan_code){ matrix_bf16_spv, sizeof(matrix_bf16_spv) };
	default:
		return (struct fa_vulkan_code){ 0 };
	}
}
