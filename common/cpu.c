#include "common/cpu.h"

#include <unistd.h>

unsigned int fa_cpu_count(void)
{
	cpu_set_t cpus;
	long n;

	if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		return (unsigned int)CPU_COUNT(&cpus);
	/* The machine has more processors than a cpu_set_t. */
	n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (unsigned int)n : 1;
}
