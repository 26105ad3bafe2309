/* Modules for the tests' CUDA driver, in place of the built kernels. */
#include "kernels/cuda/images.h"
#include "kernels/cuda/paged-images.h"
#include "tests/cuda-driver/image.h"

static const struct fa_fake_image images[FA_CUDA_IMAGES] = {
#define IMAGE(name) [FA_CUDA_IMAGE_##name] = { FA_FAKE_IMAGE_MAGIC, FA_CUDA_IMAGE_##name }
	IMAGE(SM80_F16),  IMAGE(SM80_BF16),       IMAGE(SM80_F32),         IMAGE(SM90_F16),
	IMAGE(SM90_BF16), IMAGE(SM90_MASKED_F16), IMAGE(SM90_MASKED_BF16),
};

const struct fa_cuda_image_data fa_cuda_images[FA_CUDA_IMAGES] = {
#define DATA(name) [FA_CUDA_IMAGE_##name] = { &images[FA_CUDA_IMAGE_##name], sizeof(images[0]) }
	DATA(SM80_F16),  DATA(SM80_BF16),       DATA(SM80_F32),         DATA(SM90_F16),
	DATA(SM90_BF16), DATA(SM90_MASKED_F16), DATA(SM90_MASKED_BF16),
};

static const struct fa_fake_image paged_images[FA_CUDA_PAGED_IMAGES] = {
#define PAGED(name)                                                                                \
	[FA_CUDA_IMAGE_##name] = { FA_FAKE_IMAGE_MAGIC, FA_CUDA_IMAGES + FA_CUDA_IMAGE_##name }
	PAGED(SM80_PAGED_F16),    PAGED(SM80_PAGED_BF16),      PAGED(SM80_PAGED_F32),
	PAGED(SM80_PAGED_TOKENS), PAGED(SM90_PREFILL_F16),     PAGED(SM90_PREFILL_BF16),
	PAGED(SM90_PAGED_F16),    PAGED(SM90_PAGED_BF16),      PAGED(SM80_PAGED_CODES),
	PAGED(SM90_PAGED_CODES),  PAGED(SM80_OWN_F16),         PAGED(SM80_OWN_BF16),
	PAGED(SM80_OWN),          PAGED(SM90_OWN_F16),         PAGED(SM90_OWN_BF16),
	PAGED(SM90_OWN_E4M3),     PAGED(SM90_OWN_PREFILL_F16), PAGED(SM90_OWN_PREFILL_BF16),
	PAGED(SM90_LATENT_F16),   PAGED(SM90_LATENT_BF16),     PAGED(SM90_LATENT_E4M3),
};

const struct fa_cuda_image_data fa_cuda_paged_images[FA_CUDA_PAGED_IMAGES] = {
#define PAGED_DATA(name)                                                                           \
	[FA_CUDA_IMAGE_##name] = { &paged_images[FA_CUDA_IMAGE_##name], sizeof(paged_images[0]) }
	PAGED_DATA(SM80_PAGED_F16),
	PAGED_DATA(SM80_PAGED_BF16),
	PAGED_DATA(SM80_PAGED_F32),
	PAGED_DATA(SM80_PAGED_TOKENS),
	PAGED_DATA(SM90_PREFILL_F16),
	PAGED_DATA(SM90_PREFILL_BF16),
	PAGED_DATA(SM90_PAGED_F16),
	PAGED_DATA(SM90_PAGED_BF16),
	PAGED_DATA(SM80_PAGED_CODES),
	PAGED_DATA(SM90_PAGED_CODES),
	PAGED_DATA(SM80_OWN_F16),
	PAGED_DATA(SM80_OWN_BF16),
	PAGED_DATA(SM80_OWN),
	PAGED_DATA(SM90_OWN_F16),
	PAGED_DATA(SM90_OWN_BF16),
	PAGED_DATA(SM90_OWN_E4M3),
	PAGED_DATA(SM90_OWN_PREFILL_F16),
	PAGED_DATA(SM90_OWN_PREFILL_BF16),
	PAGED_DATA(SM90_LATENT_F16),
	PAGED_DATA(SM90_LATENT_BF16),
	PAGED_DATA(SM90_LATENT_E4M3),
};
