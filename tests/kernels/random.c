#include "tests/kernels/problem.h"

static uint64_t random_state = 1;

void problem_seed(uint64_t seed)
{
	random_state = seed * 2 + 1;
	for (int i = 0; i < 8; i++)
		problem_random(2);
}

uint64_t problem_random(uint64_t below)
{
	uint64_t x;

	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	x = random_state ^ random_state >> 29;
	x *= 0x9e3779b97f4a7c15u;
	return (x >> 20) % below;
}

double problem_normal(void)
{
	double sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (double)problem_random(1u << 24) / (1u << 24) - 0.5;
	return sum * 1.7320508;
}

bool problem_one_in(uint64_t n)
{
	return problem_random(n) == 0;
}

uint32_t problem_pick(uint32_t low, uint32_t high)
{
	return low + (uint32_t)problem_random((uint64_t)high - low + 1);
}
