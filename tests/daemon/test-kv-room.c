/*
 * A tenant is charged for what the device needs for its paged requests in flight: tables' space on
 * a GPU, heap elsewhere. With Vulkan each request has its own memory.
 */
#include "common/cleanup.h"
#include "common/timeline.h"
#include "kernels/paged.h"
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum {
	STEP = 7,
	TOKENS = 16,
	ATTENDS = 150,
	LAYERS = 32,
	OTHER_STREAM = 1,
};

#define OUT_BYTES (TOKENS * KV_HEADS * KV_DIM_V * sizeof(float))

static struct fa_test_daemon daemon_process;
static struct kv_client client;
static struct fa_timeline_in *in;
static uint64_t sequence, opened;
static uint32_t numbers[64];

static json_int_t at_rest;

struct account {
	bool gpu, vulkan;
	json_int_t room, heap;
};

static struct account account_seen_by(struct fa_raw *raw)
{
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(raw);
	json_t *status = json_loads(text, 0, NULL);
	json_t *tenant = json_array_get(json_object_get(status, "tenants"), 0);
	const char *backend = json_string_value(json_object_get(status, "backend"));
	struct account found = {
		.gpu = strcmp(backend, "cuda") == 0,
		.vulkan = strcmp(backend, "vulkan") == 0,
		.room = json_integer_value(json_object_get(tenant, "step_bytes")),
		.heap = json_integer_value(json_object_get(tenant, "buffer_bytes")),
	};

	fa_check(tenant);
	json_decref(status);
	return found;
}

static struct account account(void)
{
	return account_seen_by(&client.raw);
}

static int start(void **state)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	/* A step takes two fifths of the tables' space, a request 256 bytes or more. */
	fa_test_daemon_start(&daemon_process, &(struct fa_test_daemon_options){
						      .config = "[pool]\nbytes = 16M\n"
								"chunk_bytes = 2M\n"
								"[limits]\nstep_bytes = 48K\n" });
	kv_count(numbers, 1, 64);
	kv_open(&client, daemon_process.socket);
	fa_raw_stream_create(&client.raw, OTHER_STREAM, 0);
	fa_raw_call(&client.raw, &message, NULL, 0);
	fa_check_eq(client.raw.message.type, FA_WIRE_TIMELINE_REPLY);
	in = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, client.raw.fds[0],
	          0);
	fa_check(in != MAP_FAILED);
	sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	at_rest = account().heap;
	kv_append(&client, sequence, numbers, 0, 20);
	return 0;
}

static int stop(void **state)
{
	munmap(in, FA_TIMELINE_BYTES);
	kv_close(&client);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static uint64_t send_gated(struct fa_wire_message *message, uint64_t value)
{
	const struct fa_wire_gate wait = { .slot = 0, .value = value };

	message->waits = &wait;
	message->n_waits = 1;
	return kv_send(&client, message, 0);
}

static void open_gate(void)
{
	atomic_store(&in[0].value, ++opened);
}

/* Slopes are stored per request; what layers share is charged with the step. */
static uint64_t send_attend(int64_t window)
{
	static const float slopes[KV_HEADS] = { 0.5f, 0.25f, 0.125f, 0.0625f };
	struct fa_wire_message message;
	const float *out;

	message = kv_attend_message(&client, 0, STEP, 0, numbers, TOKENS, &out);
	message.step_attend.rotary_dim = KV_DIM;
	message.step_attend.rotary_base = 10000;
	message.step_attend.rotary_scale = 1;
	message.step_attend.window_left = window;
	message.step_attend.alibi_slopes = slopes;
	message.step_attend.n_alibi_slopes = KV_HEADS;
	return send_gated(&message, opened + 1);
}

/* A CPU stream needs as much as its largest request: they run in sequence. */
static void test_charged(void **state)
{
	struct account none, before, with, after;
	uint64_t value = 0;

	kv_begin_one(&client, STEP, sequence, TOKENS);
	fa_check_eventually((none = account()).heap == at_rest);
	for (int i = 0; i < 4; ++i)
		send_attend(100 + i);
	before = account();
	for (int i = 0; i < 4; ++i)
		value = send_attend(200 + i);
	with = account();
	if (with.gpu) {
		fa_check(with.room > before.room);
		/* With slopes each request has its own plan, of more than a KiB. */
		fa_check(with.heap >= before.heap + 4 * 1024);
	} else if (with.vulkan) {
		fa_check_eq(with.room, none.room);
		fa_check(with.heap >= before.heap + 4 * 4096);
	} else {
		fa_check(before.heap >=
		         none.heap + (int64_t)sizeof(float) * TOKENS * KV_HEADS * KV_DIM);
		fa_check_eq(with.heap, before.heap);
		fa_check_eq(with.room, none.room);
	}
	open_gate();
	kv_wait(&client, 0, value);
	kv_wait(&client, 0, kv_end(&client, 0, STEP, false));
	after = account();
	fa_check_eq(after.room, 0);
	fa_check_eventually(account().heap == none.heap);
	kv_check(&client, sequence, numbers, 0, 20);
}

static uint64_t send_layers(struct fa_wire_step_attend attend, uint32_t n)
{
	static const uint32_t positions[TOKENS];
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_ATTEND_LAYERS);

	attend.rotary_dim = KV_DIM;
	attend.rotary_base = 10000;
	attend.rotary_scale = 1;
	attend.positions = positions;
	attend.n_positions = TOKENS;
	message.step_attend_layers.attend = attend;
	message.step_attend_layers.n_layers = n;
	message.step_attend_layers.out_bytes = OUT_BYTES;
	client.values[attend.stream] = attend.value + n - 1;
	send_gated(&message, opened + 1);
	return client.values[attend.stream];
}

/* Many layers need no more than one; another stream needs its own. */
static void test_layers_share_memory(void **state)
{
	struct fa_wire_step_attend attend;
	json_int_t none, one, other;
	uint64_t layered, value;
	const float *out;

	if (account().gpu || account().vulkan)
		skip();
	kv_spare_layers = LAYERS - KV_LAYERS;
	layered = kv_sequence(&client, kv_cache(&client, NULL, 0));
	kv_spare_layers = 0;
	kv_begin_one(&client, STEP, layered, TOKENS);
	fa_check_eventually((none = account().heap) == at_rest);

	client.used = 0;
	attend = kv_attend_message(&client, 0, STEP, 0, numbers, TOKENS, &out).step_attend;
	memset((float *)out, 0xff, (size_t)LAYERS * OUT_BYTES);
	send_layers(attend, 1);
	one = account().heap - none;
	fa_check(one > 0);
	attend.value = client.values[0] + 1;
	attend.layer = 1;
	attend.out.offset += OUT_BYTES;
	value = send_layers(attend, LAYERS - 1);
	fa_check_eq(account().heap, none + one);

	attend.stream = OTHER_STREAM;
	attend.value = client.values[OTHER_STREAM] + 1;
	attend.layer = 0;
	attend.out.offset -= OUT_BYTES;
	attend.k.rank = attend.v.rank = 0;
	send_layers(attend, LAYERS);
	other = account().heap - none - one;
	fa_check(other > 0 && other <= one);

	open_gate();
	kv_wait(&client, 0, value);
	kv_wait(&client, OTHER_STREAM, client.values[OTHER_STREAM]);
	for (uint32_t i = 0; i < LAYERS; ++i)
		kv_check_out(0, numbers, TOKENS, TOKENS, out + i * (OUT_BYTES / sizeof(float)));
	kv_wait(&client, 0, kv_end(&client, 0, STEP, true));
	fa_check_eventually(account().heap == none);
	kv_free(&client, layered);
}

/* Above the limit a request is refused, with the limit's name. */
static void test_limit(void **state)
{
	uint64_t first = client.values[0] + 1;
	static struct fa_raw other;
	json_int_t before = 0;
	int n_refused = 0;

	if (!account().gpu)
		skip();
	kv_begin_one(&client, STEP, sequence, TOKENS);
	for (int i = 0; i < ATTENDS; ++i)
		send_attend(100 + i);
	/*
	 * As many as fit. With many refusals pending this client is not read: another one observes.
	 */
	fa_raw_open(&other, daemon_process.socket);
	for (int turns = 0; turns < 20; ++turns) {
		json_int_t room = account_seen_by(&other).room;

		if (room != before)
			turns = 0;
		before = room;
	}
	fa_raw_close(&other);
	open_gate();
	for (uint64_t value = first; value < first + ATTENDS; ++value) {
		struct fa_raw_completion completion;

		fa_raw_wait(&client.raw, 0, value, &completion);
		if (!completion.status)
			continue;
		/* A refused request dooms the step: those behind it are cancelled. */
		fa_check_eq(completion.status, n_refused ? -ECANCELED : -EDQUOT);
		if (!n_refused)
			fa_check_contains(completion.text, "the limit step_bytes, which is 49152");
		++n_refused;
	}
	fa_check(n_refused > 0 && n_refused < ATTENDS);
	kv_wait(&client, 0, kv_end(&client, 0, STEP, false));
	fa_check_eq(account().room, 0);
	kv_check(&client, sequence, numbers, 0, 20);
}

/* Charged, too: a step's state per sequence, and positions of tree tokens. */
static void test_steps(void **state)
{
	enum {
		MANY = 1000,
		MANY_TOKENS = 32000,
	};
	static struct fa_wire_step_item items[MANY];
	const uint32_t no_tree = FA_PAGED_NO_TREE;
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);
	const uint64_t cache = kv_cache(&client, NULL, 0);
	json_int_t one;

	for (int i = 0; i < MANY; ++i)
		items[i].sequence = kv_sequence(&client, cache);
	kv_begin(&client, STEP, items, 1);
	one = account().room;
	kv_wait(&client, 0, kv_end(&client, 0, STEP, false));
	kv_begin(&client, STEP, items, 11);
	fa_check(account().room >= one + 10 * 100);
	kv_begin_expect(&client, STEP + 1, items, MANY, -EDQUOT, "the limit step_bytes");
	kv_wait(&client, 0, kv_end(&client, 0, STEP, false));

	items[0].n_new = MANY_TOKENS;
	message.step_begin.step = STEP;
	message.step_begin.items = items;
	message.step_begin.n_items = 1;
	message.step_begin.tree_start = &no_tree;
	message.step_begin.n_tree_start = 1;
	kv_call_expect(&client, &message, -EDQUOT, "the limit step_bytes");
	fa_check_eq(account().room, 0);
	for (int i = 0; i < MANY; ++i)
		kv_free(&client, items[i].sequence);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_charged),
		cmocka_unit_test(test_layers_share_memory),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_steps),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
