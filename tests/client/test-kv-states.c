/*
 * States of linear layers: bytes that go to a checkpoint come back, through forks, prefixes, other
 * clients and daemons that are killed between steps; and what a program gets wrong.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STATES 3
#define EACH 32u /* checkpoint_tokens */
#define KILLS 20

/* Odd sizes, small ones, and one of many pages. */
static const uint32_t sizes[STATES] = { 5001, 64, 300000 };
#define BYTES (5001 + 64 + 300000)

static struct fa_client *client;
static struct fa_buffer *buffer; /* what is written, and what was read behind it */
static char *host;

static void open_buffer(struct fa_client *of)
{
	client = of;
	must(fa_buffer_new(client, 2 * BYTES, 0, &buffer), "buffer");
	host = fa_buffer_data(buffer);
}

static int set_up(void **state)
{
	open_buffer(single_client);
	return 0;
}

static int tear_down(void **state)
{
	fa_buffer_free(buffer);
	return 0;
}

static struct fa_cache_options options(const char *name, uint32_t each)
{
	return (struct fa_cache_options){
		.size = sizeof(struct fa_cache_options),
		.name = name,
		.dtype = FA_F32,
		.layers = 2,
		.kv_heads = 2,
		.head_dim = 16,
		.page_tokens = 16,
		.state_bytes = sizes,
		.n_states = STATES,
		.checkpoint_tokens = each,
	};
}

static uint64_t cache_new(const char *name, uint32_t each)
{
	const struct fa_cache_options o = options(name, each);
	uint64_t cache;

	must(fa_cache_create(client, &o, &cache), "cache");
	return cache;
}

static uint64_t sequence_new(uint64_t cache)
{
	uint64_t sequence;

	must(fa_sequence_create(client, cache, &sequence), "sequence");
	return sequence;
}

static uint32_t offset_of(uint32_t state)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < state; ++i)
		at += sizes[i];
	return at;
}

static char byte_of(uint32_t mark, uint32_t at)
{
	return (char)((mark * 2654435761u + at * 40503u) >> 11);
}

/* @half 0: what is written, 1: what is read. */
static struct fa_sequence_state state_of(uint64_t sequence, uint64_t tokens, uint32_t state,
                                         int half)
{
	return (struct fa_sequence_state){
		.size = sizeof(struct fa_sequence_state),
		.sequence = sequence,
		.tokens = tokens,
		.state = state,
		.data = { .buffer = buffer,
		          .offset = (uint64_t)half * BYTES + offset_of(state),
		          .dtype = FA_E4M3,
		          .rank = 1,
		          .shape = { sizes[state] } },
	};
}

static int write_states(uint64_t sequence, uint32_t mark, uint32_t n)
{
	int r = 0;

	for (uint32_t i = 0; i < BYTES; ++i)
		host[i] = byte_of(mark, i);
	for (uint32_t i = 0; i < n && r == 0; ++i) {
		const struct fa_sequence_state state = state_of(sequence, 0, i, 0);

		r = fa_sequence_write_state(client, &state, NULL);
	}
	return r;
}

/* @mark 0: a step without a checkpoint. */
static int try_append(uint64_t sequence, uint32_t n, uint32_t mark, uint64_t *ret_number)
{
	const struct fa_step_item item = { sequence, n, mark ? FA_STEP_CHECKPOINT : 0 };
	const struct fa_step_options step_options = { .size = sizeof(step_options),
		                                      .n_items = 1,
		                                      .items = &item };
	struct fa_step *step = NULL;
	int r;

	r = fa_step_begin(client, &step_options, &step);
	if (r == 0 && ret_number)
		*ret_number = fa_step_number(step);
	if (r == 0 && mark)
		r = write_states(sequence, mark, STATES);
	if (r == 0)
		r = fa_step_commit(step, NULL, NULL);
	fa_step_free(step);
	return r;
}

static void append(uint64_t sequence, uint32_t n, uint32_t mark)
{
	must(try_append(sequence, n, mark, NULL), "step");
}

static bool is_at(uint64_t sequence, uint64_t tokens, uint32_t mark)
{
	for (uint32_t i = 0; i < STATES; ++i) {
		const struct fa_sequence_state state = state_of(sequence, tokens, i, 1);

		memset(host + BYTES + offset_of(i), 0x55, sizes[i]);
		must(fa_sequence_read_state(client, &state, NULL), "read");
	}
	for (uint32_t i = 0; i < BYTES; ++i)
		if (host[BYTES + i] != byte_of(mark, i))
			return false;
	return true;
}

static void check(uint64_t sequence, uint64_t tokens, uint32_t mark)
{
	fa_check(is_at(sequence, tokens, mark));
}

static struct fa_sequence_info info_of(uint64_t sequence)
{
	struct fa_sequence_info info = { .size = sizeof(info) };

	must(fa_sequence_info(client, sequence, &info), "info");
	return info;
}

static void check_ends(uint64_t sequence, uint64_t length, uint64_t checkpoint, uint32_t n)
{
	const struct fa_sequence_info info = info_of(sequence);

	fa_check_eq(info.length, length);
	fa_check_eq(info.checkpoint, checkpoint);
	fa_check_eq(info.checkpoints, n);
}

#define REFUSED(code, part, call)                                                                  \
	do {                                                                                       \
		fa_check_eq(call, code);                                                           \
		fa_check_contains(fa_error(), part);                                               \
	} while (0)

static void test_cache(void **state)
{
	struct fa_cache_info info = { .size = sizeof(info) };
	struct fa_cache_options o = options(NULL, EACH);
	uint64_t cache = cache_new(NULL, EACH), got;
	const uint32_t zero[STATES] = { 0 };

	must(fa_cache_info(client, cache, &info), "info");
	fa_check_eq(info.states, STATES);
	fa_check_eq(info.checkpoint_tokens, EACH);
	fa_check_eq(info.checkpoint_bytes, BYTES);
	fa_check_eq(info.checkpoint_pages,
	            (5120 + 256 + 300032 + info.page_bytes - 1) / info.page_bytes);
	must(fa_cache_remove(client, cache), "remove");

	REFUSED(-EINVAL, "state_bytes[0] is 0",
	        (o.state_bytes = zero, fa_cache_create(client, &o, &got)));
	REFUSED(-EINVAL, "state_bytes is NULL",
	        (o.state_bytes = NULL, fa_cache_create(client, &o, &got)));
	REFUSED(-ENOTSUP, "at most 1024",
	        (o.state_bytes = sizes, o.n_states = 1025, fa_cache_create(client, &o, &got)));
	REFUSED(-EINVAL, "for caches with states",
	        (o.n_states = 0, fa_cache_create(client, &o, &got)));
	o = options(NULL, 40);
	REFUSED(-EINVAL, "a multiple of 16", fa_cache_create(client, &o, &got));
	/* An older program's struct ends before the states. */
	o = options(NULL, EACH);
	o.size = offsetof(struct fa_cache_options, state_bytes);
	must(fa_cache_create(client, &o, &cache), "an older program's cache");
	must(fa_cache_info(client, cache, &info), "info");
	fa_check_eq(info.states, 0);
	fa_check_eq(info.checkpoint_pages, 0);
	must(fa_cache_remove(client, cache), "remove");
}

static void test_cuts(void **state)
{
	uint64_t cache = cache_new(NULL, EACH), sequence = sequence_new(cache), child, tokens;
	struct fa_cache_info info = { .size = sizeof(info) };

	append(sequence, 32, 10);
	append(sequence, 32, 20);
	append(sequence, 10, 30);
	append(sequence, 5, 0);
	check_ends(sequence, 79, 74, 3);
	check(sequence, 0, 30);
	check(sequence, 74, 30);
	check(sequence, 32, 10);
	check(sequence, 64, 20);

	must(fa_sequence_fork_to(client, sequence, UINT64_MAX, &child, &tokens), "fork");
	fa_check_eq(tokens, 74);
	append(child, 1, 40);
	check(child, 75, 40);
	check(sequence, 74, 30);
	must(fa_sequence_remove(client, child), "remove");
	must(fa_sequence_fork_to(client, sequence, 73, &child, &tokens), "fork");
	fa_check_eq(tokens, 64);
	check(child, 64, 20);
	check(child, 32, 10);
	must(fa_sequence_truncate_to(client, child, 40, &tokens), "truncate");
	fa_check_eq(tokens, 32);
	check_ends(child, 32, 32, 1);
	must(fa_sequence_truncate_to(client, child, 31, &tokens), "truncate");
	fa_check_eq(tokens, 0);
	must(fa_sequence_truncate(client, sequence, 78), "truncate");
	check_ends(sequence, 74, 74, 3);
	must(fa_sequence_remove(client, sequence), "remove");
	must(fa_sequence_remove(client, child), "remove");
	must(fa_cache_info(client, cache, &info), "info");
	fa_check_eq(info.used_pages, 0);
	must(fa_cache_remove(client, cache), "remove");

	cache = cache_new(NULL, 0);
	sequence = sequence_new(cache);
	append(sequence, 32, 10);
	append(sequence, 1, 20);
	check_ends(sequence, 33, 33, 1);
	REFUSED(-ENOTSUP, "keeps no checkpoints", fa_sequence_fork(client, sequence, 32, &child));
	REFUSED(-ENOTSUP, "keeps no checkpoints", fa_sequence_truncate(client, sequence, 32));
	check_ends(sequence, 33, 33, 1);
	must(fa_cache_remove(client, cache), "remove");
}

static void test_uncommitted(void **state)
{
	uint64_t cache = cache_new(NULL, 0), sequence = sequence_new(cache);
	const struct fa_step_item item = { sequence, 7, FA_STEP_CHECKPOINT };
	struct fa_step *step, *next;

	append(sequence, 32, 10);
	step = single_begin(&item, 1);
	must(write_states(sequence, 20, STATES), "write");
	check(sequence, 0, 10);
	must(fa_step_abort(step, 0, NULL), "abort");
	fa_step_free(step);
	check_ends(sequence, 32, 32, 1);
	check(sequence, 0, 10);

	/* Every state of a checkpoint must be written. */
	step = single_begin(&item, 1);
	must(write_states(sequence, 20, STATES - 1), "write");
	REFUSED(-EINVAL, "state 2 of the checkpoint of item 0 was not written",
	        fa_step_commit(step, NULL, NULL));
	fa_step_free(step);
	check_ends(sequence, 32, 32, 1);
	check(sequence, 0, 10);

	/* Two steps in progress, each with its checkpoint. */
	step = single_begin(&item, 1);
	must(write_states(sequence, 30, STATES), "write");
	next = single_begin(&item, 1);
	must(write_states(sequence, 40, STATES), "write");
	must(fa_step_commit(step, NULL, NULL), "commit");
	check(sequence, 39, 30);
	must(fa_step_commit(next, NULL, NULL), "commit");
	check(sequence, 46, 40);
	check_ends(sequence, 46, 46, 1);
	fa_step_free(step);
	fa_step_free(next);

	/* Without new tokens. */
	append(sequence, 0, 50);
	check_ends(sequence, 46, 46, 1);
	check(sequence, 46, 50);
	must(fa_cache_remove(client, cache), "remove");
}

static void test_prefix(void **state)
{
	uint64_t cache = cache_new(NULL, EACH), sequence = sequence_new(cache), other, found;
	struct fa_cache_info info = { .size = sizeof(info) };
	uint32_t tokens[100];
	const struct fa_prefix prefix = { .size = sizeof(prefix),
		                          .tokens = tokens,
		                          .n_tokens = 100 };
	struct fa_prefix known = prefix;

	for (uint32_t i = 0; i < 100; ++i)
		tokens[i] = 7 * i;
	append(sequence, 32, 10);
	append(sequence, 32, 20);
	append(sequence, 30, 30);
	known.n_tokens = 94;
	must(fa_cache_info(client, cache, &info), "info");
	must(fa_sequence_publish(client, sequence, &known, &found), "publish");
	fa_check_eq(found, 5 + 2 * info.checkpoint_pages);
	must(fa_sequence_remove(client, sequence), "remove");
	must(fa_prefix_find(client, cache, &prefix, &found), "find");
	fa_check_eq(found, 64);
	other = sequence_new(cache);
	must(fa_sequence_attach(client, other, &prefix, &found), "attach");
	fa_check_eq(found, 64);
	check_ends(other, 64, 64, 1);
	check(other, 64, 20);
	must(fa_cache_info(client, cache, &info), "info");
	fa_check_eq(info.used_pages, 4 + info.checkpoint_pages);
	fa_check_eq(info.idle_pages, 1 + info.checkpoint_pages);
	must(fa_cache_remove(client, cache), "remove");
}

static void test_refused(void **state)
{
	uint64_t cache = cache_new(NULL, EACH), sequence = sequence_new(cache), plain, got;
	struct fa_cache_options o = options(NULL, EACH);
	struct fa_step_item item = { sequence, 7, FA_STEP_CHECKPOINT };
	struct fa_step_options step_options = { .size = sizeof(step_options),
		                                .n_items = 1,
		                                .items = &item };
	struct fa_sequence_state s = state_of(sequence, 0, 0, 1);
	const uint32_t keep[] = { 0 }, cu_keep[] = { 0, 1 };
	const struct fa_step_commit some = { .size = sizeof(some),
		                             .keep = keep,
		                             .cu_keep = cu_keep };
	struct fa_step *step;

	REFUSED(-ENOENT, "no checkpoint", fa_sequence_read_state(client, &s, NULL));
	append(sequence, 32, 10);
	REFUSED(-ENOENT, "no checkpoint at token 31; the last one before it is at 0",
	        (s.tokens = 31, fa_sequence_read_state(client, &s, NULL)));
	s.tokens = 0;
	REFUSED(-EINVAL, "state is 3; expected one below 3",
	        (s.state = STATES, fa_sequence_read_state(client, &s, NULL)));
	s.state = 1;
	REFUSED(-EINVAL, "5001 elements of 1 bytes; expected one dimension of 64 bytes",
	        fa_sequence_read_state(client, &s, NULL));
	s = state_of(sequence, 0, 0, 1);
	s.data.dtype = FA_F32;
	s.data.offset = BYTES / 4 * 4;
	s.data.shape[0] = 1250;
	REFUSED(-EINVAL, "1250 elements of 4 bytes; expected one dimension of 5001 bytes",
	        fa_sequence_read_state(client, &s, NULL));
	s = state_of(sequence, 0, 1, 1);
	s.data.strides[0] = 2;
	REFUSED(-EINVAL, "expected 1", fa_sequence_read_state(client, &s, NULL));
	s = state_of(sequence, 0, 0, 1);
	s.data.offset = 2 * BYTES - 5000;
	REFUSED(-EINVAL, "beyond the end", fa_sequence_read_state(client, &s, NULL));
	s = state_of(sequence, 0, 0, 0);
	s.reserved = 1;
	REFUSED(-EINVAL, "reserved", fa_sequence_write_state(client, &s, NULL));
	s.reserved = 0;
	REFUSED(-EINVAL, "expected a step in flight", fa_sequence_write_state(client, &s, NULL));

	/* A write that is refused makes its step fail. */
	step = single_begin(&item, 1);
	REFUSED(-EINVAL, "expected a step in flight",
	        (s.tokens = 40, fa_sequence_write_state(client, &s, NULL)));
	s.tokens = 39;
	s.state = 77;
	REFUSED(-EINVAL, "state is 77", fa_sequence_write_state(client, &s, NULL));
	s.state = 0;
	REFUSED(-ECANCELED, "state 77: state is 77", fa_step_commit(step, NULL, NULL));
	fa_step_free(step);
	check_ends(sequence, 32, 32, 1);
	check(sequence, 0, 10);

	/* A checkpoint is of all new tokens. */
	step = single_begin(&item, 1);
	must(write_states(sequence, 20, STATES), "write");
	REFUSED(-EINVAL, "all are kept", fa_step_commit(step, &some, NULL));
	fa_step_free(step);
	check_ends(sequence, 32, 32, 1);

	item.flags = 2;
	REFUSED(-EINVAL, "items[0].flags is 0x2", fa_step_begin(client, &step_options, &step));
	o.n_states = o.checkpoint_tokens = 0;
	o.state_bytes = NULL;
	must(fa_cache_create(client, &o, &plain), "cache");
	item = (struct fa_step_item){ sequence_new(plain), 1, FA_STEP_CHECKPOINT };
	REFUSED(-EINVAL, "the cache has no states", fa_step_begin(client, &step_options, &step));
	item = (struct fa_step_item){ sequence_new(cache), 0, FA_STEP_CHECKPOINT };
	REFUSED(-EINVAL, "at least one token", fa_step_begin(client, &step_options, &step));

	/* Checkpoints count as pages. */
	o = options(NULL, EACH);
	o.max_pages = 40;
	must(fa_cache_create(client, &o, &got), "cache");
	item = (struct fa_step_item){ sequence_new(got), 32, FA_STEP_CHECKPOINT };
	append(item.sequence, 1, 10);
	REFUSED(-EDQUOT, "pages more", fa_step_begin(client, &step_options, &step));
	must(fa_cache_remove(client, got), "remove");
	must(fa_cache_remove(client, plain), "remove");
	must(fa_cache_remove(client, cache), "remove");
}

/* ---- deaths */

struct writer {
	struct fa_client *client;
	uint64_t sequence, length;
	uint32_t mark; /* of the newest checkpoint that was committed */
};

/* Writes one step. Wherever it is interrupted, it has happened as a whole, or not at all. */
static void write_once(struct writer *w)
{
	const uint32_t n = w->mark % 9 ? 3 : 32 - (uint32_t)(w->length % 32);
	struct fa_sequence_info info;
	uint64_t number = 0;
	int r;

	r = try_append(w->sequence, n, w->mark + 1, &number);
	if (r < 0) {
		if (r != -ECONNRESET && r != -ECANCELED && r != -EBUSY)
			fail_msg("%d: %s", r, fa_error());
		info = info_of(w->sequence);
		if (!number || info.step != number) {
			fa_check_eq(info.length, w->length);
			check(w->sequence, 0, w->mark);
			return;
		}
	}
	w->mark++;
	w->length += n;
	check(w->sequence, w->length, w->mark);
}

static void test_kills(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options daemon_options = { .args = args,
		                                               .config = "[pool]\nbytes = 4G\n"
		                                                         "chunk_bytes = 2M\n" };
	struct fa_options connect_options = { .size = sizeof(connect_options) };
	struct fa_test_random random = { .state = 30 };
	struct fa_test_daemon supervisor;
	struct fa_client *second;
	struct writer w = { 0 };
	uint64_t found;

	/* Room for chunks of daemons that died, which are unusable for a while. */
	fa_test_daemon_start(&supervisor, &daemon_options);
	connect_options.socket = supervisor.socket;
	must(fa_connect(&connect_options, &w.client), "connect");
	open_buffer(w.client);
	w.sequence = sequence_new(cache_new("c", EACH));
	must(fa_sequence_set_name(client, w.sequence, "s", 0, 0), "name");
	write_once(&w);
	for (int i = 0; i < KILLS; ++i) {
		const pid_t pid = fa_test_daemon_child(&supervisor);
		const uint32_t n_steps = (uint32_t)fa_test_random_below(&random, 4);

		fa_check(pid > 0);
		for (uint32_t j = 0; j < n_steps; ++j)
			write_once(&w);
		if (i % 2) {
			const struct fa_step_item item = { w.sequence, 5, FA_STEP_CHECKPOINT };
			const struct fa_step_options o = { .size = sizeof(o),
				                           .n_items = 1,
				                           .items = &item };
			struct fa_step *step;

			/* Between the writes of a step and its commit. */
			must(fa_step_begin(client, &o, &step), "begin");
			must(write_states(w.sequence, 1000, (uint32_t)i % 4), "write");
			fa_check(!kill(pid, SIGKILL));
			fa_check(fa_step_commit(step, NULL, NULL) < 0);
			fa_step_free(step);
		} else {
			fa_check(!kill(pid, SIGKILL));
		}
		(void)fa_test_daemon_next_child(&supervisor, pid);
		check(w.sequence, 0, w.mark);
		fa_check_eq(info_of(w.sequence).length, w.length);
		write_once(&w);
	}

	/* Another process finds what the first one left. */
	fa_buffer_free(buffer);
	fa_disconnect(w.client);
	must(fa_connect(&connect_options, &second), "connect");
	open_buffer(second);
	must(fa_sequence_find(client, "s", &found), "find");
	fa_check_eq(found, w.sequence);
	check(found, w.length, w.mark);
	fa_buffer_free(buffer);
	fa_disconnect(second);
	fa_test_daemon_stop(&supervisor);
	open_buffer(single_client);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_cache),  TEST(test_cuts),    TEST(test_uncommitted),
		TEST(test_prefix), TEST(test_refused), TEST(test_kills),
	};

	return cmocka_run_group_tests_name("kv-states", tests, single_setup, single_teardown);
}
