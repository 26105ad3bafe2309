/* Hash functions, from libsodium. Any thread. */
#pragma once

#include "daemon/pool/state.h"

/* Call it first. -ENOSYS. */
int fa_pool_hash_init(void);
void fa_pool_hash_new_secret(uint8_t secret[FA_STATE_SECRET_BYTES]);
/* Computes SipHash, for tables and checksums. */
uint64_t fa_pool_hash_short(const uint8_t secret[FA_STATE_SECRET_BYTES], const void *data,
                            size_t bytes);

/* Begins a chain (BLAKE2b). @cache: an id. @tenant: 0 if tenants share. */
void fa_pool_hash_prefix_begin(const uint8_t secret[FA_STATE_SECRET_BYTES], uint64_t cache,
                               uint32_t tenant, const void *extra, size_t extra_bytes,
                               uint8_t hash[FA_STATE_HASH_BYTES]);
void fa_pool_hash_prefix_next(const uint32_t *tokens, uint32_t n_tokens,
                              uint8_t hash[FA_STATE_HASH_BYTES]);
