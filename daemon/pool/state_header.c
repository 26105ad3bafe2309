#include "daemon/pool/state_header.h"

#include "common/cleanup.h"
#include "common/memfd.h"
#include "daemon/pool/cache_layout.h"
#include "daemon/pool/hash.h"
#include "daemon/pool/pool.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES_MIN_DEFAULT 4096u
#define SEQUENCES_DEFAULT (1u << 18)
/* A page has 64 bytes in the state: its record, and the rest for cells. */
#define CELL_BYTES_PER_PAGE (64 - sizeof(struct fa_state_page))
#define CELLS_MIN 1024u

static uint64_t align(uint64_t bytes)
{
	return (bytes + FA_STATE_HEADER_BYTES - 1) / FA_STATE_HEADER_BYTES * FA_STATE_HEADER_BYTES;
}

static bool is_power_of_two(uint64_t value)
{
	return value && !(value & (value - 1));
}

static int lay_out(struct fa_state_header *header, struct fa_error *error)
{
	uint64_t at = FA_STATE_HEADER_BYTES;

	if (!is_power_of_two(header->chunk_bytes) || header->chunk_bytes < FA_STATE_HEADER_BYTES ||
	    header->chunk_bytes > FA_POOL_CHUNK_BYTES_MAX)
		return fa_fail(error, -EINVAL,
		               "a chunk has %" PRIu64
		               " bytes; expected a power of two from %u to %" PRIu64,
		               header->chunk_bytes, FA_STATE_HEADER_BYTES, FA_POOL_CHUNK_BYTES_MAX);
	if (!header->max_chunks || header->max_chunks > FA_POOL_BYTES_MAX / header->chunk_bytes)
		return fa_fail(error, -EINVAL,
		               "the pool may have %" PRIu32 " chunks; expected 1 to %" PRIu64,
		               header->max_chunks, FA_POOL_BYTES_MAX / header->chunk_bytes);
	/* Limits: a page has at least one slot, and an index has 31 bits. */
	if (header->page_shift > 24 || header->chunk_bytes >> header->page_shift < FA_SLOT_BYTES ||
	    (uint64_t)header->max_chunks << header->page_shift > INT32_MAX)
		return fa_fail(error, -EINVAL,
		               "%" PRIu32 " chunks with 2^%" PRIu32
		               " pages each are too many; expected less than 2^31 pages",
		               header->max_chunks, header->page_shift);
	if (header->max_caches != FA_STATE_CACHES || header->max_tenants != FA_STATE_TENANTS ||
	    !header->max_sequences || header->max_sequences > 1u << 24 || !header->max_cells ||
	    header->max_cells > INT32_MAX)
		return fa_fail(error, -EINVAL,
		               "the pool's tables are for %" PRIu32 " caches, %" PRIu32
		               " tenants, %" PRIu32 " sequences and %" PRIu32 " cells",
		               header->max_caches, header->max_tenants, header->max_sequences,
		               header->max_cells);

	header->chunks_at = at;
	at += align(header->max_chunks * sizeof(struct fa_state_chunk));
	header->caches_at = at;
	at += align(header->max_caches * sizeof(struct fa_state_cache));
	header->tenants_at = at;
	at += align(header->max_tenants * sizeof(struct fa_state_tenant));
	header->sequences_at = at;
	at += align(header->max_sequences * sizeof(struct fa_state_sequence));
	header->cells_at = at;
	at += align((uint64_t)header->max_cells * sizeof(struct fa_state_cell));
	header->pages_at = at;
	at += align(((uint64_t)header->max_chunks << header->page_shift) *
	            sizeof(struct fa_state_page));
	header->scales_at = at;
	at += align(header->max_caches * sizeof(struct fa_state_scales));
	header->bytes = at;
	return 0;
}

static uint64_t check_of(const struct fa_state_header *header)
{
	return fa_pool_hash_short(header->secret, header, offsetof(struct fa_state_header, check));
}

/* A pool that got checkpoints later keeps the check of its first format. */
static bool has_good_check(const struct fa_state_header *header)
{
	struct fa_state_header first = *header;

	if (header->version == FA_STATE_VERSION_CHECKPOINTS)
		for (first.version = FA_STATE_VERSION; first.version < header->version;
		     first.version++)
			if (header->check == check_of(&first))
				return true;
	return header->check == check_of(header);
}

static uint64_t default_cells(const struct fa_state_header *header)
{
	uint64_t n = ((uint64_t)header->max_chunks << header->page_shift) * CELL_BYTES_PER_PAGE /
	             sizeof(struct fa_state_cell);

	return n < CELLS_MIN ? CELLS_MIN : n;
}

int fa_pool_format(const struct fa_pool_config *config, struct fa_error *error, int *ret_fd)
{
	uint64_t chunk_bytes = config->chunk_bytes ? config->chunk_bytes
	                                           : FA_POOL_CHUNK_BYTES_DEFAULT;
	uint32_t page_bytes = config->page_bytes_min ? config->page_bytes_min
	                                             : PAGE_BYTES_MIN_DEFAULT;
	struct fa_state_header header = {
		.magic = FA_STATE_MAGIC,
		.version = config->run_bytes_max > chunk_bytes ? FA_STATE_VERSION_RUNS
		                                               : FA_STATE_VERSION,
		.max_chunks = config->max_chunks,
		.chunk_bytes = chunk_bytes,
		.max_caches = FA_STATE_CACHES,
		.max_tenants = FA_STATE_TENANTS,
		.max_sequences = config->max_sequences ? config->max_sequences : SEQUENCES_DEFAULT,
	};
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	if (!is_power_of_two(page_bytes) || page_bytes > chunk_bytes)
		return fa_fail(error, -EINVAL,
		               "a page is to have at least %" PRIu32
		               " bytes; expected a power of two, at most a chunk",
		               page_bytes);
	header.page_shift = (uint32_t)__builtin_ctzll(chunk_bytes / page_bytes);
	while (chunk_bytes << (header.run_shift_max + 1) <= config->run_bytes_max &&
	       2u << header.run_shift_max <= config->max_chunks &&
	       header.run_shift_max < FA_POOL_RUN_SHIFT_MAX)
		header.run_shift_max++;
	header.max_cells = (uint32_t)default_cells(&header);
	r = lay_out(&header, error);
	if (r < 0)
		return r;
	r = fa_pool_hash_init();
	if (r < 0)
		return fa_fail(error, r, "libsodium does not start");
	fa_pool_hash_new_secret(header.secret);
	header.check = check_of(&header);
	r = fa_memfd_new("fad-pool-state", header.bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "no memory for the pool's state, %" PRIu64 " bytes: %s",
		               header.bytes, fa_memfd_explain(r, why, sizeof(why)));
	if (pwrite(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
		return fa_fail(error, -EIO, "the pool's state cannot be written: %m");
	*ret_fd = fa_steal_fd(&fd);
	return 0;
}

int fa_state_read_header(int fd, struct fa_error *error, struct fa_state_header *ret_header)
{
	struct fa_state_header header;
	struct fa_state_header laid_out;
	struct fa_error reason;
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st) < 0)
		return fa_fail(error, -errno, "the pool's state cannot be examined: %m");
	n = pread(fd, &header, sizeof(header), 0);
	/* ESPIPE: a pipe is not a state. */
	if (n < 0 && errno != ESPIPE)
		return fa_fail(error, -errno, "the pool's state cannot be read: %m");
	if (n != (ssize_t)sizeof(header) || header.magic != FA_STATE_MAGIC)
		return fa_fail(error, -EBADMSG, "this is no state of a pool");
	if (header.version < FA_STATE_VERSION || header.version > FA_STATE_VERSION_CHECKPOINTS)
		return fa_fail(error, -EPROTONOSUPPORT,
		               "the pool's state has format %" PRIu32 "; expected %u",
		               header.version, FA_STATE_VERSION_CHECKPOINTS);
	laid_out = header;
	if (lay_out(&laid_out, &reason) < 0)
		return fa_fail(error, -EBADMSG, "the header of the pool's state is damaged: %s",
		               reason.text);
	if (memcmp(&laid_out, &header, sizeof(laid_out)) != 0 ||
	    header.bytes != (uint64_t)st.st_size || !has_good_check(&header))
		return fa_fail(error, -EBADMSG,
		               "the header of the pool's state is damaged: its parts do not fit "
		               "together");
	if (header.high_tenants > header.max_tenants ||
	    header.high_sequences > header.max_sequences || header.high_cells > header.max_cells)
		return fa_fail(error, -EBADMSG,
		               "the header of the pool's state is damaged: more is in use than "
		               "there is");
	if ((header.version == FA_STATE_VERSION && header.run_shift_max) ||
	    header.run_shift_max > FA_POOL_RUN_SHIFT_MAX ||
	    header.chunk_bytes << header.run_shift_max > FA_POOL_CHUNK_BYTES_MAX)
		return fa_fail(error, -EBADMSG,
		               "the header of the pool's state is damaged: runs of 2^%" PRIu32
		               " chunks",
		               header.run_shift_max);
	*ret_header = header;
	return 0;
}
