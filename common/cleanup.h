/* Cleanup attributes and transfer of ownership. */
#pragma once

#include <stdlib.h>
#include <unistd.h>

#define _fa_cleanup_(func) __attribute__((cleanup(func)))

/* Moves the value out of a variable with a cleanup attribute. */
#define fa_steal_ptr(ptr)                                                                          \
	({                                                                                         \
		__auto_type _pp = &(ptr);                                                          \
		__auto_type _p = *_pp;                                                             \
		*_pp = NULL;                                                                       \
		_p;                                                                                \
	})

static inline int fa_steal_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

/* For _fa_cleanup_. */
static inline void fa_close_fdp(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static inline void fa_freep(void *ptr)
{
	free(*(void **)ptr);
}

/* Allocates a zeroed object; NULL: no memory. */
#define fa_new(type) ((type *)calloc(1, sizeof(type)))
