/* Addresses: the space of device pointers, the valid regions in it, and what running work uses. */
#include "tests/cuda-driver/driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPACE_BYTES ((size_t)128 << 30)

/* ---- space: one reservation of the kernel's, cut by first fit */

struct taken {
	CUdeviceptr at;
	size_t bytes;
};

static CUdeviceptr space;
static struct taken *takens; /* ascending */
static size_t n_takens, size_takens;

static int space_make(void)
{
	void *at;

	if (space)
		return 0;
	at = mmap(NULL, SPACE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	madvise(at, SPACE_BYTES, MADV_DONTFORK);
	space = (CUdeviceptr)(uintptr_t)at;
	return 0;
}

int fa_fake_space_take(size_t bytes, size_t alignment, CUdeviceptr *ret_at)
{
	CUdeviceptr at;
	size_t i;

	if (space_make() < 0)
		return -ENOMEM;
	if (n_takens == size_takens) {
		const size_t size = size_takens * 2 + 64;
		struct taken *more = realloc(takens, size * sizeof(*takens));

		if (!more)
			return -ENOMEM;
		takens = more;
		size_takens = size;
	}
	at = space;
	for (i = 0;; ++i) {
		at = (at + alignment - 1) / alignment * alignment;
		if (i == n_takens || (takens[i].at >= at && takens[i].at - at >= bytes))
			break;
		if (takens[i].at + takens[i].bytes > at)
			at = takens[i].at + takens[i].bytes;
	}
	if (bytes > SPACE_BYTES || at - space > SPACE_BYTES - bytes)
		return -ENOMEM;
	memmove(takens + i + 1, takens + i, (n_takens - i) * sizeof(*takens));
	takens[i] = (struct taken){ at, bytes };
	++n_takens;
	*ret_at = at;
	return 0;
}

void fa_fake_space_give(CUdeviceptr at)
{
	for (size_t i = 0; i < n_takens; ++i)
		if (takens[i].at == at) {
			--n_takens;
			memmove(takens + i, takens + i + 1, (n_takens - i) * sizeof(*takens));
			return;
		}
	abort();
}

int fa_fake_space_map(const struct fa_fake_region *region)
{
	const int protection = (region->readable ? PROT_READ : 0) |
	                       (region->writable ? PROT_WRITE : 0);
	void *at = (void *)(uintptr_t)region->at;

	if (mmap(at, region->mapped_bytes, protection, MAP_SHARED | MAP_FIXED, region->memory->fd,
	         0) == MAP_FAILED)
		return -errno;
	madvise(at, region->mapped_bytes, MADV_DONTFORK);
	return 0;
}

void fa_fake_space_unmap(CUdeviceptr at, size_t bytes)
{
	void *to = (void *)(uintptr_t)at;

	if (mmap(to, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
	         0) == MAP_FAILED)
		abort();
	madvise(to, bytes, MADV_DONTFORK);
}

/* ---- regions */

static struct fa_fake_region **regions; /* ascending and disjoint */
static size_t n_regions, size_regions;
static uint64_t last_buffer_id;

/* Returns the index of the first region that ends after @at. */
static size_t position(CUdeviceptr at)
{
	size_t low = 0, high = n_regions;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (regions[middle]->at + regions[middle]->bytes <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct fa_fake_region *fa_fake_region_find(CUdeviceptr at)
{
	const size_t i = position(at);

	return i < n_regions && regions[i]->at <= at ? regions[i] : NULL;
}

bool fa_fake_region_overlaps(CUdeviceptr at, size_t bytes)
{
	const size_t i = position(at);

	return i < n_regions && regions[i]->at < at + bytes;
}

size_t fa_fake_region_count(void)
{
	return n_regions;
}

struct fa_fake_region *fa_fake_region_at(size_t index)
{
	return regions[index];
}

int fa_fake_region_new(const struct fa_fake_region *like, struct fa_fake_region **ret_region)
{
	struct fa_fake_region *region;
	size_t i;

	if (n_regions == size_regions) {
		const size_t size = size_regions * 2 + 64;
		struct fa_fake_region **more = realloc(regions, size * sizeof(*regions));

		if (!more)
			return -ENOMEM;
		regions = more;
		size_regions = size;
	}
	region = malloc(sizeof(*region));
	if (!region)
		return -ENOMEM;
	*region = *like;
	region->buffer_id = ++last_buffer_id;
	i = position(region->at);
	memmove(regions + i + 1, regions + i, (n_regions - i) * sizeof(*regions));
	regions[i] = region;
	++n_regions;
	*ret_region = region;
	return 0;
}

/* ---- pins */

static struct fa_fake_pin *pins;

static struct fa_fake_pin *pin_in(CUdeviceptr at, size_t bytes)
{
	for (struct fa_fake_pin *pin = pins; pin; pin = pin->next)
		for (size_t i = 0; i < pin->n_spans; ++i)
			if (pin->spans[i].at < at + bytes &&
			    at < pin->spans[i].at + pin->spans[i].bytes)
				return pin;
	return NULL;
}

void fa_fake_region_drop(struct fa_fake_region *region, bool patient)
{
	const CUdeviceptr at = region->at;
	const size_t bytes = region->bytes, i = position(at);
	struct fa_fake_pin *pin;

	--n_regions;
	memmove(regions + i, regions + i + 1, (n_regions - i) * sizeof(*regions));
	free(region);
	while ((pin = pin_in(at, bytes))) {
		if (!patient && !pin->context->lost)
			fa_fake_lose(pin->context,
			             fa_fake_misuse(CUDA_ERROR_ILLEGAL_ADDRESS,
			                            "memory at %#llx is taken away from work "
			                            "that runs",
			                            (unsigned long long)at));
		pthread_cond_wait(&fa_fake.changed, &fa_fake.lock);
	}
}

bool fa_fake_span_is_good(int device, const struct fa_fake_span *span)
{
	CUdeviceptr at = span->at, end;

	if (!span->bytes)
		return true;
	if (__builtin_add_overflow(span->at, span->bytes, &end))
		return false;
	while (at < end) {
		const struct fa_fake_region *region = fa_fake_region_find(at);

		if (!region || !region->readable || (span->write && !region->writable))
			return false;
		if (region->memory && region->device != device)
			return false;
		/* Registered memory may have been unmapped by the program. A GPU would survive
		 * that, so check. */
		if (region->kind == FA_FAKE_HOST_REGISTERED) {
			const CUdeviceptr page = region->at & ~(CUdeviceptr)4095;

			if (msync((void *)(uintptr_t)page, region->mapped_bytes, MS_ASYNC) < 0)
				return false;
		}
		at = region->at + region->bytes;
	}
	return true;
}

CUresult fa_fake_pin(struct fa_fake_pin *pin)
{
	CUresult result = CUDA_SUCCESS;

	fa_fake_lock();
	for (size_t i = 0; i < pin->n_spans && result == CUDA_SUCCESS; ++i)
		if (!fa_fake_span_is_good(pin->context->device, &pin->spans[i]))
			result = fa_fake_misuse(
				CUDA_ERROR_ILLEGAL_ADDRESS,
				"%s %zu bytes at %#llx, which it cannot",
				pin->spans[i].write ? "a GPU is to write" : "a GPU is to read",
				pin->spans[i].bytes, (unsigned long long)pin->spans[i].at);
	if (result == CUDA_SUCCESS) {
		pin->next = pins;
		pins = pin;
	}
	fa_fake_unlock();
	return result;
}

void fa_fake_unpin(struct fa_fake_pin *pin)
{
	fa_fake_lock();
	for (struct fa_fake_pin **at = &pins; *at; at = &(*at)->next)
		if (*at == pin) {
			*at = pin->next;
			break;
		}
	pthread_cond_broadcast(&fa_fake.changed);
	fa_fake_unlock();
}
