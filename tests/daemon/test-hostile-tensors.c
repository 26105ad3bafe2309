/*
 * Attention requests with wrong tensors or lengths: each ends with a Completion that names the
 * fault, and touches no memory.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define BUFFER 3
#define READ_ONLY_BUFFER 4

static struct fa_scene scene;
static struct fa_raw raw;
static struct fa_raw_buffer buffer, read_only;
static struct fa_case batch, ragged, masked;
static uint64_t value;

static int setup(void **state)
{
	fa_scene_start(&scene, NULL);
	batch = (struct fa_case){
		.batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 32, .lse = true
	};
	fa_case_plan(&batch);
	ragged = batch;
	ragged.ragged = true;
	ragged.batch = 3;
	ragged.seqlen_q = 12;
	ragged.seqlen_k = 15;
	fa_case_plan(&ragged);
	masked = (struct fa_case){ .dtype = FA_WIRE_DTYPE_BF16,
		                   .batch = 2,
		                   .heads = 4,
		                   .kv_heads = 2,
		                   .head_dim = 32,
		                   .seqlen_q = 70,
		                   .seqlen_k = 150,
		                   .block_rows = 64,
		                   .block_keys = 64,
		                   .bits = true,
		                   .mask_heads = true };
	fa_case_plan(&masked);
	return 0;
}

static int teardown(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static int open_client(void **state)
{
	value = 0;
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &buffer, BUFFER,
	                       masked.bytes > batch.bytes ? masked.bytes : batch.bytes, 0);
	fa_raw_buffer_register(&raw, &read_only, READ_ONLY_BUFFER, batch.bytes,
	                       FA_WIRE_BUFFER_READ_ONLY);
	return 0;
}

static int close_client(void **state)
{
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_buffer_free(&raw, &read_only);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
	return 0;
}

static void check_good(struct fa_case *attention)
{
	struct fa_wire_message message;

	fa_case_fill(attention, buffer.data);
	message = fa_case_message(attention, BUFFER, 0, 0, ++value);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	fa_check(fa_case_error(attention, buffer.data) <= 1);
}

struct expected {
	int status;
	const char *part, *second;
};

/* Spoils @a in the @n-th way; false: there are no more. */
typedef bool spoil_fn(int n, struct fa_wire_attention *a, struct expected *ret);

#define CASE(wrong, code, ...)                                                                     \
	case __COUNTER__ - FIRST - 1:                                                              \
		wrong;                                                                             \
		*ret = (struct expected){ code, __VA_ARGS__ };                                     \
		return true

static void check_each(spoil_fn *spoil, struct fa_case *attention)
{
	struct fa_wire_message message;
	struct expected expected;
	int n;

	check_good(attention);
	for (n = 0;; ++n) {
		struct fa_raw_completion completion;

		fa_case_fill(attention, buffer.data);
		message = fa_case_message(attention, BUFFER, 0, 0, ++value);
		if (!spoil(n, &message.attention, &expected))
			break;
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_wait(&raw, 0, value, &completion);
		if (completion.status != expected.status ||
		    !strstr(completion.text, expected.part) ||
		    (expected.second && !strstr(completion.text, expected.second)))
			fa_test_fail(__FILE__, __LINE__,
			             "case %d: status %d, \"%s\"; expected %d, \"%s\", \"%s\"", n,
			             completion.status, completion.text, expected.status,
			             expected.part, expected.second ? expected.second : "");
		fa_check_eq(raw.page[0].failed, value);
		fa_check_eq(completion.id, message.id);
		if (!fa_case_untouched(attention, buffer.data))
			fa_test_fail(__FILE__, __LINE__, "case %d was computed", n);
	}
	value--;
	fa_check(n >= 5);
	check_good(attention);
}

enum {
	FIRST_BOUNDS = __COUNTER__
};
#define FIRST FIRST_BOUNDS
static bool spoil_bounds(int n, struct fa_wire_attention *a, struct expected *ret)
{
	uint64_t bytes = buffer.bytes;

	switch (n) {
		/* outside the buffer, by a little and by a lot */
		CASE(a->q.offset = bytes, -EINVAL, "q", "buffer");
		CASE(a->q.offset = bytes - 4, -EINVAL, "q", "buffer");
		CASE(a->k.offset = bytes - 4 * 2 * 16 * 2 * 32 + 4, -EINVAL, "k", "buffer");
		CASE(a->v.offset = UINT64_MAX - 3, -EINVAL, "v");
		CASE(a->out.offset = 1ull << 63, -EINVAL, "out");
		CASE(a->lse.offset = bytes - 4, -EINVAL, "lse", "buffer");
		CASE(a->lse.offset = UINT64_MAX & ~3ull, -EINVAL, "lse");
		CASE((a->k.shape[1] = 1 << 20, a->v.shape[1] = 1 << 20), -EINVAL, "k");
		CASE((a->q.shape[0] = a->k.shape[0] = a->v.shape[0] = a->out.shape[0] = 2000000000),
		     -EINVAL, "q");
		CASE(a->v.strides[0] = 1 << 20, -EINVAL, "v", "buffer");
		CASE(a->q.strides[1] = 1 << 24, -EINVAL, "q", "buffer");
		CASE(a->out.strides[2] = 1 << 24, -EINVAL, "out", "buffer");
		CASE(a->lse.strides[0] = 1 << 24, -EINVAL, "lse", "buffer");
		/* products and sums beyond 64 bits */
		CASE(a->q.strides[0] = INT64_MAX, -EINVAL, "q");
		CASE(a->q.strides[1] = INT64_MAX / 15, -EINVAL, "q");
		CASE(a->k.strides[1] = 1ll << 62, -EINVAL, "k");
		CASE(a->k.strides[1] = (1ll << 62) / 15 * 4, -EINVAL, "k");
		CASE(a->v.strides[2] = (1ll << 61) + 1, -EINVAL, "v");
		CASE(a->out.strides[0] = 1ll << 60, -EINVAL, "out");
		CASE((a->k.shape[1] = INT64_MAX, a->v.shape[1] = INT64_MAX), -EINVAL, "k");
		CASE((a->q.shape[1] = 1ll << 61, a->out.shape[1] = 1ll << 61), -EINVAL, "q");
		CASE((a->k.shape[1] = 1ll << 32, a->k.strides[1] = 1ll << 32,
		      a->v.shape[1] = 1ll << 32),
		     -EINVAL, "k");
		CASE((a->q.shape[2] = a->out.shape[2] = INT64_MAX), -EINVAL, "q");
		CASE(a->lse.strides[1] = INT64_MAX, -EINVAL, "lse");
		CASE(a->q.shape[0] = -1, -EINVAL, "q", "-1");
		CASE(a->q.shape[1] = INT64_MIN, -EINVAL, "q");
		CASE(a->k.shape[1] = -16, -EINVAL, "k", "-16");
		CASE(a->v.shape[2] = -2, -EINVAL, "v", "-2");
		CASE(a->out.shape[3] = -32, -EINVAL, "out", "-32");
		CASE(a->lse.shape[1] = -4, -EINVAL, "lse", "-4");
		CASE(a->q.strides[0] = -64, -EINVAL, "q", "-64");
		CASE(a->k.strides[1] = -1, -EINVAL, "k", "-1");
		CASE(a->v.strides[2] = INT64_MIN, -EINVAL, "v");
		CASE(a->out.strides[1] = -128, -EINVAL, "out", "-128");
		CASE(a->lse.strides[0] = -16, -EINVAL, "lse", "-16");
		CASE(a->q.offset += 1, -EINVAL, "q", "align");
		CASE(a->k.offset += 2, -EINVAL, "k", "align");
		CASE(a->v.offset += 3, -EINVAL, "v", "align");
		CASE(a->out.offset += 1, -EINVAL, "out", "align");
		CASE(a->lse.offset += 2, -EINVAL, "lse", "align");
		CASE(a->q.strides[3] = 2, -EINVAL, "q", "stride");
		CASE(a->k.strides[3] = 0, -EINVAL, "k", "stride");
		CASE(a->v.strides[3] = -1, -EINVAL, "v", "stride");
		CASE(a->out.strides[3] = 32, -EINVAL, "out", "stride");
		CASE(a->out.strides[0] = 0, -EINVAL, "out", "overlap");
		CASE(a->out.strides[1] = 0, -EINVAL, "out", "overlap");
		CASE(a->out.strides[2] = 0, -EINVAL, "out", "overlap");
		CASE(a->out.strides[2] = 8, -EINVAL, "out", "overlap");
		CASE(a->out.strides[1] = 32, -EINVAL, "out", "overlap");
		CASE(a->lse.strides[1] = 0, -EINVAL, "lse", "overlap");
		CASE(a->lse.strides[2] = 0, -EINVAL, "lse");
	default:
		return false;
	}
}
#undef FIRST

enum {
	FIRST_SHAPES = __COUNTER__
};
#define FIRST FIRST_SHAPES
static bool spoil_shapes(int n, struct fa_wire_attention *a, struct expected *ret)
{
	static const float slopes[8];
	static const float endless[4] = { -INFINITY, 0, 0, INFINITY };

	switch (n) {
		CASE(a->q.buffer = 99, -ENOENT, "q.buffer", "99");
		CASE(a->k.buffer = 0, -ENOENT, "k.buffer", "0");
		CASE(a->v.buffer = UINT32_MAX, -ENOENT, "v.buffer", "4294967295");
		CASE(a->out.buffer = 1, -ENOENT, "out.buffer", "1");
		CASE(a->lse.buffer = 2, -ENOENT, "lse.buffer", "2");
		CASE(a->out.buffer = READ_ONLY_BUFFER, -EINVAL, "out", "read-only");
		CASE(a->lse.buffer = READ_ONLY_BUFFER, -EINVAL, "lse", "read-only");
		CASE(a->q.rank = 0, -EINVAL, "q", "rank");
		CASE((a->k.rank = 3, a->k.strides[2] = 1), -EINVAL, "k.rank", "3");
		CASE(a->v.rank = 5, -EINVAL, "v", "rank");
		CASE(a->out.rank = 255, -EINVAL, "out", "rank");
		CASE((a->lse.rank = 2, a->lse.strides[1] = 1), -EINVAL, "lse.rank", "2");
		CASE((a->lse.rank = 4, a->lse.strides[2] = 16, a->lse.strides[3] = 1), -EINVAL,
		     "lse");
		CASE(memset(&a->k, 0, sizeof(a->k)), -ENOENT, "k.buffer", "0");
		CASE(a->q.dtype = 0, -ENOTSUP, "dtype", "0");
		CASE((a->q.dtype = a->k.dtype = a->v.dtype = a->out.dtype = 4), -ENOTSUP, "dtype",
		     "4");
		CASE((a->q.dtype = a->k.dtype = a->v.dtype = a->out.dtype = 255), -ENOTSUP, "dtype",
		     "255");
		CASE(a->k.dtype = FA_WIRE_DTYPE_F16, -ENOTSUP, "k", "dtype");
		CASE(a->v.dtype = FA_WIRE_DTYPE_BF16, -ENOTSUP, "v", "dtype");
		CASE(a->out.dtype = FA_WIRE_DTYPE_F16, -ENOTSUP, "out", "dtype");
		CASE(a->lse.dtype = FA_WIRE_DTYPE_F16, -ENOTSUP, "lse", "dtype");
		CASE((a->q.shape[3] = a->k.shape[3] = 12), -ENOTSUP, "dim", "12");
		CASE((a->q.shape[3] = a->k.shape[3] = 4), -ENOTSUP, "dim", "4");
		CASE((a->v.shape[3] = a->out.shape[3] = 20), -ENOTSUP, "dim", "20");
		CASE((a->q.shape[3] = a->k.shape[3] = 584,
		      a->q.shape[1] = a->k.shape[1] = a->v.shape[1] = a->out.shape[1] =
		              a->lse.shape[2] = 1),
		     -ENOTSUP, "dim", "584");
		CASE((a->q.shape[3] = a->k.shape[3] = 0), -EINVAL, "dim", "0");
		CASE(a->k.shape[3] = 24, -EINVAL, "k", "24");
		CASE(a->out.shape[3] = 24, -EINVAL, "out", "24");
		/* shapes that do not match */
		CASE(a->k.shape[0] = 1, -EINVAL, "k", "1");
		CASE(a->out.shape[0] = 1, -EINVAL, "out", "1");
		CASE(a->lse.shape[0] = 1, -EINVAL, "lse", "1");
		CASE(a->v.shape[1] = 15, -EINVAL, "v", "15");
		CASE(a->out.shape[1] = 15, -EINVAL, "out", "15");
		CASE(a->lse.shape[2] = 15, -EINVAL, "lse", "15");
		CASE(a->out.shape[2] = 2, -EINVAL, "out", "2");
		CASE(a->lse.shape[1] = 2, -EINVAL, "lse", "2");
		CASE(a->v.shape[2] = 1, -EINVAL, "v", "1");
		CASE((a->q.shape[2] = a->out.shape[2] = a->lse.shape[1] = 3), -EINVAL, "heads",
		     "3");
		CASE((a->q.shape[2] = a->out.shape[2] = a->lse.shape[1] = 0), -EINVAL, "q", "0");
		CASE((a->k.shape[2] = a->v.shape[2] = 0), -EINVAL, "k", "0");
		CASE((a->alibi_slopes = slopes, a->n_alibi_slopes = 3), -EINVAL, "alibi_slopes",
		     "3");
		CASE((a->alibi_slopes = slopes, a->n_alibi_slopes = 5), -EINVAL, "alibi_slopes",
		     "5");
		CASE((a->sinks = slopes, a->n_sinks = 1), -EINVAL, "sinks", "1");
		CASE((a->sinks = endless, a->n_sinks = 4), -EINVAL, "sinks[3]", "inf");
		CASE((a->alibi_slopes = endless, a->n_alibi_slopes = 4), -EINVAL, "alibi_slopes[0]",
		     "-inf");
		CASE((a->cu_seqlens_q = ragged.cu_seqlens_q, a->n_cu_seqlens_q = 4), -EINVAL,
		     "cu_seqlens");
		CASE((a->cu_seqlens_q = a->cu_seqlens_k = ragged.cu_seqlens_q,
		      a->n_cu_seqlens_q = a->n_cu_seqlens_k = 4),
		     -EINVAL, "rank");
		CASE(a->scale = NAN, -EINVAL, "scale");
		CASE(a->scale = INFINITY, -EINVAL, "scale");
		CASE(a->softcap = -1, -EINVAL, "softcap");
		CASE(a->softcap = NAN, -EINVAL, "softcap");
		CASE(a->window_left = -2, -EINVAL, "window_left", "-2");
		CASE(a->window_right = INT64_MIN, -EINVAL, "window_right");
		CASE(a->flags = 2, -ENOTSUP, "flags");
		CASE(a->flags = 0x80000001, -ENOTSUP, "flags");
		/* outputs in memory of other tensors */
		CASE(a->out.offset = a->q.offset, -EINVAL, "out overlaps q");
		CASE(a->out.offset = a->k.offset + 4, -EINVAL, "out overlaps k");
		CASE(a->lse.offset = a->v.offset, -EINVAL, "lse overlaps v");
		CASE(a->lse.offset = a->out.offset, -EINVAL, "out overlaps lse");
	default:
		return false;
	}
}
#undef FIRST

enum {
	FIRST_LENGTHS = __COUNTER__
};
#define FIRST FIRST_LENGTHS
static bool spoil_lengths(int n, struct fa_wire_attention *a, struct expected *ret)
{
	/* valid are { 0, 4, 12, 24 } and { 0, 5, 15, 30 } */
	static const uint32_t descending[] = { 0, 12, 4, 24 }, not_from_0[] = { 1, 4, 12, 24 },
			      too_long[] = { 0, 4, 12, 25 }, too_short[] = { 0, 4, 12, 23 },
			      huge[] = { 0, 4, UINT32_MAX, 24 },
			      all_huge[] = { 0, 1u << 31, UINT32_MAX, UINT32_MAX },
			      wrap[] = { 0, 4, 12, 0 }, k_descending[] = { 0, 15, 5, 30 },
			      zeros[] = { 0, 0, 0, 0 };

	switch (n) {
		CASE(a->cu_seqlens_q = descending, -EINVAL, "cu_seqlens_q");
		CASE(a->cu_seqlens_q = not_from_0, -EINVAL, "cu_seqlens_q");
		CASE(a->cu_seqlens_q = too_long, -EINVAL, "cu_seqlens_q", "25");
		CASE(a->cu_seqlens_q = too_short, -EINVAL, "cu_seqlens_q", "23");
		CASE(a->cu_seqlens_q = huge, -EINVAL, "cu_seqlens_q");
		CASE(a->cu_seqlens_q = all_huge, -EINVAL, "cu_seqlens_q");
		CASE(a->cu_seqlens_q = wrap, -EINVAL, "cu_seqlens_q");
		CASE(a->cu_seqlens_q = zeros, -EINVAL, "cu_seqlens_q");
		CASE(a->cu_seqlens_k = k_descending, -EINVAL, "cu_seqlens_k");
		CASE(a->cu_seqlens_k = descending, -EINVAL, "cu_seqlens_k");
		CASE(a->cu_seqlens_k = a->cu_seqlens_q, -EINVAL, "cu_seqlens_k", "24");
		CASE(a->n_cu_seqlens_q = 3, -EINVAL, "cu_seqlens");
		CASE(a->n_cu_seqlens_k = 3, -EINVAL, "cu_seqlens");
		CASE((a->n_cu_seqlens_q = a->n_cu_seqlens_k = 3), -EINVAL, "cu_seqlens_q", "12");
		CASE((a->n_cu_seqlens_q = a->n_cu_seqlens_k = 1), -EINVAL, "cu_seqlens_q");
		CASE((a->n_cu_seqlens_q = 0, a->cu_seqlens_q = NULL), -EINVAL, "cu_seqlens");
		CASE((a->n_cu_seqlens_k = 0, a->cu_seqlens_k = NULL), -EINVAL, "cu_seqlens");
		CASE((a->n_cu_seqlens_q = a->n_cu_seqlens_k = 0,
		      a->cu_seqlens_q = a->cu_seqlens_k = NULL),
		     -EINVAL, "rank");
		CASE((a->lse.rank = 3, a->lse.shape[2] = 1, a->lse.strides[2] = 1), -EINVAL, "lse");
		CASE(a->q.shape[0] = 23, -EINVAL, "23");
		CASE(a->k.shape[0] = 29, -EINVAL, "29");
	default:
		return false;
	}
}
#undef FIRST

enum {
	FIRST_MASKS = __COUNTER__
};
#define FIRST FIRST_MASKS
static bool spoil_masks(int n, struct fa_wire_attention *a, struct expected *ret)
{
	const struct fa_wire_view none = { 0 };

	switch (n) {
		CASE(a->block_rows = 0, -ENOTSUP, "block_rows is 0 and block_keys 64");
		CASE(a->block_rows = a->block_keys = 0, -EINVAL, "block_offsets came");
		CASE((a->block_rows = a->block_keys = 0, a->block_offsets = none), -EINVAL,
		     "block_columns came");
		CASE(a->block_keys = UINT32_MAX, -ENOTSUP, "block_keys 4294967295");
		CASE(a->block_offsets = none, -EINVAL, "block_offsets is absent");
		CASE(a->block_columns = none, -EINVAL, "block_columns is absent");
		CASE(a->block_offsets.buffer = 9, -ENOENT, "block_offsets.buffer", "9");
		CASE(a->mask.buffer = 9, -ENOENT, "mask.buffer", "9");
		CASE(a->block_offsets.offset = buffer.bytes, -EINVAL, "block_offsets",
		     "out of bounds");
		CASE(a->block_columns.shape[2] = INT64_MAX, -EINVAL, "block_columns");
		CASE((a->block_columns.shape[0] = 1, a->block_columns.shape[1] = 1,
		      a->block_columns.shape[2] = 1ll << 40),
		     -EINVAL, "block_columns", "out of bounds");
		CASE(a->block_columns.shape[0] = 3, -EINVAL, "block_columns.shape[0] is 3");
		CASE(a->block_offsets.shape[1] = 2, -EINVAL, "block_offsets.shape[1] is 2",
		     "1 or 4");
		CASE(a->block_offsets.shape[2] = 2, -EINVAL, "block_offsets.shape[2] is 2", "3");
		CASE(a->block_offsets.offset += 2, -EINVAL, "block_offsets", "align");
		CASE(a->block_offsets.strides[2] = 2, -EINVAL, "block_offsets.strides[2]");
		CASE(a->block_columns.strides[1] = -1, -EINVAL, "block_columns.strides[1] is -1");
		CASE((a->block_offsets.rank = 2, a->block_offsets.strides[1] = 1), -EINVAL,
		     "block_offsets.rank is 2");
		CASE(a->block_columns.dtype = FA_WIRE_DTYPE_I64, -ENOTSUP, "block_columns.dtype");
		CASE(a->mask.dtype = FA_WIRE_DTYPE_F32, -ENOTSUP, "mask.dtype");
		CASE((a->mask.rank = 3, a->mask.strides[2] = 1), -EINVAL, "mask.rank is 3");
		CASE(a->mask.shape[2] = 71, -EINVAL, "mask");
		CASE(a->mask.shape[1] = 0, -EINVAL, "mask.shape[1] is 0");
		CASE(a->mask.strides[1] = INT64_MAX, -EINVAL, "mask");
		CASE(a->mask.offset = a->out.offset, -EINVAL, "out overlaps mask");
		CASE(a->out.offset = a->block_columns.offset / 64 * 64, -EINVAL, "out overlaps");
		CASE(a->pattern_block_tokens = 17, -EINVAL, "pattern.block_tokens 17");
		CASE(a->pattern_block_tokens = UINT32_MAX - 15, -EINVAL, "pattern.block_tokens");
		CASE(a->pattern_block_tokens = 16, -EINVAL, "pattern.vert_stride 0");
		CASE((a->pattern_block_tokens = 16, a->pattern_vert_stride = 1,
		      a->pattern_first_head = UINT32_MAX),
		     -EINVAL, "pattern.first_head");
	default:
		return false;
	}
}
#undef FIRST

static void test_masks(void **state)
{
	check_each(spoil_masks, &masked);
}

static void test_bounds(void **state)
{
	check_each(spoil_bounds, &batch);
}

static void test_shapes(void **state)
{
	check_each(spoil_shapes, &batch);
}

static void test_lengths(void **state)
{
	check_each(spoil_lengths, &ragged);
}

/* A buffer's last element can be used, memory behind the registered range not. */
static void test_edges(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(8, 4096);
	struct fa_raw_buffer big;
	struct fa_case small = { .head_dim = 8, .seqlen_q = 4, .lse = true };

	fa_case_plan(&small);
	fa_case_fill(&small, buffer.data);
	message = fa_case_message(&small, BUFFER, 0, 0, ++value);
	message.attention.out.offset = buffer.bytes - 4 * 8 * 4;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	memcpy(buffer.data + small.offset_out, buffer.data + buffer.bytes - 4 * 8 * 4, 4 * 8 * 4);
	fa_check(fa_case_error(&small, buffer.data) <= 1);

	/* Of three pages the middle one is registered: offsets count from there. */
	fa_raw_buffer_make(&big, 8, 3 * 4096);
	memset(big.data, 0xee, big.bytes);
	message = fa_raw_register_message(8, 4096);
	message.buffer_register.offset = 4096;
	fa_raw_call(&raw, &message, &big.fd, 1);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	fa_case_fill(&small, big.data + 4096);
	message = fa_case_message(&small, 8, 0, 0, ++value);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	fa_check(fa_case_error(&small, big.data + 4096) <= 1);
	message = fa_case_message(&small, 8, 4096, 0, ++value);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, value, -EINVAL, "buffer");
	for (size_t i = 0; i < 4096; ++i) {
		fa_check_eq(big.data[i], 0xee);
		fa_check_eq(big.data[8192 + i], 0xee);
	}
	fa_raw_buffer_free(&raw, &big);
}

/* Inputs with stride 0 may have any number of tokens in little memory. */
static void test_broadcast_inputs(void **state)
{
	struct fa_case attention = { .heads = 2, .head_dim = 16, .seqlen_q = 3, .seqlen_k = 5 };
	struct fa_wire_message message;
	float *k, *v;

	fa_case_plan(&attention);
	fa_case_fill(&attention, buffer.data);
	k = (float *)(void *)(buffer.data + attention.offset_k);
	v = (float *)(void *)(buffer.data + attention.offset_v);
	for (int j = 1; j < 5; ++j) {
		memcpy(k + j * 32, k, 32 * sizeof(*k));
		memcpy(v + j * 32, v, 32 * sizeof(*v));
	}
	message = fa_case_message(&attention, BUFFER, 0, 0, ++value);
	message.attention.k.strides[1] = 0;
	message.attention.v.strides[1] = 0;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	fa_check(fa_case_error(&attention, buffer.data) <= 1);
}

#define test(function) cmocka_unit_test_setup_teardown(function, open_client, close_client)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(test_bounds), test(test_shapes),           test(test_lengths),
		test(test_edges),  test(test_broadcast_inputs), test(test_masks),
	};

	return cmocka_run_group_tests_name("hostile tensors", tests, setup, teardown);
}
