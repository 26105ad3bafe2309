/*
 * Random well-formed messages of the KV cache, with right, foreign, stale or invented ids and
 * boundary values. Each is answered, and other sessions' objects stay as they are.
 */
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define WORDS 48
#define KNOWN 12
#define NAMES 4
#define BUFFER 1

static struct fa_test_daemon daemon_process;
static struct kv_client client, other;
static struct fa_test_random dice;
static uint32_t numbers[200];
static uint64_t n_calls, n_works;

static struct fa_wire_message message;
static uint32_t words[4][WORDS];
static struct fa_wire_step_item items[WORDS];
static uint32_t state_bytes[WORDS] = { 700, 64 }; /* two are valid */
static const float scales[WORDS] = { 0.01f, 2, 0.5f, 0x1p-100f, 0, -1 };
static uint64_t caches[KNOWN], sequences[KNOWN], victim, theirs;

static uint32_t last_step, last_tokens;

static uint32_t below(uint32_t n)
{
	return (uint32_t)fa_test_random_below(&dice, n);
}

static uint64_t number(void)
{
	static const uint64_t edges[] = {
		0,          1,
		2,          15,
		16,         17,
		31,         32,
		64,         100,
		255,        256,
		1 << 16,    (1 << 24) + 1,
		1 << 29,    INT32_MAX,
		UINT32_MAX, (uint64_t)1 << 32,
		INT64_MAX,  UINT64_MAX - 1,
		UINT64_MAX,
	};

	return below(3) ? below(40) : edges[below(sizeof(edges) / sizeof(*edges))];
}

static uint64_t id_of(const uint64_t *known)
{
	switch (below(12)) {
	case 0:
		return victim;
	case 1:
		return number() << 32 | number();
	case 2:
		return known[below(KNOWN)] + ((uint64_t)1 << 32);
	default:
		return known[below(KNOWN)];
	}
}

static struct fa_wire_string name(void)
{
	static const char *const names[NAMES] = { "n0", "n1", "n2", "n3" };

	if (below(3) == 0)
		return (struct fa_wire_string){ "", 0 };
	return below(2) ? (struct fa_wire_string){}
	                : (struct fa_wire_string){ names[below(NAMES)], 2 };
}

static size_t vector(int i, const uint32_t **ret_words)
{
	for (uint32_t k = 0; k < WORDS; k++)
		words[i][k] = below(2) ? below(8) : (uint32_t)number();
	*ret_words = words[i];
	return below(4) ? 0 : below(WORDS);
}

/* Returns a view that is valid, or nearly so, in two of three cases. */
static struct fa_wire_view view(uint32_t tokens, uint32_t heads, uint32_t dim)
{
	struct fa_wire_view v = {
		.buffer = BUFFER,
		.dtype = FA_WIRE_DTYPE_F32,
		.rank = 3,
		.shape = { tokens, heads, dim },
		.strides = { (int64_t)heads * dim, dim, 1 },
	};

	switch (below(24)) {
	case 0:
		v.offset = number();
		break;
	case 1:
		v.shape[below(3)] = (int64_t)number();
		break;
	case 2:
		v.strides[below(3)] = (int64_t)number();
		break;
	case 3:
		v.rank = (uint8_t)below(FA_WIRE_RANK_MAX + 1);
		break;
	case 4:
		v.dtype = (uint8_t)below(8);
		break;
	case 5:
		v.buffer = below(4);
		break;
	case 6:
		v = (struct fa_wire_view){};
		break;
	}
	return v;
}

/* Returns @good, or rarely any number: rarely, because only the first of several faults is
 * found. */
static uint32_t rarely(uint32_t good)
{
	return below(10) ? good : (uint32_t)number();
}

static void fill_cache(struct fa_wire_cache_create *m)
{
	*m = kv_cache_message(NULL, 0).cache_create;
	m->name = name();
	m->mode = m->name.text ? rarely(below(43)) : 0;
	m->layers = rarely(m->layers);
	m->page_tokens = below(3) ? m->page_tokens : rarely(16u << below(5));
	m->head_dim_v = rarely(m->head_dim_v);
	m->max_pages = below(3) ? 0 : number();
	m->flags = rarely(below(4) == 0);
	if (below(3) == 0) {
		m->store = (uint8_t)rarely(1 + below(2));
		m->flags = rarely(below(2) ? FA_WIRE_CACHE_TOKEN_SCALES : 0);
		m->k_scales = m->v_scales = scales;
		m->n_k_scales = m->n_v_scales = KV_LAYERS * KV_KV_HEADS;
		if (m->flags & FA_WIRE_CACHE_TOKEN_SCALES && below(8))
			m->n_k_scales = m->n_v_scales = 0;
		if (below(8) == 0)
			m->n_v_scales = below(WORDS);
		if (below(8) == 0)
			m->k_scales = (const float *)words[0];
	}
	if (below(2) == 0) {
		m->state_bytes = below(8) ? state_bytes : words[0];
		m->n_state_bytes = below(8) ? 2 : below(WORDS);
		m->checkpoint_tokens = rarely(below(3) * 64);
	}
}

static void fill_attend(struct fa_wire_step_attend *m, uint32_t tokens)
{
	*m = (struct fa_wire_step_attend){
		.step = below(4) ? last_step : rarely(1 + below(3)),
		.cache = below(3) ? 0 : id_of(caches),
		.layer = rarely(below(KV_LAYERS)),
		.flags = rarely(below(4) | (below(8) ? 0 : FA_WIRE_STEP_ROTARY_FIRST)),
		.window_left = below(3) ? -1 : (int64_t)number(),
		.window_right = below(3) ? -1 : (int64_t)number(),
		.q = view(tokens, KV_HEADS, KV_DIM),
		.k = view(tokens, KV_KV_HEADS, KV_DIM),
		.v = view(tokens, KV_KV_HEADS, KV_DIM_V),
		.out = view(tokens, KV_HEADS, KV_DIM_V),
		.softcap = below(4) ? 0 : (float)below(50),
	};
	if (below(3))
		return;
	m->rotary_dim = rarely(2 * below(9));
	m->rotary_first = below(3) ? 0 : rarely(8 * below(3));
	m->rotary_base = below(3) ? 10000 : (double)number();
	m->rotary_scale = below(3);
	m->n_positions = vector(0, &m->positions);
}

static void fill_begin(struct fa_wire_step_begin *m)
{
	*m = (struct fa_wire_step_begin){ .step = rarely(1 + below(3)),
		                          .items = items,
		                          .n_items = below(3) ? 1 : below(WORDS) };
	for (size_t i = 0; i < m->n_items; i++) {
		items[i] = (struct fa_wire_step_item){ .sequence = id_of(sequences),
			                               .n_new = below(12) ? below(24)
			                                                  : (uint32_t)number(),
			                               .flags = rarely(below(4) == 0) };
	}
	if (below(4))
		return;
	m->n_tree = vector(0, &m->tree);
	m->n_tree_start = vector(1, &m->tree_start);
	if (below(3))
		m->n_tree_start = m->n_items;
}

static void fill_end(struct fa_wire_step_end *m)
{
	*m = (struct fa_wire_step_end){ .step = below(4) ? last_step : rarely(1 + below(3)),
		                        .flags = rarely(below(3) != 0) };
	if (below(3))
		return;
	m->n_keep = vector(0, &m->keep);
	m->n_cu_keep = vector(1, &m->cu_keep);
}

static void fill_tokens(struct fa_wire_sequence_publish *m)
{
	*m = (struct fa_wire_sequence_publish){ .sequence = id_of(sequences),
		                                .flags = rarely(below(2)) };
	m->n_tokens = vector(0, &m->tokens);
	if (below(3))
		return;
	m->tokens_view = view((uint32_t)number(), 1, 1);
	m->tokens_view.rank = rarely(1) % (FA_WIRE_RANK_MAX + 1);
	m->tokens_view.dtype = 0;
	m->tokens_view.strides[0] = 1;
}

static uint64_t send_work(uint32_t type)
{
	uint64_t value = ++client.values[0];

	message = fa_raw_message(type);
	if (type == FA_WIRE_STEP_ATTEND) {
		fill_attend(&message.step_attend, last_tokens % 64);
		message.step_attend.value = value;
	} else if (type == FA_WIRE_STEP_END) {
		fill_end(&message.step_end);
		message.step_end.value = value;
	} else if (type == FA_WIRE_SEQUENCE_STATE) {
		const uint32_t state = below(2);

		message.sequence_state = (struct fa_wire_sequence_state){
			.value = value,
			.sequence = id_of(sequences),
			.flags = rarely(below(4) != 0),
			.state = rarely(state),
			.tokens = below(2) ? 0 : number(),
			.data = view(state_bytes[state] / 4, 1, 1),
		};
		message.sequence_state.data.rank = rarely(1) % (FA_WIRE_RANK_MAX + 1);
	} else {
		uint32_t n = below(24);

		message.sequence_copy = (struct fa_wire_sequence_copy){
			.value = value,
			.sequence = id_of(sequences),
			.flags = rarely(below(2)),
			.layer = rarely(below(KV_LAYERS)),
			.first = below(3) ? below(32) : number(),
			.k = view(n, KV_KV_HEADS, KV_DIM),
			.v = view(n, KV_KV_HEADS, KV_DIM_V),
		};
	}
	if (below(20) == 0)
		message.timeout_ns = 1 + below(100000);
	return kv_send(&client, &message, 0);
}

static void call(uint32_t type)
{
	struct fa_wire_sequence_publish tokens;

	if ((type == FA_WIRE_CACHE_REMOVE || type == FA_WIRE_SEQUENCE_FREE) && below(3))
		type = FA_WIRE_SEQUENCE_INFO;
	message = fa_raw_message(type);
	switch (type) {
	case FA_WIRE_CACHE_CREATE:
		fill_cache(&message.cache_create);
		break;
	case FA_WIRE_CACHE_FIND:
		message.cache_find.name = name();
		message.cache_find.cache = id_of(caches);
		break;
	case FA_WIRE_CACHE_REMOVE:
		/*
		 * The test has the daemon's user and may remove everything; ids of caches and
		 * sequences overlap.
		 */
		message.cache_remove.cache = id_of(caches);
		if (message.cache_remove.cache == theirs)
			message.cache_remove.cache = 0;
		break;
	case FA_WIRE_SEQUENCE_CREATE:
		message.sequence_create.cache = id_of(caches);
		break;
	case FA_WIRE_SEQUENCE_FIND:
		message.sequence_find.name = name();
		break;
	case FA_WIRE_SEQUENCE_FORK:
		message.sequence_fork.sequence = id_of(sequences);
		message.sequence_fork.tokens = below(2) ? UINT64_MAX : number();
		break;
	case FA_WIRE_SEQUENCE_SET_NAME:
		message.sequence_set_name.sequence = id_of(sequences);
		message.sequence_set_name.name = name();
		message.sequence_set_name.mode = rarely(below(43));
		message.sequence_set_name.ttl_ns = below(3) ? 0 : number();
		break;
	case FA_WIRE_SEQUENCE_PUBLISH:
		fill_tokens(&message.sequence_publish);
		break;
	case FA_WIRE_SEQUENCE_ATTACH:
		fill_tokens(&tokens);
		message.sequence_attach.sequence = tokens.sequence;
		message.sequence_attach.flags = tokens.flags;
		message.sequence_attach.tokens = tokens.tokens;
		message.sequence_attach.n_tokens = tokens.n_tokens;
		message.sequence_attach.tokens_view = tokens.tokens_view;
		break;
	case FA_WIRE_PREFIX_FIND:
		fill_tokens(&tokens);
		message.prefix_find.cache = id_of(caches);
		message.prefix_find.flags = tokens.flags;
		message.prefix_find.tokens = tokens.tokens;
		message.prefix_find.n_tokens = tokens.n_tokens;
		message.prefix_find.tokens_view = tokens.tokens_view;
		break;
	case FA_WIRE_STEP_BEGIN:
		fill_begin(&message.step_begin);
		break;
	default: /* the sequence is the first member; a number may follow */
		message.sequence_truncate.sequence = id_of(sequences);
		if (type == FA_WIRE_SEQUENCE_FREE && message.sequence_truncate.sequence == victim)
			message.sequence_truncate.sequence = 0;
		if (type != FA_WIRE_SEQUENCE_FREE && type != FA_WIRE_SEQUENCE_INFO)
			message.sequence_truncate.tokens = number();
	}
	fa_raw_call(&client.raw, &message, NULL, 0);
	if (client.raw.message.type == FA_WIRE_STEP_REPLY) {
		last_step = message.step_begin.step;
		last_tokens = 0;
		for (size_t i = 0; i < message.step_begin.n_items; i++)
			last_tokens += items[i].n_new;
	}
	n_calls += client.raw.message.type != FA_WIRE_REPLY || client.raw.message.reply.status == 0;
	if (client.raw.message.type == FA_WIRE_CACHE_REPLY)
		caches[below(KNOWN)] = client.raw.message.cache_reply.cache;
	else if (client.raw.message.type == FA_WIRE_SEQUENCE_REPLY)
		sequences[below(KNOWN)] = client.raw.message.sequence_reply.sequence;
	else if (client.raw.message.type == FA_WIRE_REPLY)
		fa_check(client.raw.message.reply.status == 0 ||
		         client.raw.message.reply.text.length > 0);
}

static void wait_for(uint64_t value)
{
	struct fa_raw_completion completion;

	fa_raw_wait(&client.raw, 0, value, &completion);
	fa_check(completion.status == 0 || completion.text[0]);
	n_works += completion.status == 0;
}

static void rush(uint32_t rounds)
{
	static const enum fa_wire_type calls[] = {
		FA_WIRE_CACHE_CREATE,      FA_WIRE_CACHE_FIND,       FA_WIRE_CACHE_REMOVE,
		FA_WIRE_SEQUENCE_CREATE,   FA_WIRE_SEQUENCE_CREATE,  FA_WIRE_SEQUENCE_FIND,
		FA_WIRE_SEQUENCE_FORK,     FA_WIRE_SEQUENCE_FORK,    FA_WIRE_SEQUENCE_SET_NAME,
		FA_WIRE_SEQUENCE_TRUNCATE, FA_WIRE_SEQUENCE_DROP,    FA_WIRE_SEQUENCE_FREE,
		FA_WIRE_SEQUENCE_INFO,     FA_WIRE_SEQUENCE_PUBLISH, FA_WIRE_SEQUENCE_ATTACH,
		FA_WIRE_PREFIX_FIND,       FA_WIRE_STEP_BEGIN,       FA_WIRE_STEP_BEGIN,
		FA_WIRE_STEP_BEGIN,
	};
	static const enum fa_wire_type works[] = {
		FA_WIRE_STEP_ATTEND,    FA_WIRE_STEP_ATTEND,    FA_WIRE_STEP_ATTEND,
		FA_WIRE_STEP_END,       FA_WIRE_STEP_END,       FA_WIRE_SEQUENCE_COPY,
		FA_WIRE_SEQUENCE_STATE, FA_WIRE_SEQUENCE_STATE,
	};
	uint64_t waited = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		if (below(2)) {
			call(calls[below(sizeof(calls) / sizeof(*calls))]);
			continue;
		}
		(void)send_work(works[below(sizeof(works) / sizeof(*works))]);
		while (waited + (below(8) ? 20 : 0) < client.values[0])
			wait_for(++waited);
	}
	while (waited < client.values[0])
		wait_for(++waited);
}

static long long of_pool(const char *key)
{
	char *text = fa_raw_status(&other.raw);
	json_t *json = json_loads(text, 0, NULL);
	long long value;

	fa_check(json);
	value = json_integer_value(json_object_get(json_object_get(json, "pool"), key));
	json_decref(json);
	free(text);
	return value;
}

static void remove_names(void)
{
	for (int i = 0; i < NAMES; i++) {
		char text[3] = { 'n', (char)('0' + i), 0 };

		message = fa_raw_message(FA_WIRE_CACHE_FIND);
		message.cache_find.name = (struct fa_wire_string){ text, 2 };
		fa_raw_call(&other.raw, &message, NULL, 0);
		if (other.raw.message.type != FA_WIRE_CACHE_REPLY)
			continue;
		message = fa_raw_message(FA_WIRE_CACHE_REMOVE);
		message.cache_remove.cache = other.raw.message.cache_reply.cache;
		kv_call_expect(&other, &message, 0, NULL);
	}
}

static uint64_t cache_with_states(void)
{
	message = kv_cache_message(NULL, 0);
	message.cache_create.state_bytes = state_bytes;
	message.cache_create.n_state_bytes = 2;
	message.cache_create.checkpoint_tokens = 64;
	fa_raw_call(&client.raw, &message, NULL, 0);
	fa_check_eq(client.raw.message.type, FA_WIRE_CACHE_REPLY);
	fa_check_eq(client.raw.message.cache_reply.states, 2);
	return client.raw.message.cache_reply.cache;
}

static void test_random(void **state)
{
	static const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 6M\nchunk_bytes = 2M\n"
			  "[limits]\ncaches = 8\nsequences = 60\nsession_steps = 4\n",
	};
	const uint32_t rounds = fa_test_long() ? 100000 : fa_test_sanitized() ? 3000 : 10000;
	const char *seed = getenv("FAD_TEST_SEED");

	dice.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)dice.state);
	fflush(stdout);
	fa_test_daemon_start(&daemon_process, &options);
	kv_count(numbers, 1, 200);
	kv_open(&other, daemon_process.socket);
	theirs = kv_cache(&other, NULL, 0);
	victim = kv_sequence(&other, theirs);
	kv_append(&other, victim, numbers, 0, 150);
	for (int i = 0; i < 10; i++) {
		memset(caches, 0, sizeof(caches));
		memset(sequences, 0, sizeof(sequences));
		kv_open(&client, daemon_process.socket);
		caches[0] = i % 2 ? kv_cache(&client, NULL, 0) : cache_with_states();
		for (int k = 0; k < 6; k++)
			sequences[k] = kv_sequence(&client, caches[0]);
		rush(rounds);
		kv_check(&other, victim, numbers, 0, 150);
		kv_close(&client);
		fa_check_eventually(of_pool("sequences") <= 1 + NAMES &&
		                    of_pool("caches") <= 1 + NAMES);
	}
	printf("%llu calls and %llu requests did something\n", (unsigned long long)n_calls,
	       (unsigned long long)n_works);
	fa_check(n_calls > rounds / 20 && n_works > rounds / 100);
	remove_names();
	fa_check_eventually(of_pool("sequences") == 1 && of_pool("caches") == 1);
	fa_check_eq(of_pool("steps"), 0);
	fa_check_eq(of_pool("used_bytes"), 10 * 6144);
	fa_check_eq(of_pool("idle_bytes"), 0);
	kv_append(&other, victim, numbers, 150, 50);
	kv_check(&other, victim, numbers, 0, 200);
	kv_close(&other);
	fa_test_daemon_stop(&daemon_process);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
