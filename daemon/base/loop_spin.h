/*
 * Busy polling of the event loop: after messages in quick succession it polls instead of sleeping,
 * as a wake-up costs more than a small request. Backs off if none comes. Loop thread only.
 */
#pragma once

#include "common/backoff.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_loop_spin {
	uv_idle_t idle; /* while active, the loop polls without a timeout */
	uint64_t last_ns;
	struct fa_backoff backoff;
	bool disabled; /* a single processor: the client could not run */
	bool yields;   /* few processors: the client may need this one */
};

void fa_loop_spin_init(struct fa_loop_spin *spin, uv_loop_t *loop);

void fa_loop_spin_note(struct fa_loop_spin *spin);
