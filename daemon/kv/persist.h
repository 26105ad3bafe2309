/*
 * Keeps the pool beyond the process: the fd store (persist/fd_store.h) has its chunks, state and
 * sessions, and the next daemon takes them. Loop thread.
 */
#pragma once

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_kv;
struct fa_session_store_device;

/* Limits chunks, as each takes a descriptor. */
#define FA_KV_CHUNKS_MAX 4000

/* Numbers of what is persisted: chunks have their own number; these are the others. */
enum {
	FA_KV_PERSIST_STATE = FA_KV_CHUNKS_MAX,
	FA_KV_PERSIST_SESSIONS,
	FA_KV_PERSIST_N,
};

struct fa_kv_persisted {
	bool wanted; /* to be in the fd store */
	bool stored; /* the fd store has it, by name */
	int fd;      /* yet to be stored; -1: none */
};

/*
 * Recovers what an earlier daemon persisted, if it is @device's. A missing chunk loses only its
 * contents. -ENOENT: nothing persisted; -EAGAIN: a later process may succeed, and everything stays;
 * others: it was unusable (damaged, incomplete, of another version or device), and is dropped.
 */
int fa_kv_recover(struct fa_kv *kv, const struct fa_session_store_device *device,
                  struct fa_error *error);

/* Call before the other functions. */
void fa_kv_persist_init(struct fa_kv *kv);

/*
 * Stores @fd, which is consumed, as @what; or removes @what. A failure is logged and, unless too
 * many descriptors are pending, retried by fa_kv_persist_retry(): call that while n_pending is not
 * 0. What is not stored ends with the process.
 */
void fa_kv_persist(struct fa_kv *kv, uint32_t what, int fd);
void fa_kv_persist_remove(struct fa_kv *kv, uint32_t what);
void fa_kv_persist_retry(struct fa_kv *kv);

/* The fd store still has a removed chunk @what: a new one of that number would be mistaken for
 * it. */
bool fa_kv_persist_is_stale(const struct fa_kv *kv, uint32_t what);

/* How many of @chunks would be lost with the process, although there is an fd store. */
uint32_t fa_kv_unpersisted_chunks(const struct fa_kv *kv, uint32_t chunks);

/* Closes what still cannot be stored. */
void fa_kv_persist_deinit(struct fa_kv *kv);
