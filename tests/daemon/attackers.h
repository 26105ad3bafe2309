/*
 * Attacks of one user on others by what the library's calls do in the daemon. Each takes the
 * daemon's socket, says that it has begun, and goes on until it is killed. A call that fails without cause ends the process.
 */
#pragma once

struct attack {
	const char *name;
	void (*function)(const char *socket, int begun);
};

/* Tells whoever reads the pipe @begun. */
void attack_has_begun(int begun);

extern const struct attack attacks_by_library[]; /* ends with a name of NULL */
