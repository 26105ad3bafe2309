/*
 * Timelines of a daemon that is no more: whoever waits for one of its slots would wait for ever,
 * so its successor, or the supervisor, releases the words. Any thread.
 */
#pragma once

#include "common/timeline.h"

#include <stdbool.h>
#include <stdint.h>

/* Wakes clients that sleep at a slot's futex: some of them, as the calling thread serves everybody.
 * The others look again after a short sleep. */
void fa_timeline_wake(_Atomic uint32_t *changes);

/*
 * Fails all slots of @out[FA_TIMELINE_SLOTS] with -ECONNRESET: each value becomes that of @values,
 * or if that is NULL the present one, plus FA_TIMELINE_RELEASE. Slots that were released already
 * stay as they are if @values is NULL.
 */
void fa_timeline_out_release(struct fa_timeline_out *out, const uint64_t *values);

/* The same for the memfd of a timeline; @fd stays the caller's. Returns false if it is none. */
bool fa_timeline_fd_release(int fd);
