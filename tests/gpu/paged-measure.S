/* The tests' own module, as data of the program. */
	.section .rodata, "a", @progbits
	.balign 64
	.globl paged_measure_image
	.hidden paged_measure_image
paged_measure_image:
	.incbin "paged_measure.fatbin"
	.section .note.GNU-stack, "", @progbits
