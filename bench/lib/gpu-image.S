/* The module of gpu-kernels.cu, as a struct fa_cuda_image_data. */
	.section .rodata, "a", @progbits
	.balign 64
1:
	.incbin "bench.fatbin"
2:
	.section .data.rel.ro, "aw", @progbits
	.balign 8
	.globl fa_bench_image
	.hidden fa_bench_image
	.type fa_bench_image, @object
fa_bench_image:
	.quad 1b, 2b - 1b
	.size fa_bench_image, . - fa_bench_image

	.section .note.GNU-stack, "", @progbits
