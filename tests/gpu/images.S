/* The modules of device code, as data of the program: name and name_end. */
	.section .rodata, "a", @progbits
	.macro image name, path
	.balign 64
	.globl \name, \name\()_end
	.hidden \name, \name\()_end
\name:
	.incbin "\path"
\name\()_end:
	.endm
	image fa_image_sm80_f16, "forward_f16.fatbin"
	image fa_image_sm80_bf16, "forward_bf16.fatbin"
	image fa_image_sm80_f32, "forward_f32.fatbin"
	image fa_image_reference, "reference.fatbin"
	.section .note.GNU-stack, "", @progbits
