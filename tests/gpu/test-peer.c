/*
 * Tests without a GPU how time-paged opens and judges peers. Arguments: a library that is a peer,
 * and one that is not.
 */
#include "bench/kernels/peer.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *library, *not_a_peer;

static void test_open(void **state)
{
	struct fa_peer_decode request = { .size = sizeof(request), .batch = 7 };
	struct fa_peer peer;
	char text[4096];
	int32_t out = 0;

	(void)state;
	request.out = &out;
	snprintf(text, sizeof(text), "%s:even", library);
	assert_int_equal(fa_peer_open(text, &peer), 0);
	assert_string_equal(peer.name, "even");
	assert_string_equal(peer.title, "even");
	assert_string_equal(peer.path, library);
	request.name = peer.name;
	assert_int_equal(peer.decode(&request), 0);
	assert_int_equal(out, 7);
	fa_peer_close(&peer);

	assert_int_equal(fa_peer_open(library, &peer), 0);
	assert_string_equal(peer.name, "");
	assert_string_equal(peer.title, strrchr(library, '/') + 1);
	request.name = peer.name;
	assert_int_equal(peer.decode(&request), -ENOTSUP);
	fa_peer_close(&peer);
}

static void test_open_refused(void **state)
{
	struct fa_peer peer;

	(void)state;
	assert_int_equal(fa_peer_open("/nowhere/libpeer.so:x", &peer), -EINVAL);
	assert_int_equal(fa_peer_open(not_a_peer, &peer), -EINVAL);
}

static void test_table(void **state)
{
	/* Pages of 16 slots, 16 tokens; the second sequence is empty, the third has one page. */
	static const uint32_t lengths[] = { 33, 0, 16 }, start[] = { 2, 0, 0 };
	static const uint32_t table[] = { 64, 9999, 32, 0, 48 };
	static const int32_t want[] = { 2, 0, 3, 0, 0, 0, 4, 0, 0 };
	const struct fa_paged_step step = { .batch = 3, .lengths = lengths, .table_start = start };
	int32_t table_pages = 0, *pages;

	(void)state;
	pages = fa_peer_table(&step, table, 16, 16, &table_pages);
	assert_non_null(pages);
	assert_int_equal(table_pages, 3);
	assert_memory_equal(pages, want, sizeof(want));
	free(pages);
}

static uint16_t bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static void test_agrees(void **state)
{
	uint16_t ours[] = { bf16(1.f), bf16(-4.f), bf16(.25f) }, theirs[3];
	const uint16_t zeros[3] = { 0 };
	double worst = -1;

	(void)state;
	memcpy(theirs, ours, sizeof(ours));
	assert_true(fa_peer_agrees(ours, theirs, 3, &worst));
	assert_true(worst == 0);
	theirs[2] = bf16(.3125f); /* off by 1/16, which is 1/64 of 4 */
	assert_true(fa_peer_agrees(ours, theirs, 3, &worst));
	assert_true(worst == 1.0 / 64);
	theirs[2] = bf16(.34375f);
	assert_false(fa_peer_agrees(ours, theirs, 3, &worst));
	theirs[2] = 0xffff;
	assert_false(fa_peer_agrees(ours, theirs, 3, &worst));
	assert_true(isinf(worst));
	theirs[2] = bf16(INFINITY);
	assert_false(fa_peer_agrees(ours, theirs, 3, &worst));
	assert_false(fa_peer_agrees(zeros, zeros, 3, &worst));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_open_refused),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_agrees),
	};

	if (argc != 3)
		return 2;
	library = argv[1];
	not_a_peer = argv[2];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
