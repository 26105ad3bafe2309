/*
 * Adds chunks when steps need pages, and frees chunks that stay empty. Its timer also expires named
 * objects and lost sessions. Loop thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fa_kv;

/* CLOCK_BOOTTIME, by which objects expire. */
uint64_t fa_kv_now_ns(void);

/* For fa_pool_set_grow(). @userdata: struct fa_kv. */
bool fa_kv_grow(void *userdata);

void fa_kv_timer_start(struct fa_kv *kv);

void fa_kv_quarantine_end(struct fa_kv *kv);
