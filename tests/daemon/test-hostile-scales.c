/*
 * Attention over e4m3 tensors whose scales, types or places are wrong: each request ends with a
 * Completion that names the fault. On a backend without such kernels, every request does.
 */
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum {
	BUFFER = 3,
	READ_ONLY_BUFFER = 4,
	BYTES = 1 << 16,
	BATCH = 2,
	TOKENS = 4,
	HEADS = 2,
	DIM = 16,
	ELEMENTS = BATCH * TOKENS * HEADS * DIM,
	/* Places in the buffer. */
	K = 4096,
	V = 8192,
	OUT = 16384,
	OUT_BYTES = ELEMENTS * 4,
	SCALES = 32768,
};

static struct fa_scene scene;
static struct fa_raw raw;
static struct fa_raw_buffer buffer, read_only;
static uint64_t value;
static bool computes; /* the backend has such kernels */

static struct fa_wire_view dense(uint64_t offset, uint8_t dtype, uint8_t rank, int64_t a, int64_t b,
                                 int64_t c, int64_t d)
{
	struct fa_wire_view view = { .buffer = BUFFER,
		                     .offset = offset,
		                     .dtype = dtype,
		                     .rank = rank,
		                     .shape = { a, b, c, d } };
	int64_t stride = 1;

	for (unsigned int i = rank; i-- > 0;) {
		view.strides[i] = stride;
		stride *= view.shape[i];
	}
	return view;
}

static struct fa_wire_view scales(uint64_t offset, int64_t batch, int64_t tokens, int64_t heads)
{
	return dense(offset, FA_WIRE_DTYPE_F32, 3, batch, tokens, heads, 1);
}

/* Every key's V is 2, times a scale of 1.5. */
static struct fa_wire_message good(void)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_ATTENTION);
	struct fa_wire_attention *a = &message.attention;
	const float of_v = 1.5f;

	memset(buffer.data, 0x38, V); /* 1 */
	memset(buffer.data + V, 0x40, ELEMENTS);
	memset(buffer.data + OUT, 0xff, BYTES - OUT);
	for (size_t i = SCALES; i < BYTES; i += sizeof(of_v))
		memcpy(buffer.data + i, &of_v, sizeof(of_v));
	a->q = dense(1, FA_WIRE_DTYPE_E4M3, 4, BATCH, TOKENS, HEADS, DIM);
	a->k = dense(K + 3, FA_WIRE_DTYPE_E4M3, 4, BATCH, TOKENS, HEADS, DIM);
	a->v = dense(V, FA_WIRE_DTYPE_E4M3, 4, BATCH, TOKENS, HEADS, DIM);
	a->out = dense(OUT, FA_WIRE_DTYPE_F32, 4, BATCH, TOKENS, HEADS, DIM);
	a->q_scales = scales(SCALES, BATCH, 1, HEADS);
	a->v_scales = scales(SCALES, 1, TOKENS, 1);
	a->window_left = a->window_right = -1;
	return message;
}

static void run(struct fa_wire_message *message, struct fa_raw_completion *ret_completion)
{
	message->attention.value = ++value;
	fa_check_eq(fa_raw_send(&raw, message, NULL, 0), 0);
	fa_raw_wait(&raw, 0, value, ret_completion);
}

static void check_good(struct fa_wire_message *message)
{
	struct fa_raw_completion completion;

	run(message, &completion);
	if (!computes) {
		fa_check_eq(completion.status, -ENOTSUP);
		fa_check_contains(completion.text, "q, k and v of e4m3 are not supported");
		return;
	}
	if (completion.status)
		fa_test_fail(__FILE__, __LINE__, "%s", completion.text);
	for (int64_t i = 0; i < ELEMENTS; ++i) {
		float found;

		memcpy(&found, buffer.data + message->attention.out.offset + (size_t)i * 4, 4);
		fa_check(found == 3);
	}
}

static void test_good(void **state)
{
	struct fa_wire_message message = good();

	check_good(&message);
	/* The stride of a single element may be any number. */
	message = good();
	message.attention.q_scales = scales(SCALES, 1, 1, 1);
	message.attention.q_scales.strides[0] = message.attention.q_scales.strides[1] = INT64_MAX;
	message.attention.v_scales.strides[0] = INT64_MAX / 2;
	check_good(&message);
	/* Scales and codes up to the end, behind out, and of memory that can only be read. */
	message = good();
	message.attention.v_scales.offset = BYTES - TOKENS * 4;
	message.attention.q_scales.offset = OUT + OUT_BYTES;
	memset(buffer.data + OUT + OUT_BYTES, 0, BATCH * HEADS * 4);
	check_good(&message);
	message = good();
	memcpy(read_only.data, buffer.data, BYTES);
	message.attention.q.buffer = message.attention.k.buffer = READ_ONLY_BUFFER;
	message.attention.v.buffer = message.attention.v_scales.buffer = READ_ONLY_BUFFER;
	check_good(&message);
}

static void expect(struct fa_wire_message *message, int status, const char *part)
{
	struct fa_raw_completion completion;

	run(message, &completion);
	fa_check(completion.status < 0);
	if (!computes && completion.status == -ENOTSUP)
		return;
	if (completion.status != status || !strstr(completion.text, part))
		fa_test_fail(__FILE__, __LINE__, "status %d, \"%s\"; expected %d, \"%s\"",
		             completion.status, completion.text, status, part);
	for (size_t i = OUT; i < OUT + OUT_BYTES; ++i)
		fa_check(buffer.data[i] == 0xff);
}

#define WRONG(spoil, status, part)                                                                 \
	do {                                                                                       \
		struct fa_wire_message message = good();                                           \
		struct fa_wire_attention *a = &message.attention;                                  \
                                                                                                   \
		spoil;                                                                             \
		expect(&message, status, part);                                                    \
	} while (0)

static void test_wrong(void **state)
{
	WRONG(a->q_scales.shape[0] = 3, -EINVAL, "q_scales.shape[0] is 3; expected 1 or 2");
	WRONG(a->v_scales.shape[1] = 5, -EINVAL, "v_scales.shape[1] is 5; expected 1 or 4");
	WRONG(a->v_scales.shape[1] = 0, -EINVAL, "v_scales.shape[1] is 0");
	WRONG(a->q_scales.shape[2] = -1, -EINVAL, "q_scales.shape[2] is -1");
	WRONG(a->q_scales.strides[0] = -1, -EINVAL, "q_scales.strides[0] is -1");
	WRONG(a->q_scales.strides[0] = INT64_MAX / 2, -EINVAL, "q_scales");
	WRONG(a->q_scales.strides[2] = 2, -EINVAL, "q_scales.strides[2] is 2");
	WRONG(a->q_scales = dense(SCALES, FA_WIRE_DTYPE_F32, 2, 1, 1, 1, 1), -EINVAL,
	      "q_scales.rank is 2; expected 3");
	WRONG(a->q_scales.dtype = FA_WIRE_DTYPE_F16, -ENOTSUP, "q_scales.dtype");
	WRONG(a->q_scales.offset += 2, -EINVAL, "q_scales");
	WRONG(a->v_scales.offset = BYTES - 4, -EINVAL, "v_scales");
	WRONG(a->v_scales.buffer = 9, -ENOENT, "v_scales.buffer");
	WRONG(a->v_scales.offset = OUT + OUT_BYTES - 4, -EINVAL, "out overlaps v_scales");
	WRONG(a->out.offset = V, -EINVAL, "out overlaps v");
	WRONG(a->q.offset = BYTES - ELEMENTS + 1, -EINVAL, "q");
	WRONG(a->out.buffer = READ_ONLY_BUFFER, -EINVAL, "out.buffer 4 is read-only");
	WRONG(a->k.dtype = FA_WIRE_DTYPE_BF16, -ENOTSUP, "k.dtype");
	WRONG(a->out.dtype = FA_WIRE_DTYPE_E4M3, -ENOTSUP, "out.dtype");
	WRONG((a->q.dtype = a->k.dtype = a->v.dtype = FA_WIRE_DTYPE_F16,
	       a->out.dtype = FA_WIRE_DTYPE_F16, a->q.offset = 0, a->k.offset = K),
	      -EINVAL, "q_scales came, which has no effect");
}

static int setup(void **state)
{
	fa_scene_start(&scene, NULL);
	fa_raw_open(&raw, scene.daemon.socket);
	computes = !strcmp(raw.message.hello_reply.backend.text, "cpu");
	fa_raw_buffer_register(&raw, &buffer, BUFFER, BYTES, 0);
	fa_raw_buffer_register(&raw, &read_only, READ_ONLY_BUFFER, BYTES, FA_WIRE_BUFFER_READ_ONLY);
	return 0;
}

static int teardown(void **state)
{
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_buffer_free(&raw, &read_only);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
	fa_scene_stop(&scene);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_wrong),
	};

	return cmocka_run_group_tests_name("hostile-scales", tests, setup, teardown);
}
