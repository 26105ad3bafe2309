/*
 * The hashes: BLAKE2b with 256 bits, in a chain that begins with the state's secret, from
 * libsodium: a small library that every distribution has, with one function for it, vectorised, and
 * no set-up. (SHA-256 of a larger library is as fast only where the processor has instructions for
 * it; xxHash is faster, but whoever knows it can make two prompts collide.)
 */
#include "daemon/pool/private.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

static_assert(crypto_shorthash_KEYBYTES <= 32, "the secret is long enough");

int fa_pool_hash_init(void)
{
	return sodium_init() < 0 ? -ENOSYS : 0;
}

void fa_pool_hash_new_secret(uint8_t secret[32])
{
	randombytes_buf(secret, 32);
}

uint64_t fa_pool_hash_short(const uint8_t secret[32], const void *data, size_t bytes)
{
	uint8_t hash[crypto_shorthash_BYTES];
	uint64_t value;

	crypto_shorthash(hash, data, bytes, secret);
	memcpy(&value, hash, sizeof(value));
	return value;
}

void fa_pool_hash_prefix_begin(const struct fa_pool *pool, const struct fa_pool_cache *cache,
                               uint32_t tenant, const struct fa_prefix_key *key,
                               uint8_t hash[FA_STATE_HASH_BYTES])
{
	struct {
		uint64_t cache;
		uint32_t tenant; /* 0: everyone who shares */
		uint32_t extra_bytes;
	} head = { fa_pool_cache_id(cache), key->shared ? 0 : tenant, (uint32_t)key->extra_bytes };
	crypto_generichash_state state;

	crypto_generichash_init(&state, pool->header->secret, sizeof(pool->header->secret),
	                        FA_STATE_HASH_BYTES);
	crypto_generichash_update(&state, (const uint8_t *)&head, sizeof(head));
	if (key->extra_bytes)
		crypto_generichash_update(&state, key->extra, key->extra_bytes);
	crypto_generichash_final(&state, hash, FA_STATE_HASH_BYTES);
}

void fa_pool_hash_prefix_next(const uint32_t *tokens, uint32_t n_tokens,
                              uint8_t hash[FA_STATE_HASH_BYTES])
{
	uint8_t text[FA_STATE_HASH_BYTES + FA_CACHE_PAGE_TOKENS_MAX * sizeof(*tokens)];
	size_t bytes = n_tokens * sizeof(*tokens);

	memcpy(text, hash, FA_STATE_HASH_BYTES);
	memcpy(text + FA_STATE_HASH_BYTES, tokens, bytes);
	crypto_generichash(hash, FA_STATE_HASH_BYTES, text, FA_STATE_HASH_BYTES + bytes, NULL, 0);
}
