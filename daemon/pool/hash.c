#include "daemon/pool/hash.h"

#include "daemon/pool/cache_layout.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

static_assert(crypto_shorthash_KEYBYTES <= FA_STATE_SECRET_BYTES, "the secret is long enough");

int fa_pool_hash_init(void)
{
	return sodium_init() < 0 ? -ENOSYS : 0;
}

void fa_pool_hash_new_secret(uint8_t secret[FA_STATE_SECRET_BYTES])
{
	randombytes_buf(secret, FA_STATE_SECRET_BYTES);
}

uint64_t fa_pool_hash_short(const uint8_t secret[FA_STATE_SECRET_BYTES], const void *data,
                            size_t bytes)
{
	uint8_t hash[crypto_shorthash_BYTES];
	uint64_t value;

	crypto_shorthash(hash, data, bytes, secret);
	memcpy(&value, hash, sizeof(value));
	return value;
}

void fa_pool_hash_prefix_begin(const uint8_t secret[FA_STATE_SECRET_BYTES], uint64_t cache,
                               uint32_t tenant, const void *extra, size_t extra_bytes,
                               uint8_t hash[FA_STATE_HASH_BYTES])
{
	struct {
		uint64_t cache;
		uint32_t tenant;
		uint32_t extra_bytes;
	} head = { cache, tenant, (uint32_t)extra_bytes };
	crypto_generichash_state state;

	crypto_generichash_init(&state, secret, FA_STATE_SECRET_BYTES, FA_STATE_HASH_BYTES);
	crypto_generichash_update(&state, (const uint8_t *)&head, sizeof(head));
	if (extra_bytes)
		crypto_generichash_update(&state, extra, extra_bytes);
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
