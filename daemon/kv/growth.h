/*
 * Adds chunks when steps need pages and frees chunks that stay empty. Its timer also expires named
 * objects and lost sessions. Loop thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fa_kv;

/* CLOCK_BOOTTIME, by which objects expire. */
uint64_t fa_kv_now_ns(void);

/* For fa_pool_set_grow(); @userdata is a struct fa_kv. Returns false if it cannot now. */
bool fa_kv_grow(void *userdata);

/* Starts the timer, which stops when the pool is empty. */
void fa_kv_timer_start(struct fa_kv *kv);

/* Releases quarantined pages once the quarantine is over. */
void fa_kv_quarantine_end(struct fa_kv *kv);
