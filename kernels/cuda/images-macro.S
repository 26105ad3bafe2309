/*
 * A module's bytes, and its struct fa_cuda_image_data.
 */
	.macro image path
	.section .rodata, "a", @progbits
	.balign 64
1:
	.incbin "\path"
2:
	.section .data.rel.ro, "aw", @progbits
	.quad 1b, 2b - 1b
	.endm
