/*
 * Keeps the loop awake between the messages of a client that asks again as soon as
 * it has its answer: to be woken costs more than a small request does. Messages that
 * follow one another quickly make it look for the next one for a while instead of
 * sleeping; when that was in vain several times, it sleeps as ever for some messages.
 * An idle daemon never spins. Loop thread only.
 */
#pragma once

#include "common/backoff.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_loop_spin {
	uv_idle_t idle;   /* active while it spins: the loop then only looks */
	uint64_t last_ns; /* when the last message came */
	struct fa_backoff backoff;
	bool off;    /* on a single processor no client can send meanwhile */
	bool yields; /* the client may need this processor */
};

void fa_loop_spin_init(struct fa_loop_spin *spin, uv_loop_t *loop);

/* A message came. */
void fa_loop_spin_note(struct fa_loop_spin *spin);

/* Before the handle is closed. */
void fa_loop_spin_stop(struct fa_loop_spin *spin);
