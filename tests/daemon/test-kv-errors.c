/* Invalid messages of the KV cache are refused with the reason and change nothing. */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fa_test_daemon daemon_process;
static struct kv_client client, other;
static uint64_t cache, sequence;
static uint32_t numbers[256];

static int start(void **state)
{
	static const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 16M\nchunk_bytes = 2M\n"
			  "[limits]\nsession_steps = 3\n",
	};

	fa_test_daemon_start(&daemon_process, &options);
	kv_count(numbers, 1, 256);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int open_clients(void **state)
{
	kv_open(&client, daemon_process.socket);
	kv_open(&other, daemon_process.socket);
	cache = kv_cache(&client, NULL, 0);
	sequence = kv_sequence(&client, cache);
	kv_append(&client, sequence, numbers, 0, 20);
	return 0;
}

static int close_clients(void **state)
{
	kv_check(&client, sequence, numbers, 0, 20);
	kv_append(&client, sequence, numbers, 20, 1);
	kv_close(&client);
	kv_close(&other);
	return 0;
}

static void test_cache_create(void **state)
{
	const struct fa_wire_cache_create good = kv_cache_message(NULL, 0).cache_create;
	struct fa_wire_message message = kv_cache_message(NULL, 0);
	struct fa_wire_cache_create *create = &message.cache_create;

#define EXPECT(field, value, status, part)                                                         \
	do {                                                                                       \
		*create = good;                                                                    \
		create->field = value;                                                             \
		kv_call_expect(&client, &message, status, part);                                   \
	} while (0)
	EXPECT(layers, 0, -EINVAL, "layers");
	EXPECT(layers, 5000, -EINVAL, "layers");
	EXPECT(kv_heads, 0, -EINVAL, "kv_heads");
	EXPECT(head_dim, 0, -EINVAL, "head_dim");
	EXPECT(head_dim, 12, -EINVAL, "head_dim");
	EXPECT(head_dim_v, UINT32_MAX, -EINVAL, "head_dim_v");
	EXPECT(dtype, 0, -ENOTSUP, "dtype");
	EXPECT(dtype, 9, -ENOTSUP, "dtype");
	EXPECT(page_tokens, 17, -EINVAL, "page_tokens");
	EXPECT(page_tokens, 512, -EINVAL, "page_tokens");
	EXPECT(flags, 12, -ENOTSUP, "flags");
	EXPECT(mode, 3, -EINVAL, "mode");
	EXPECT(ttl_ns, 5, -EINVAL, "time to live");
	EXPECT(kv_heads, 1000, -EINVAL, NULL);
#undef EXPECT
	*create = good;
	create->name = (struct fa_wire_string){ "", 0 };
	kv_call_expect(&client, &message, -EINVAL, "empty");
	create->name = (struct fa_wire_string){
		"0123456789012345678901234567890123456789012345678901234567890123", 64
	};
	kv_call_expect(&client, &message, -ENAMETOOLONG, "64 bytes");
	create->name = (struct fa_wire_string){ "a\nb", 3 };
	kv_call_expect(&client, &message, -EINVAL, "control");
	kv_cache(&client, "mine", 0);
	message = kv_cache_message("mine", 0);
	kv_call_expect(&other, &message, -EEXIST, "mine");
	message = fa_raw_message(FA_WIRE_CACHE_FIND);
	message.cache_find.name = (struct fa_wire_string){ "yours", 5 };
	kv_call_expect(&client, &message, -ENOENT, "yours");
	message.cache_find.name = (struct fa_wire_string){ "mine", 4 };
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	message = fa_raw_message(FA_WIRE_CACHE_REMOVE);
	message.cache_remove.cache = client.raw.message.cache_reply.cache;
	kv_call_expect(&client, &message, 0, NULL);
	kv_call_expect(&client, &message, -ESTALE, "removed");
}

static void test_cache_codes(void **state)
{
	struct fa_wire_cache_create good = kv_cache_message(NULL, 0).cache_create;
	float scales[KV_LAYERS * KV_KV_HEADS + 1] = { 1, 0.5f, 0x1p-100f, 0x1p100f, 1 };
	const float bad[] = { 0, -0.0f, -1, NAN, INFINITY, -INFINITY, 0x1p-101f, 0x1p101f };
	struct fa_wire_message message = kv_cache_message(NULL, 0);
	struct fa_wire_cache_create *create = &message.cache_create;

	/* GPUs have no codes for fp32, or for head dims that are no multiple of 16. */
	good.dtype = FA_WIRE_DTYPE_F16;
	good.head_dim = good.head_dim_v = 16;
	good.store = FA_WIRE_STORE_E4M3;
	good.k_scales = good.v_scales = scales;
	good.n_k_scales = good.n_v_scales = KV_LAYERS * KV_KV_HEADS;
#define EXPECT(change, status, part)                                                               \
	do {                                                                                       \
		*create = good;                                                                    \
		change;                                                                            \
		kv_call_expect(&client, &message, status, part);                                   \
	} while (0)
	EXPECT(create->store = 3, -ENOTSUP, "store");
	EXPECT(create->store = 255, -ENOTSUP, "store");
	EXPECT(create->n_k_scales = 0, -EINVAL, "k_scales has 0 entries");
	EXPECT(create->n_v_scales = 0, -EINVAL, "v_scales 0");
	EXPECT(create->n_k_scales--, -EINVAL, "k_scales has 3 entries");
	EXPECT(create->n_v_scales++, -EINVAL, "v_scales 5");
	EXPECT(create->n_k_scales = create->n_v_scales = 0, -EINVAL, "one a head of each layer");
	EXPECT(create->flags = FA_WIRE_CACHE_TOKEN_SCALES, -EINVAL, "tokens");
	EXPECT(create->store = FA_WIRE_STORE_PLAIN, -EINVAL, "expected 0");
	EXPECT((create->flags = FA_WIRE_CACHE_TOKEN_SCALES, create->store = FA_WIRE_STORE_PLAIN,
	        create->n_k_scales = create->n_v_scales = 0),
	       -EINVAL, "tokens are to have scales");
	EXPECT(create->flags = FA_WIRE_CACHE_V_IN_K, -EINVAL, "of K alone");
	EXPECT(create->head_dim = create->head_dim_v = 584, -ENOTSUP, "head_dim 584");
	EXPECT((create->head_dim = 576, create->head_dim_v = 520), -ENOTSUP, "head_dim_v 520");
	EXPECT(create->head_dim = 0, -EINVAL, "head_dim 0 ");
	EXPECT((create->layers = 1024, create->kv_heads = 8), -ENOTSUP, "at most 8000");
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); ++i) {
		scales[3] = bad[i];
		EXPECT(, -EINVAL, "scale");
		EXPECT(create->store = FA_WIRE_STORE_INT8, -EINVAL, "scale");
	}
	scales[3] = 2;
	*create = good;
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	fa_check_eq(client.raw.message.cache_reply.store, FA_WIRE_STORE_E4M3);
	fa_check_eq(client.raw.message.cache_reply.flags, 0);
	*create = good;
	create->store = FA_WIRE_STORE_INT8;
	create->flags = FA_WIRE_CACHE_TOKEN_SCALES;
	create->n_k_scales = create->n_v_scales = 0;
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	fa_check_eq(client.raw.message.cache_reply.flags, FA_WIRE_CACHE_TOKEN_SCALES);
#undef EXPECT
}

/* Another session's objects are unknown, freed ones stale. */
static void test_foreign_and_stale(void **state)
{
	static const enum fa_wire_type types[] = {
		FA_WIRE_SEQUENCE_FORK,     FA_WIRE_SEQUENCE_TRUNCATE, FA_WIRE_SEQUENCE_DROP,
		FA_WIRE_SEQUENCE_INFO,     FA_WIRE_SEQUENCE_PUBLISH,  FA_WIRE_SEQUENCE_ATTACH,
		FA_WIRE_SEQUENCE_SET_NAME,
	};
	const uint64_t freed = kv_sequence(&client, cache);
	const uint64_t ids[] = {
		0, 1, freed, sequence, sequence + ((uint64_t)1 << 32), UINT64_MAX
	};
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_CREATE);

	kv_free(&client, freed);
	for (size_t t = 0; t < sizeof(types) / sizeof(*types); t++) {
		message = fa_raw_message(types[t]);
		if (types[t] == FA_WIRE_SEQUENCE_SET_NAME)
			message.sequence_set_name.name = (struct fa_wire_string){ "x", 1 };
		for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
			message.sequence_info.sequence = ids[i];
			kv_call_expect(&other, &message, ids[i] == freed ? -ESTALE : -ENOENT, NULL);
			if (ids[i] != sequence)
				kv_call_expect(&client, &message,
				               ids[i] == freed ? -ESTALE : -ENOENT, NULL);
		}
	}
	message = fa_raw_message(FA_WIRE_SEQUENCE_CREATE);
	message.sequence_create.cache = cache;
	kv_call_expect(&other, &message, -ENOENT, "no such cache");
	message.sequence_create.cache = cache + 1;
	kv_call_expect(&client, &message, -ENOENT, "no such cache");
}

static void test_sequence_values(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_FORK);

	message.sequence_fork.sequence = sequence;
	message.sequence_fork.tokens = 21;
	kv_call_expect(&client, &message, -EINVAL, "21 tokens");
	message = fa_raw_message(FA_WIRE_SEQUENCE_TRUNCATE);
	message.sequence_truncate.sequence = sequence;
	message.sequence_truncate.tokens = 21;
	kv_call_expect(&client, &message, -EINVAL, "21 tokens");
	message = fa_raw_message(FA_WIRE_SEQUENCE_DROP);
	message.sequence_drop.sequence = sequence;
	message.sequence_drop.first = 21;
	kv_call_expect(&client, &message, -EINVAL, "21");
	message = fa_raw_message(FA_WIRE_SEQUENCE_PUBLISH);
	message.sequence_publish.sequence = sequence;
	message.sequence_publish.tokens = numbers;
	message.sequence_publish.n_tokens = 21;
	kv_call_expect(&client, &message, -EINVAL, "21 tokens");
	message.sequence_publish.n_tokens = 20;
	message.sequence_publish.flags = 2;
	kv_call_expect(&client, &message, -ENOTSUP, "flags");
	message = fa_raw_message(FA_WIRE_SEQUENCE_ATTACH);
	message.sequence_attach.sequence = sequence;
	message.sequence_attach.tokens = numbers;
	message.sequence_attach.n_tokens = 20;
	kv_call_expect(&client, &message, -EINVAL, NULL);
	message = fa_raw_message(FA_WIRE_SEQUENCE_SET_NAME);
	message.sequence_set_name.sequence = sequence;
	message.sequence_set_name.name = (struct fa_wire_string){ "name", 4 };
	kv_call_expect(&client, &message, -EINVAL, "cache has no name");
}

static void test_step_begin(void **state)
{
	struct fa_wire_step_item items[3] = { { .sequence = sequence, .n_new = 1 },
		                              { .sequence = sequence, .n_new = 1 } };
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);
	const uint32_t starts[2] = { 0, 0 }, masks[2] = { 1, 3 };

	kv_begin_expect(&client, 0, items, 1, -EINVAL, "step is 0");
	kv_begin_expect(&client, 1, items, 0, -EINVAL, "0 sequences");
	kv_begin_expect(&client, 1, items, 2, -EINVAL, "item 1 of the step");
	items[0].sequence = sequence + 1;
	kv_begin_expect(&client, 1, items, 1, -ENOENT, "item 0");
	kv_begin_expect(&other, 1, items + 1, 1, -ENOENT, "item 0");
	items[0].sequence = sequence;
	items[0].n_new = UINT32_MAX;
	kv_begin_expect(&client, 1, items, 1, -EINVAL, "new tokens");
	items[0].n_new = 1 << 24;
	kv_begin_expect(&client, 1, items, 1, -ENOMEM, NULL);
	items[0].n_new = 1;
	items[0].flags = 2;
	kv_begin_expect(&client, 1, items, 1, -EINVAL, "flags");
	items[0].flags = 0;

	message.step_begin.step = 1;
	message.step_begin.items = items;
	message.step_begin.n_items = 1;
	message.step_begin.tree = masks;
	message.step_begin.n_tree = 2;
	kv_call_expect(&client, &message, -EINVAL, "tree_start");
	message.step_begin.tree_start = starts;
	message.step_begin.n_tree_start = 2;
	kv_call_expect(&client, &message, -EINVAL, "tree_start");
	message.step_begin.n_tree_start = 1;
	items[0].n_new = 3;
	kv_call_expect(&client, &message, -EINVAL, "tree_start[0]");

	items[0].n_new = 1;
	kv_begin(&client, 1, items, 1);
	kv_begin_expect(&client, 1, items, 1, -EEXIST, "step 1");
	kv_begin(&client, 2, items, 1);
	kv_begin(&client, 3, items, 1);
	kv_begin_expect(&client, 4, items, 1, -EDQUOT, "session_steps");
	for (uint32_t step = 1; step <= 3; step++)
		kv_wait(&client, 0, kv_end(&client, 0, step, false));
}

static uint64_t put(struct fa_wire_message *message)
{
	return kv_send(&client, message, 0);
}

static void test_step_attend(void **state)
{
	struct fa_wire_message good, message;
	struct fa_wire_step_attend *attend = &message.step_attend;
	const float floats[KV_HEADS + 1] = { 0 };
	const float endless[KV_HEADS] = { -INFINITY, 0, 0, INFINITY };
	const uint32_t positions[2] = { 0 };
	const float *out;
	uint32_t step = 1;

	/* A refused request dooms its step: each has its own. */
#define EXPECT(change, status, part)                                                               \
	do {                                                                                       \
		kv_begin_one(&client, step, sequence, 1);                                          \
		message = kv_attend_message(&client, 0, step, 0, numbers + 20, 1, &out);           \
		change;                                                                            \
		kv_wait_expect(&client, 0, put(&message), status, part);                           \
		kv_wait_expect(&client, 0, kv_end(&client, 0, step, true), -ECANCELED, "failed");  \
		step++;                                                                            \
	} while (0)
	EXPECT(attend->layer = KV_LAYERS, -EINVAL, "layer");
	EXPECT(attend->cache = 12345, -ENOENT, "no sequences of cache");
	EXPECT(attend->flags = 16, -ENOTSUP, "flags");
	EXPECT(attend->q.buffer = 77, -ENOENT, "q.buffer");
	EXPECT(attend->k.shape[0] = 2, -EINVAL, "k.shape[0]");
	EXPECT(attend->k.shape[1] = 1, -EINVAL, "k.shape[1]");
	EXPECT(attend->v.shape[2] = 16, -EINVAL, "v.shape[2]");
	EXPECT(attend->q.shape[1] = 3, -EINVAL, "heads");
	EXPECT(attend->q.dtype = FA_WIRE_DTYPE_F16, -ENOTSUP, "q.dtype");
	EXPECT(attend->out.offset = client.buffer.bytes - 4, -EINVAL, "out of bounds");
	EXPECT(attend->out.rank = 0, -EINVAL, "out is absent");
	EXPECT(attend->q.rank = 0, -EINVAL, "q is absent");
	EXPECT(attend->v.rank = 0, -EINVAL, "v is absent");
	EXPECT((attend->q.rank = attend->k.rank = attend->v.rank = attend->out.rank = 0), -EINVAL,
	       "nothing to do");
	EXPECT((attend->alibi_slopes = floats, attend->n_alibi_slopes = 5), -EINVAL,
	       "alibi_slopes");
	EXPECT((attend->sinks = floats, attend->n_sinks = 3), -EINVAL, "sinks");
	EXPECT((attend->sinks = endless, attend->n_sinks = 4), -EINVAL, "sinks[3] is inf");
	EXPECT((attend->alibi_slopes = endless, attend->n_alibi_slopes = 4), -EINVAL,
	       "alibi_slopes[0] is -inf");
	EXPECT(attend->window_left = -2, -EINVAL, "window_left");
	EXPECT(attend->out.offset = attend->q.offset, -EINVAL, "out overlaps q");
	EXPECT(attend->out.offset = attend->v.offset, -EINVAL, "out overlaps");
	EXPECT(attend->rotary_dim = 18, -EINVAL, "rotary_dim");
	EXPECT(attend->rotary_dim = 7, -EINVAL, "rotary dim");
	EXPECT(attend->rotary_dim = 8, -EINVAL, "base");
	EXPECT((attend->rotary_dim = 8, attend->rotary_first = 8), -EINVAL, "in flags");
	EXPECT(attend->flags = FA_WIRE_STEP_ROTARY_FIRST, -EINVAL, "in flags");
	EXPECT((attend->flags = FA_WIRE_STEP_ROTARY_FIRST, attend->rotary_dim = 8,
	        attend->rotary_first = 4),
	       -EINVAL, "rotary_first is 4");
	EXPECT((attend->flags = FA_WIRE_STEP_ROTARY_FIRST, attend->rotary_dim = 8,
	        attend->rotary_first = 16),
	       -EINVAL, "rotary_first is 16");
	EXPECT((attend->flags = FA_WIRE_STEP_ROTARY_FIRST, attend->rotary_dim = 8,
	        attend->rotary_first = UINT32_MAX - 7),
	       -EINVAL, "rotary_first is 4294967288");
	EXPECT((attend->positions = positions, attend->n_positions = 2, attend->rotary_dim = 8),
	       -EINVAL, "positions");
	EXPECT((attend->rotary_dim = 8, attend->cos = attend->q), -EINVAL, "sin is absent");
	EXPECT(attend->softcap = -1, -EINVAL, "softcap");
#undef EXPECT
	kv_begin_one(&client, 50, sequence, 1);
	good = kv_attend_message(&client, 0, 51, 0, numbers, 1, &out);
	kv_wait_expect(&client, 0, put(&good), -ENOENT, "no step 51");
	kv_wait(&client, 0, kv_end(&client, 0, 50, false));
	good = kv_attend_message(&client, 0, 50, 0, numbers, 1, &out);
	kv_wait_expect(&client, 0, put(&good), -ENOENT, "no step 50");
}

/* Positions beyond the rows of the rotary tables are refused, however the positions are given. */
static void test_rotary_rows(void **state)
{
	const uint32_t positions[3] = { 0, 21, 22 }, tree[3] = { 1, 3, 5 }, tree_start = 0;
	struct fa_wire_message message;
	struct fa_wire_step_attend *attend = &message.step_attend;
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = 3 };
	struct fa_wire_message begin = fa_raw_message(FA_WIRE_STEP_BEGIN);
	const float *out;

	/* The sequence has 20 tokens: the new ones are at 20 to 22, those of the tree at 20 and 21. */
	for (int form = 0; form < 3; ++form)
		for (int more = 0; more < 2; ++more) {
			const int64_t rows = (form == 2 ? 21 : 22) + more;

			begin.step_begin = (struct fa_wire_step_begin){
				.step = 1,
				.items = &item,
				.n_items = 1,
				.tree = form == 2 ? tree : NULL,
				.n_tree = form == 2 ? 3 : 0,
				.tree_start = form == 2 ? &tree_start : NULL,
				.n_tree_start = form == 2,
			};
			kv_call(&client, &begin, FA_WIRE_STEP_REPLY);
			message = kv_attend_message(&client, 0, 1, 0, numbers + 20, 3, &out);
			attend->rotary_dim = 8;
			attend->cos = (struct fa_wire_view){ .buffer = attend->q.buffer,
				                             .dtype = FA_WIRE_DTYPE_F32,
				                             .rank = 2,
				                             .shape = { rows, 4 },
				                             .strides = { 4, 1 } };
			attend->sin = attend->cos;
			attend->positions = form == 1 ? positions : NULL;
			attend->n_positions = form == 1 ? 3 : 0;
			if (more)
				kv_wait(&client, 0, put(&message));
			else
				kv_wait_expect(&client, 0, put(&message), -EINVAL,
				               form == 0
				                       ? "cos.shape[0] is 22; expected at least 23"
				               : form == 1 ? "position of new token 2 is 22; "
				                             "expected less than 22"
				                           : "tree position of new token 1 is 21; "
				                             "expected less than 21");
			kv_wait(&client, 0, kv_end(&client, 0, 1, false));
		}
}

static void test_step_end(void **state)
{
	const uint32_t keep[3] = { 0, 2, 1 }, cu_keep[3] = { 0, 2, 3 };
	struct fa_wire_message message;
	struct fa_wire_step_end *end = &message.step_end;
	struct fa_raw_completion again;
	uint64_t value;

	kv_wait_expect(&client, 0, kv_end(&client, 0, 9, true), -ENOENT, "no step 9");
#define EXPECT(change, status, part)                                                               \
	do {                                                                                       \
		kv_begin_one(&client, 1, sequence, 3);                                             \
		message = fa_raw_message(FA_WIRE_STEP_END);                                        \
		*end = (struct fa_wire_step_end){ .value = ++client.values[0],                     \
			                          .step = 1,                                       \
			                          .flags = FA_WIRE_STEP_COMMIT };                  \
		change;                                                                            \
		kv_wait_expect(&client, 0, put(&message), status, part);                           \
		kv_wait_expect(&client, 0, kv_end(&client, 0, 1, true), -ENOENT, "no step 1");     \
	} while (0)
	EXPECT(end->flags = 3, -ENOTSUP, "flags");
	EXPECT((end->cu_keep = cu_keep, end->n_cu_keep = 3), -EINVAL, "cu_keep has 3");
	EXPECT((end->cu_keep = cu_keep, end->n_cu_keep = 2), -EINVAL, "0 to 2");
	EXPECT((end->keep = keep, end->n_keep = 2), -EINVAL, "cu_keep has 0");
	EXPECT((end->cu_keep = cu_keep + 1, end->n_cu_keep = 2, end->keep = keep, end->n_keep = 3),
	       -EINVAL, "2 to 3");
	EXPECT((end->cu_keep = cu_keep, end->n_cu_keep = 2, end->keep = keep + 1, end->n_keep = 2),
	       -EINVAL, "keep[1]");
	EXPECT((end->flags = 0, end->keep = keep, end->n_keep = 2), -EINVAL, "commit");
#undef EXPECT
	kv_begin_one(&client, 1, sequence, 1);
	kv_begin_one(&client, 2, sequence, 1);
	kv_wait_expect(&client, 0, kv_end(&client, 0, 2, true), -EBUSY, "step 1");
	value = kv_end(&client, 0, 1, false);
	fa_raw_wait(&client.raw, 0, kv_end(&client, 0, 1, true), &again);
	fa_check(again.status == -EINVAL || again.status == -ENOENT);
	kv_wait(&client, 0, value);
}

/*
 * A step is refused while another of its sequence is being aborted, with which it would be aborted.
 */
static void test_begin_after_abort(void **state)
{
	uint64_t mine = kv_sequence(&client, cache);
	struct fa_wire_step_item item = { .sequence = mine, .n_new = 40 };
	struct fa_wire_message begin = fa_raw_message(FA_WIRE_STEP_BEGIN);

	begin.step_begin = (struct fa_wire_step_begin){ .step = 2, .items = &item, .n_items = 1 };
	for (int i = 0; i < 100; i++) {
		uint64_t value;
		bool begun;

		kv_begin(&client, 1, &item, 1);
		kv_attend(&client, 0, 1, 0, numbers, 40, NULL);
		value = kv_end(&client, 0, 1, false);
		fa_raw_call(&client.raw, &begin, NULL, 0);
		begun = client.raw.message.type == FA_WIRE_STEP_REPLY;
		if (!begun)
			fa_check_eq(client.raw.message.reply.status, -EBUSY);
		kv_wait(&client, 0, value);
		if (!begun)
			kv_begin(&client, 2, &item, 1);
		fa_check_eq(kv_info(&client, mine).planned, 40);
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			kv_attend(&client, 0, 2, layer, numbers, 40, NULL);
		kv_wait(&client, 0, kv_end(&client, 0, 2, true));
		kv_check(&client, mine, numbers, 0, 40);
		kv_truncate(&client, mine, 0);
	}
}

static void test_copy(void **state)
{
	struct fa_wire_message message;
	float *k, *v;

	message = kv_copy_message(&client, 0, sequence, 0, 19, 2, false, &k, &v);
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "19 to 21 are to be read");
	message = kv_copy_message(&client, 0, sequence, KV_LAYERS, 0, 1, false, &k, &v);
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "layer");
	message = kv_copy_message(&client, 0, sequence, 0, UINT64_MAX, 1, false, &k, &v);
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "copied");
	message = kv_copy_message(&client, 0, sequence, 0, 0, 1, false, &k, &v);
	message.sequence_copy.k.rank = message.sequence_copy.v.rank = 0;
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "nothing to copy");
	message = kv_copy_message(&client, 0, sequence, 0, 0, 1, true, &k, &v);
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "to be written");
	message = kv_copy_message(&other, 0, sequence, 0, 0, 1, false, &k, &v);
	kv_wait_expect(&other, 0, kv_send(&other, &message, 0), -ENOENT, "no such sequence");

	kv_begin_one(&client, 1, sequence, 2);
	message = kv_copy_message(&client, 0, sequence, 0, 20, 3, true, &k, &v);
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "to be written");
	message = kv_copy_message(&client, 0, sequence, 0, 19, 1, true, &k, &v);
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "to be written");
	message = kv_copy_message(&client, 0, sequence, 0, 21, 1, true, &k, &v);
	message.sequence_copy.k.shape[2] = 8;
	kv_wait_expect(&client, 0, put(&message), -EINVAL, "k.shape[2]");
	kv_wait_expect(&client, 0, kv_end(&client, 0, 1, true), -ECANCELED, "failed");
}

/* Refusals while other requests of the step wait or are in flight. */
static void test_storm(void **state)
{
	uint64_t last = 0;

	for (int i = 0; i < 200; i++) {
		uint64_t mine = kv_sequence(&client, cache);
		struct fa_wire_message message;

		kv_begin_one(&client, 1, mine, 40);
		kv_attend(&client, 0, 1, 0, numbers, 40, NULL);
		message = kv_attend_message(&client, 0, 1, 1, numbers, 40, NULL);
		if (i % 3 == 0)
			message.step_attend.k.shape[0] = 7;
		kv_send(&client, &message, 0);
		last = kv_end(&client, 0, 1, true);
		if (i % 3)
			kv_wait(&client, 0, last);
		else
			kv_wait_expect(&client, 0, last, -ECANCELED, "failed");
		fa_check_eq(kv_info(&client, mine).length, i % 3 ? 40 : 0);
		kv_free(&client, mine);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, open_clients, close_clients)
	const struct CMUnitTest tests[] = {
		TEST(cache_create),    TEST(cache_codes),       TEST(foreign_and_stale),
		TEST(sequence_values), TEST(step_begin),        TEST(step_attend),
		TEST(step_end),        TEST(begin_after_abort), TEST(copy),
		TEST(storm),           TEST(rotary_rows),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
