/* The caller of a function, and its rights. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fa_actor {
	uint32_t tenant; /* tag of its tenant */
	uint64_t owner;  /* its session; 0: none */
	bool admin;
};

/*
 * Rights to an object. An unnamed one is its session's alone, and ends with it. A named one grants
 * its tenant everything, and others what its mode says.
 */
enum fa_right {
	FA_RIGHT_READ,   /* attend, get info, find */
	FA_RIGHT_APPEND, /* append, truncate, drop, publish; caches: make sequences */
	FA_RIGHT_FORK,   /* copy by reference; caches: nothing */
};

enum fa_admitted {
	FA_ADMIT_TENANT, /* same uid and cgroup */
	FA_ADMIT_UID,    /* same uid, any cgroup */
	FA_ADMIT_ALL,
};

#define FA_MODE(read, append, fork)                                                                \
	((uint32_t)(read) | (uint32_t)(append) << 2 | (uint32_t)(fork) << 4)
#define FA_NAME_BYTES 64 /* with the terminating zero */
/* As a uid whose names are searched: the actor's own. */
#define FA_UID_OWN UINT32_MAX
