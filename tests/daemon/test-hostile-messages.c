/*
 * Messages that no honest client sends. Each gets a clear answer or ends its own connection; a
 * bystander computes all the while, and nothing leaks.
 */
#include "common/cleanup.h"
#include "tests/lib/check.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

static struct fa_scene scene;
static struct fa_raw raw;

static int setup(void **state)
{
	fa_scene_start(&scene, NULL);
	return 0;
}

static int teardown(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

static void send_bytes(const void *bytes, size_t length)
{
	fa_check_eq(fa_raw_send_bytes(&raw, bytes, length, NULL, 0, 0), 0);
}

/* After Hello; the daemon must send a text with @part and close. */
static void expect_refused(const void *bytes, size_t length, const char *part)
{
	fa_raw_open(&raw, scene.daemon.socket);
	send_bytes(bytes, length);
	fa_raw_expect_reply(&raw, 0, -EPROTO, part, true);
	fa_raw_close(&raw);
}

static void test_garbage(void **state)
{
	struct fa_test_random random = { 1 };
	unsigned char bytes[4096];

	for (int i = 0; i < 60; ++i) {
		size_t length = 1 + fa_test_random_below(&random, i < 30 ? 64 : sizeof(bytes));

		for (size_t j = 0; j < length; ++j)
			bytes[j] = (unsigned char)fa_test_random(&random);
		expect_refused(bytes, length, "message");
		if (i % 20 == 0)
			fa_scene_bystander(&scene);
	}
	memset(bytes, 0, sizeof(bytes));
	expect_refused(bytes, sizeof(bytes), "message");
	memset(bytes, 0xff, sizeof(bytes));
	expect_refused(bytes, sizeof(bytes), "message");
	expect_refused("GET / HTTP/1.1\r\n\r\n", 18, "message");
	fa_scene_check(&scene);

	fa_raw_connect(&raw, scene.daemon.socket);
	send_bytes(bytes, sizeof(bytes));
	fa_raw_expect_reply(&raw, 0, -EPROTO, "message", true);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static struct fa_wire_message example(enum fa_wire_type type)
{
	struct fa_wire_message message = fa_raw_message(type);

	switch (type) {
	case FA_WIRE_HELLO:
		return fa_raw_hello_message("a name");
	case FA_WIRE_BUFFER_REGISTER:
		message = fa_raw_register_message(7, 4096);
		message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
		break;
	case FA_WIRE_BUFFER_FREE:
		message.buffer_free.buffer = 7;
		break;
	case FA_WIRE_STREAM_CREATE:
		message.stream_create.stream = 3;
		break;
	case FA_WIRE_STREAM_FREE:
		message.stream_free.stream = 3;
		break;
	case FA_WIRE_ATTENTION:
		message = fa_case_message(&scene.attention, 1, 0, 0, 1);
		break;
	case FA_WIRE_CANCEL:
		message.cancel.value = 1;
		break;
	default:
		break;
	}
	message.id = 5;
	return message;
}

/* Some cuts remove only padding: then the decoder says whether the rest is a message. */
static void test_truncated(void **state)
{
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_wire_message decoded;
	int n = 0;

	for (int type = FA_WIRE_HELLO; type <= FA_WIRE_DRAIN; ++type) {
		struct fa_wire_message message = example(type);
		size_t length = fa_raw_encode(&message, bytes);
		size_t step = length > 200 ? 13 : 3;

		for (size_t cut = 1; cut < length; cut += step) {
			if (fa_wire_decode(bytes, cut, &decoded) != -EBADMSG)
				continue;
			expect_refused(bytes, cut, "message");
			n++;
		}
	}
	fa_check(n > 100);
	fa_scene_check(&scene);
}

/* Single bits flipped: any answer or end will do, but the daemon survives. */
static void test_flipped_bits(void **state)
{
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_test_random random = { 2 };

	fa_raw_open(&raw, scene.daemon.socket);
	for (int type = FA_WIRE_HELLO; type < FA_WIRE_DRAIN; ++type) {
		struct fa_wire_message message = example(type);
		size_t length = fa_raw_encode(&message, bytes);

		for (int i = 0; i < (fa_test_long() ? 2000 : 150); ++i) {
			size_t bit = fa_test_random_below(&random, length * 8);
			bool sent = false;
			int r;

			bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
			if (fa_wire_decode(bytes, length, &message) < 0 ||
			    message.type != FA_WIRE_DRAIN) {
				send_bytes(bytes, length);
				sent = true;
			}
			bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
			if (!sent)
				continue;
			r = fa_raw_receive(&raw, (int)(fa_test_patience_ns() / FA_NS_PER_MS));
			if (r == -EAGAIN)
				fa_test_fail(__FILE__, __LINE__, "bit %zu of %s is not answered",
				             bit, fa_wire_type_name(type));
			if (r == 1 && raw.message.type == FA_WIRE_REPLY &&
			    raw.message.reply.status == -EPROTO)
				fa_raw_expect_end(&raw);
			else if (r == 1)
				continue;
			fa_raw_close(&raw);
			fa_raw_open(&raw, scene.daemon.socket);
		}
		fa_scene_bystander(&scene);
	}
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_oversized(void **state)
{
	static unsigned char bytes[200000];
	static const size_t lengths[] = { 65537, 65544, 100000, 200000 };
	struct fa_wire_message ping = example(FA_WIRE_PING);

	fa_raw_encode(&ping, bytes);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); ++i)
		expect_refused(bytes, lengths[i], "65536");

	fa_raw_open(&raw, scene.daemon.socket);
	send_bytes(bytes, 65536);
	fa_raw_expect_reply(&raw, ping.id, 0, NULL, false);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

/*
 * A chain of tables, each the body of the one before with the layout of Message, as deep as a
 * packet allows; or a table that is its own body.
 */
static size_t build_chain(unsigned char *bytes, size_t depth, uint8_t type, bool circle)
{
	static const uint16_t vtable[] = { 4 + 5 * 2, 16, 0, 0, 0, 4, 8 };
	uint32_t at = 8 + 24; /* root offset, identifier, vtable and padding */

	memset(bytes, 0, FA_WIRE_BYTES_MAX);
	memcpy(bytes, &at, 4);
	memcpy(bytes + 4, "FADM", 4);
	memcpy(bytes + 8, vtable, sizeof(vtable));
	for (size_t i = 0; i < depth; ++i, at += 16) {
		int32_t to_vtable = (int32_t)at - 8;
		uint32_t next = circle ? (uint32_t)-8 : 8;

		memcpy(bytes + at, &to_vtable, 4);
		bytes[at + 4] = type;
		memcpy(bytes + at + 8, &next, 4);
	}
	return at;
}

static void test_nested(void **state)
{
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_wire_message decoded;

	for (int circle = 0; circle < 2; ++circle)
		for (int type = 0; type < 256; type += type < 20 ? 1 : 47) {
			size_t length = build_chain(bytes, circle ? 1 : 4000, (uint8_t)type,
			                            circle);
			int r = fa_wire_decode(bytes, length, &decoded);

			if (type == FA_WIRE_DRAIN)
				continue;
			if (r == -EBADMSG) {
				expect_refused(bytes, length, "message");
				continue;
			}
			fa_raw_open(&raw, scene.daemon.socket);
			send_bytes(bytes, length);
			fa_check(fa_raw_receive(&raw, 60000) == 1);
			fa_raw_close(&raw);
		}
	fa_scene_check(&scene);
}

static void test_versions(void **state)
{
	static const uint16_t versions[][2] = {
		{ 2, 9 }, { 0, 0 }, { 7, 7 }, { 3, 1 }, { 65535, 65535 }
	};

	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); ++i) {
		struct fa_wire_message hello = fa_raw_hello_message("of another time");
		char theirs[16];

		fa_raw_connect(&raw, scene.daemon.socket);
		hello.id = 77;
		hello.hello.version_min = versions[i][0];
		hello.hello.version_max = versions[i][1];
		fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.type, FA_WIRE_REPLY);
		fa_check_eq(raw.message.id, 77);
		fa_check_eq(raw.message.reply.status, -EPROTONOSUPPORT);
		fa_check_contains(raw.message.reply.text.text, "version");
		snprintf(theirs, sizeof(theirs), "%u", versions[i][1]);
		fa_check_contains(raw.message.reply.text.text, theirs);
		fa_check_contains(raw.message.reply.text.text, "1");
		fa_raw_expect_end(&raw);
		fa_raw_close(&raw);
	}

	fa_raw_connect(&raw, scene.daemon.socket);
	{
		struct fa_wire_message hello = fa_raw_hello_message("from the future");

		hello.hello.version_max = 1000;
		hello.hello.features = UINT64_MAX;
		fa_raw_call(&raw, &hello, NULL, 0);
		fa_check_eq(raw.message.type, FA_WIRE_HELLO_REPLY);
		fa_check_eq(raw.message.hello_reply.version, FA_WIRE_VERSION_MAX);
	}
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_unknown_types(void **state)
{
	static const uint8_t types[] = { _FA_WIRE_TYPE_N, _FA_WIRE_TYPE_N + 1, 100, 255 };
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX];
	struct fa_wire_message ping = example(FA_WIRE_PING);
	size_t length = fa_raw_encode(&ping, bytes);
	char text[64];

	fa_raw_open(&raw, scene.daemon.socket);
	for (size_t i = 0; i < sizeof(types); ++i) {
		fa_raw_set_type(bytes, types[i]);
		send_bytes(bytes, length);
		snprintf(text, sizeof(text), "unknown message type %u", types[i]);
		fa_raw_expect_reply(&raw, ping.id, -ENOTSUP, text, false);
	}
	fa_raw_ping(&raw);
	fa_raw_set_type(bytes, 0);
	send_bytes(bytes, length);
	fa_raw_expect_reply(&raw, 0, -EPROTO, NULL, true);
	fa_raw_close(&raw);

	fa_raw_connect(&raw, scene.daemon.socket);
	fa_raw_set_type(bytes, 100);
	send_bytes(bytes, length);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_check_contains(raw.message.reply.text.text, "Hello");
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_replies_as_requests(void **state)
{
	for (int type = FA_WIRE_REPLY; type <= FA_WIRE_STATUS_REPLY; ++type) {
		struct fa_wire_message message = fa_raw_message(type);

		fa_raw_open(&raw, scene.daemon.socket);
		fa_raw_call_expect(&raw, &message, NULL, 0, -ENOTSUP, fa_wire_type_name(type));
		fa_raw_ping(&raw);
		fa_raw_close(&raw);
	}
	fa_scene_check(&scene);
}

static void test_no_hello(void **state)
{
	for (int type = FA_WIRE_PING; type < _FA_WIRE_TYPE_N; ++type) {
		struct fa_wire_message message = example(type);

		fa_raw_connect(&raw, scene.daemon.socket);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.type, FA_WIRE_REPLY);
		fa_check_eq(raw.message.reply.status, -EPROTO);
		fa_check_contains(raw.message.reply.text.text, "Hello");
		fa_raw_expect_end(&raw);
		fa_raw_close(&raw);
	}
	fa_scene_check(&scene);
}

static void test_second_hello(void **state)
{
	struct fa_wire_message hello = fa_raw_hello_message("again");

	fa_raw_open(&raw, scene.daemon.socket);
	hello.id = 9;
	fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_check_contains(raw.message.reply.text.text, "Hello");
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);

	fa_raw_connect(&raw, scene.daemon.socket);
	fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
	fa_check_eq(fa_raw_send(&raw, &hello, NULL, 0), 0);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_HELLO_REPLY);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_empty_packet(void **state)
{
	fa_raw_open(&raw, scene.daemon.socket);
	send_bytes("", 0);
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_long_vectors(void **state)
{
	static uint32_t cu_seqlens[FA_WIRE_SEQUENCES_MAX + 2];
	static float slopes[FA_WIRE_HEADS_MAX + 1];
	struct fa_wire_message message;
	char name[FA_WIRE_NAME_BYTES_MAX + 2];

	memset(name, 'n', sizeof(name));
	name[sizeof(name) - 1] = 0;
	fa_raw_connect(&raw, scene.daemon.socket);
	message = fa_raw_hello_message(name);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_check_contains(raw.message.reply.text.text, "Hello");
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);

	for (int i = 0; i < 2; ++i) {
		message = example(FA_WIRE_ATTENTION);
		if (i) {
			message.attention.alibi_slopes = slopes;
			message.attention.n_alibi_slopes = FA_WIRE_HEADS_MAX + 1;
		} else {
			message.attention.cu_seqlens_q = cu_seqlens;
			message.attention.n_cu_seqlens_q = FA_WIRE_SEQUENCES_MAX + 2;
		}
		fa_raw_open(&raw, scene.daemon.socket);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.type, FA_WIRE_REPLY);
		fa_check_eq(raw.message.reply.status, -EPROTO);
		fa_check_contains(raw.message.reply.text.text, "Attention");
		fa_raw_expect_end(&raw);
		fa_raw_close(&raw);
	}
	fa_scene_check(&scene);
}

static void test_ids_of_others(void **state)
{
	struct fa_wire_message message;

	fa_raw_stream_create(&scene.bystander, 5, 0);
	fa_raw_open(&raw, scene.daemon.socket);

	message = fa_case_message(&scene.attention, scene.buffer.id, 0, 0, 1);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 1, -ENOENT, "q.buffer is 1");

	message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	message.buffer_free.buffer = scene.buffer.id;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, "buffer 1");

	message = fa_raw_message(FA_WIRE_STREAM_FREE);
	message.stream_free.stream = 5;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, "stream 5");

	message = fa_raw_message(FA_WIRE_CANCEL);
	message.cancel.value = scene.value;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, NULL);
	message.cancel.stream = 5;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, NULL);
	message.cancel.stream = 4000000000u;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, NULL);

	message = fa_case_message(&scene.attention, scene.buffer.id, 0, 5, 7);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 5, 7, -ENOENT, "stream 5");
	message.attention.stream = UINT32_MAX;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, UINT32_MAX, 7, -ENOENT, "stream 4294967295");
	fa_raw_ping(&raw);
	fa_raw_close(&raw);

	/* A connected owner's secret resumes nothing, a wrong secret never does. */
	for (int i = 0; i < 2; ++i) {
		fa_raw_connect(&raw, scene.daemon.socket);
		message = fa_raw_hello_message("thief");
		message.hello.has_resume = true;
		message.hello.resume_secret = scene.bystander.secret;
		message.hello.resume_secret.hi ^= (uint64_t)i;
		message.hello.resume_generation = scene.bystander.generation;
		fa_raw_call(&raw, &message, NULL, 0);
		fa_check_eq(raw.message.type, FA_WIRE_HELLO_REPLY);
		fa_check(!raw.message.hello_reply.resumed);
		fa_check(raw.message.hello_reply.session != scene.bystander.session);
		message = fa_raw_message(FA_WIRE_BUFFER_FREE);
		message.buffer_free.buffer = scene.buffer.id;
		fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, "buffer 1");
		fa_raw_close(&raw);
	}
	fa_raw_stream_free(&scene.bystander, 5);
	fa_scene_check(&scene);
}

static void test_secrets(void **state)
{
	struct fa_raw other;

	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_open(&other, scene.daemon.socket);
	fa_check(raw.secret.lo && raw.secret.hi);
	fa_check(raw.secret.lo != other.secret.lo && raw.secret.hi != other.secret.hi);
	fa_check(raw.secret.lo != scene.bystander.secret.lo);
	fa_check_eq(raw.generation, other.generation);
	fa_raw_close(&other);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_wrong_values(void **state)
{
	static const uint64_t values[] = { 0, 2, 1000, UINT64_MAX };
	struct fa_wire_message message;

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); ++i) {
		fa_raw_open(&raw, scene.daemon.socket);
		message = fa_case_message(&scene.attention, 1, 0, 0, values[i]);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_receive_reply(&raw);
		fa_check_eq(raw.message.type, FA_WIRE_REPLY);
		fa_check_eq(raw.message.reply.status, -EPROTO);
		fa_check_contains(raw.message.reply.text.text, "value");
		fa_check_contains(raw.message.reply.text.text, "expected 1");
		fa_raw_expect_end(&raw);
		fa_raw_close(&raw);
	}

	fa_raw_open(&raw, scene.daemon.socket);
	message = fa_case_message(&scene.attention, 1, 0, 0, 1);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 1, -ENOENT, "q.buffer is 1");
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.reply.status, -EPROTO);
	fa_check_contains(raw.message.reply.text.text, "expected 2");
	fa_raw_expect_end(&raw);
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

static void test_streams(void **state)
{
	struct fa_wire_message create = fa_raw_message(FA_WIRE_STREAM_CREATE);
	struct fa_wire_message release = fa_raw_message(FA_WIRE_STREAM_FREE);
	static const uint32_t wrong[] = { 64, 65, 1000, UINT32_MAX };

	fa_raw_open(&raw, scene.daemon.socket);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
		char number[16];

		snprintf(number, sizeof(number), "%u", wrong[i]);
		create.stream_create.stream = wrong[i];
		fa_raw_call_expect(&raw, &create, NULL, 0, -EINVAL, number);
		release.stream_free.stream = wrong[i];
		fa_raw_call_expect(&raw, &release, NULL, 0, -ENOENT, number);
	}
	create.stream_create.stream = 0;
	fa_raw_call_expect(&raw, &create, NULL, 0, -EINVAL, "0");
	release.stream_free.stream = 0;
	fa_raw_call_expect(&raw, &release, NULL, 0, -EINVAL, "0");

	create.stream_create.stream = 9;
	fa_raw_call_expect(&raw, &create, NULL, 0, 0, NULL);
	fa_raw_call_expect(&raw, &create, NULL, 0, -EEXIST, "9");
	release.stream_free.stream = 9;
	fa_raw_call_expect(&raw, &release, NULL, 0, 0, NULL);
	fa_raw_call_expect(&raw, &release, NULL, 0, -ENOENT, "9");

	fa_raw_stream_create(&raw, 9, 1);
	for (uint64_t value = 1; value <= 2; ++value) {
		struct fa_wire_message message = fa_case_message(&scene.attention, 1, 0, 9, value);

		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 9, value, -ENOENT, "q.buffer is 1");
	}
	fa_raw_stream_free(&raw, 9);
	fa_raw_stream_create(&raw, 9, 0);
	{
		struct fa_wire_message message = fa_case_message(&scene.attention, 1, 0, 9, 3);

		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 9, 3, -ENOENT, "q.buffer is 1");
		fa_check_eq(raw.page[9].completed, 3);
		fa_check_eq(raw.page[9].failed, 3);
	}
	fa_raw_close(&raw);
	fa_scene_check(&scene);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_garbage),       cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_flipped_bits),  cmocka_unit_test(test_oversized),
		cmocka_unit_test(test_nested),        cmocka_unit_test(test_versions),
		cmocka_unit_test(test_unknown_types), cmocka_unit_test(test_replies_as_requests),
		cmocka_unit_test(test_no_hello),      cmocka_unit_test(test_second_hello),
		cmocka_unit_test(test_empty_packet),  cmocka_unit_test(test_long_vectors),
		cmocka_unit_test(test_ids_of_others), cmocka_unit_test(test_secrets),
		cmocka_unit_test(test_wrong_values),  cmocka_unit_test(test_streams),
	};

	return cmocka_run_group_tests_name("hostile messages", tests, setup, teardown);
}
