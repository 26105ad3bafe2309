/*
 * The modules of device code and their table (images.h), as in enum fa_cuda_image. The fatbins are
 * in the assembler's include path.
 */
#include "images-macro.S"

	.section .data.rel.ro, "aw", @progbits
	.balign 8
	.globl fa_cuda_images
	.type fa_cuda_images, @object
fa_cuda_images:
	image "sm80_f16.fatbin"
	image "sm80_bf16.fatbin"
	image "sm80_f32.fatbin"
	image "sm90_f16.fatbin"
	image "sm90_bf16.fatbin"
	image "sm90_masked_f16.fatbin"
	image "sm90_masked_bf16.fatbin"
	.size fa_cuda_images, . - fa_cuda_images

	.section .note.GNU-stack, "", @progbits
