/* The tests' own device code, as data of the program. */
	.section .rodata, "a", @progbits
	.balign 64
	.globl fa_image_reference
	.hidden fa_image_reference
fa_image_reference:
	.incbin "reference.fatbin"

	.section .note.GNU-stack, "", @progbits
