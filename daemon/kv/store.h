/*
 * The daemon's KV pool: its state (pool/pool.h) and device memory. Opened once, new or from what an
 * earlier daemon left; a reload resizes it. Loop thread. Without a pool the daemon serves
 * everything else.
 */
#pragma once

#include "common/error.h"
#include "daemon/kv/persist.h"
#include "daemon/persist/session_store.h"
#include "daemon/pool/pool.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct fa_context;

/* After a restart, sessions can resume for grace_s. One that resumes and closes without using the
 * pool can do so again, up to this multiple in all. */
#define FA_KV_GRACE_FACTOR_MAX 10u

struct fa_kv {
	struct fa_context *context;
	struct fa_kv_persisted kept[FA_KV_PERSIST_N];
	uint32_t n_stored;  /* how many of `kept` are in the fd store */
	uint32_t n_pending; /* how many of `kept` are yet to be stored */
	struct fa_session_store session_store;
	/* a dead daemon's work may write to pages until this time; 0: no quarantine */
	uint64_t quarantine_ns;
	struct fa_pool *pool;   /* NULL: none */
	struct fa_error reason; /* why pool is NULL */
	void *base;             /* device address of the pool */
	uint32_t chunks_max;
	uint32_t grow_failed_chunks; /* when growing last failed */
	uint64_t grow_retry_ns;      /* time of the next attempt to grow */
	bool grow_device_lost;       /* growing failed because the device was lost */
	char exhausted_hint[160];    /* text for errors of an exhausted pool */
	uint64_t last_step_number;
	uint64_t step_number_offset; /* a step's number is the time that it begins, plus this */
	uv_timer_t timer;
};

/* Recovers an earlier daemon's pool, or makes one, or logs why there is none. -EAGAIN: this process
 * must exit and a later one try again. */
int fa_kv_open(struct fa_context *context, struct fa_error *error);

/* Applies the reloaded size; chunks above it are freed once empty. @chunk_bytes: chunk size of the
 * configuration, for new pools only. */
void fa_kv_resize(struct fa_context *context, uint64_t chunk_bytes);

/* Nothing may be in flight. */
void fa_kv_close(struct fa_context *context);
