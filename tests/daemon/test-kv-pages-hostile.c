/*
 * A client that gets copies of its own pages (SequencePages) wrong: random requests, most of them
 * nearly right. The daemon refuses or serves each, nobody's tokens change, and no memory is kept.
 */
#include "tests/daemon/kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define LENGTH 40
#define PAGES_MAX 24
#define STEP 9

static struct kv_client client;
static struct fa_test_random dice;
static uint64_t sequence;

static uint32_t below(uint32_t n)
{
	return (uint32_t)fa_test_random_below(&dice, n);
}

static uint64_t number(void)
{
	static const uint64_t edges[] = { 0,          1,          2,         15,
		                          16,         17,         255,       1 << 16,
		                          1 << 24,    INT32_MAX,  1u << 31,  UINT32_MAX,
		                          1ull << 32, 1ull << 62, INT64_MAX, UINT64_MAX };

	return below(4) ? edges[below(sizeof(edges) / sizeof(*edges))] : below(100);
}

/* Returns @good, or one time in 40 any number. */
static uint64_t rarely(uint64_t good)
{
	return below(40) ? good : number();
}

/* [pages, tokens, heads, dim], heads before tokens half of the time. */
static struct fa_wire_view view(int64_t pages, int64_t tokens, int64_t dim, bool by_head)
{
	const int64_t heads = KV_KV_HEADS;
	struct fa_wire_view v = {
		.dtype = FA_WIRE_DTYPE_F32,
		.rank = 4,
		.shape = { pages, tokens, heads, dim },
		.strides = { tokens * heads * dim, by_head ? dim : heads * dim,
		             by_head ? tokens * dim : dim, 1 },
	};

	switch (below(60)) {
	case 0:
		v.offset = number();
		break;
	case 1:
		v.shape[below(4)] = (int64_t)number();
		break;
	case 2:
		v.strides[below(4)] = (int64_t)number();
		break;
	case 3:
		v.rank = (uint8_t)below(FA_WIRE_RANK_MAX + 2);
		break;
	case 4:
		v.dtype = (uint8_t)below(8);
		break;
	case 5:
		v.buffer = (uint32_t)number();
		break;
	case 6:
		v.reserved = 1;
		break;
	}
	return v;
}

/* Vectors are valid until the next call. */
static struct fa_wire_message compose(bool writes)
{
	static struct fa_wire_place places[2][KV_LAYERS + 1];
	static uint32_t pages[PAGES_MAX];
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_PAGES);
	struct fa_wire_sequence_pages *m = &message.sequence_pages;
	const uint32_t page_tokens = 1 + below(20), first = below(LENGTH);
	const uint32_t offset = below(page_tokens), n = below(LENGTH - first + 1);
	uint32_t n_pages = n ? (offset + n - 1) / page_tokens + 1 : 1;

	n_pages = n_pages < PAGES_MAX ? n_pages : PAGES_MAX;
	m->value = ++client.values[0];
	m->sequence = rarely(sequence);
	m->flags = (uint32_t)rarely(writes);
	m->layer = (uint32_t)rarely(0);
	m->first = rarely(writes ? LENGTH + first : first);
	m->n_tokens = rarely(n);
	m->k = view(n_pages + 1, page_tokens, KV_DIM, below(2));
	m->v = view(n_pages + 1, page_tokens, KV_DIM_V, below(2));
	m->n_k_places = m->n_v_places = below(40) ? KV_LAYERS : below(KV_LAYERS + 2);
	if (below(40) == 0)
		m->n_v_places = below(KV_LAYERS + 2);
	for (uint32_t i = 0; i < KV_LAYERS + 1; i++)
		for (uint32_t side = 0; side < 2; side++)
			places[side][i] = (struct fa_wire_place){
				.offset = rarely((2 * i + side) * (below(40) ? 65536 : 64)),
				.buffer = (uint32_t)rarely(client.buffer.id),
				.reserved = below(100) == 0,
			};
	for (uint32_t i = 0; i < n_pages; i++)
		pages[i] = (uint32_t)(below(200) ? n_pages - i : rarely(below(n_pages)));
	m->k_places = places[0];
	m->v_places = places[1];
	m->pages = pages;
	m->n_pages = n ? n_pages : 0;
	m->page_offset = (uint32_t)rarely(offset);
	if (below(50) == 0)
		message.timeout_ns = 1 + below(100000);
	return message;
}

static bool try(bool writes)
{
	struct fa_wire_message message = compose(writes);
	struct fa_raw_completion completion;
	uint64_t value;

	value = kv_send(&client, &message, 0);
	fa_raw_wait(&client.raw, 0, value, &completion);
	fa_check(completion.status == 0 || completion.text[0]);
	return completion.status == 0;
}

static void test_random(void **state)
{
	const uint32_t rounds = fa_test_sanitized() ? 2000 : 6000;
	const char *seed = getenv("FAD_TEST_SEED");
	struct fa_test_daemon daemon;
	uint32_t numbers[2 * LENGTH], n_read = 0, n_written = 0;
	uint64_t cache;

	dice.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)dice.state);
	fflush(stdout);
	fa_test_daemon_start(&daemon, NULL);
	kv_count(numbers, 1, 2 * LENGTH);
	kv_open(&client, daemon.socket);
	cache = kv_cache(&client, NULL, 0);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, LENGTH);
	for (uint32_t i = 0; i < rounds; i++) {
		if (below(3)) {
			n_read += try(false);
			continue;
		}
		kv_begin_one(&client, STEP, sequence, LENGTH);
		n_written += try(true);
		kv_wait(&client, 0, kv_end(&client, 0, STEP, false));
	}
	printf("%u reads and %u writes of %u requests were served\n", n_read, n_written, rounds);
	fa_check(n_read > rounds / 6 && n_written > rounds / 12);
	fa_check(n_read + n_written < rounds);
	kv_check(&client, sequence, numbers, 0, LENGTH);
	kv_append(&client, sequence, numbers, LENGTH, LENGTH);
	kv_check(&client, sequence, numbers, 0, 2 * LENGTH);
	kv_close(&client);
	fa_test_daemon_stop(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
