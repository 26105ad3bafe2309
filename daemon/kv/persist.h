/*
 * The pool beyond the daemon's life: its chunks, its state and its sessions are put into the fd
 * store (persist/fd_store.h), from which the next daemon takes them back. Loop thread.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_kv;

/* Each is a descriptor that its fd store has, too. */
#define FA_KV_CHUNKS_MAX 4000

/* What is kept of it: each chunk, by its number, and these. */
enum {
	FA_KV_KEEP_STATE = FA_KV_CHUNKS_MAX,
	FA_KV_KEEP_SESSIONS,
	FA_KV_KEEP_N,
};

struct fa_kv_kept {
	bool wanted; /* it is to be kept */
	bool stored; /* the fd store has something of that name */
	int fd;      /* wanted, but not stored yet; else -1 */
};

/*
 * Takes back what an earlier daemon had: pool, memory and sessions. Returns 0; -ENOENT if
 * there was nothing; -EAGAIN, with a sentence, if that fails for what may pass (the device is
 * lost or cannot be used now, there is no memory, there are no descriptors): the fd store keeps it
 * for the next process; or another error, with a sentence: it is damaged, of another version or
 * another device, or without state or sessions. Then it is dropped. Of chunks that were not kept
 * only what was in them is.
 */
int fa_kv_recover(struct fa_kv *kv, struct fa_error *error);

/* Before all others: nothing is kept yet. */
void fa_kv_keep_init(struct fa_kv *kv);

/*
 * Has @fd kept, which is consumed, or what was kept let go of. What the fd store cannot be told
 * now is in the log, and it is told later: fa_kv_keep_again(), from time to time while n_late is
 * not 0. Until then a chunk does not outlive the process, with all that is in it; nor at all if
 * so many wait already that nobody else would have descriptors.
 */
void fa_kv_keep(struct fa_kv *kv, uint32_t what, int fd);
void fa_kv_forget(struct fa_kv *kv, uint32_t what);
void fa_kv_keep_again(struct fa_kv *kv);

/* Whether the fd store has not been told yet to let go of what was of that name. A chunk must not be
 * made in its place: the next daemon would take that for the chunk's memory. */
bool fa_kv_is_stale(const struct fa_kv *kv, uint32_t what);

/* How many of the pool's @chunks would not outlive the process, though somebody keeps others. */
uint32_t fa_kv_unkept_chunks(const struct fa_kv *kv, uint32_t chunks);

/* For the last time: what could not be kept by now is closed. */
void fa_kv_keep_deinit(struct fa_kv *kv);
