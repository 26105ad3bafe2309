/*
 * A client of a fad that systemd restarts: appends to sequences, forks them, and checks every
 * committed token after each reconnect (tests/client/kv-load.h), until SIGTERM.
 *   load SOCKET
 * Prints the operations done so far, one line every 100 ms; at the end, the longest time without
 * one. Ends at once with a failed check.
 */
#include "common/clock.h"
#include "tests/client/kv-load.h"
#include "tests/lib/check.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

enum {
	TICKS_A_LINE = 20
};

static volatile sig_atomic_t ends;

static void end(int number)
{
	(void)number;
	ends = 1;
}

int main(int argc, char **argv)
{
	const struct timespec tick = { .tv_nsec = 5 * 1000 * 1000 };
	uint64_t last_ns, longest_ns = 0, before = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
		return 2;
	}
	signal(SIGTERM, end);
	setvbuf(stdout, NULL, _IOLBF, 0);
	kv_load_begin(argv[1], false);
	last_ns = fa_now_ns();
	for (uint32_t i = 0; !ends; i++) {
		const uint64_t now = kv_load_progress(), now_ns = fa_now_ns();

		if (now != before) {
			if (before && now_ns - last_ns > longest_ns)
				longest_ns = now_ns - last_ns;
			last_ns = now_ns;
			before = now;
		}
		if (i % TICKS_A_LINE == 0)
			printf("%" PRIu64 "\n", now);
		nanosleep(&tick, NULL);
	}
	kv_load_end();
	printf("at most %" PRIu64 " ms without work\n", (uint64_t)(longest_ns / FA_NS_PER_MS));
	return 0;
}
