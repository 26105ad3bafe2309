/*
 * The daemon's KV pool: state (pool/pool.h) and device memory. Opened once, new or from what an
 * earlier daemon left; a reload resizes it. Loop thread. Without a pool all else is served.
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

/* After a restart sessions can resume for grace_s. One that resumes and closes without using the
 * pool can do so again, for so many times grace_s in all. */
#define FA_KV_GRACE_FACTOR_MAX 10u

struct fa_kv {
	struct fa_context *context;
	struct fa_kv_persisted kept[FA_KV_PERSIST_N];
	uint32_t n_stored;  /* in the fd store */
	uint32_t n_pending; /* to be stored */
	struct fa_session_store session_store;
	/* a dead daemon's work may write until then; 0: no quarantine */
	uint64_t quarantine_ns;
	struct fa_pool *pool; /* NULL: none */
	struct fa_error reason;
	void *base; /* on the device */
	uint32_t chunks_max;
	uint32_t grow_failed_chunks; /* when growing failed */
	uint64_t grow_retry_ns;
	bool grow_device_lost; /* growing failed for that */
	char exhausted_hint[160];
	uint64_t last_step_number;
	uint64_t step_number_offset; /* a step's number: its begin, plus this */
	uv_timer_t timer;
};

/* Recovers an earlier daemon's pool, or makes one, or logs why there is none. -EAGAIN: this process
 * must exit and a later one try again. */
int fa_kv_open(struct fa_context *context, struct fa_error *error);

/* Call it after a reload; excess chunks are freed once empty. @chunk_bytes: as configured, for new
 * pools only. */
void fa_kv_resize(struct fa_context *context, uint64_t chunk_bytes);

/* Nothing may be in flight. */
void fa_kv_close(struct fa_context *context);
