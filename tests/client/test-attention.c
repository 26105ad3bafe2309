/* Attention on a real daemon against the fp64 reference, and the texts of refusals. */
#include "client/faclient.h"
#include "tests/client/attention-request.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fa_test_daemon fad;
static struct fa_client *client;

static int setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fa_test_daemon_start(&fad, NULL);
	options.socket = fad.socket;
	options.connect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return 0;
}

static int teardown(void **state)
{
	fa_disconnect(client);
	fa_test_daemon_stop(&fad);
	return 0;
}

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

static void test_variants(void **state)
{
	static const struct fa_case variants[] = {
		{ .seqlen_q = 1 },
		{ .heads = 3, .seqlen_q = 70 },
		{ .heads = 4,
		  .kv_heads = 2,
		  .seqlen_q = 40,
		  .seqlen_k = 90,
		  .causal = true,
		  .lse = true },
		{ .heads = 4,
		  .kv_heads = 1,
		  .batch = 3,
		  .ragged = true,
		  .seqlen_q = 60,
		  .causal = true,
		  .lse = true },
		{ .batch = 2, .head_dim = 128, .head_dim_v = 72, .seqlen_q = 33, .scale = 0.3f },
		{ .seqlen_q = 50,
		  .windowed = true,
		  .window_left = 7,
		  .window_right = 0,
		  .lse = true },
		{ .heads = 2, .seqlen_q = 30, .softcap = 5, .causal = true },
		{ .heads = 2, .seqlen_q = 50, .seqlen_k = 70, .chunk_tokens = 16, .lse = true },
		{ .batch = 2,
		  .heads = 2,
		  .seqlen_q = 40,
		  .causal = true,
		  .prefixed = true,
		  .prefix_lengths = { 11, 4000000000 },
		  .lse = true },
		{ .batch = 3,
		  .ragged = true,
		  .seqlen_q = 60,
		  .seqlen_k = 90,
		  .causal = true,
		  .chunk_tokens = 32,
		  .prefixed = true,
		  .prefix_lengths = { 9, 0, 50 },
		  .windowed = true,
		  .window_left = 20,
		  .window_right = 6,
		  .lse = true },
		{ .heads = 2, .seqlen_q = 30, .alibi = true, .sinks = true, .lse = true },
		{ .batch = 2,
		  .ragged = true,
		  .heads = 2,
		  .seqlen_q = 20,
		  .seqlen_k = 45,
		  .sinks = true,
		  .alibi = true,
		  .causal = true,
		  .lse = true },
	};
	static const enum fa_wire_dtype dtypes[] = { FA_WIRE_DTYPE_F32, FA_WIRE_DTYPE_F16,
		                                     FA_WIRE_DTYPE_BF16 };

	for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); ++i)
		for (size_t k = 0; k < 3; ++k) {
			struct fa_case attention = variants[i];
			struct fa_attention request;
			struct fa_buffer *buffer;
			double error;

			attention.dtype = dtypes[k];
			attention.seed = i;
			fa_case_plan(&attention);
			check(fa_buffer_new(client, attention.bytes, k == 1 ? FA_BUFFER_DEVICE : 0,
			                    &buffer));
			fa_case_fill(&attention, fa_buffer_data(buffer));
			request = fa_case_attention(&attention, buffer);
			check(fa_attention(client, &request, NULL));
			error = fa_case_error(&attention, fa_buffer_data(buffer));
			if (!(error <= 1))
				fa_test_fail(__FILE__, __LINE__, "variant %zu, dtype %d: error %g",
				             i, dtypes[k], error);
			fa_buffer_free(buffer);
		}
}

/* Blocks, bits and patterns. CUDA has them for fp16 and bf16, and says so for fp32. */
static void test_masks(void **state)
{
	static const struct fa_case variants[] = {
		{ .seqlen_q = 200, .block_rows = 64, .block_keys = 64, .lse = true },
		{ .heads = 4,
		  .kv_heads = 2,
		  .batch = 2,
		  .seqlen_q = 150,
		  .seqlen_k = 300,
		  .block_rows = 128,
		  .block_keys = 64,
		  .mask_heads = true,
		  .causal = true,
		  .lse = true },
		{ .heads = 2, .seqlen_q = 1, .seqlen_k = 900, .block_rows = 64, .block_keys = 128 },
		{ .heads = 2, .seqlen_q = 70, .bits = true, .causal = true, .lse = true },
		{ .heads = 4,
		  .kv_heads = 1,
		  .batch = 3,
		  .ragged = true,
		  .seqlen_q = 90,
		  .seqlen_k = 200,
		  .bits = true,
		  .mask_heads = true,
		  .block_rows = 64,
		  .block_keys = 64,
		  .lse = true },
		{ .heads = 4,
		  .kv_heads = 2,
		  .seqlen_q = 130,
		  .seqlen_k = 400,
		  .causal = true,
		  .pattern_tokens = 32,
		  .pattern_local = 2,
		  .pattern_stride = 5,
		  .pattern_step = 1 },
		{ .heads = 4,
		  .kv_heads = 2,
		  .seqlen_q = 3,
		  .seqlen_k = 700,
		  .pattern_tokens = 64,
		  .pattern_local = 1,
		  .pattern_stride = 4,
		  .pattern_step = -2 },
	};
	struct fa_info info = { .size = sizeof(info) };

	check(fa_info(client, &info));
	for (size_t i = 0; i < sizeof(variants) / sizeof(*variants); ++i) {
		struct fa_case attention = variants[i];
		struct fa_attention request;
		struct fa_buffer *buffer;
		double error;
		int r;

		attention.dtype = i % 2 ? FA_WIRE_DTYPE_BF16 : FA_WIRE_DTYPE_F32;
		attention.seed = i;
		fa_case_plan(&attention);
		check(fa_buffer_new(client, attention.bytes, 0, &buffer));
		fa_case_fill(&attention, fa_buffer_data(buffer));
		request = fa_case_attention(&attention, buffer);
		r = fa_attention(client, &request, NULL);
		if (r == -ENOTSUP && strcmp(info.backend, "cuda") == 0 && i % 2 == 0) {
			fa_check_contains(fa_error(), attention.block_rows ? "block-sparse masks"
			                              : attention.pattern_tokens
			                                      ? "patterns of blocks"
			                                      : "bit masks");
			fa_buffer_free(buffer);
			continue;
		}
		check(r);
		error = fa_case_error(&attention, fa_buffer_data(buffer));
		if (!(error <= 1))
			fa_test_fail(__FILE__, __LINE__, "variant %zu: error %g", i, error);
		fa_buffer_free(buffer);
	}
}

/* The daemon refuses such masks, and names the field and what it expects. */
static void test_masks_refused(void **state)
{
	struct fa_case attention = { .heads = 2,
		                     .batch = 2,
		                     .seqlen_q = 200,
		                     .block_rows = 64,
		                     .block_keys = 64,
		                     .bits = true };
	struct fa_attention good, bad;
	struct fa_buffer *buffer;

	fa_case_plan(&attention);
	check(fa_buffer_new(client, attention.bytes, 0, &buffer));
	fa_case_fill(&attention, fa_buffer_data(buffer));
	good = fa_case_attention(&attention, buffer);
#define REFUSED(error, text, ...)                                                                  \
	do {                                                                                       \
		bad = good;                                                                        \
		__VA_ARGS__;                                                                       \
		fa_check_eq(fa_attention(client, &bad, NULL), error);                              \
		fa_check_contains(fa_error(), text);                                               \
	} while (0)
	REFUSED(-ENOTSUP, "block_rows is 32 and block_keys 64; expected 64 or 128",
	        bad.block_rows = 32);
	REFUSED(-EINVAL, "block_offsets is given, which has no effect",
	        bad.block_rows = bad.block_keys = 0);
	REFUSED(-EINVAL, "block_columns.buffer is NULL", bad.block_columns.buffer = NULL);
	REFUSED(-EINVAL, "block_offsets.dtype is 6; expected 5", bad.block_offsets.dtype = FA_I64);
	REFUSED(-EINVAL, "block_offsets.shape[2] is 5; expected 3, the row blocks of q and 1",
	        bad.block_rows = 128);
	REFUSED(-EINVAL, "block_columns.shape[0] is 3; expected 1 or 2, the batch of q",
	        bad.block_columns.shape[0] = 3;
	        bad.block_columns.strides[0] = 0);
	REFUSED(-EINVAL, "block_offsets.shape[1] is 4; expected 1 or 2, the heads of q",
	        bad.block_offsets.shape[1] = 4;
	        bad.block_offsets.strides[1] = 0);
	REFUSED(-EINVAL, "block_columns reaches beyond the end of its buffer",
	        bad.block_columns.shape[2] = 1 << 30);
	REFUSED(-EINVAL, "mask.shape[2] is 199; expected 200, the tokens of q",
	        bad.mask.shape[2] = 199);
	REFUSED(-EINVAL, "mask.dtype is 1; expected 5", bad.mask.dtype = FA_F32);
	REFUSED(-EINVAL, "out overlaps mask", bad.mask.offset = bad.out.offset);
	REFUSED(-EINVAL, "pattern.block_tokens is 24; expected a multiple of 16",
	        bad.pattern.block_tokens = 24);
	REFUSED(-EINVAL, "pattern.vert_stride is 0", bad.pattern.block_tokens = 16);
	REFUSED(-EINVAL, "pattern has numbers above 2147483647", bad.pattern.first_head = 1u << 31);
	REFUSED(-EINVAL, "pattern.reserved is not 0", bad.pattern.reserved = 1);
	REFUSED(-EINVAL, "pattern has numbers, which have no effect", bad.pattern.head_step = 1);
#undef REFUSED
	fa_buffer_free(buffer);
}

/* Codes with scales of tokens, heads and sequences give what their values give in fp32. */
static void test_e4m3(void **state)
{
	enum {
		BATCH = 2,
		ROWS = 5,
		KEYS = 70,
		HEADS = 4,
		KV_HEADS = 2,
		DIM = 16,
		OUT = 32 << 10,
		SCALES = 48 << 10,
		FLOATS = 64 << 10,
		BYTES = 256 << 10
	};
	const int64_t heads[] = { HEADS, KV_HEADS, KV_HEADS }, tokens[] = { ROWS, KEYS, KEYS };
	const int64_t scales[3][3] = { { BATCH, ROWS, HEADS },
		                       { BATCH, 1, KV_HEADS },
		                       { 1, KEYS, 1 } };
	const int64_t out[] = { BATCH, ROWS, HEADS, DIM };
	struct fa_attention request = { .size = sizeof(request), .flags = FA_ATTENTION_CAUSAL };
	struct fa_attention plain = { .size = sizeof(plain), .flags = FA_ATTENTION_CAUSAL }, bad;
	struct fa_tensor *codes[] = { &request.q, &request.k, &request.v };
	struct fa_tensor *numbers[] = { &plain.q, &plain.k, &plain.v };
	struct fa_tensor *factors[] = { &request.q_scales, &request.k_scales, &request.v_scales };
	struct fa_buffer *buffer;
	unsigned char *data;
	uint64_t at = 0, at_scale = SCALES, at_float = FLOATS;
	uint32_t random = 1;
	int r;

	check(fa_buffer_new(client, BYTES, 0, &buffer));
	data = fa_buffer_data(buffer);
	for (int t = 0; t < 3; ++t) {
		const int64_t shape[] = { BATCH, tokens[t], heads[t], DIM };
		float *scale = (float *)(data + at_scale), *to = (float *)(data + at_float);
		int64_t n = 0;

		fa_tensor_init(codes[t], buffer, at, FA_E4M3, 4, shape);
		fa_tensor_init(factors[t], buffer, at_scale, FA_F32, 3, scales[t]);
		fa_tensor_init(numbers[t], buffer, at_float, FA_F32, 4, shape);
		for (int64_t i = 0; i < scales[t][0] * scales[t][1] * scales[t][2]; ++i)
			scale[i] = (float)(i % 7 + 1) / 4;
		for (int64_t b = 0; b < BATCH; ++b)
			for (int64_t i = 0; i < tokens[t]; ++i)
				for (int64_t h = 0; h < heads[t] * DIM; ++h, ++n) {
					const int64_t *s = scales[t];
					const int64_t in = ((b % s[0]) * s[1] + i % s[1]) * s[2] +
					                   h / DIM % s[2];
					unsigned char code;

					random = random * 1664525u + 1013904223u;
					code = (unsigned char)(random >> 24 & 0xbf);
					data[at + (uint64_t)n] = code;
					to[n] = (float)ldexp(code >> 3 & 15 ? 8 + (code & 7)
					                                    : code & 7,
					                     code >> 3 & 15 ? (code >> 3 & 15) - 10
					                                    : -9) *
					        (code & 0x80 ? -1.0f : 1.0f) * scale[in];
				}
		at += (uint64_t)n;
		at_float += (uint64_t)n * sizeof(float);
		at_scale += 4096;
	}
	fa_tensor_init(&request.out, buffer, OUT, FA_F32, 4, out);
	fa_tensor_init(&plain.out, buffer, at_float, FA_F32, 4, out);
	r = fa_attention(client, &request, NULL);
	if (r == -ENOTSUP) {
		fa_check_contains(fa_error(), "e4m3 are not supported by Vulkan kernels");
		fa_buffer_free(buffer);
		return;
	}
	check(r);
	check(fa_attention(client, &plain, NULL));
	for (int i = 0; i < BATCH * ROWS * HEADS * DIM; ++i) {
		float got = ((float *)(data + OUT))[i], expected = ((float *)(data + at_float))[i];

		assert_true(fabsf(expected) > 0 && fabsf(got - expected) < 1e-4f);
	}

#define REFUSED(error, text, ...)                                                                  \
	do {                                                                                       \
		bad = request;                                                                     \
		__VA_ARGS__;                                                                       \
		fa_check_eq(fa_attention(client, &bad, NULL), error);                              \
		fa_check_contains(fa_error(), text);                                               \
	} while (0)
	REFUSED(-EINVAL, "k.dtype is 1; expected 4", bad.k = plain.k);
	REFUSED(-EINVAL, "k.dtype is 4; expected FA_F32", bad.q = plain.q;
	        bad.q_scales.buffer = NULL);
	REFUSED(-EINVAL, "k_scales is given, which has no effect", bad = plain;
	        bad.k_scales = request.k_scales);
	REFUSED(-EINVAL, "v_scales.dtype is 2; expected 1", bad.v_scales.dtype = FA_F16);
	REFUSED(-EINVAL, "q_scales.shape[2] is 2; expected 1 or 4, the heads of q",
	        bad.q_scales.shape[2] = 2);
	REFUSED(-EINVAL, "v_scales reaches beyond the end of its buffer",
	        bad.v_scales.offset = BYTES - 4);
	REFUSED(-EINVAL, "out overlaps q_scales", bad.out.offset = SCALES);
#undef REFUSED
	fa_buffer_free(buffer);
}

static void test_dense(void **state)
{
	struct fa_case attention = { .heads = 2, .batch = 2, .seqlen_q = 20 };
	struct fa_attention request;
	struct fa_buffer *buffer;

	fa_case_plan(&attention);
	check(fa_buffer_new(client, attention.bytes, 0, &buffer));
	fa_case_fill(&attention, fa_buffer_data(buffer));
	request = fa_case_attention(&attention, buffer);
	memset(request.q.strides, 0, sizeof(request.q.strides));
	fa_tensor_init(&request.k, buffer, request.k.offset, FA_F32, 4, request.k.shape);
	memset(request.v.strides, 0, sizeof(request.v.strides));
	memset(request.out.strides, 0, sizeof(request.out.strides));
	check(fa_attention(client, &request, NULL));
	fa_check(fa_case_error(&attention, fa_buffer_data(buffer)) <= 1);
	fa_buffer_free(buffer);
}

static void expect(const struct fa_attention *request, int code, const char *part)
{
	struct fa_ticket ticket;
	int r;

	r = fa_attention(client, request, NULL);
	if (r != code)
		fa_test_fail(__FILE__, __LINE__, "%d instead of %d (%s): %s", r, code, part,
		             fa_error());
	fa_check_contains(fa_error(), part);
	r = fa_attention(client, request, &ticket);
	if (!r)
		r = fa_wait(client, &ticket, UINT64_MAX, NULL);
	fa_check_eq(r, code);
	fa_check_contains(fa_error(), part);
}

static void test_refused(void **state)
{
	struct fa_case attention = { .heads = 4, .kv_heads = 2, .batch = 2, .seqlen_q = 20 };
	struct fa_attention good, bad;
	const uint32_t lengths[] = { 0, 5, 20 }, odd[] = { 0, 30, 20 };
	struct fa_options options = { .size = sizeof(options), .socket = fad.socket };
	struct fa_buffer *buffer, *foreign, *fixed;
	struct fa_client *other;

	fa_case_plan(&attention);
	check(fa_buffer_new(client, attention.bytes, 0, &buffer));
	check(fa_buffer_new(client, attention.bytes, FA_BUFFER_READ_ONLY, &fixed));
	check(fa_connect(&options, &other));
	check(fa_buffer_new(other, attention.bytes, 0, &foreign));
	fa_case_fill(&attention, fa_buffer_data(buffer));
	good = fa_case_attention(&attention, buffer);

#define BAD(change, code, part)                                                                    \
	do {                                                                                       \
		bad = good;                                                                        \
		change;                                                                            \
		expect(&bad, code, part);                                                          \
	} while (0)

	BAD(bad.q.buffer = NULL, -EINVAL, "q.buffer");
	BAD(bad.k.buffer = foreign, -EINVAL, "another client");
	BAD(bad.v.dtype = 9, -EINVAL, "v.dtype is 9");
	BAD(bad.out.rank = 2, -EINVAL, "out.rank is 2");
	BAD(bad.q.offset = 2, -EINVAL, "q.offset is 2");
	BAD(bad.q.offset = 1ull << 60, -EINVAL, "q reaches beyond");
	BAD(bad.k.shape[1] = 1 << 20, -EINVAL, "k reaches beyond");
	BAD(bad.k.strides[0] = INT64_MAX, -EINVAL, "k reaches beyond");
	/* The index of the last element just overflows 64 bits. */
	BAD((bad.k.shape[0] = 4, bad.k.shape[1] = bad.k.shape[2] = bad.k.shape[3] = 1,
	     bad.k.strides[0] = UINT64_MAX / 3, bad.k.strides[1] = bad.k.strides[2] = 0,
	     bad.k.strides[3] = 1),
	    -EINVAL, "k reaches beyond");
	BAD(bad.q.shape[1] = -1, -EINVAL, "q.shape[1] is -1");
	BAD(bad.q.strides[1] = -64, -EINVAL, "q.strides[1] is -64");
	BAD(bad.flags = 1u << 20, -EINVAL, "flags");
	BAD(bad.stream = 64, -EINVAL, "stream is 64");
	BAD(bad.stream = 5, -EINVAL, "no stream 5");
	BAD(bad.batch = 2, -EINVAL, "q.rank is 4; expected 3");
	BAD(bad.cu_seqlens_q = lengths, -EINVAL, "batch is 0");
	BAD(bad.batch = 5000, -EINVAL, "batch is 5000");
	BAD(bad.lse = bad.q, -EINVAL, "lse.rank is 4");

	BAD(bad.out.buffer = fixed, -EINVAL, "out");
	BAD(bad.k.shape[2] = 3, -EINVAL, "heads");
	BAD(bad.k.shape[3] = 32, -EINVAL, "dim");
	BAD(bad.k.dtype = FA_F16, -ENOTSUP, "dtype");
	BAD((bad.q.strides[3] = 2, bad.q.shape[1] = 2), -EINVAL, "stride");
	BAD((bad.q.shape[3] = bad.k.shape[3] = 12), -ENOTSUP, "12");
	BAD(bad.softcap = -1, -EINVAL, "softcap");

	attention.ragged = true;
	fa_case_plan(&attention);
	good = fa_case_attention(&attention, buffer);
	BAD(bad.cu_seqlens_q = odd, -EINVAL, "cu_seqlens_q");
	BAD(bad.cu_seqlens_k = odd, -EINVAL, "cu_seqlens_k");
	BAD(bad.cu_seqlens_q = NULL, -EINVAL, "cu_seqlens_q is NULL");
	BAD(bad.cu_seqlens_k = NULL, -EINVAL, "cu_seqlens_k is NULL");
#undef BAD

	check(fa_attention(client, &good, NULL));
	fa_disconnect(other);
	fa_buffer_free(fixed);
	fa_buffer_free(buffer);
}

static void test_tickets(void **state)
{
	struct fa_case small = { .heads = 2, .seqlen_q = 16 };
	struct fa_case large = { .heads = 8, .seqlen_q = 4096, .head_dim = 128 };
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_info info = { .size = sizeof(info) };
	struct fa_ticket ticket, behind, never = {};
	struct fa_buffer *buffer, *work;
	struct fa_attention request;
	uint32_t stream;
	int r;

	fa_case_plan(&small);
	fa_case_plan(&large);
	check(fa_buffer_new(client, small.bytes, 0, &buffer));
	check(fa_buffer_new(client, large.bytes, 0, &work));
	check(fa_stream_new(client, 0, &stream));

	fa_case_fill(&small, fa_buffer_data(buffer));
	request = fa_case_attention(&small, buffer);
	request.stream = stream;
	check(fa_attention(client, &request, &ticket));
	for (int i = 0; i < 3; ++i) {
		check(fa_wait(client, &ticket, UINT64_MAX, &completion));
		fa_check_eq(completion.status, 0);
		fa_check(completion.queued_ns && completion.queued_ns <= completion.started_ns &&
		         completion.started_ns <= completion.finished_ns &&
		         completion.finished_ns <= fa_now_ns());
	}
	fa_check(fa_case_error(&small, fa_buffer_data(buffer)) <= 1);
	fa_check_eq(fa_cancel(client, &ticket), -ENOENT);
	fa_check_eq(fa_wait(client, &never, 0, NULL), -EINVAL);
	ticket.value += 1;
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), -EINVAL);

	request = fa_case_attention(&large, work);
	request.stream = stream;
	check(fa_attention(client, &request, &ticket));
	check(fa_attention(client, &request, &behind));
	fa_check_eq(fa_wait(client, &behind, FA_NS_PER_MS, NULL), -EAGAIN);
	fa_check_eq(fa_stream_free(client, stream), -EBUSY);
	check(fa_cancel(client, &behind));
	r = fa_cancel(client, &ticket);
	fa_check(r == 0 || r == -ENOENT);
	r = fa_wait(client, &ticket, UINT64_MAX, NULL);
	fa_check(r == -ECANCELED || r == 0);
	fa_check_eq(fa_wait(client, &behind, UINT64_MAX, &completion), -ECANCELED);
	fa_check_eq(completion.status, -ECANCELED);

	request.timeout_ns = FA_NS_PER_MS;
	fa_check_eq(fa_attention(client, &request, NULL), -ETIMEDOUT);
	fa_check(*fa_error());
	request.timeout_ns = 0;

	check(fa_info(client, &info));
	for (uint64_t i = 0; i < info.max_requests; ++i) {
		check(fa_attention(client, &request, &behind));
		if (!i)
			ticket = behind;
	}
	fa_check_eq(fa_attention(client, &request, &never), -EAGAIN);
	fa_check_contains(fa_error(), "in flight");
	for (; ticket.value <= behind.value; ++ticket.value)
		(void)fa_cancel(client, &ticket);
	r = fa_wait(client, &behind, UINT64_MAX, NULL);
	fa_check(r == -ECANCELED || r == 0);

	check(fa_stream_free(client, stream));
	fa_check_eq(fa_stream_free(client, stream), -ENOENT);
	fa_check_eq(fa_stream_free(client, 0), -ENOENT);
	check(fa_stream_new(client, 1, &stream));
	request = fa_case_attention(&small, buffer);
	request.stream = stream;
	check(fa_attention(client, &request, NULL));
	check(fa_stream_free(client, stream));
	fa_buffer_free(work);
	fa_buffer_free(buffer);
}

/*
 * Cancellation takes effect within a tile, however many keys there are. Here one key of a few
 * kilobytes is repeated 2^24 times.
 */
static void test_cancel_endless(void **state)
{
	struct fa_attention request = { .size = sizeof(request) };
	int64_t shape[] = { 1, 96, 1, 256 };
	uint64_t before_ns, bytes = fa_tensor_bytes(FA_F32, 4, shape);
	struct fa_buffer *buffer;
	struct fa_ticket ticket;
	float *numbers;
	int r;

	check(fa_buffer_new(client, 2 * bytes, 0, &buffer));
	numbers = fa_buffer_data(buffer);
	for (uint64_t i = 0; i < 2 * bytes / sizeof(*numbers); ++i)
		numbers[i] = (float)(i % 17) / 17;
	fa_tensor_init(&request.q, buffer, 0, FA_F32, 4, shape);
	fa_tensor_init(&request.out, buffer, bytes, FA_F32, 4, shape);
	request.k = request.q;
	request.k.shape[1] = 1 << 24;
	request.k.strides[2] = shape[3];
	request.k.strides[3] = 1;
	request.v = request.k;
	check(fa_attention(client, &request, &ticket));
	r = fa_wait(client, &ticket, 200 * FA_NS_PER_MS, NULL);
	if (r == -ENOTSUP) {
		fa_check_contains(fa_error(), "too many for Mesa's lavapipe");
	} else {
		fa_check_eq(r, -EAGAIN);
		before_ns = fa_now_ns();
		check(fa_cancel(client, &ticket));
		fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), -ECANCELED);
		fa_check(fa_now_ns() - before_ns < 4 * FA_NS_PER_SEC);
	}
	fa_buffer_free(buffer);
}

/*
 * Once the client sees a completion in its page, the daemon counts the request as finished, too: no
 * false -EBUSY or refusal at the limit.
 */
static void test_seen_is_finished(void **state)
{
	struct fa_case small = { .heads = 1, .seqlen_q = 1 };
	struct fa_attention request;
	struct fa_buffer *buffer;
	struct fa_ticket ticket;
	uint32_t stream;
	int r;

	fa_case_plan(&small);
	check(fa_buffer_new(client, small.bytes, 0, &buffer));
	fa_case_fill(&small, fa_buffer_data(buffer));
	request = fa_case_attention(&small, buffer);
	for (int i = 0; i < 500; ++i) {
		check(fa_stream_new(client, 0, &stream));
		request.stream = stream;
		check(fa_attention(client, &request, &ticket));
		do
			r = fa_wait(client, &ticket, 0, NULL);
		while (r == -EAGAIN);
		check(r);
		check(fa_stream_free(client, stream));
	}
	fa_buffer_free(buffer);
}

static void test_streams(void **state)
{
	struct fa_info info = { .size = sizeof(info) };
	uint32_t streams[64], extra;
	uint64_t n = 0;

	check(fa_info(client, &info));
	for (; n + 1 < info.max_streams; ++n)
		check(fa_stream_new(client, n % 2, &streams[n]));
	fa_check_eq(fa_stream_new(client, 0, &extra), -EDQUOT);
	while (n--)
		check(fa_stream_free(client, streams[n]));
}

static void test_loop(void **state)
{
	struct fa_case small = { .heads = 2, .seqlen_q = 16 };
	struct pollfd pollfd = { .fd = fa_fd(client), .events = POLLIN };
	struct fa_attention request;
	struct fa_ticket tickets[50];
	struct fa_buffer *buffer;
	int left = 50;

	fa_case_plan(&small);
	check(fa_buffer_new(client, small.bytes, 0, &buffer));
	fa_case_fill(&small, fa_buffer_data(buffer));
	request = fa_case_attention(&small, buffer);
	for (int i = 0; i < 50; ++i)
		check(fa_attention(client, &request, &tickets[i]));
	while (left) {
		fa_check(poll(&pollfd, 1, (int)(fa_test_patience_ns() / FA_NS_PER_MS)) == 1);
		check(fa_dispatch(client));
		for (; left && !fa_wait(client, &tickets[50 - left], 0, NULL); --left)
			;
	}
	fa_buffer_free(buffer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_variants),
		cmocka_unit_test(test_dense),
		cmocka_unit_test(test_masks),
		cmocka_unit_test(test_masks_refused),
		cmocka_unit_test(test_e4m3),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_tickets),
		cmocka_unit_test(test_streams),
		cmocka_unit_test(test_seen_is_finished),
		cmocka_unit_test(test_cancel_endless),
		cmocka_unit_test(test_loop),
	};

	return cmocka_run_group_tests_name("attention", tests, setup, teardown);
}
