/*
 * What one user can do to a daemon that others use, too: each attack is a process of another uid,
 * which goes on until it is ended. For tests and benchmarks of what others suffer meanwhile. Needs
 * root. One thread.
 */
#pragma once

#include <sys/types.h>

struct fa_attack {
	const char *name; /* of a-z and '-' */
	const char *what;
	void (*run)(const char *socket, int begun);
};

/* The last one's name is NULL. */
extern const struct fa_attack fa_attacks[];

/* Burns as much processor time as an attack can, in the attacker and two of the daemon's threads,
 * and never talks to a daemon. */
extern const struct fa_attack fa_attack_none;

/* Returns when the attack has begun. -EIO, after a message: it cannot begin. */
int fa_attack_start(const struct fa_attack *attack, const char *socket, uid_t uid, pid_t *ret_pid);

/* -EIO: the attack had ended by itself, as a call failed without cause. Its message says so. */
int fa_attack_end(pid_t pid);
