/* Releases waiters of a dead daemon's timelines, in its successor or the supervisor. Any thread. */
#pragma once

#include "common/timeline.h"

#include <stdbool.h>
#include <stdint.h>

/* Wakes only some clients, to bound the time; the others poll. */
void fa_timeline_wake(_Atomic uint32_t *changes);

/*
 * Fails all slots of @out[FA_TIMELINE_SLOTS] with -ECONNRESET, and sets their values to @values
 * (NULL: the present ones, without released slots) plus FA_TIMELINE_RELEASE.
 */
void fa_timeline_out_release(struct fa_timeline_out *out, const uint64_t *values);

/* @fd, a memfd, stays the caller's. Returns false if it is no timeline. */
bool fa_timeline_fd_release(int fd);
