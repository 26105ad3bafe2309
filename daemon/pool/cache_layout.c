#include "daemon/pool/cache_layout.h"

#include <errno.h>
#include <inttypes.h>

static uint32_t dtype_bytes(enum fa_attention_dtype dtype)
{
	switch (dtype) {
	case FA_ATTENTION_F32:
		return 4;
	case FA_ATTENTION_F16:
	case FA_ATTENTION_BF16:
		return 2;
	}
	return 0;
}

static uint32_t element_bytes(const struct fa_cache_geometry *geometry)
{
	return geometry->store == FA_PAGED_PLAIN ? dtype_bytes(geometry->dtype) : 1;
}

static int check_bound(const char *field, uint32_t value, uint32_t max, struct fa_error *error)
{
	if (value < 1 || value > max)
		return fa_fail(error, -EINVAL, "%s is %" PRIu32 "; expected 1 to %" PRIu32, field,
		               value, max);
	return 0;
}

static int check_dim(const char *field, uint32_t value, uint32_t max, struct fa_error *error)
{
	if (value < 8 || value % 8)
		return fa_fail(error, -EINVAL,
		               "%s is %" PRIu32 "; expected a multiple of 8 from 8 to %" PRIu32,
		               field, value, max);
	if (value > max)
		return fa_fail(error, -ENOTSUP, "%s %" PRIu32 " is not supported: at most %" PRIu32,
		               field, value, max);
	return 0;
}

static int check(const struct fa_cache_geometry *geometry, struct fa_error *error)
{
	int r;

	r = check_bound("layers", geometry->layers, FA_CACHE_LAYERS_MAX, error);
	if (r < 0)
		return r;
	r = check_bound("kv_heads", geometry->kv_heads, FA_CACHE_KV_HEADS_MAX, error);
	if (r < 0)
		return r;
	r = check_dim("head_dim", geometry->head_dim, FA_CACHE_HEAD_DIM_MAX, error);
	if (r < 0)
		return r;
	r = check_dim("head_dim_v", geometry->head_dim_v, FA_CACHE_HEAD_DIM_V_MAX, error);
	if (r < 0)
		return r;
	if (geometry->v_in_k && geometry->head_dim_v > geometry->head_dim)
		return fa_fail(error, -EINVAL,
		               "head_dim_v is %" PRIu32 "; expected at most head_dim, %" PRIu32
		               ", whose front V is to be",
		               geometry->head_dim_v, geometry->head_dim);
	if (!dtype_bytes(geometry->dtype))
		return fa_fail(error, -ENOTSUP, "no cache can hold elements of dtype %d",
		               (int)geometry->dtype);
	if (geometry->store < FA_PAGED_PLAIN || geometry->store > FA_PAGED_INT8)
		return fa_fail(error, -ENOTSUP,
		               "store is %d; expected plain (%d), e4m3 (%d) or int8 (%d)",
		               (int)geometry->store, FA_PAGED_PLAIN, FA_PAGED_E4M3, FA_PAGED_INT8);
	if (geometry->store == FA_PAGED_PLAIN && geometry->token_scales)
		return fa_fail(error, -EINVAL,
		               "tokens are to have scales; expected that with e4m3 or int8 only");
	if (geometry->page_tokens < FA_CACHE_PAGE_TOKENS_MIN ||
	    geometry->page_tokens > FA_CACHE_PAGE_TOKENS_MAX ||
	    (geometry->page_tokens & (geometry->page_tokens - 1)))
		return fa_fail(error, -EINVAL,
		               "page_tokens is %" PRIu32 "; expected a power of two from %u to %u",
		               geometry->page_tokens, FA_CACHE_PAGE_TOKENS_MIN,
		               FA_CACHE_PAGE_TOKENS_MAX);
	if (geometry->order != FA_CACHE_LAYER_MAJOR && geometry->order != FA_CACHE_PAGE_MAJOR)
		return fa_fail(error, -EINVAL, "order is %d; expected layer-major or page-major",
		               (int)geometry->order);
	return 0;
}

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + FA_SLOT_BYTES - 1) / FA_SLOT_BYTES * FA_SLOT_BYTES;
}

int fa_cache_layout_init(const struct fa_cache_geometry *geometry, uint64_t chunk_bytes,
                         uint32_t max_pages, struct fa_error *error,
                         struct fa_cache_layout *ret_layout)
{
	struct fa_cache_layout layout = { .page_tokens = geometry->page_tokens };
	uint64_t rows, n, both, scales;
	int r;

	r = check(geometry, error);
	if (r < 0)
		return r;

	/* These bounds keep all products below 2^51. */
	rows = (uint64_t)geometry->kv_heads * geometry->page_tokens;
	scales = geometry->token_scales ? rows * sizeof(float) : 0;
	layout.k_bytes = round_up(rows * geometry->head_dim * element_bytes(geometry) + scales);
	if (!geometry->v_in_k)
		layout.v_bytes = round_up(rows * geometry->head_dim_v * element_bytes(geometry) +
		                          scales);
	both = layout.k_bytes + layout.v_bytes;
	layout.page_bytes = both * geometry->layers;
	n = chunk_bytes / layout.page_bytes;
	if (!n)
		return fa_fail(error, -EINVAL,
		               "a page takes %" PRIu64 " bytes in all layers; expected at most "
		               "%" PRIu64 ", the chunk of this pool ([pool] chunk_bytes)",
		               layout.page_bytes, chunk_bytes);
	if (n > max_pages)
		n = max_pages;

	layout.pages_per_chunk = (uint32_t)n;
	layout.v_offset_bytes = geometry->v_in_k ? 0 : layout.k_bytes;
	layout.page_stride_bytes = both;
	layout.layer_stride_bytes = n * both;
	if (geometry->order == FA_CACHE_PAGE_MAJOR) {
		layout.page_stride_bytes = layout.page_bytes;
		layout.layer_stride_bytes = both;
	} else if (layout.k_bytes == layout.v_bytes) {
		layout.page_stride_bytes = layout.k_bytes;
		layout.v_offset_bytes = n * layout.k_bytes;
	}
	layout.page_slots = (uint32_t)(layout.page_stride_bytes / FA_SLOT_BYTES);
	layout.token_shift = (uint32_t)__builtin_ctz(geometry->page_tokens);
	layout.page_reciprocal = ((uint64_t)1 << 39) / layout.page_slots + 1;
	*ret_layout = layout;
	return 0;
}

static uint64_t span_offset(const struct fa_cache_layout *layout, uint64_t span)
{
	if (layout->page_stride_bytes == layout->page_bytes)
		return 0; /* page-major, or one layer */
	if (layout->v_bytes && layout->page_stride_bytes == layout->k_bytes)
		return span / 2 * layout->layer_stride_bytes + span % 2 * layout->v_offset_bytes;
	return span * layout->layer_stride_bytes;
}

uint64_t fa_cache_checkpoint_find(const struct fa_cache_layout *layout, const uint32_t *slots,
                                  uint32_t n_slots, uint64_t at, uint64_t bytes,
                                  uint64_t *ret_bytes)
{
	const uint64_t stride = layout->page_stride_bytes;
	const uint64_t place = at / stride % n_slots, in_span = at % stride;
	uint64_t i = place + 1, n = stride - in_span;

	/* The next page's span follows if the page does. */
	while (n < bytes && i < n_slots && slots[i] == slots[i - 1] + layout->page_slots) {
		n += stride;
		i++;
	}
	*ret_bytes = n < bytes ? n : bytes;
	return (uint64_t)slots[place] * FA_SLOT_BYTES + span_offset(layout, at / stride / n_slots) +
	       in_span;
}
