/*
 * The format of the pool's state, a memfd that outlives the daemon. No pointers.
 *
 * Every change takes effect by one aligned store of a word, fa_state_store(): the `state` of a
 * record, the `owner` of a chunk, `current` of a sequence, which selects one of its two commits, a
 * slot of a copied page, or the first word of a name. What the word makes valid is written before
 * it, where nothing reads yet. A run of chunks is a cache's once all of its chunks are. So a
 * process killed between two stores leaves the old or the new state. Reference counts, free lists
 * and indexes are derived by recovery.
 *
 * The tables are sparse; high-water marks bound the parts in use.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define FA_STATE_MAGIC 0x6c6f6f702d646166ull /* "fad-pool" */
#define FA_STATE_VERSION 2u
#define FA_STATE_VERSION_RUNS 3u /* caches may have runs of chunks */
/* Sequences may have checkpoints. A pool gets this format with its first cache with states; `check`
 * stays that of the format before. */
#define FA_STATE_VERSION_CHECKPOINTS 4u
#define FA_STATE_HEADER_BYTES 4096u

#define FA_STATE_CACHES 256u
#define FA_STATE_TENANTS 4096u
#define FA_STATE_NAME_BYTES 64 /* with the terminating zero */
#define FA_STATE_CGROUP_BYTES 512
#define FA_STATE_HASH_BYTES 32
#define FA_STATE_SECRET_BYTES 32
#define FA_STATE_CELL_PAGES 15u
#define FA_STATE_SCALES 8000u
#define FA_STATE_STATES 1024u

struct fa_state_header {
	uint64_t magic;
	uint32_t version;
	uint32_t max_chunks;
	uint64_t chunk_bytes; /* a power of two */
	uint32_t page_shift;  /* log2 of the most pages in a chunk */
	uint32_t max_caches;
	uint32_t max_tenants;
	uint32_t max_sequences;
	uint32_t max_cells;
	uint64_t chunks_at, caches_at, tenants_at, sequences_at, cells_at, pages_at, scales_at;
	uint64_t bytes;
	uint8_t secret[FA_STATE_SECRET_BYTES]; /* key of the hashes */
	uint64_t check;                        /* of the constant fields above */

	uint64_t generation; /* how often the state was opened */
	/* No index was ever as high as these. */
	uint32_t high_tenants, high_sequences, high_cells;
	uint32_t run_shift_max; /* of a cache; 0 before format 3 */
};

#define FA_STATE_CHUNK_ABSENT 0u /* the chunk has no memory */
#define FA_STATE_CHUNK_FREE 1u
#define FA_STATE_CHUNK_CACHE 2u /* plus the index of the chunk's cache */
/* The cache was removed by a dead daemon, whose device may still write: free from
 * fa_pool_quarantine_end() on. */
#define FA_STATE_CHUNK_QUARANTINED (FA_STATE_CHUNK_CACHE + FA_STATE_CACHES)

struct fa_state_chunk {
	uint32_t owner;
	uint32_t reserved;
};

#define FA_STATE_FREE 0u
#define FA_STATE_USED 1u
#define FA_STATE_REMOVED 2u /* caches: freed once nothing is in flight */
#define FA_STATE_SUSPECT 3u /* sequences: a kernel that wrote to it failed */

#define FA_STATE_ID_PLAIN 0u /* generation << 32 | index: made by daemons before id.h */
#define FA_STATE_ID_SECRET 1u

/* Owners of a record's objects so far. For them a removed object's id is stale; for others it never
 * existed (id.h). */
struct fa_state_origin {
	uint32_t id_form; /* of the last object */
	uint32_t uid;     /* of the last object */
	/* 1: other users, or a daemon before id.h, also had objects here. */
	uint32_t others;
};

struct fa_state_cache {
	uint32_t state;
	uint32_t generation; /* differs for each use of the record */
	uint32_t tenant;
	uint32_t mode;
	uint64_t owner; /* 0: none */
	uint64_t ttl_ns, used_ns;
	uint64_t max_pages;
	uint32_t layers, kv_heads, head_dim, head_dim_v;
	uint32_t dtype, page_tokens, v_in_k, order;
	char name[FA_STATE_NAME_BYTES]; /* "": none */
	uint32_t store, token_scales;
	struct fa_state_origin origin;
	/* Runs have 2^run_shift aligned chunks; 0 before format 3. */
	uint32_t run_shift;
	/* States of linear layers; their bytes are in the scales' record; 0 before format 4. */
	uint32_t n_states;
	/* Distance of kept checkpoints; 0: only the last one is kept. */
	uint32_t checkpoint_tokens;
	uint8_t reserved[80];
};

/* Scales of the cache with the same index, [layer][kv_head]; valid for codes without
 * token_scales. */
struct fa_state_scales {
	float k[FA_STATE_SCALES];
	union {
		float v[FA_STATE_SCALES];
		/* The last n_states words are the bytes of each state. */
		uint32_t words[FA_STATE_SCALES];
	};
};

struct fa_state_tenant {
	uint32_t state;
	uint32_t tag;
	uint32_t uid;
	uint32_t reserved;
	char cgroup[FA_STATE_CGROUP_BYTES];
};

struct fa_state_commit {
	uint64_t length; /* tokens */
	/* first token that was not dropped; dropped ones fill pages */
	uint64_t first;
	uint64_t step; /* the last committed */
	uint32_t head; /* first cell, plus 1; invalid without pages */
	/* First cell of the newest checkpoint, plus 1; 0: none. */
	uint32_t checkpoint;
};

struct fa_state_sequence {
	uint32_t state;
	uint32_t generation;
	uint32_t cache;
	uint32_t tenant;
	uint64_t owner; /* 0: none */
	uint32_t mode;
	uint32_t current; /* index of the valid commit */
	uint64_t ttl_ns, used_ns;
	struct fa_state_commit commits[2];
	char name[FA_STATE_NAME_BYTES]; /* "": none */
	struct fa_state_origin origin;
	uint32_t reserved;
};

/*
 * Cell n has pages 15n to 15n + 14 of a sequence; slots beyond the commit's tokens are planned or
 * left over. A checkpoint's cells hold its length in tokens, then its pages' slots; `next` of the
 * last is the first cell of the checkpoint before it.
 */
struct fa_state_cell {
	uint32_t next; /* next cell of the list, plus 1 */
	uint32_t slots[FA_STATE_CELL_PAGES];
};

#define FA_STATE_PAGE_PUBLISHED 1u

struct fa_state_page {
	uint8_t hash[FA_STATE_HASH_BYTES];
	uint32_t tenant; /* of the payer */
	uint32_t state;
};

static_assert(sizeof(struct fa_state_header) == 176, "format");
static_assert(offsetof(struct fa_state_header, check) == 144, "format");
static_assert(sizeof(struct fa_state_chunk) == 8, "format");
static_assert(sizeof(struct fa_state_origin) == 12, "format");
static_assert(sizeof(struct fa_state_cache) == 256, "format");
static_assert(sizeof(struct fa_state_scales) == 64000, "format");
static_assert(sizeof(struct fa_state_tenant) == 528, "format");
static_assert(sizeof(struct fa_state_commit) == 32, "format");
static_assert(sizeof(struct fa_state_sequence) == 192, "format");
static_assert(sizeof(struct fa_state_cell) == 64, "format");
static_assert(sizeof(struct fa_state_page) == 40, "format");
