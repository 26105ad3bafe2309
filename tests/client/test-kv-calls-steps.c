/*
 * What the calls about steps send, how they read replies, and which arguments they refuse; structs
 * of other sizes.
 */
#include "tests/client/kv-calls.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_begin(void **state)
{
	const struct fa_step_item items[] = { { 51, 3, 0 }, { 52, 0, 0 }, { 53, 40, 0 } };
	uint32_t tree[83] = { 1, 3, 5 };
	uint32_t tree_start[] = { 0, FA_STEP_NO_TREE, 3 };
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = 3,
		                           .items = items,
		                           .tree = tree,
		                           .tree_start = tree_start };
	struct fa_step *step, *other;
	uint32_t id;

	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	fa_check_eq(fa_step_number(step), FAKE_DAEMON_STEP);
	id = heard()->last.step_begin.step;
	fa_check(id);
	fa_check_eq(heard()->last.step_begin.n_items, 3);
	fa_check(!memcmp(heard()->last.step_begin.items, items, sizeof(items)));
	fa_check_eq(heard()->last.step_begin.n_tree, 83);
	fa_check(!memcmp(heard()->last.step_begin.tree, tree, sizeof(tree)));
	fa_check_eq(heard()->last.step_begin.n_tree_start, 3);
	fa_check(!memcmp(heard()->last.step_begin.tree_start, tree_start, sizeof(tree_start)));

	options.tree = NULL;
	options.tree_start = NULL;
	fa_check_eq(fa_step_begin(client, &options, &other), 0);
	fa_check(heard()->last.step_begin.step && heard()->last.step_begin.step != id);
	fa_check_eq(heard()->last.step_begin.n_tree, 0);
	fa_check_eq(heard()->last.step_begin.n_tree_start, 0);
	fa_step_free(other);
	fa_step_free(step);
	fa_check(!fa_step_free(NULL));
	fa_check_eq(fa_step_number(NULL), 0);
	fa_check_eq(fa_ping(client), 0);

	fa_check_eq(fa_step_begin(client, NULL, &step), -EINVAL);
	fa_check_eq(fa_step_begin(client, &options, NULL), -EINVAL);
	fa_check_eq(fa_step_begin(NULL, &options, &step), -EINVAL);
	options.tree = tree;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	options.tree_start = tree_start;
	tree_start[2] = 16000;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	fa_check_contains(fa_error(), "item 2");
	options.tree = options.tree_start = NULL;
	options.n_items = 0;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	fa_check_contains(fa_error(), "no items");
	options.n_items = 2049;
	fa_check_eq(fa_step_begin(client, &options, &step), -EINVAL);
	fa_check_contains(fa_error(), "at most 2048");
}

static void test_largest_step(void **state)
{
	static struct fa_step_item items[2048];
	static uint32_t tree[16000], tree_start[2048];
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = 2048,
		                           .items = items };
	struct fa_step *step;

	for (uint32_t i = 0; i < 2048; ++i)
		items[i] = (struct fa_step_item){ .sequence = i + 1, .n_new = 1 };
	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	fa_check_eq(heard()->last.step_begin.n_items, 2048);
	fa_step_free(step);
	/* Items and a tree, both of maximal size, do not fit into one message. */
	options.tree = tree;
	options.tree_start = tree_start;
	for (uint32_t i = 0; i < 2048; ++i)
		tree_start[i] = FA_STEP_NO_TREE;
	tree_start[2047] = 15999;
	fa_check_eq(fa_step_begin(client, &options, &step), -EMSGSIZE);
	fa_check_contains(fa_error(), "too long");
	fa_check_eq(fa_ping(client), 0);
}

static void test_attend(void **state)
{
	const float slopes[] = { 1, 2 }, sinks[] = { 3, 4 };
	const uint32_t positions[] = { 9, 8, 7, 6 };
	struct fa_step_attend attend;
	struct fa_step *step = begin(1);
	uint32_t id = heard()->last.step_begin.step;
	struct fa_ticket ticket;
	struct fa_buffer *buffer;
	uint64_t value;

	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	attend = attend_all(buffer);
	attend.alibi_slopes = slopes;
	attend.sinks = sinks;
	attend.positions = positions;
	fa_check_eq(fa_step_attend(step, &attend, NULL), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_STEP_ATTEND);
	fa_check_eq(heard()->last.timeout_ns, 123456789);
	fa_check_eq(heard()->last.step_attend.stream, 0);
	value = heard()->last.step_attend.value;
	fa_check_eq(heard()->last.step_attend.step, id);
	fa_check_eq(heard()->last.step_attend.cache, 6);
	fa_check_eq(heard()->last.step_attend.layer, 5);
	fa_check_eq(heard()->last.step_attend.flags, FA_WIRE_STEP_CAUSAL |
	                                                     FA_WIRE_STEP_ROTARY_INTERLEAVED |
	                                                     FA_WIRE_STEP_DETERMINISTIC);
	fa_check_eq(heard()->last.step_attend.q.rank, 3);
	fa_check_eq(heard()->last.step_attend.q.offset, 64);
	fa_check_eq(heard()->last.step_attend.q.shape[1], 2);
	fa_check_eq(heard()->last.step_attend.q.strides[0], 32);
	fa_check_eq(heard()->last.step_attend.k.shape[2], 16);
	fa_check_eq(heard()->last.step_attend.v.shape[2], 8);
	fa_check_eq(heard()->last.step_attend.out.shape[2], 8);
	fa_check_eq(heard()->last.step_attend.lse.rank, 2);
	fa_check(heard()->last.step_attend.scale == 0.5f &&
	         heard()->last.step_attend.softcap == 30);
	fa_check_eq(heard()->last.step_attend.window_left, 128);
	fa_check_eq(heard()->last.step_attend.window_right, 0);
	fa_check_eq(heard()->last.step_attend.n_alibi_slopes, 2);
	fa_check(heard()->last.step_attend.alibi_slopes[1] == 2);
	fa_check_eq(heard()->last.step_attend.n_sinks, 2);
	fa_check(heard()->last.step_attend.sinks[0] == 3);
	fa_check_eq(heard()->last.step_attend.rotary_dim, 8);
	fa_check_eq(heard()->last.step_attend.cos.rank, 2);
	fa_check_eq(heard()->last.step_attend.sin.shape[0], 32);
	fa_check_eq(heard()->last.step_attend.n_positions, 4);
	fa_check(!memcmp(heard()->last.step_attend.positions, positions, sizeof(positions)));

	attend = (struct fa_step_attend){ .size = sizeof(attend),
		                          .q = tensor(buffer, 3, 4, 2, 16),
		                          .out = tensor(buffer, 3, 4, 2, 16),
		                          .window_left = -1,
		                          .rotary_dim = 8,
		                          .rotary_first = 8,
		                          .rotary_base = 5e5,
		                          .rotary_scale = 0.25 };
	attend.out.offset = 4096;
	fa_check_eq(fa_step_attend(step, &attend, &ticket), 0);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(heard()->last.step_attend.value, value + 1);
	fa_check_eq(heard()->last.step_attend.k.rank, 0);
	fa_check_eq(heard()->last.step_attend.v.rank, 0);
	fa_check_eq(heard()->last.step_attend.lse.rank, 0);
	fa_check_eq(heard()->last.step_attend.window_left, -1);
	fa_check_eq(heard()->last.step_attend.window_right, -1);
	fa_check_eq(heard()->last.step_attend.flags, FA_WIRE_STEP_ROTARY_FIRST);
	fa_check_eq(heard()->last.step_attend.rotary_first, 8);
	fa_check(heard()->last.step_attend.rotary_base == 5e5 &&
	         heard()->last.step_attend.rotary_scale == 0.25);
	fa_check_eq(heard()->last.step_attend.cos.rank, 0);
	fa_check_eq(heard()->last.step_attend.n_positions, 0);

	attend = (struct fa_step_attend){ .size = sizeof(attend),
		                          .k_new = tensor(buffer, 3, 4, 1, 16),
		                          .v_new = tensor(buffer, 3, 4, 1, 16),
		                          .rotary_dim = 8,
		                          .positions = positions };
	fa_check_eq(fa_step_attend(step, &attend, NULL), 0);
	fa_check_eq(heard()->last.step_attend.q.rank, 0);
	fa_check_eq(heard()->last.step_attend.out.rank, 0);
	fa_check_eq(heard()->last.step_attend.n_positions, 4);
	fa_check(heard()->last.step_attend.rotary_base == 10000 &&
	         heard()->last.step_attend.rotary_scale == 1);
	fa_step_free(step);
	fa_buffer_free(buffer);
}

static void refuse(struct fa_step *step, const struct fa_step_attend *attend, const char *part)
{
	int before = heard()->count[FA_WIRE_STEP_ATTEND];

	fa_check_eq(fa_step_attend(step, attend, NULL), -EINVAL);
	fa_check_contains(fa_error(), part);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_STEP_ATTEND], before);
}

static void test_attend_refused(void **state)
{
	const float slopes[] = { 1, 2 };
	const uint32_t positions[4] = {};
	struct fa_step *step = begin(1);
	struct fa_step_attend good, attend;
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	good = attend = attend_all(buffer);
	refuse(NULL, &attend, "step is NULL");
	refuse(step, NULL, "fa_step_attend is NULL");
	attend.flags = 16;
	refuse(step, &attend, "flags");
	attend = good;
	attend.rotary_dim = 0;
	attend.cos.buffer = attend.sin.buffer = NULL;
	attend.flags &= ~FA_STEP_ROTARY_INTERLEAVED;
	attend.rotary_first = 8;
	refuse(step, &attend, "rotary_first");
	attend = good;
	attend.chunk_tokens = 8;
	fa_check_eq(fa_step_attend(step, &attend, NULL), -ENOTSUP);
	fa_check_contains(fa_error(), "the daemon is older than chunk_tokens and prefix_lengths");
	attend = good;
	attend.pattern = (struct fa_block_pattern){ .block_tokens = 64, .vert_stride = 8 };
	fa_check_eq(fa_step_attend(step, &attend, NULL), -ENOTSUP);
	fa_check_contains(fa_error(), "the daemon is older than block-sparse masks");
	attend.pattern.block_tokens = 65;
	refuse(step, &attend, "pattern.block_tokens is 65; expected a multiple of 16");
	attend = good;
	attend.stream = 64;
	refuse(step, &attend, "stream is 64");
	attend.stream = 1;
	refuse(step, &attend, "no stream 1");
	attend = good;
	attend.q.rank = 4;
	refuse(step, &attend, "q.rank is 4");
	attend = good;
	attend.q.buffer = NULL;
	refuse(step, &attend, "q.buffer is NULL");
	attend = good;
	attend.k_new.buffer = NULL;
	refuse(step, &attend, "k_new");
	attend.v_new.buffer = attend.out.buffer = attend.lse.buffer = NULL;
	refuse(step, &attend, "nothing is asked");
	attend = good;
	attend.out.buffer = NULL;
	refuse(step, &attend, "lse");
	attend.lse.buffer = NULL;
	refuse(step, &attend, "q is given");
	attend.q.buffer = NULL;
	attend.alibi_slopes = slopes;
	refuse(step, &attend, "alibi_slopes");
	attend = good;
	attend.sinks = slopes;
	attend.q.shape[1] = attend.out.shape[1] = 1025;
	attend.q.shape[0] = attend.out.shape[0] = 0;
	refuse(step, &attend, "1025 heads");
	attend = good;
	attend.sin.buffer = NULL;
	refuse(step, &attend, "cos and sin");
	attend = good;
	attend.positions = positions;
	attend.q.shape[0] = 16001;
	attend.q.strides[2] = 1;
	refuse(step, &attend, "at most 16000");
	attend = good;
	attend.k_new.shape[0] = 1 << 20;
	refuse(step, &attend, "k_new reaches beyond");
	fa_step_free(step);
	fa_buffer_free(buffer);
}

static struct fa_step *begin_tokens(uint32_t n_new)
{
	const struct fa_step_item item = { .sequence = 51, .n_new = n_new };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;

	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	return step;
}

/* The largest layer that faclient_kv.h allows fits into one message. */
static void test_largest_attend(void **state)
{
	static const uint32_t positions[16000];
	static const float slopes[1024], sinks[1024];
	struct fa_step *step = begin_tokens(15800);
	struct fa_step_attend attend;
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, 1 << 20, 0, &buffer), 0);
	attend = attend_all(buffer);
	attend.k_new.buffer = attend.v_new.buffer = attend.lse.buffer = NULL;
	attend.positions = positions;
	attend.q = attend.out = tensor(buffer, 3, 15800, 1, 8);
	attend.out.offset = 1 << 19;
	fa_check_eq(fa_step_attend(step, &attend, NULL), 0);
	fa_check_eq(heard()->last.step_attend.n_positions, 15800);
	fa_step_free(step);
	step = begin_tokens(15800 - 2 * 1024);
	attend.alibi_slopes = slopes;
	attend.sinks = sinks;
	attend.q = attend.out = tensor(buffer, 3, 15800 - 2 * 1024, 1024, 8);
	attend.out.offset = 1 << 19;
	attend.q.strides[2] = attend.out.strides[2] = 1;
	fa_check_eq(fa_step_attend(step, &attend, NULL), 0);
	fa_check_eq(heard()->last.step_attend.n_sinks, 1024);
	fa_step_free(step);
	step = begin_tokens(16000);
	attend.q = attend.out = tensor(buffer, 3, 16000, 1, 8);
	attend.out.offset = 1 << 19;
	fa_check_eq(fa_step_attend(step, &attend, NULL), -EMSGSIZE);
	fa_check_contains(fa_error(), "too long");
	fa_step_free(step);
	fa_buffer_free(buffer);
}

static void test_commit(void **state)
{
	const uint32_t keep[] = { 0, 2, 3, 1 };
	uint32_t cu_keep[] = { 0, 3, 3, 4 };
	struct fa_step_commit commit = {
		.size = sizeof(commit), .keep = keep, .cu_keep = cu_keep, .timeout_ns = 1000
	};
	struct fa_step *step = begin(3);
	uint32_t id = heard()->last.step_begin.step;
	struct fa_ticket ticket;
	uint32_t stream;
	uint64_t value;
	int ends;

	/* A commit that the library refuses leaves the step open. */
	cu_keep[3] = 2;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	fa_check_contains(fa_error(), "cu_keep[3]");
	cu_keep[3] = 4;
	cu_keep[0] = 1;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	cu_keep[0] = 0;
	commit.keep = NULL;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	commit.keep = keep;
	commit.cu_keep = NULL;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	commit.cu_keep = cu_keep;
	commit.stream = 5;
	fa_check_eq(fa_step_commit(step, &commit, NULL), -EINVAL);
	fa_check_eq(fa_step_commit(NULL, NULL, NULL), -EINVAL);

	fa_check_eq(fa_stream_new(client, 0, &stream), 0);
	commit.stream = stream;
	fa_check_eq(fa_step_commit(step, &commit, &ticket), 0);
	fa_check_eq(ticket.stream, stream);
	fa_check_eq(fa_wait(client, &ticket, UINT64_MAX, NULL), 0);
	fa_check_eq(heard()->last.type, FA_WIRE_STEP_END);
	fa_check_eq(heard()->last.timeout_ns, 1000);
	fa_check_eq(heard()->last.step_end.stream, stream);
	value = heard()->last.step_end.value;
	fa_check_eq(heard()->last.step_end.step, id);
	fa_check_eq(heard()->last.step_end.flags, FA_WIRE_STEP_COMMIT);
	fa_check_eq(heard()->last.step_end.n_keep, 4);
	fa_check(!memcmp(heard()->last.step_end.keep, keep, sizeof(keep)));
	fa_check_eq(heard()->last.step_end.n_cu_keep, 4);
	fa_check(!memcmp(heard()->last.step_end.cu_keep, cu_keep, sizeof(cu_keep)));

	/* The step has ended: no second end is sent. */
	fa_check_eq(fa_step_commit(step, NULL, NULL), -EINVAL);
	fa_check_contains(fa_error(), "before");
	fa_check_eq(fa_step_abort(step, 0, NULL), -EINVAL);
	ends = heard()->count[FA_WIRE_STEP_END];
	fa_step_free(step);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_STEP_END], ends);

	step = begin(3);
	memset(cu_keep, 0, sizeof(cu_keep));
	commit.keep = NULL;
	fa_check_eq(fa_step_commit(step, &commit, NULL), 0);
	fa_check_eq(heard()->last.step_end.value, value + 1);
	fa_check_eq(heard()->last.step_end.n_keep, 0);
	fa_check_eq(heard()->last.step_end.n_cu_keep, 4);
	fa_step_free(step);
	step = begin(3);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	fa_check_eq(heard()->last.step_end.n_cu_keep, 0);
	fa_check_eq(heard()->last.step_end.flags, FA_WIRE_STEP_COMMIT);
	fa_step_free(step);
	step = begin(3);
	fa_check_eq(fa_step_abort(step, stream, NULL), 0);
	fa_check_eq(heard()->last.step_end.stream, stream);
	fa_check_eq(heard()->last.step_end.flags, 0);
	fa_step_free(step);
	ends = heard()->count[FA_WIRE_STEP_END];
	step = begin(3);
	id = heard()->last.step_begin.step;
	fa_step_free(step);
	fa_check_eq(fa_ping(client), 0);
	fa_check_eq(heard()->count[FA_WIRE_STEP_END], ends + 1);
	fa_check_eq(fa_stream_free(client, stream), 0);
}

/* Allocates exactly @size, so that sanitizers see overruns. */
static void *copy_of(const void *from, size_t known, size_t size)
{
	void *copy = calloc(1, size);

	fa_check(copy);
	memcpy(copy, from, size < known ? size : known);
	*(uint32_t *)copy = (uint32_t)size;
	return copy;
}

static void test_sizes(void **state)
{
	const struct fa_cache_options cache = {
		.size = sizeof(cache), .dtype = FA_F32, .layers = 1, .kv_heads = 1, .head_dim = 64
	};
	const struct fa_step_item item = { .sequence = 1, .n_new = 4 };
	const struct fa_step_options begin = { .size = sizeof(begin),
		                               .n_items = 1,
		                               .items = &item };
	const uint32_t token = 1;
	const struct fa_prefix prefix = { .size = sizeof(prefix), .tokens = &token, .n_tokens = 1 };
	struct fa_step_attend attend;
	struct fa_sequence_info info;
	struct fa_buffer *buffer;
	struct fa_step *step;
	unsigned char *copy;
	uint64_t number;

	copy = copy_of(&cache, sizeof(cache), offsetof(struct fa_cache_options, head_dim_v));
	fa_check_eq(fa_cache_create(client, (void *)copy, &number), 0);
	free(copy);
	copy = copy_of(&cache, sizeof(cache), sizeof(cache) + 8);
	fa_check_eq(fa_cache_create(client, (void *)copy, &number), 0);
	copy[sizeof(cache) + 7] = 1;
	fa_check_eq(fa_cache_create(client, (void *)copy, &number), -E2BIG);
	free(copy);

	copy = copy_of(&begin, sizeof(begin), offsetof(struct fa_step_options, tree));
	fa_check_eq(fa_step_begin(client, (void *)copy, &step), 0);
	free(copy);
	fa_check_eq(fa_buffer_new(client, 65536, 0, &buffer), 0);
	attend = attend_all(buffer);
	attend.flags = FA_STEP_CAUSAL;
	copy = copy_of(&attend, sizeof(attend), offsetof(struct fa_step_attend, scale));
	fa_check_eq(fa_step_attend(step, (void *)copy, NULL), 0);
	fa_check_eq(heard()->last.step_attend.rotary_dim, 0);
	free(copy);
	fa_step_free(step);
	fa_buffer_free(buffer);

	copy = copy_of(&prefix, sizeof(prefix), offsetof(struct fa_prefix, extra));
	fa_check_eq(fa_sequence_publish(client, 1, (void *)copy, NULL), 0);
	free(copy);

	/* The library writes nothing beyond the caller's size. */
	memset(&info, 0x5a, sizeof(info));
	info.size = offsetof(struct fa_sequence_info, planned);
	fa_check_eq(fa_sequence_info(client, 1, &info), 0);
	fa_check_eq(info.length, 20);
	fa_check_eq(info.planned, 0x5a5a5a5a5a5a5a5all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_begin),          cmocka_unit_test(test_largest_step),
		cmocka_unit_test(test_attend),         cmocka_unit_test(test_attend_refused),
		cmocka_unit_test(test_largest_attend), cmocka_unit_test(test_commit),
		cmocka_unit_test(test_sizes),
	};

	return cmocka_run_group_tests_name("kv-calls-steps", tests, calls_setup, calls_teardown);
}
