/*
 * Clocks and health of a GPU, by NVIDIA's management library, opened at run time. Needs no CUDA
 * context.
 */
#pragma once

#include <stdint.h>

struct fa_nvml_health {
	char driver[80];                       /* version */
	unsigned int clock_mhz, clock_max_mhz; /* of the processors; 0: unknown */
	unsigned int temperature_c;            /* 0: unknown */
	uint64_t slowdown;                     /* FA_NVML_*: why the clock is held down now */
	uint64_t ecc_errors;                   /* uncorrected, since the driver was loaded */
};

#define FA_NVML_HARDWARE 0x08ull
#define FA_NVML_HEAT_SOFTWARE 0x20ull
#define FA_NVML_HEAT_HARDWARE 0x40ull
#define FA_NVML_POWER_BRAKE 0x80ull

/*
 * Asks about the GPU with this UUID, 16 bytes in memory order, or the first if it is 0. Returns 0,
 * -ENOENT without the library, or -EIO; *ret_text says why.
 */
int fa_nvml_ask(const uint64_t uuid[2], struct fa_nvml_health *ret_health, const char **ret_text);
