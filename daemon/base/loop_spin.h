/*
 * Keeps the loop awake between the messages of a client that asks again as soon as
 * it has its answer: to be woken costs more than a small request does. Messages that
 * follow one another quickly make it look for the next one for a while instead of
 * sleeping; when that was in vain several times, it sleeps as ever for some messages.
 * An idle daemon never spins. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_loop_spin {
	uv_idle_t idle;   /* active while it spins: the loop then only looks */
	uint64_t last_ns; /* when the last message came */
	unsigned int in_vain, rest;
	bool off; /* a single processor: who is waited for cannot run meanwhile */
	bool shy; /* too few processors to keep one from others */
};

void fa_loop_spin_init(struct fa_loop_spin *spin, uv_loop_t *loop);

/* A message came. */
void fa_loop_spin_note(struct fa_loop_spin *spin);

/* Before the handle is closed. */
void fa_loop_spin_stop(struct fa_loop_spin *spin);
