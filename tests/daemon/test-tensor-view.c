/*
 * Views and requests: what is refused, with which error. Accepted ones stay inside their buffers.
 */
#include "daemon/memory/tensor_view.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 65536

static char *const base = (char *)(uintptr_t)0x100000;

static struct fa_device_memory memory(bool writable)
{
	return (struct fa_device_memory){ .address = base, .bytes = BYTES, .writable = writable };
}

static struct fa_wire_view view_new(unsigned int dtype, unsigned int rank, const int64_t *shape)
{
	struct fa_wire_view view = { .buffer = 1, .dtype = (uint8_t)dtype, .rank = (uint8_t)rank };
	int64_t stride = 1;

	for (unsigned int i = rank; i-- > 0;) {
		view.shape[i] = shape[i];
		view.strides[i] = stride;
		stride *= shape[i];
	}
	return view;
}

#define VIEW(dtype, ...)                                                                           \
	view_new(dtype, sizeof((int64_t[]){ __VA_ARGS__ }) / 8, (int64_t[]){ __VA_ARGS__ })

static void expect(const struct fa_wire_view *view, bool output, int status, const char *part)
{
	struct fa_device_memory mapped = memory(true);
	struct fa_error error = {};
	int r = fa_tensor_view_check(view, "t", output, &mapped, &error);

	if (r != status || !strstr(error.text, part))
		fail_msg("%d and \"%s\"; expected %d and \"%s\"", r, error.text, status, part);
}

static void test_bounds(void **state)
{
	struct fa_wire_view view = VIEW(FA_WIRE_DTYPE_F32, 4, 16, 256);

	expect(&view, true, 0, "");
	view.offset = 4;
	expect(&view, false, -EINVAL, "ends at byte 65540, and buffer 1 has 65536 bytes");
	view.offset = BYTES;
	expect(&view, false, -EINVAL, "out of bounds");
	view.offset = UINT64_MAX - 3;
	expect(&view, false, -EINVAL, "overflows");
	view.offset = 0;
	view.shape[0] = 5;
	expect(&view, false, -EINVAL, "out of bounds");
	view.shape[0] = 4;
	view.strides[0] += 1;
	expect(&view, false, -EINVAL, "out of bounds");
	view.shape[2] = 253;
	expect(&view, false, 0, "");
	view.shape[2] = 254;
	expect(&view, false, -EINVAL, "out of bounds");
}

static void test_overflow(void **state)
{
	struct fa_wire_view view = VIEW(FA_WIRE_DTYPE_F16, 2, 2, 8);

	view.strides[0] = INT64_MAX;
	expect(&view, false, -EINVAL, "t");
	view.shape[0] = INT64_MAX;
	expect(&view, false, -EINVAL, "t.shape[0] 9223372036854775807");
	view.shape[0] = 3;
	view.strides[0] = INT64_MAX;
	view.strides[1] = INT64_MAX;
	expect(&view, false, -EINVAL, "overflows");
	/* the product of the sizes wraps around */
	view = VIEW(FA_WIRE_DTYPE_F32, 2, 2, 8);
	view.shape[0] = (1ll << 32) + 1;
	view.strides[0] = 1ll << 32;
	expect(&view, false, -EINVAL, "overflows");
	/* the end overflows in bytes, not in elements */
	view = VIEW(FA_WIRE_DTYPE_F32, 2, 1, 8);
	view.strides[0] = 1ll << 62;
	expect(&view, false, -EINVAL, "overflows");
	/* all dimensions of full size */
	view = VIEW(FA_WIRE_DTYPE_F32, 1, 1, 1, 1);
	for (int i = 0; i < 4; ++i) {
		view.shape[i] = INT64_MAX;
		view.strides[i] = i == 3 ? 1 : INT64_MAX;
	}
	expect(&view, false, -EINVAL, "overflows");
	view = VIEW(FA_WIRE_DTYPE_F32, 1, 2, 8);
	view.strides[0] = INT64_MAX;
	expect(&view, false, 0, "");
}

static void test_form(void **state)
{
	const struct fa_wire_view good = VIEW(FA_WIRE_DTYPE_BF16, 2, 4, 8);
	struct fa_device_memory read_only = memory(false);
	struct fa_error error = {};
	struct fa_wire_view view;

	expect(&good, true, 0, "");
	for (unsigned int dtype = 0; dtype < 256; ++dtype) {
		view = good;
		view.dtype = (uint8_t)dtype;
		if (dtype < 1 || dtype > 3)
			expect(&view, false, -ENOTSUP, "t.dtype");
		else
			expect(&view, false, 0, "");
	}
	view = good;
	view.rank = 0;
	expect(&view, false, -EINVAL, "t.rank is 0");
	view.rank = 5;
	expect(&view, false, -EINVAL, "t.rank is 5");
	view.rank = 255;
	expect(&view, false, -EINVAL, "t.rank is 255");
	view = good;
	view.offset = 1;
	expect(&view, false, -EINVAL, "t.offset 1 is misaligned; expected a multiple of 2");
	view = good;
	view.shape[1] = -1;
	expect(&view, false, -EINVAL, "t.shape[1] is -1");
	view.shape[1] = INT64_MIN;
	expect(&view, false, -EINVAL, "t.shape[1]");
	view = good;
	view.strides[0] = -32;
	expect(&view, false, -EINVAL, "t.strides[0] is -32");
	view = good;
	view.strides[2] = 2;
	expect(&view, false, -EINVAL, "t.strides[2] is 2; expected 1");
	view.strides[2] = 0;
	expect(&view, false, -EINVAL, "t.strides[2] is 0; expected 1");
	view = good;
	view.reserved = 1;
	expect(&view, false, -EINVAL, "t.reserved is 1");
	assert_int_equal(fa_tensor_view_check(&good, "t", false, &read_only, &error), 0);
	assert_int_equal(fa_tensor_view_check(&good, "t", true, &read_only, &error), -EINVAL);
	assert_non_null(strstr(error.text, "read-only"));
}

static void test_empty(void **state)
{
	struct fa_wire_view view = VIEW(FA_WIRE_DTYPE_F32, 2, 4, 8);

	view.shape[1] = 0;
	view.offset = BYTES;
	expect(&view, true, 0, "");
	view.offset = BYTES + 4;
	expect(&view, true, -EINVAL, "t.offset");
}

static void test_distinct(void **state)
{
	struct fa_wire_view view = VIEW(FA_WIRE_DTYPE_F32, 2, 4, 8);

	view.strides[0] = 0;
	expect(&view, false, 0, "");
	expect(&view, true, -EINVAL, "t.strides[0] is 0, so that elements overlap");
	view.shape[0] = 1;
	expect(&view, true, 0, "");
	view = VIEW(FA_WIRE_DTYPE_F32, 2, 4, 8);
	view.strides[1] = 7;
	expect(&view, false, 0, "");
	expect(&view, true, -EINVAL, "t.strides[1] is 7");
	view.strides[1] = 8;
	view.strides[0] = 31;
	expect(&view, true, -EINVAL, "t.strides[0] is 31");
	/* any order of dimensions, and gaps */
	view.strides[0] = 8;
	view.strides[1] = 16;
	expect(&view, true, 0, "");
	view.strides[1] = 1000;
	view.strides[0] = 100;
	expect(&view, true, 0, "");
}

/* All corners of accepted views are inside their buffer. */
static void test_random(void **state)
{
	unsigned int passed = 0;

	srand(1);
	for (int round = 0; round < 200000; ++round) {
		struct fa_device_memory mapped = memory(true);
		struct fa_wire_view view = { .buffer = 1 };
		bool empty = false;
		__int128 end;

		view.dtype = (uint8_t)(rand() % 4);
		view.rank = (uint8_t)(rand() % 5);
		view.offset = (uint64_t)(rand() % 20) << (rand() % 63);
		for (int i = 0; i < 4; ++i) {
			view.shape[i] = (int64_t)((uint64_t)(rand() % 4)
			                          << (rand() % 8 ? rand() % 6 : rand() % 63));
			view.strides[i] = (int64_t)((uint64_t)(rand() % 4)
			                            << (rand() % 8 ? rand() % 8 : rand() % 63));
			if (i + 1 == view.rank && rand() % 8)
				view.strides[i] = 1;
		}
		if (fa_tensor_view_check(&view, "t", rand() % 2, &mapped, NULL) < 0)
			continue;
		++passed;
		end = 1;
		for (int i = 0; i < view.rank; ++i) {
			empty = empty || !view.shape[i];
			end += (__int128)(view.shape[i] - 1) * view.strides[i];
		}
		end = end * fa_tensor_view_dtype_bytes(view.dtype) + (__int128)view.offset;
		if (empty)
			end = (__int128)view.offset;
		assert_true(end <= BYTES);
	}
	assert_true(passed > 1000);
}

static const struct fa_device_memory mapped = { .address = (void *)(uintptr_t)0x100000,
	                                        .bytes = BYTES,
	                                        .writable = true };
static const struct fa_device_memory *const memories[_FA_VIEW_N] = { &mapped, &mapped, &mapped,
	                                                             &mapped, &mapped };

static struct fa_wire_attention batch_form(void)
{
	struct fa_wire_attention attention = {
		.q = VIEW(FA_WIRE_DTYPE_F16, 2, 5, 4, 16),
		.k = VIEW(FA_WIRE_DTYPE_F16, 2, 7, 2, 16),
		.v = VIEW(FA_WIRE_DTYPE_F16, 2, 7, 2, 24),
		.out = VIEW(FA_WIRE_DTYPE_F16, 2, 5, 4, 24),
		.lse = VIEW(FA_WIRE_DTYPE_F32, 2, 4, 5),
		.window_left = -1,
		.window_right = -1,
	};

	attention.q.offset = 1024;
	attention.out.offset = 4096;
	return attention;
}

static const uint32_t cu_q[] = { 0, 2, 2, 5 }, cu_k[] = { 0, 0, 4, 7 };

static struct fa_wire_attention ragged_form(void)
{
	struct fa_wire_attention attention = {
		.q = VIEW(FA_WIRE_DTYPE_F32, 5, 4, 16),
		.k = VIEW(FA_WIRE_DTYPE_F32, 7, 2, 16),
		.v = VIEW(FA_WIRE_DTYPE_F32, 7, 2, 24),
		.out = VIEW(FA_WIRE_DTYPE_F32, 5, 4, 24),
		.lse = VIEW(FA_WIRE_DTYPE_F32, 4, 5),
		.window_left = -1,
		.window_right = -1,
		.cu_seqlens_q = cu_q,
		.cu_seqlens_k = cu_k,
		.n_cu_seqlens_q = 4,
		.n_cu_seqlens_k = 4,
	};

	return attention;
}

static void refuse(const struct fa_wire_attention *attention, int status, const char *part)
{
	struct fa_attention_params params = { .batch = 77 };
	struct fa_error error = {};
	int r = fa_attention_bind(attention, memories, &params, &error);

	if (r != status || !strstr(error.text, part))
		fail_msg("%d and \"%s\"; expected %d and \"%s\"", r, error.text, status, part);
	assert_int_equal(params.batch, 77);
}

static struct fa_attention_params accept(const struct fa_wire_attention *attention)
{
	struct fa_attention_params params;
	struct fa_error error = {};

	if (fa_attention_bind(attention, memories, &params, &error) < 0)
		fail_msg("%s", error.text);
	return params;
}

static void test_batch(void **state)
{
	struct fa_wire_attention attention = batch_form();
	struct fa_attention_params params;

	attention.flags = FA_WIRE_ATTENTION_CAUSAL;
	attention.softcap = 30.0f;
	attention.window_left = 3;
	params = accept(&attention);
	assert_int_equal(params.dtype, FA_ATTENTION_F16);
	assert_int_equal(params.batch, 2);
	assert_int_equal(params.heads, 4);
	assert_int_equal(params.kv_heads, 2);
	assert_int_equal(params.head_dim, 16);
	assert_int_equal(params.head_dim_v, 24);
	assert_int_equal(params.seqlen_q, 5);
	assert_int_equal(params.seqlen_k, 7);
	assert_null(params.cu_seqlens_q);
	assert_null(params.cu_seqlens_k);
	assert_ptr_equal(params.q.data, base + 1024);
	assert_int_equal(params.q.stride_batch, 5 * 4 * 16);
	assert_int_equal(params.q.stride_token, 4 * 16);
	assert_int_equal(params.q.stride_head, 16);
	assert_ptr_equal(params.out.data, base + 4096);
	assert_int_equal(params.out.stride_token, 4 * 24);
	assert_ptr_equal(params.lse, base);
	assert_int_equal(params.lse_stride_batch, 20);
	assert_int_equal(params.lse_stride_head, 5);
	assert_int_equal(params.lse_stride_token, 1);
	assert_true(params.causal);
	assert_true(params.scale == 0.25f);
	assert_true(params.softcap == 30.0f);
	assert_int_equal(params.window_left, 3);
	assert_int_equal(params.window_right, -1);
	assert_null(params.alibi_slopes);
	assert_null(params.sinks);

	attention.lse = (struct fa_wire_view){};
	attention.scale = 0.5f;
	params = accept(&attention);
	assert_null(params.lse);
	assert_true(params.scale == 0.5f);
}

static void test_ragged(void **state)
{
	struct fa_wire_attention attention = ragged_form();
	struct fa_attention_params params = accept(&attention);

	assert_int_equal(params.batch, 3);
	assert_int_equal(params.seqlen_q, 3);
	assert_int_equal(params.seqlen_k, 4);
	assert_ptr_equal(params.cu_seqlens_q, cu_q);
	assert_ptr_equal(params.cu_seqlens_k, cu_k);
	assert_int_equal(params.q.stride_batch, 0);
	assert_int_equal(params.q.stride_token, 64);
	assert_int_equal(params.k.stride_head, 16);
	assert_int_equal(params.lse_stride_batch, 0);
	assert_int_equal(params.lse_stride_head, 5);
	assert_int_equal(params.lse_stride_token, 1);
}

static void test_shapes(void **state)
{
	struct fa_wire_attention attention;

#define WRONG(view, i, number, part)                                                               \
	do {                                                                                       \
		attention = batch_form();                                                          \
		attention.view.shape[i] = (number);                                                \
		refuse(&attention, -EINVAL, part);                                                 \
	} while (0)
	WRONG(k, 0, 1, "k.shape[0] is 1; expected 2, the batch of q");
	WRONG(v, 0, 1, "v.shape[0] is 1; expected 2");
	WRONG(out, 0, 1, "out.shape[0] is 1; expected 2");
	WRONG(v, 1, 6, "v.shape[1] is 6; expected 7, the tokens of k");
	WRONG(out, 1, 4, "out.shape[1] is 4; expected 5, the tokens of q");
	WRONG(out, 2, 2, "out.shape[2] is 2; expected 4, the heads of q");
	WRONG(v, 2, 1, "v.shape[2] is 1; expected 2, the heads of k");
	WRONG(k, 3, 8, "k.shape[3] is 8; expected 16, the head dim of q");
	WRONG(out, 3, 16, "out.shape[3] is 16; expected 24, the head dim of v");
	WRONG(lse, 0, 1, "lse.shape[0] is 1; expected 2");
	WRONG(lse, 1, 3, "lse.shape[1] is 3; expected 4, the heads of q");
	WRONG(lse, 2, 4, "lse.shape[2] is 4; expected 5, the tokens of q");
#undef WRONG
	attention = batch_form();
	attention.q.shape[2] = attention.out.shape[2] = attention.lse.shape[1] = 3;
	refuse(&attention, -EINVAL, "expected a multiple of the heads of k, 2");
	attention.k.shape[2] = attention.v.shape[2] = 0;
	refuse(&attention, -EINVAL, "none of them 0");
	attention = batch_form();
	attention.q.shape[2] = attention.out.shape[2] = attention.lse.shape[1] = 0;
	refuse(&attention, -EINVAL, "none of them 0");

	attention = batch_form();
	attention.k.rank = 3;
	attention.k.strides[2] = 1;
	refuse(&attention, -EINVAL, "k.rank is 3; expected 4, [batch, tokens, heads, dim]");
	attention = batch_form();
	attention.lse.rank = 2;
	attention.lse.strides[1] = 1;
	refuse(&attention, -EINVAL, "lse.rank is 2; expected 3");
	attention = batch_form();
	attention.v.dtype = FA_WIRE_DTYPE_BF16;
	refuse(&attention, -ENOTSUP, "v.dtype is bf16 and q.dtype is fp16");
	attention = batch_form();
	attention.lse.dtype = FA_WIRE_DTYPE_F16;
	refuse(&attention, -ENOTSUP, "lse.dtype is fp16; expected fp32");
	attention = batch_form();
	attention.out.strides[0] = 0;
	refuse(&attention, -EINVAL, "out.strides[0] is 0");
	attention = batch_form();
	attention.lse.strides[1] = 0;
	refuse(&attention, -EINVAL, "lse.strides[1] is 0");
}

static void test_too_much(void **state)
{
	struct fa_wire_attention attention = batch_form();

	/* broadcast inputs may claim any size */
	attention.k.shape[1] = attention.v.shape[1] = (1 << 24) + 1;
	attention.k.strides[1] = attention.v.strides[1] = 0;
	refuse(&attention, -ENOTSUP, "k.shape[1], the tokens, is 16777217; at most 16777216");
	attention.k.shape[1] = attention.v.shape[1] = INT64_MAX;
	refuse(&attention, -ENOTSUP, "k.shape[1]");

	attention = batch_form();
	attention.q.shape[3] = attention.k.shape[3] = 577;
	attention.q.strides[2] = attention.k.strides[2] = 584;
	attention.q.strides[1] = attention.k.strides[1] = 584;
	attention.q.strides[0] = attention.k.strides[0] = 584;
	refuse(&attention, -ENOTSUP, "the head dim, is 577; at most 576");

	attention = batch_form();
	attention.q.shape[0] = attention.k.shape[0] = attention.v.shape[0] = 1ll << 33;
	attention.q.strides[0] = attention.k.strides[0] = attention.v.strides[0] = 0;
	attention.out.shape[1] = attention.q.shape[1] = 0;
	attention.out.shape[0] = 1ll << 33;
	refuse(&attention, -ENOTSUP, "q.shape[0], the batch");

	attention = batch_form();
	attention.q.shape[2] = 1ll << 32;
	attention.q.strides[2] = 0;
	refuse(&attention, -ENOTSUP, "q.shape[2], the heads");
}

static void test_lengths(void **state)
{
	struct fa_wire_attention attention = ragged_form();
	uint32_t cu[4];

#define WRONG(part, ...)                                                                           \
	do {                                                                                       \
		memcpy(cu, (uint32_t[4]){ __VA_ARGS__ }, sizeof(cu));                              \
		attention.cu_seqlens_k = cu;                                                       \
		refuse(&attention, -EINVAL, part);                                                 \
	} while (0)
	WRONG("cu_seqlens_k[0] is 1; expected 0", 1, 2, 3, 7);
	WRONG("cu_seqlens_k[2] is 2; expected at least 3", 0, 3, 2, 7);
	WRONG("cu_seqlens_k[3], the last, is 6; expected 7, the tokens of k", 0, 1, 2, 6);
	WRONG("cu_seqlens_k[3], the last, is 8; expected 7", 0, 1, 2, 8);
	WRONG("the last, is 4294967295", 0, 1, 2, UINT32_MAX);
#undef WRONG
	attention = ragged_form();
	attention.n_cu_seqlens_k = 3;
	refuse(&attention, -EINVAL, "cu_seqlens_q has 4 entries and cu_seqlens_k has 3");
	attention.n_cu_seqlens_k = 0;
	attention.cu_seqlens_k = NULL;
	refuse(&attention, -EINVAL, "cu_seqlens_k has 0");
	attention = ragged_form();
	attention.n_cu_seqlens_q = attention.n_cu_seqlens_k = 1;
	refuse(&attention, -EINVAL, "cu_seqlens_q has 1 entries; expected 2 to 4097");
	attention.n_cu_seqlens_q = attention.n_cu_seqlens_k = 4098;
	refuse(&attention, -EINVAL, "expected 2 to 4097");
	attention = ragged_form();
	attention.q = VIEW(FA_WIRE_DTYPE_F32, 1, 5, 4, 16);
	refuse(&attention, -EINVAL, "q.rank is 4; expected 3, [tokens, heads, dim]");
}

static void test_numbers(void **state)
{
	static const float slopes[4] = { 1, 2, 3, 4 };
	struct fa_wire_attention attention;
	struct fa_attention_params params;

	attention = batch_form();
	attention.flags = 1u << 7;
	refuse(&attention, -ENOTSUP, "flags 0x80 are not supported");
	attention = batch_form();
	attention.scale = NAN;
	refuse(&attention, -EINVAL, "scale is nan");
	attention.scale = 1;
	attention.softcap = -1;
	refuse(&attention, -EINVAL, "softcap is -1");
	attention.softcap = INFINITY;
	refuse(&attention, -EINVAL, "softcap is inf");
	attention = batch_form();
	attention.window_left = -2;
	refuse(&attention, -EINVAL, "window_left is -2; expected at least -1");
	attention.window_left = INT64_MIN;
	refuse(&attention, -EINVAL, "window_left");
	attention.window_left = -1;
	attention.window_right = INT64_MAX;
	params = accept(&attention);
	assert_int_equal(params.window_right, -1);

	attention = batch_form();
	attention.alibi_slopes = attention.sinks = slopes;
	attention.n_alibi_slopes = 3;
	refuse(&attention, -EINVAL, "alibi_slopes has 3 entries; expected 4, one a head of q");
	attention.n_alibi_slopes = 4;
	attention.n_sinks = 5;
	refuse(&attention, -EINVAL, "sinks has 5 entries; expected 4");
	attention.n_sinks = 4;
	params = accept(&attention);
	assert_ptr_equal(params.alibi_slopes, slopes);
	assert_ptr_equal(params.sinks, slopes);
}

static void test_no_tokens(void **state)
{
	struct fa_wire_attention attention = batch_form();
	struct fa_attention_params params;

	attention.k.shape[1] = attention.v.shape[1] = 0;
	attention.k.strides[0] = attention.k.strides[1] = INT64_MAX;
	attention.k.offset = attention.v.offset = BYTES;
	params = accept(&attention);
	assert_int_equal(params.seqlen_k, 0);
	/* unused strides cannot overflow in a kernel */
	assert_int_equal(params.k.stride_batch, 0);
	assert_int_equal(params.k.stride_token, 0);

	attention = batch_form();
	attention.q.shape[1] = attention.out.shape[1] = attention.lse.shape[2] = 0;
	params = accept(&attention);
	assert_int_equal(params.seqlen_q, 0);

	attention = batch_form();
	attention.q.shape[0] = attention.k.shape[0] = attention.v.shape[0] =
		attention.out.shape[0] = attention.lse.shape[0] = 1;
	attention.q.strides[0] = INT64_MAX;
	params = accept(&attention);
	assert_int_equal(params.q.stride_batch, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounds),    cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_form),      cmocka_unit_test(test_empty),
		cmocka_unit_test(test_distinct),  cmocka_unit_test(test_random),
		cmocka_unit_test(test_batch),     cmocka_unit_test(test_ragged),
		cmocka_unit_test(test_shapes),    cmocka_unit_test(test_too_much),
		cmocka_unit_test(test_lengths),   cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_no_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
