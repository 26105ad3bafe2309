/*
 * Keeps the pool beyond the process: chunks, state and sessions are in the fd store
 * (persist/fd_store.h), for the next daemon. Loop thread.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_kv;
struct fa_session_store_device;

/* Each chunk takes a descriptor. */
#define FA_KV_CHUNKS_MAX 4000

/* Numbers for what is not a chunk; chunks have their own. */
enum {
	FA_KV_PERSIST_STATE = FA_KV_CHUNKS_MAX,
	FA_KV_PERSIST_SESSIONS,
	FA_KV_PERSIST_N,
};

struct fa_kv_persisted {
	bool wanted;
	bool stored;
	int fd; /* to be stored; -1: none */
};

/*
 * Recovers what an earlier daemon persisted, if it is @device's. A missing chunk loses only its
 * contents. -ENOENT: nothing persisted; -EAGAIN: everything stays, a later process may succeed;
 * others: unusable (damaged, incomplete, of another version or device), and dropped.
 */
int fa_kv_recover(struct fa_kv *kv, const struct fa_session_store_device *device,
                  struct fa_error *error);

/* Call it first. */
void fa_kv_persist_init(struct fa_kv *kv);

/*
 * Stores @fd, which is consumed, as @what; or removes @what. A failure is logged and, unless too
 * many descriptors are pending, retried by fa_kv_persist_retry(), to be called while n_pending is
 * not 0. What is not stored ends with the process.
 */
void fa_kv_persist(struct fa_kv *kv, uint32_t what, int fd);
void fa_kv_persist_remove(struct fa_kv *kv, uint32_t what);
void fa_kv_persist_retry(struct fa_kv *kv);

/* True: the fd store still has a removed chunk @what, and would mistake a new one for it. */
bool fa_kv_persist_is_stale(const struct fa_kv *kv, uint32_t what);

/* Counts chunks that would be lost with the process although there is an fd store. */
uint32_t fa_kv_unpersisted_chunks(const struct fa_kv *kv, uint32_t chunks);

/* Closes what still cannot be stored. */
void fa_kv_persist_deinit(struct fa_kv *kv);
