/*
 * The pool beyond the daemon's life: its chunks, its state and the sessions are handed to a
 * keeper (keeper.h), and taken back by the next daemon. Loop thread.
 */
#pragma once

#include "common/error.h"

#include <stddef.h>
#include <stdint.h>

struct fa_kv;

/* Who keeps descriptors; functions as in keeper.h. All NULL: nobody. */
struct fa_kv_keeper {
	int (*take)(void *userdata, const char *name);
	int (*store)(void *userdata, const char *name, int fd);
	void (*forget)(void *userdata, const char *name);
	int (*take_any)(void *userdata, const char *prefix, char *ret_name, size_t size);
	void *userdata;
	uint64_t timelines_max; /* 0: as many as there are */
};

#define FA_KV_KEEP_STATE "fad-pool-state"
#define FA_KV_KEEP_SESSIONS "fad-sessions"

/*
 * Takes back what an earlier daemon had: pool, memory and sessions. Returns 0; -ENOENT if
 * there was nothing; -EAGAIN, with a sentence, if the device is lost or cannot be used now:
 * the keeper keeps it for the next process; or another error, with a sentence: then it is
 * dropped.
 */
int fa_kv_recover(struct fa_kv *kv, struct fa_error *error);

/* Has @fd kept as the state, the sessions, or a chunk. Says in the log if it cannot be. */
void fa_kv_keep(struct fa_kv *kv, const char *name, int fd);
void fa_kv_keep_chunk(struct fa_kv *kv, uint32_t chunk, int fd);
void fa_kv_forget_chunk(struct fa_kv *kv, uint32_t chunk);
