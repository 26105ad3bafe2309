/*
 * PagesAttend with wrong tensors, without a library that checks them: each ends with a Completion
 * that names the fault, and touches no memory. Numbers in tables are wild throughout.
 */
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
#define BYTES (1 << 16)

enum {
	BATCH = 2,
	ROWS = 5,
	HEADS = 4,
	KV_HEADS = 2,
	DIM = 16,
	PAGES = 6,
	PAGE_TOKENS = 4,
	COLUMNS = 3,
	TOKENS = 3
};

static struct fa_scene scene;
static struct fa_raw raw;
static struct fa_raw_buffer buffer, read_only;
static uint64_t value;

static int open_client(void **state)
{
	value = 0;
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_buffer_register(&raw, &buffer, BUFFER, BYTES, 0);
	fa_raw_buffer_register(&raw, &read_only, READ_ONLY_BUFFER, BYTES, FA_WIRE_BUFFER_READ_ONLY);
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

/* Returns a dense view at *at, and moves *at behind it. */
static struct fa_wire_view view(uint64_t *at, uint8_t dtype, uint8_t rank, const int64_t *shape)
{
	struct fa_wire_view view = {
		.buffer = BUFFER, .offset = *at, .dtype = dtype, .rank = rank
	};
	int64_t n = 1;

	for (int i = rank; i--;) {
		view.shape[i] = shape[i];
		view.strides[i] = n;
		n *= shape[i];
	}
	*at += ((uint64_t)n * 8 + 63) / 64 * 64;
	return view;
}

#define VIEW(dtype, rank, ...) view(&at, dtype, rank, (const int64_t[]){ __VA_ARGS__ })

static struct fa_wire_message good(bool appends)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_PAGES_ATTEND);
	struct fa_wire_pages_attend *a = &message.pages_attend;
	uint64_t at = 0;

	a->q = VIEW(FA_WIRE_DTYPE_F32, 3, ROWS, HEADS, DIM);
	a->k = VIEW(FA_WIRE_DTYPE_F32, 4, PAGES, PAGE_TOKENS, KV_HEADS, DIM);
	a->v = VIEW(FA_WIRE_DTYPE_F32, 4, PAGES, PAGE_TOKENS, KV_HEADS, DIM);
	a->out = VIEW(FA_WIRE_DTYPE_F32, 3, ROWS, HEADS, DIM);
	a->lse = VIEW(FA_WIRE_DTYPE_F32, 2, HEADS, ROWS);
	a->table = VIEW(FA_WIRE_DTYPE_I32, 2, BATCH, COLUMNS);
	a->lengths = VIEW(FA_WIRE_DTYPE_I32, 1, BATCH);
	a->cu_q = VIEW(FA_WIRE_DTYPE_I32, 1, BATCH + 1);
	if (appends) {
		a->k_new = VIEW(FA_WIRE_DTYPE_F32, 3, TOKENS, KV_HEADS, DIM);
		a->v_new = VIEW(FA_WIRE_DTYPE_F32, 3, TOKENS, KV_HEADS, DIM);
		a->slots = VIEW(FA_WIRE_DTYPE_I64, 1, TOKENS);
	}
	a->max_q = ROWS;
	a->window_left = a->window_right = -1;
	a->value = value + 1;
	fa_check(at <= BYTES);
	/* Floats become NaN, and all numbers in tables -1. */
	memset(buffer.data, 0xff, BYTES);
	return message;
}

static bool untouched(void)
{
	const unsigned char *bytes = buffer.data;

	for (size_t i = 0; i < BYTES; ++i)
		if (bytes[i] != 0xff)
			return false;
	return true;
}

static void expect(const struct fa_wire_message *message, int n, int status, const char *part)
{
	struct fa_raw_completion completion;

	++value;
	fa_check_eq(fa_raw_send(&raw, message, NULL, 0), 0);
	fa_raw_wait(&raw, 0, value, &completion);
	if (completion.status != status || (part && !strstr(completion.text, part)))
		fa_test_fail(__FILE__, __LINE__, "case %d: status %d, \"%s\"; expected %d, \"%s\"",
		             n, completion.status, completion.text, status, part ? part : "");
	if (status && !untouched())
		fa_test_fail(__FILE__, __LINE__, "case %d was computed", n);
}

static int setup(void **state)
{
	struct fa_wire_message message;

	fa_scene_start(&scene, NULL);
	/* A GPU's stream keeps the scratch memory of its first such request. */
	open_client(NULL);
	message = good(true);
	expect(&message, -1, 0, NULL);
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_buffer_free(&raw, &read_only);
	fa_raw_close(&raw);
	fa_scene_calm(&scene);
	return 0;
}

static int teardown(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

enum {
	FIRST = __COUNTER__
};

#define CASE(wrong, code, text)                                                                    \
	case __COUNTER__ - FIRST - 1:                                                              \
		wrong;                                                                             \
		*ret_status = code;                                                                \
		*ret_part = text;                                                                  \
		return true

/* Spoils @a in the @n-th way; false: there are no more. */
static bool spoil(int n, struct fa_wire_pages_attend *a, int *ret_status, const char **ret_part)
{
	static const float numbers[HEADS] = { 1, INFINITY, 1, 1 };

	switch (n) {
		/* outside the buffer */
		CASE(a->q.offset = BYTES - 4, -EINVAL, "q is out of bounds");
		CASE(a->k.shape[0] = a->v.shape[0] = INT32_MAX, -EINVAL, "k is out of bounds");
		CASE(a->k.strides[0] = INT64_MAX / 2, -EINVAL, "k.shape[0]");
		CASE(a->v.strides[1] = 1 << 20, -EINVAL, "v is out of bounds");
		CASE(a->table.strides[0] = 1 << 20, -EINVAL, "table is out of bounds");
		CASE(a->table.shape[1] = INT64_MAX, -EINVAL, "table.offset");
		CASE(a->lengths.offset = BYTES, -EINVAL, "lengths is out of bounds");
		CASE(a->cu_q.offset = BYTES - 8, -EINVAL, "cu_q is out of bounds");
		CASE(a->k_new.offset = UINT64_MAX - 63, -EINVAL, "k_new.offset");
		CASE(a->slots.offset = BYTES - 8, -EINVAL, "slots is out of bounds");
		CASE(a->q.buffer = 99, -ENOENT, "q.buffer");
		CASE(a->slots.buffer = 99, -ENOENT, "slots.buffer");
		/* fields of a view */
		CASE(a->k.rank = 3, -EINVAL, "k.rank is 3; expected 4");
		CASE(a->table.rank = 0, -EINVAL, "table.rank is 0; expected 2");
		CASE(a->lengths.rank = 2, -EINVAL, "lengths.rank is 2; expected 1");
		CASE(a->q.dtype = FA_WIRE_DTYPE_I64, -ENOTSUP, "q.dtype 6 is not supported");
		CASE(a->q.dtype = FA_WIRE_DTYPE_E4M3, -ENOTSUP, "q.dtype 4 is not supported");
		CASE(a->k.dtype = FA_WIRE_DTYPE_F16, -ENOTSUP,
		     "k.dtype is fp16 (2); expected fp32");
		CASE(a->k.dtype = FA_WIRE_DTYPE_E4M3, -ENOTSUP,
		     "v.dtype is fp32 (1); expected e4m3");
		CASE(a->k.dtype = 200, -ENOTSUP, "k.dtype is unknown (200)");
		CASE(a->table.dtype = FA_WIRE_DTYPE_F32, -ENOTSUP,
		     "table.dtype is fp32 (1); expected int32");
		CASE(a->slots.dtype = FA_WIRE_DTYPE_I32, -ENOTSUP,
		     "slots.dtype is int32 (5); expected int64");
		CASE(a->slots.offset += 4, -EINVAL, "slots.offset");
		CASE(a->k.reserved = 1, -EINVAL, "k.reserved");
		CASE(a->k.strides[2] = -1, -EINVAL, "k.strides[2] is -1");
		CASE(a->v.strides[3] = 2, -EINVAL, "v.strides[3] is 2; expected 1");
		CASE(a->lengths.strides[0] = 0, -EINVAL, "lengths.strides[0] is 0; expected 1");
		CASE(a->lengths.shape[0] = -2, -EINVAL, "lengths.shape[0] is -2");
		/* shapes that disagree */
		CASE(a->k.shape[0] = 0, -EINVAL, "k.shape[0], the pages, is 0");
		CASE(a->v.shape[0] = PAGES - 1, -EINVAL,
		     "v.shape[0] is 5; expected 6, the pages of k");
		CASE(a->k.shape[1] = 0, -EINVAL, "k.shape[1], the tokens of a page, is 0");
		CASE(a->k.shape[3] = 8, -EINVAL, "k.shape[3] is 8; expected 16, the head dim of q");
		CASE(a->k.shape[2] = 3, -EINVAL, "k.strides[1] is 32, so that elements overlap");
		CASE(a->out.shape[0] = 4, -EINVAL, "out.shape[0] is 4; expected 5, the rows of q");
		CASE(a->lse.shape[1] = 4, -EINVAL, "lse.shape[1] is 4; expected 5, the rows of q");
		CASE(a->lengths.shape[0] = 1, -EINVAL,
		     "lengths.shape[0] is 1; expected 2, the batch");
		CASE(a->cu_q.shape[0] = 2, -EINVAL, "cu_q.shape[0] is 2; expected 3, the batch");
		CASE((a->table.shape[0] = a->lengths.shape[0] = 5000, a->table.strides[0] = 0),
		     -ENOTSUP, "table.shape[0], the batch, is 5000; expected 0 to 4096");
		CASE(a->k_new.shape[0] = 2, -EINVAL,
		     "k_new.shape[0] is 2; expected 3, the tokens of slots");
		CASE(a->v_new.shape[1] = 1, -EINVAL,
		     "v_new.shape[1] is 1; expected 2, the heads of v");
		CASE(a->v_new.shape[2] = 8, -EINVAL,
		     "v_new.shape[2] is 8; expected 16, the head dim of v");
		CASE(a->slots.rank = 0, -EINVAL, "slots is absent");
		CASE(a->k_new.rank = a->v_new.rank = 0, -EINVAL,
		     "slots came without k_new and v_new");
		/* memory that is written */
		CASE(a->k.buffer = READ_ONLY_BUFFER, -EINVAL, "k.buffer 4 is read-only");
		CASE(a->out.buffer = READ_ONLY_BUFFER, -EINVAL, "out.buffer 4 is read-only");
		CASE(a->k.strides[0] = PAGE_TOKENS * KV_HEADS * DIM - 1, -EINVAL,
		     "k.strides[0] is 127, so that elements overlap");
		CASE(a->v.strides[1] = 0, -EINVAL, "v.strides[1] is 0, so that elements overlap");
		CASE(a->out.strides[1] = 0, -EINVAL, "out.strides[1] is 0");
		CASE(a->v.offset = a->k.offset + 16, -EINVAL, "k overlaps v");
		CASE(a->out.offset = a->table.offset, -EINVAL, "out overlaps table");
		CASE(a->k_new.offset = a->v.offset, -EINVAL, "v overlaps k_new");
		CASE(a->slots.offset = a->k.offset, -EINVAL, "k overlaps slots");
		CASE(a->lse.offset = a->lengths.offset, -EINVAL, "lse overlaps lengths");
		/* numbers */
		CASE(a->max_k = COLUMNS * PAGE_TOKENS + 1, -EINVAL,
		     "max_k is 13; expected at most 12");
		CASE(a->max_k = UINT32_MAX, -EINVAL, "max_k is 4294967295; expected at most 12");
		CASE(a->max_q = ROWS + 1, -EINVAL, "max_q is 6; expected at most 5");
		CASE(a->cu_q.rank = 0, -EINVAL,
		     "q.shape[0] is 5; expected 10, max_q 5 for each of 2");
		CASE(a->flags = 1u << 5, -ENOTSUP, "flags 0x20 are not supported");
		CASE(a->scale = NAN, -EINVAL, "scale nan is not finite");
		CASE(a->softcap = -2, -EINVAL, "softcap -2");
		CASE(a->window_left = -7, -EINVAL, "window_left -7 is below -1");
		CASE(a->k_scales = a->cu_q, -ENOTSUP, "k_scales.dtype is int32");
		CASE((a->k_scales = a->cu_q, a->k_scales.dtype = 1, a->k_scales.shape[0] = 2),
		     -EINVAL, "k_scales came, which has no effect");
		CASE((a->sinks = numbers, a->n_sinks = 3), -EINVAL,
		     "sinks has 3 entries; expected 4");
		CASE((a->sinks = numbers, a->n_sinks = HEADS), -EINVAL, "sinks[1] is inf");
		CASE((a->alibi_slopes = numbers, a->n_alibi_slopes = HEADS), -EINVAL,
		     "alibi_slopes[1] is inf");
	default:
		return false;
	}
}

static void test_spoilt(void **state)
{
	struct fa_wire_message message = good(true);
	int status, n;
	const char *part;

	expect(&message, -1, 0, NULL);
	for (n = 0;; ++n) {
		message = good(true);
		if (!spoil(n, &message.pages_attend, &status, &part))
			break;
		expect(&message, n, status, part);
	}
	fa_check(n > 50);
	message = good(false);
	expect(&message, n, 0, NULL);
}

/* All numbers are garbage; the daemon answers, and writes only out and lse. */
static void test_garbage(void **state)
{
	uint64_t random = 1;

	for (int i = 0; i < 300; ++i) {
		struct fa_wire_message message = good(i % 2);
		struct fa_wire_pages_attend *a = &message.pages_attend;
		const struct fa_wire_view *tables[] = { &a->table, &a->lengths, &a->cu_q,
			                                &a->slots };

		for (size_t t = 0; t < 3u + (size_t)(i % 2); ++t) {
			uint32_t *words = (void *)((char *)buffer.data + tables[t]->offset);

			for (int w = 0; w < 6; ++w) {
				random = random * 6364136223846793005u + 1442695040888963407u;
				words[w] = (uint32_t)(random >> 32) >> (random >> 20) % 32;
			}
		}
		a->max_k = (uint32_t)i % 13;
		a->flags = i % 3 ? FA_WIRE_PAGES_CAUSAL : FA_WIRE_PAGES_DETERMINISTIC;
		expect(&message, i, 0, NULL);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_spoilt, open_client, close_client),
		cmocka_unit_test_setup_teardown(test_garbage, open_client, close_client),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
