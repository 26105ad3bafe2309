/* Encoding and decoding preserve every type and field. */
#include "tests/wire/inspect.h"
#include "tests/wire/samples.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static _Alignas(8) unsigned char buffer[FA_WIRE_BYTES_MAX];

static void test_every_type_has_samples(void **state)
{
	bool seen[_FA_WIRE_TYPE_N] = { true };

	for (size_t i = 0; i < fa_samples_v1_n(); ++i)
		seen[fa_sample_v1(i)->message.type] = true;
	for (unsigned i = 0; i < _FA_WIRE_TYPE_N; ++i)
		if (!seen[i])
			fail_msg("no sample of %s", fa_wire_type_name(i));
}

static void test_roundtrip(void **state)
{
	for (size_t i = 0; i < fa_samples_v1_n(); ++i) {
		const struct fa_sample *sample = fa_sample_v1(i);
		struct fa_wire_message decoded;
		const char *difference;
		const void *bytes;
		size_t length;
		int r;

		r = fa_wire_encode(&sample->message, buffer, sizeof(buffer), &bytes, &length);
		if (r)
			fail_msg("%s: encoding failed with %d", sample->name, r);
		assert_int_equal((uintptr_t)bytes % 8, 0);
		assert_ptr_equal((const unsigned char *)bytes + length, buffer + sizeof(buffer));

		memset(&decoded, 0xa5, sizeof(decoded));
		r = fa_wire_decode(bytes, length, &decoded);
		if (r)
			fail_msg("%s: decoding failed with %d", sample->name, r);
		difference = fa_inspect_difference(&sample->message, &decoded);
		if (difference)
			fail_msg("%s: %s differs", sample->name, difference);
		(void)fa_inspect_read(&decoded, bytes, length);
	}
}

static uint64_t random_state = 0x9e3779b97f4a7c15;

static uint64_t random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* Returns a random number, often 0. */
static uint64_t random_number(void)
{
	return random_next() % 4 ? random_next() : 0;
}

static void fill_view(struct fa_wire_view *view)
{
	view->offset = random_number();
	for (int i = 0; i < FA_WIRE_RANK_MAX; ++i) {
		view->shape[i] = (int64_t)random_number();
		view->strides[i] = (int64_t)random_number();
	}
	view->buffer = (uint32_t)random_number();
	view->dtype = (uint8_t)random_number();
	view->rank = (uint8_t)(random_next() % 8);
	view->reserved = (uint16_t)random_number();
}

/* Makes a StepAttend for the fast path. Bit i of @views says whether view i is set. */
static void make_fast(struct fa_wire_message *message, unsigned int views)
{
	struct fa_wire_step_attend *attend = &message->step_attend;
	struct fa_wire_view *each[] = { &attend->q,   &attend->k,   &attend->v,  &attend->out,
		                        &attend->lse, &attend->cos, &attend->sin };

	*message = (struct fa_wire_message){
		.id = random_number(),
		.timeout_ns = random_number(),
		.type = FA_WIRE_STEP_ATTEND,
		.step_attend = { .stream = (uint32_t)random_number(),
		                 .value = random_number(),
		                 .step = (uint32_t)random_number(),
		                 .cache = random_number(),
		                 .layer = (uint32_t)random_number(),
		                 .flags = (uint32_t)random_number(),
		                 .scale = (float)(random_next() % 3),
		                 .softcap = (float)(random_next() % 3),
		                 .window_left = (int64_t)random_number(),
		                 .window_right = (int64_t)random_next() % 3 - 1,
		                 .rotary_dim = (uint32_t)random_number(),
		                 .rotary_base = (double)(random_next() % 3),
		                 .rotary_scale = (double)(random_next() % 3) },
	};
	for (unsigned int i = 0; i < 7; ++i)
		if (views & 1u << i)
			fill_view(each[i]);
}

/* The offset of the padding byte after Message's vtable. */
#define FAST_PAD 22
#define FAST_VTABLE_PLACE 100

/*
 * The fast path and FlatBuffers agree on a StepAttend, mutated or not. A non-zero byte of padding
 * makes the decoder take the FlatBuffers path. (The offset of the vtable is not mutated: it could
 * point at that byte.)
 */
static void test_fast_path(void **state)
{
	_Alignas(8) unsigned char changed[2048];
	unsigned int n_good = 0, n_bad = 0;

	for (unsigned int i = 0; i < 40000; ++i) {
		struct fa_wire_message message, decoded, by_flatbuffers;
		const char *difference;
		const void *bytes;
		size_t length;
		int r;

		make_fast(&message, i % 128);
		assert_int_equal(fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length),
		                 0);
		assert_int_equal((uintptr_t)bytes % 8, 0);
		assert_ptr_equal((const unsigned char *)bytes + length, buffer + sizeof(buffer));
		assert_in_range(length, 1, sizeof(changed));
		memcpy(changed, bytes, length);
		for (unsigned int n = i / 128 % 4; n; --n) {
			const size_t range = random_next() % 4 ? 184 : length;
			const size_t at = 24 + random_next() % (range - 24);

			if (at >= FAST_VTABLE_PLACE && at < FAST_VTABLE_PLACE + 4)
				continue;
			changed[at] = random_next() % 2 ? (unsigned char)random_next()
			                                : (unsigned char)(changed[at] + 1);
		}
		memset(&decoded, 0xa5, sizeof(decoded));
		r = fa_wire_decode(changed, length, &decoded);
		changed[FAST_PAD] = 1;
		memset(&by_flatbuffers, 0x5a, sizeof(by_flatbuffers));
		assert_int_equal(fa_wire_decode(changed, length, &by_flatbuffers), r);
		if (i / 128 % 4 == 0)
			assert_int_equal(r, 0);
		n_good += r == 0;
		n_bad += r != 0;
		if (r < 0)
			continue;
		difference = fa_inspect_difference(&decoded, &by_flatbuffers);
		if (difference)
			fail_msg("%u: FlatBuffers read another %s", i, difference);
		difference = i / 128 % 4 ? NULL : fa_inspect_difference(&message, &decoded);
		if (difference)
			fail_msg("%u: %s differs", i, difference);
	}
	print_message("%u read, %u refused\n", n_good, n_bad);
	assert_in_range(n_bad, 100, 30000);
}

/* The comparison used by the other tests detects differences. */
static void test_difference_is_seen(void **state)
{
	for (size_t i = 0; i < fa_samples_v1_n(); ++i)
		for (size_t j = 0; j < fa_samples_v1_n(); ++j) {
			const char *difference = fa_inspect_difference(&fa_sample_v1(i)->message,
			                                               &fa_sample_v1(j)->message);

			if ((i == j) != !difference)
				fail_msg("%s, %s: %s", fa_sample_v1(i)->name, fa_sample_v1(j)->name,
				         difference ? difference : "no difference");
		}
}

/*
 * With any buffer size, the encoder refuses the message or writes it at the buffer's end, and
 * touches no other byte. FA_WIRE_FIXED_BYTES_MAX is always enough.
 */
static void test_buffer_sizes(void **state)
{
	enum {
		GUARD = 64,
		ROOM = 2 * FA_WIRE_FIXED_BYTES_MAX
	};
	static _Alignas(8) unsigned char space[GUARD + FA_WIRE_BYTES_MAX + GUARD];
	unsigned char guard[GUARD];

	memset(guard, 0x5a, sizeof(guard));
	for (size_t i = 0; i < fa_samples_v1_n(); ++i) {
		const struct fa_wire_message *message = &fa_sample_v1(i)->message;
		struct fa_wire_message decoded;
		size_t least = 0, length, full_length;
		const void *bytes;

		assert_int_equal(
			fa_wire_encode(message, buffer, sizeof(buffer), &bytes, &full_length), 0);
		for (size_t size = full_length > ROOM ? full_length - ROOM : 0;
		     size < full_length + ROOM; ++size) {
			unsigned char *end = space + GUARD + size;
			int r;

			memcpy(space, guard, GUARD);
			memcpy(end, guard, GUARD);
			r = fa_wire_encode(message, space + GUARD, size, &bytes, &length);
			assert_memory_equal(space, guard, GUARD);
			assert_memory_equal(end, guard, GUARD);
			if (r) {
				assert_int_equal(r, -EMSGSIZE);
				assert_int_equal(least, 0);
				continue;
			}
			if (!least)
				least = size;
			assert_int_equal(length, full_length);
			assert_int_equal((uintptr_t)bytes % 8, 0);
			assert_ptr_equal((const unsigned char *)bytes + length, end - size % 8);
			assert_int_equal(fa_wire_decode(bytes, length, &decoded), 0);
			assert_null(fa_inspect_difference(message, &decoded));
		}
		assert_in_range(least, full_length, full_length + FA_WIRE_FIXED_BYTES_MAX);
		if (full_length <= 256)
			assert_in_range(least, 1, FA_WIRE_FIXED_BYTES_MAX);
	}
}

static void test_encode_refuses(void **state)
{
	static const unsigned types[] = { 0, _FA_WIRE_TYPE_N, 200, 255, 256, UINT32_MAX };
	struct fa_wire_message message = { .id = 1 };
	const void *bytes = NULL;
	size_t length = 0;

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); ++i) {
		message.type = (enum fa_wire_type)types[i];
		assert_int_equal(fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length),
		                 -EINVAL);
	}
	message.type = FA_WIRE_PING;
	for (size_t i = 1; i < 8; ++i)
		assert_int_equal(fa_wire_encode(&message, buffer + i, 4096, &bytes, &length),
		                 -EINVAL);

	/* lengths that would overflow */
	message.type = FA_WIRE_REPLY;
	message.reply = (struct fa_wire_reply){ .text = { "x", SIZE_MAX } };
	assert_int_equal(fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length),
	                 -EMSGSIZE);
	message.type = FA_WIRE_ATTENTION;
	message.attention = (struct fa_wire_attention){
		.cu_seqlens_q = (const uint32_t[1]){ 0 },
		.cu_seqlens_k = (const uint32_t[1]){ 0 },
		.alibi_slopes = (const float[1]){ 0 },
		.sinks = (const float[1]){ 0 },
		.n_cu_seqlens_q = SIZE_MAX / 4 + 1,
		.n_cu_seqlens_k = SIZE_MAX / 4 + 1,
		.n_alibi_slopes = SIZE_MAX / 4 + 1,
		.n_sinks = SIZE_MAX / 4 + 1,
	};
	assert_int_equal(fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length),
	                 -EMSGSIZE);
	message.type = FA_WIRE_BUFFER_REGISTER;
	message.buffer_register =
		(struct fa_wire_buffer_register){ .n_piece_bytes = FA_WIRE_FDS_MAX + 1 };
	assert_int_equal(fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length),
	                 -EINVAL);
	message.type = FA_WIRE_BUFFER_PIECES;
	message.buffer_pieces = (struct fa_wire_buffer_pieces){ .n_piece_bytes = SIZE_MAX };
	assert_int_equal(fa_wire_encode(&message, buffer, sizeof(buffer), &bytes, &length),
	                 -EINVAL);
	assert_null(bytes);
	assert_int_equal(length, 0);
}

/* No message is longer than FA_WIRE_BYTES_MAX, however large the buffer. */
static void test_encode_never_exceeds_packet(void **state)
{
	static _Alignas(8) unsigned char large[4 * FA_WIRE_BYTES_MAX];
	static const char text[2 * FA_WIRE_BYTES_MAX];
	struct fa_wire_message message = { .id = 1, .type = FA_WIRE_REPLY };
	const void *bytes;
	size_t length;

	for (size_t n = FA_WIRE_BYTES_MAX - 600; n < FA_WIRE_BYTES_MAX + 600; ++n) {
		message.reply.text = (struct fa_wire_string){ text, n };
		if (fa_wire_encode(&message, large, sizeof(large), &bytes, &length))
			continue;
		assert_in_range(length, n, FA_WIRE_BYTES_MAX);
		assert_ptr_equal((const unsigned char *)bytes + length, large + sizeof(large));
	}
}

static void test_type_names(void **state)
{
	assert_string_equal(fa_wire_type_name(FA_WIRE_ATTENTION), "Attention");
	assert_string_equal(fa_wire_type_name(FA_WIRE_STATUS_REPLY), "StatusReply");
	assert_string_equal(fa_wire_type_name(FA_WIRE_NONE), "unknown");
	assert_string_equal(fa_wire_type_name(_FA_WIRE_TYPE_N), "unknown");
	assert_string_equal(fa_wire_type_name((enum fa_wire_type)UINT32_MAX), "unknown");
	for (unsigned i = 1; i < _FA_WIRE_TYPE_N; ++i)
		assert_string_not_equal(fa_wire_type_name(i), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_type_has_samples),
		cmocka_unit_test(test_roundtrip),
		cmocka_unit_test(test_fast_path),
		cmocka_unit_test(test_difference_is_seen),
		cmocka_unit_test(test_buffer_sizes),
		cmocka_unit_test(test_encode_refuses),
		cmocka_unit_test(test_encode_never_exceeds_packet),
		cmocka_unit_test(test_type_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
