/*
 * The modules of device code, as data of the program, and their table (images.h).
 * The fatbins are in the assembler's include path. An order other than that of
 * enum fa_cuda_image makes every lookup of a kernel fail, so that the daemon says so
 * at its start.
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
	.size fa_cuda_images, . - fa_cuda_images

	.section .note.GNU-stack, "", @progbits
