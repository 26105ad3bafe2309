/*
 * The pool's state as it lies in its memfd: what outlives the daemon. Offsets and
 * indices, no pointers. Written by the loop thread alone.
 *
 * Everything that takes effect does so by one aligned store of a word: the state of a
 * record, the owner of a chunk, or which of a sequence's two commits counts. What lies
 * beside such a word is written before it, so that a process that dies between any two
 * stores leaves either the old or the new. What can be derived (reference counts, free
 * lists, the index of published pages) is not here; pool/check.c derives it.
 *
 * Memory: a page of the pool costs the record of 40 bytes if it was ever used, and its
 * place in a list, a fifteenth of a cell of 64 bytes, for each sequence that has it:
 * below 64 bytes as long as not more than five have it on average. The tables are
 * sparse; the high-water marks say how far they are in use.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define FA_STATE_MAGIC 0x6c6f6f702d646166ull /* "fad-pool" */
#define FA_STATE_VERSION 2u
#define FA_STATE_HEADER_BYTES 4096u

#define FA_STATE_CACHES 256u
#define FA_STATE_TENANTS 4096u
#define FA_STATE_NAME_BYTES 64 /* with the zero */
#define FA_STATE_CGROUP_BYTES 512
#define FA_STATE_HASH_BYTES 32
#define FA_STATE_SECRET_BYTES 32
#define FA_STATE_CELL_PAGES 15u
#define FA_STATE_SCALES 8000u /* of heads of a cache, for K and for V */

struct fa_state_header {
	uint64_t magic;
	uint32_t version;
	uint32_t max_chunks;
	uint64_t chunk_bytes; /* a power of two */
	uint32_t page_shift;  /* log2 of how many pages a chunk may have at most */
	uint32_t max_caches;
	uint32_t max_tenants;
	uint32_t max_sequences;
	uint32_t max_cells;
	uint64_t chunks_at, caches_at, tenants_at, sequences_at, cells_at, pages_at, scales_at;
	uint64_t bytes;
	uint8_t secret[FA_STATE_SECRET_BYTES]; /* key of the hashes of prefixes */
	uint64_t check;                        /* of all before it, which never changes */

	uint64_t generation; /* how often it was opened */
	/* Every index in use, or ever used, is below. They only rise. */
	uint32_t high_tenants, high_sequences, high_cells;
	uint32_t reserved;
};

#define FA_STATE_CHUNK_ABSENT 0u /* there is no memory */
#define FA_STATE_CHUNK_FREE 1u
#define FA_STATE_CHUNK_CACHE 2u /* + index of its cache */
/* Nobody's, as free ones are; but it was a cache's that went with a daemon whose device may
 * still write to it. The next daemons hold it back, each until it knows better. */
#define FA_STATE_CHUNK_QUARANTINED (FA_STATE_CHUNK_CACHE + FA_STATE_CACHES)

struct fa_state_chunk {
	uint32_t owner;
	uint32_t reserved;
};

/* The state of caches, tenants and sequences. */
#define FA_STATE_FREE 0u
#define FA_STATE_USED 1u
#define FA_STATE_REMOVED 2u /* caches: gone once nothing of it is in flight */
#define FA_STATE_SUSPECT 3u /* sequences: a kernel that wrote to it went wrong */

struct fa_state_cache {
	uint32_t state;
	uint32_t generation; /* of the record: each use has another */
	uint32_t tenant;     /* tag */
	uint32_t mode;
	uint64_t owner; /* the session, 0: none */
	uint64_t ttl_ns, used_ns;
	uint64_t max_pages;
	uint32_t layers, kv_heads, head_dim, head_dim_v;
	uint32_t dtype, page_tokens, v_in_k, order;
	char name[FA_STATE_NAME_BYTES]; /* "": none */
	uint32_t store, token_scales;
	uint8_t reserved[104];
};

/* A cache's, by index: [layer][kv_head]. Read only if it stores codes and its tokens have no
 * scales of their own. */
struct fa_state_scales {
	float k[FA_STATE_SCALES], v[FA_STATE_SCALES];
};

struct fa_state_tenant {
	uint32_t state;
	uint32_t tag;
	uint32_t uid;
	uint32_t reserved;
	char cgroup[FA_STATE_CGROUP_BYTES];
};

/* What a commit changes at once. */
struct fa_state_commit {
	uint64_t length; /* durable tokens */
	uint64_t first;  /* tokens before it were dropped; a multiple of the page */
	uint64_t step;   /* number of the step committed last */
	uint32_t head;   /* cell + 1 that has page first / page_tokens; unread if there is none */
	uint32_t reserved;
};

struct fa_state_sequence {
	uint32_t state;
	uint32_t generation;
	uint32_t cache;  /* index */
	uint32_t tenant; /* tag of who pays for its pages */
	uint64_t owner;  /* the session, 0: none */
	uint32_t mode;
	uint32_t current; /* which body counts */
	uint64_t ttl_ns, used_ns;
	struct fa_state_commit commits[2];
	char name[FA_STATE_NAME_BYTES]; /* "": none */
	uint8_t reserved[16];
};

/*
 * Fifteen pages of a sequence, by number: pages 15n to 15n + 14. Only as many cells and
 * entries are looked at as the body's length and first say; what lies behind is rubbish.
 */
struct fa_state_cell {
	uint32_t next; /* cell + 1 */
	uint32_t slots[FA_STATE_CELL_PAGES];
};

#define FA_STATE_PAGE_PUBLISHED 1u

struct fa_state_page {
	uint8_t hash[FA_STATE_HASH_BYTES]; /* of tenant, cache, extra key and all tokens so far */
	uint32_t tenant;                   /* tag of the publisher */
	uint32_t state;
};

static_assert(sizeof(struct fa_state_header) == 176, "format");
static_assert(offsetof(struct fa_state_header, check) == 144, "format");
static_assert(sizeof(struct fa_state_chunk) == 8, "format");
static_assert(sizeof(struct fa_state_cache) == 256, "format");
static_assert(sizeof(struct fa_state_scales) == 64000, "format");
static_assert(sizeof(struct fa_state_tenant) == 528, "format");
static_assert(sizeof(struct fa_state_commit) == 32, "format");
static_assert(sizeof(struct fa_state_sequence) == 192, "format");
static_assert(sizeof(struct fa_state_cell) == 64, "format");
static_assert(sizeof(struct fa_state_page) == 40, "format");
