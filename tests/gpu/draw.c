#include "tests/gpu/draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned int draw, draws; /* 0: the variable was not read yet */
static unsigned int reached, drawn;

static void say(void)
{
	printf("draw %u/%u: %u of %u cases\n", draw, draws, drawn, reached);
}

static void begin(void)
{
	const char *value = getenv("FAD_TEST_DRAW");

	if (draws)
		return;
	draw = draws = 1;
	if (!value)
		return;
	if (sscanf(value, "%u/%u", &draw, &draws) != 2 || draw < 1 || draw > draws) {
		fprintf(stderr, "FAD_TEST_DRAW is '%s'; expected K/N, K from 1 to N\n", value);
		exit(2);
	}
	atexit(say);
}

/* splitmix64: consecutive blocks get independent draws. */
static uint64_t mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

bool fa_draw(void)
{
	uint64_t number;

	begin();
	number = reached++;
	/* Each block of @draws cases has its own rotation. */
	if ((number + mix(number / draws) % draws) % draws != draw - 1)
		return false;
	drawn++;
	return true;
}

bool fa_draw_is_whole(void)
{
	begin();
	return draws == 1;
}

uint64_t fa_draw_seed(void)
{
	const char *value = getenv("FAD_TEST_SEED");

	return value ? strtoull(value, NULL, 0) : (uint64_t)time(NULL);
}
