/*
 * Chooses the instruction set: asks the processor, the system (does XCR0 save the registers?) and
 * the environment. Compiled for the baseline, like all that runs before.
 */
#include "kernels/cpu/isa.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FA_CPU_X86
#include <cpuid.h>

static uint64_t xcr0(void)
{
	uint32_t low, high;

	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}

enum {
	HAS_AVX2 = 1 << 0,
	HAS_AVX512 = 1 << 1, /* F, BW, DQ, VL, and all of AVX2 */
	HAS_AVX512BF16 = 1 << 2,
};

static unsigned int machine_has(void)
{
	const uint32_t leaf1 = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
	const uint32_t leaf7 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
	uint32_t a, b, c, d;
	uint64_t saved;

	if (!__get_cpuid(1, &a, &b, &c, &d) || (c & leaf1) != leaf1)
		return 0;
	saved = xcr0();
	if ((saved & 0x6) != 0x6)
		return 0;
	if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
		return 0;
	if ((b & leaf7) != leaf7 || (saved & 0xe6) != 0xe6)
		return HAS_AVX2;
	if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & 1u << 5))
		return HAS_AVX2 | HAS_AVX512;
	return HAS_AVX2 | HAS_AVX512 | HAS_AVX512BF16;
}

#else

static unsigned int machine_has(void)
{
	return 0;
}

#endif

static const struct {
	const struct fa_cpu_isa *isa;
	unsigned int needs;
} rows[] = {
#ifdef FA_CPU_X86
	{ &fa_cpu_isa_avx512bf16, HAS_AVX512BF16 },
	{ &fa_cpu_isa_avx512, HAS_AVX512 },
	{ &fa_cpu_isa_avx2, HAS_AVX2 },
#endif
	{ &fa_cpu_isa_generic, 0 },
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void __attribute__((format(printf, 3, 4)))
say(char *text, size_t text_bytes, const char *format, ...)
{
	va_list args;

	if (!text || text_bytes == 0)
		return;
	va_start(args, format);
	vsnprintf(text, text_bytes, format, args);
	va_end(args);
}

int fa_cpu_isa_select(char *text, size_t text_bytes, const struct fa_cpu_isa **ret_isa)
{
	const char *name = getenv("FAD_CPU_ISA");
	unsigned int has = machine_has();

	for (size_t i = 0; i < N_ROWS; i++) {
		bool usable = (rows[i].needs & ~has) == 0;

		if (name && name[0] != '\0') {
			if (strcmp(name, rows[i].isa->name) != 0)
				continue;
			if (!usable) {
				say(text, text_bytes, "FAD_CPU_ISA=%s: this machine lacks it",
				    name);
				return -ENOTSUP;
			}
		}
		if (usable) {
			*ret_isa = rows[i].isa;
			return 0;
		}
	}
	say(text, text_bytes,
	    "FAD_CPU_ISA=%s is not an instruction set of this build: avx512bf16, avx512, avx2, "
	    "generic",
	    name);
	return -EINVAL;
}

const char *fa_cpu_isa_name(const struct fa_cpu_isa *isa)
{
	return isa->name;
}
