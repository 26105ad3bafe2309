/*
 * Keeps the pool beyond the process: its chunks, its state and its sessions are in the fd store
 * (persist/fd_store.h), from which the next daemon takes them. Loop thread.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_kv;
struct fa_session_store_device;

/* Each takes a descriptor. */
#define FA_KV_CHUNKS_MAX 4000

/* What is persisted: each chunk, by its number, and these. */
enum {
	FA_KV_PERSIST_STATE = FA_KV_CHUNKS_MAX,
	FA_KV_PERSIST_SESSIONS,
	FA_KV_PERSIST_N,
};

struct fa_kv_persisted {
	bool wanted; /* the fd store should have it */
	bool stored; /* the fd store has a descriptor of that name */
	int fd;      /* to be stored; -1: none */
};

/*
 * Recovers what an earlier daemon persisted, if it is @device's. A missing chunk loses only its
 * contents. -ENOENT: nothing there; -EAGAIN: a later process may succeed, and everything stays;
 * any other error: it was unusable (damaged, incomplete, of another version or device), and is
 * dropped.
 */
int fa_kv_recover(struct fa_kv *kv, const struct fa_session_store_device *device,
                  struct fa_error *error);

/* Nothing is persisted yet. Call before the others. */
void fa_kv_persist_init(struct fa_kv *kv);

/*
 * Stores @fd, which is consumed, as @what; or removes @what. A failure is logged and retried by
 * fa_kv_persist_retry(), to be called while n_pending is not 0; it is not retried if too many
 * descriptors are pending. What is not stored does not outlive the process.
 */
void fa_kv_persist(struct fa_kv *kv, uint32_t what, int fd);
void fa_kv_persist_remove(struct fa_kv *kv, uint32_t what);
void fa_kv_persist_retry(struct fa_kv *kv);

/* Returns true if the fd store still has a removed chunk @what: a new one of that number would be
 * mistaken for it. */
bool fa_kv_persist_is_stale(const struct fa_kv *kv, uint32_t what);

/* How many of @chunks would not outlive the process, although there is an fd store. */
uint32_t fa_kv_unpersisted_chunks(const struct fa_kv *kv, uint32_t chunks);

/* Retries once more; what still cannot be stored is closed. */
void fa_kv_persist_deinit(struct fa_kv *kv);
