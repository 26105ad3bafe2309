#include "daemon/supervise/oom.h"

#include <stdio.h>

#define PATH "/proc/self/oom_score_adj"
#define MIN (-900) /* -1000 would leave the kernel without a victim */
#define MAX 1000
#define PROTECTION 500
#define EXPOSURE 100

static int read_score(void)
{
	FILE *file = fopen(PATH, "re");
	int score = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%d", &score) != 1)
		score = 0;
	(void)fclose(file);
	return score;
}

static void write_score(int score)
{
	FILE *file = fopen(PATH, "we");

	if (!file)
		return;
	(void)fprintf(file, "%d", score);
	(void)fclose(file);
}

int fa_oom_protect(void)
{
	const int score = read_score();

	/* Needs CAP_SYS_RESOURCE. */
	if (score > MIN)
		write_score(score - PROTECTION < MIN ? MIN : score - PROTECTION);
	return score;
}

void fa_oom_expose(int score)
{
	write_score(score + EXPOSURE > MAX ? MAX : score + EXPOSURE);
}
