/*
 * Runs fuzz-session without libFuzzer: `fuzz-session INPUTS [SEED]` makes random inputs, and fails
 * if too few messages succeeded. A finding aborts and prints the input's seed, with which
 * `fuzz-session 1 SEED` repeats it.
 */
#include "tests/fuzz/session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define INPUT_BYTES 6000
/* With this many inputs, every kind of message is sent. */
#define INPUTS 60

static unsigned long seed = 1;

static void on_abort(int signal)
{
	char text[64];
	int n = snprintf(text, sizeof(text), "seed %lu\n", seed);

	(void)!write(2, text, (size_t)n);
}

int main(int argc, char **argv)
{
	const unsigned long n = argc > 1 ? strtoul(argv[1], NULL, 10) : INPUTS;

	if (argc > 2)
		seed = strtoul(argv[2], NULL, 10);
	(void)signal(SIGABRT, on_abort);
	for (const unsigned long end = seed + n; seed < end; ++seed) {
		static uint8_t input[INPUT_BYTES];
		uint64_t state = seed * 0x9e3779b97f4a7c15u;

		for (size_t i = 0; i < sizeof(input); ++i) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			input[i] = (uint8_t)(state >> 56);
		}
		LLVMFuzzerTestOneInput(input, sizeof(input));
	}
	session_drain();
	return session_report() || n < INPUTS ? 0 : 1;
}
