/* Decodes untrusted bytes: limits, hand-written messages, truncation, mutation. */
#include "tests/wire/inspect.h"
#include "tests/wire/samples.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))

#define MUTATIONS 100000

static _Alignas(8) unsigned char buffer[FA_WIRE_BYTES_MAX];

static const void *encode(const struct fa_wire_message *message, size_t *ret_length)
{
	const void *bytes;
	int r;

	r = fa_wire_encode(message, buffer, sizeof(buffer), &bytes, ret_length);
	if (r)
		fail_msg("encoding failed with %d", r);
	return bytes;
}

/* Decodes, and checks that -EBADMSG leaves @ret_message untouched. */
static int decode(const void *bytes, size_t length, struct fa_wire_message *ret_message)
{
	struct fa_wire_message untouched;
	int r;

	memset(&untouched, 0xa5, sizeof(untouched));
	memset(ret_message, 0xa5, sizeof(*ret_message));
	r = fa_wire_decode(bytes, length, ret_message);
	if (r == -EBADMSG)
		assert_memory_equal(ret_message, &untouched, sizeof(untouched));
	else if (r == -ENOSYS)
		assert_true(ret_message->type >= _FA_WIRE_TYPE_N);
	else if (r != -EMSGSIZE)
		assert_int_equal(r, 0);
	return r;
}

/* Allocates an exact copy, so that a sanitizer detects reads beyond the end. */
static void *copy(const void *bytes, size_t length)
{
	void *exact = malloc(length ? length : 1);

	assert_non_null(exact);
	memcpy(exact, bytes, length);
	return exact;
}

/* Checks that a decoded message is the same after encoding and decoding it again. */
static void check_again(const struct fa_wire_message *message)
{
	struct fa_wire_message again;
	const char *difference;
	const void *bytes;
	size_t length;

	bytes = encode(message, &length);
	assert_int_equal(decode(bytes, length, &again), 0);
	difference = fa_inspect_difference(message, &again);
	if (difference)
		fail_msg("%s differs the second time", difference);
}

static void put_16(unsigned char *at, uint16_t value)
{
	memcpy(at, &value, sizeof(value));
}

static void put_32(unsigned char *at, uint32_t value)
{
	memcpy(at, &value, sizeof(value));
}

/*
 * Written by hand from the specification of FlatBuffers: id 7 and an Attention without fields.
 *    0 offset of the Message, identifier
 *    8 vtable of the Message: id at 4, no timeout_ns, no fds, body_type at 16, body at 12
 *   28 the Message
 *   46 vtable of the Attention: no fields
 *   52 the Attention
 */
enum {
	HAND_VTABLE = 8,
	HAND_MESSAGE = 28,
	HAND_BODY = 40,
	HAND_TYPE = 44,
	HAND_BODY_VTABLE = 46,
	HAND_ATTENTION = 52,
	HAND_BYTES = 56,
};

static void write_by_hand(unsigned char *bytes)
{
	memset(bytes, 0, HAND_BYTES);
	put_32(bytes, HAND_MESSAGE);
	memcpy(bytes + 4, "FADM", 4);
	put_16(bytes + HAND_VTABLE, 14);
	put_16(bytes + HAND_VTABLE + 2, 17);
	put_16(bytes + HAND_VTABLE + 4, 4);
	put_16(bytes + HAND_VTABLE + 10, HAND_TYPE - HAND_MESSAGE);
	put_16(bytes + HAND_VTABLE + 12, HAND_BODY - HAND_MESSAGE);
	put_32(bytes + HAND_MESSAGE, HAND_MESSAGE - HAND_VTABLE);
	put_32(bytes + HAND_MESSAGE + 4, 7);
	put_32(bytes + HAND_BODY, HAND_ATTENTION - HAND_BODY);
	bytes[HAND_TYPE] = FA_WIRE_ATTENTION;
	put_16(bytes + HAND_BODY_VTABLE, 4);
	put_16(bytes + HAND_BODY_VTABLE + 2, 4);
	put_32(bytes + HAND_ATTENTION, HAND_ATTENTION - HAND_BODY_VTABLE);
}

static void test_defaults(void **state)
{
	_Alignas(8) unsigned char bytes[HAND_BYTES];
	const struct fa_wire_message expected = {
		.id = 7,
		.type = FA_WIRE_ATTENTION,
		.attention = { .window_left = -1, .window_right = -1 },
	};
	struct fa_wire_message message;
	const char *difference;

	write_by_hand(bytes);
	assert_int_equal(decode(bytes, sizeof(bytes), &message), 0);
	difference = fa_inspect_difference(&expected, &message);
	if (difference)
		fail_msg("%s has another default", difference);
}

static void test_made_up(void **state)
{
	static const struct {
		const char *what;
		unsigned at, bytes;
		uint32_t value;
		int result;
	} cases[] = {
		{ "nothing changed", 0, 4, HAND_MESSAGE, 0 },
		{ "identifier of another protocol", 4, 4, 0x4d444147, -EBADMSG },
		{ "root is nowhere", 0, 4, 0, -EBADMSG },
		{ "root is the last byte", 0, 4, HAND_BYTES - 1, -EBADMSG },
		{ "root lies outside", 0, 4, HAND_BYTES, -EBADMSG },
		{ "root is far outside", 0, 4, 0x7fffffff, -EBADMSG },
		{ "root is negative", 0, 4, 0xfffffffc, -EBADMSG },
		{ "root is misaligned", 0, 4, HAND_MESSAGE + 2, -EBADMSG },
		{ "vtable lies before the bytes", HAND_MESSAGE, 4, 30, -EBADMSG },
		{ "vtable lies behind the bytes", HAND_MESSAGE, 4, (uint32_t)-28, -EBADMSG },
		{ "vtable is misaligned", HAND_MESSAGE, 4, 19, -EBADMSG },
		{ "vtable is far away", HAND_MESSAGE, 4, 0x80000000, -EBADMSG },
		{ "vtable of odd size", HAND_VTABLE, 2, 13, -EBADMSG },
		{ "vtable longer than the bytes", HAND_VTABLE, 2, 0xfffe, -EBADMSG },
		{ "vtable without entries", HAND_VTABLE, 2, 0, -EBADMSG },
		{ "id lies outside", HAND_VTABLE + 4, 2, 24, -EBADMSG },
		{ "id is misaligned", HAND_VTABLE + 4, 2, 6, -EBADMSG },
		{ "fds lie outside", HAND_VTABLE + 8, 2, 28, -EBADMSG },
		{ "no type", HAND_VTABLE + 10, 2, 0, -EBADMSG },
		{ "type NONE", HAND_TYPE, 1, FA_WIRE_NONE, -EBADMSG },
		{ "first unknown type", HAND_TYPE, 1, _FA_WIRE_TYPE_N, -ENOSYS },
		{ "last unknown type", HAND_TYPE, 1, 255, -ENOSYS },
		{ "no body", HAND_VTABLE + 12, 2, 0, -EBADMSG },
		{ "body is itself", HAND_BODY, 4, 0, -EBADMSG },
		{ "body lies outside", HAND_BODY, 4, HAND_BYTES - HAND_BODY, -EBADMSG },
		{ "body is negative", HAND_BODY, 4, 0xfffffff4, -EBADMSG },
		{ "body's vtable is outside", HAND_ATTENTION, 4, 60, -EBADMSG },
		/* extends the vtable at 46 to 40 bytes */
		{ "body's vtable is too long", HAND_BODY_VTABLE, 2, 40, -EBADMSG },
	};
	_Alignas(8) unsigned char bytes[HAND_BYTES];

	for (size_t i = 0; i < N(cases); ++i) {
		struct fa_wire_message message;
		void *exact;
		int r;

		write_by_hand(bytes);
		memcpy(bytes + cases[i].at, &cases[i].value, cases[i].bytes);
		exact = copy(bytes, sizeof(bytes));
		r = decode(exact, sizeof(bytes), &message);
		if (r != cases[i].result)
			fail_msg("%s: %d instead of %d", cases[i].what, r, cases[i].result);
		if (r == -ENOSYS) {
			assert_int_equal(message.id, 7);
			assert_int_equal(message.timeout_ns, 0);
			assert_int_equal(message.fds, 0);
			assert_int_equal(message.type, cases[i].value);
		}
		free(exact);
	}
}

/* The message has a type of a later version: its other fields are decoded. */
static void test_unknown_type(void **state)
{
	struct fa_wire_message message = { .id = UINT64_MAX - 1,
		                           .timeout_ns = 1ull << 40,
		                           .fds = 3,
		                           .type = FA_WIRE_STREAM_CREATE,
		                           .stream_create = { 0x33333333, 0x33 } };
	struct fa_wire_message unknown;
	unsigned char *bytes;
	unsigned changed = 0;
	size_t length;

	bytes = (unsigned char *)encode(&message, &length);
	for (size_t i = 8; i < length; ++i) {
		unsigned char old = bytes[i];

		if (old != FA_WIRE_STREAM_CREATE)
			continue;
		bytes[i] = 99;
		if (decode(bytes, length, &unknown) == -ENOSYS) {
			++changed;
			assert_int_equal(unknown.id, message.id);
			assert_int_equal(unknown.timeout_ns, message.timeout_ns);
			assert_int_equal(unknown.fds, message.fds);
			assert_int_equal(unknown.type, 99);
		}
		bytes[i] = old;
	}
	assert_int_equal(changed, 1);
}

static void test_refused_at_once(void **state)
{
	static _Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX + 16];
	const struct fa_wire_message ping = { .id = 1, .type = FA_WIRE_PING };
	struct fa_wire_message message;
	const void *bytes;
	size_t length;

	assert_int_equal(decode(NULL, 0, &message), -EBADMSG);
	for (length = 0; length < 64; ++length)
		assert_int_equal(decode(space, length, &message), -EBADMSG);
	assert_int_equal(decode(space, sizeof(space), &message), -EBADMSG);

	/* these bytes are valid, but misaligned */
	bytes = encode(&ping, &length);
	for (size_t i = 0; i < 8; ++i) {
		memmove(space + i, bytes, length);
		assert_int_equal(decode(space + i, length, &message), i ? -EBADMSG : 0);
	}

	/* the longest message is accepted, one byte more is not */
	memcpy(space, bytes, length);
	assert_int_equal(decode(space, FA_WIRE_BYTES_MAX, &message), 0);
	assert_int_equal(decode(space, FA_WIRE_BYTES_MAX + 1, &message), -EBADMSG);
}

static void test_limits(void **state)
{
	static const char text[FA_WIRE_TEXT_BYTES_MAX + 1];
	static const uint32_t sequences[FA_WIRE_SEQUENCES_MAX + 2];
	static const float heads[FA_WIRE_HEADS_MAX + 1];
	const struct fa_wire_string name = { text, FA_WIRE_NAME_BYTES_MAX + 1 };
	const struct fa_wire_string sentence = { text, FA_WIRE_TEXT_BYTES_MAX + 1 };
	const struct fa_wire_message cases[] = {
		{ .type = FA_WIRE_HELLO, .hello = { .name = name } },
		{ .type = FA_WIRE_REPLY, .reply = { .text = sentence } },
		{ .type = FA_WIRE_COMPLETION, .completion = { .text = sentence } },
		{ .type = FA_WIRE_HELLO_REPLY, .hello_reply = { .daemon_version = name } },
		{ .type = FA_WIRE_HELLO_REPLY, .hello_reply = { .backend = name } },
		{ .type = FA_WIRE_HELLO_REPLY, .hello_reply = { .device_name = name } },
		{ .type = FA_WIRE_ATTENTION,
		  .attention = { .cu_seqlens_q = sequences, .n_cu_seqlens_q = N(sequences) } },
		{ .type = FA_WIRE_ATTENTION,
		  .attention = { .cu_seqlens_k = sequences, .n_cu_seqlens_k = N(sequences) } },
		{ .type = FA_WIRE_ATTENTION,
		  .attention = { .alibi_slopes = heads, .n_alibi_slopes = N(heads) } },
		{ .type = FA_WIRE_ATTENTION, .attention = { .sinks = heads, .n_sinks = N(heads) } },
	};

	for (size_t i = 0; i < N(cases); ++i) {
		struct fa_wire_message sent = cases[i], message;
		const void *bytes;
		size_t length;

		sent.id = 1000 + i;
		sent.timeout_ns = 77;
		sent.fds = 2;
		bytes = encode(&sent, &length);
		assert_int_equal(decode(bytes, length, &message), -EMSGSIZE);
		assert_int_equal(message.id, 1000 + i);
		assert_int_equal(message.timeout_ns, 77);
		assert_int_equal(message.fds, 2);
		assert_int_equal(message.type, sent.type);
	}
}

static void test_truncation(void **state)
{
	for (size_t i = 0; i < fa_samples_v1_n(); ++i) {
		unsigned char *whole;
		size_t full_length;
		const void *bytes;

		bytes = encode(&fa_sample_v1(i)->message, &full_length);
		whole = copy(bytes, full_length);
		/* of long messages only the ends are cut byte by byte: the middle is one vector */
		for (size_t length = 0; length < full_length; ++length) {
			struct fa_wire_message message;
			void *exact;

			if (length == 2048 && full_length > 6144)
				length = full_length - 4096;
			exact = copy(whole, length);
			if (!decode(exact, length, &message)) {
				(void)fa_inspect_read(&message, exact, length);
				check_again(&message);
			}
			free(exact);
		}
		free(whole);
	}
}

static uint64_t random_state;

static uint64_t random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static void mutate(unsigned char *bytes, size_t length)
{
	static const uint32_t values[] = { 0,          1,          2,         3,       4,
		                           8,          0x7f,       0x80,      0xff,    0x7fff,
		                           0x8000,     0xffff,     0xfffe,    0x10000, 0x7fffffff,
		                           0x80000000, 0xfffffffc, 0xffffffff };
	unsigned n = 1 + random_next() % 8;

	/* mutate mostly the first 256 bytes, which hold the structure */
	for (unsigned i = 0; i < n; ++i) {
		size_t range = length > 256 && random_next() % 8 ? 256 : length;
		size_t at = random_next() % range;
		size_t width = 1u << random_next() % 3;
		uint32_t value = values[random_next() % N(values)];

		switch (random_next() % 4) {
		case 0:
			bytes[at] ^= 1u << random_next() % 8;
			break;
		case 1:
			bytes[at] = (unsigned char)random_next();
			break;
		case 2:
			memcpy(bytes + at, &value, width < length - at ? width : length - at);
			break;
		default:
			bytes[at] += (unsigned char)(random_next() % 17) - 8;
			break;
		}
	}
}

static void test_mutation(void **state)
{
	const char *seed = getenv("FAD_TEST_SEED");
	size_t n_good = 0, n_bad = 0;
	uint64_t sum = 0;

	random_state = seed ? strtoull(seed, NULL, 0) | 1 : 0x9e3779b97f4a7c15;
	print_message("FAD_TEST_SEED=%#" PRIx64 "\n", random_state);
	for (unsigned i = 0; i < MUTATIONS; ++i) {
		const struct fa_sample *sample = fa_sample_v1(random_next() % fa_samples_v1_n());
		struct fa_wire_message message;
		unsigned char *exact;
		const void *bytes;
		size_t length;

		bytes = encode(&sample->message, &length);
		if (random_next() % 16 == 0)
			length = random_next() % length;
		exact = copy(bytes, length);
		if (length)
			mutate(exact, length);
		if (decode(exact, length, &message)) {
			++n_bad;
		} else {
			++n_good;
			sum += fa_inspect_read(&message, exact, length);
			check_again(&message);
		}
		free(exact);
	}
	print_message("%zu decoded (%#" PRIx64 "), %zu refused\n", n_good, sum, n_bad);
	/* both outcomes are frequent */
	assert_in_range(n_good, MUTATIONS / 100, MUTATIONS);
	assert_in_range(n_bad, MUTATIONS / 100, MUTATIONS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),     cmocka_unit_test(test_made_up),
		cmocka_unit_test(test_unknown_type), cmocka_unit_test(test_refused_at_once),
		cmocka_unit_test(test_limits),       cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_mutation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
