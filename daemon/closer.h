/*
 * Closes descriptors that clients sent. close() of a file on some filesystems waits
 * for whoever serves it, which may be the client, and may be for ever: so a thread
 * that does nothing else closes what may be anything. Loop thread.
 */
#pragma once

#include <stddef.h>

struct fa_closer;

int fa_closer_new(struct fa_closer **ret_closer);

/* Waits for a while until all is closed; what still hangs then is left to the
 * end of the process. Takes NULL. */
struct fa_closer *fa_closer_free(struct fa_closer *closer);

/* Consumes @n_fds descriptors; those that are -1 are skipped. Any thread. */
void fa_closer_take(struct fa_closer *closer, int *fds, size_t n_fds);
