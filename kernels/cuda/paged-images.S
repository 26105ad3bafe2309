/*
 * The modules of kernels over pages, in the order of enum fa_cuda_paged_image.
 */
#include "images-macro.S"

	.section .data.rel.ro, "aw", @progbits
	.balign 8
	.globl fa_cuda_paged_images
	.type fa_cuda_paged_images, @object
fa_cuda_paged_images:
	image "sm80_paged_f16.fatbin"
	image "sm80_paged_bf16.fatbin"
	image "sm80_paged_f32.fatbin"
	image "sm80_paged_tokens.fatbin"
	image "sm80_paged_codes.fatbin"
	image "sm80_own_f16.fatbin"
	image "sm80_own_bf16.fatbin"
	image "sm80_own.fatbin"
	image "sm90_own_f16.fatbin"
	image "sm90_own_bf16.fatbin"
	image "sm90_own_e4m3.fatbin"
	image "sm90_own_prefill_f16.fatbin"
	image "sm90_own_prefill_bf16.fatbin"
	image "sm90_prefill_f16.fatbin"
	image "sm90_prefill_bf16.fatbin"
	image "sm90_paged_f16.fatbin"
	image "sm90_paged_bf16.fatbin"
	image "sm90_paged_codes.fatbin"
	image "sm90_latent_f16.fatbin"
	image "sm90_latent_bf16.fatbin"
	image "sm90_latent_e4m3.fatbin"
	.size fa_cuda_paged_images, . - fa_cuda_paged_images

	.section .note.GNU-stack, "", @progbits
