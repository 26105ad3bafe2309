/*
 * Launches per layer of a step with new tokens, on the tests' CUDA driver: one where the attention
 * kernel also appends, also for later layers; else two. Of two sequences with the same tokens, one
 * has rows that are not aligned to 16 bytes: results and pages are the same.
 */
#include "cuda-client.h"
#include "kv-client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum {
	STREAM = 1,
	LAYERS = KV_LAYERS,
	KV_HEADS_OF = 2,
	HEADS = 8,
	DIM = 128,
	TOKENS_MAX = 64,
	ROW_ODD = DIM + 1,
	ROOM = TOKENS_MAX * HEADS * ROW_ODD * 2,
};

enum way {
	JOINED,
	ODD,
	APPENDED,
	READ, /* attention only */
};

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;
static struct kv_client client;

static int start(void **state)
{
	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&daemon_,
	                     &(struct fa_test_daemon_options){ .config = "[pool]\nbytes = 16M\n"
	                                                                 "chunk_bytes = 2M\n" });
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	kv_spare_layers = 1;
	kv_open(&client, daemon_.socket);
	fa_raw_stream_create(&client.raw, STREAM, 0);
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	fa_test_daemon_stop(&daemon_);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

static uint16_t number(uint32_t what, uint32_t layer, uint32_t token, uint32_t i)
{
	const uint32_t x = (what * 31 + layer * 7 + token * 1013 + i * 2654435761u) * 2246822519u;
	const float value = (float)(int32_t)(x ^ x << 13) / 2147483648.0f;
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static struct fa_wire_view view(uint32_t what, uint32_t tokens, uint32_t heads, uint32_t row,
                                uint16_t **ret_data)
{
	*ret_data = (uint16_t *)(client.buffer.data + what * ROOM);
	return (struct fa_wire_view){
		.buffer = client.buffer.id,
		.offset = what * ROOM,
		.dtype = FA_WIRE_DTYPE_BF16,
		.rank = 3,
		.shape = { tokens, heads, DIM },
		.strides = { (int64_t)heads * row, row, 1 },
	};
}

static struct fa_wire_view filled(uint32_t what, uint32_t layer, uint32_t first, uint32_t tokens,
                                  uint32_t heads, uint32_t row)
{
	uint16_t *data;
	const struct fa_wire_view made = view(what, tokens, heads, row, &data);

	memset(data, 0xff, ROOM);
	for (uint32_t t = 0; t < tokens; ++t)
		for (uint32_t h = 0; h < heads; ++h)
			for (uint32_t d = 0; d < DIM; ++d)
				data[(t * heads + h) * row + d] = number(what, layer, first + t,
				                                         h * DIM + d);
	return made;
}

/* One layer, for the tokens [first, first + n). Returns the number of launches. */
static uint64_t attend(uint32_t step, enum way way, uint32_t layer, uint32_t first, uint32_t n,
                       uint16_t *ret_out)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_ATTEND);
	struct fa_wire_step_attend *m = &message.step_attend;
	const uint32_t row = way == ODD ? ROW_ODD : DIM;
	struct fa_test_cuda_calls before, after;
	uint16_t *out;

	m->stream = STREAM;
	m->value = ++client.values[STREAM];
	m->step = step;
	m->layer = layer;
	m->flags = FA_WIRE_STEP_CAUSAL;
	m->window_left = m->window_right = -1;
	if (way != READ) {
		m->k = filled(0, layer, first, n, KV_HEADS_OF, row);
		m->v = filled(1, layer, first, n, KV_HEADS_OF, row);
	}
	if (way != APPENDED) {
		m->q = filled(2, layer, first, n, HEADS, DIM);
		m->out = view(3, n, HEADS, DIM, &out);
		memset(out, 0xff, ROOM);
	}
	fa_test_cuda_calls(page, &before);
	kv_wait(&client, STREAM, kv_send(&client, &message, STREAM));
	fa_test_cuda_calls(page, &after);
	if (way != APPENDED)
		memcpy(ret_out, out, n * HEADS * DIM * sizeof(*out));
	return after.n[FA_TEST_CUDA_kernel] - before.n[FA_TEST_CUDA_kernel];
}

static void begin(uint32_t step, uint64_t sequence, uint32_t n)
{
	kv_begin_one(&client, step, sequence, n);
	(void)attend(step, APPENDED, LAYERS, 0, n, NULL);
}

static void check_pages(uint64_t sequence, uint32_t tokens)
{
	for (uint32_t layer = 0; layer < LAYERS; ++layer) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_COPY);
		struct fa_wire_sequence_copy *copy = &message.sequence_copy;
		uint16_t *data[2];

		copy->stream = STREAM;
		copy->value = ++client.values[STREAM];
		copy->sequence = sequence;
		copy->layer = layer;
		for (uint32_t v = 0; v < 2; ++v)
			*(v ? &copy->v : &copy->k) = view(v, tokens, KV_HEADS_OF, DIM, &data[v]);
		memset(client.buffer.data, 0xff, 2 * ROOM);
		kv_wait(&client, STREAM, kv_send(&client, &message, STREAM));
		for (uint32_t v = 0; v < 2; ++v)
			for (uint32_t i = 0; i < tokens * KV_HEADS_OF * DIM; ++i)
				fa_check_eq(data[v][i], number(v, layer, i / (KV_HEADS_OF * DIM),
				                               i % (KV_HEADS_OF * DIM)));
	}
}

static uint64_t make_cache(void)
{
	struct fa_wire_message message = kv_cache_message(NULL, 0);

	message.cache_create.dtype = FA_WIRE_DTYPE_BF16;
	message.cache_create.kv_heads = KV_HEADS_OF;
	message.cache_create.head_dim = message.cache_create.head_dim_v = DIM;
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	return client.raw.message.cache_reply.cache;
}

static void test_launches(void **state)
{
	static const uint32_t n_new[] = { 5, 1, 12, 1, 16 };
	static uint16_t outs[2][TOKENS_MAX * HEADS * DIM];
	const uint64_t cache = make_cache();
	const uint64_t sequences[] = { kv_sequence(&client, cache), kv_sequence(&client, cache) };
	uint32_t step = 1, length = 0;

	for (size_t i = 0; i < sizeof(n_new) / sizeof(*n_new); ++i) {
		for (uint32_t s = 0; s < 2; ++s)
			begin(step + s, sequences[s], n_new[i]);
		for (uint32_t layer = 0; layer < LAYERS; ++layer) {
			fa_check_eq(attend(step, JOINED, layer, length, n_new[i], outs[0]), 1);
			fa_check_eq(attend(step + 1, ODD, layer, length, n_new[i], outs[1]), 2);
			fa_check(memcmp(outs[0], outs[1],
			                n_new[i] * HEADS * DIM * sizeof(**outs)) == 0);
		}
		for (uint32_t s = 0; s < 2; ++s, ++step)
			kv_wait(&client, STREAM, kv_end(&client, STREAM, step, true));
		length += n_new[i];
		for (uint32_t s = 0; s < 2; ++s)
			check_pages(sequences[s], length);
	}
	for (uint32_t s = 0; s < 2; ++s)
		kv_free(&client, sequences[s]);
}

static void test_mixed(void **state)
{
	static uint16_t outs[2][TOKENS_MAX * HEADS * DIM];
	const uint64_t cache = make_cache();
	const uint64_t sequence = kv_sequence(&client, cache);
	const size_t bytes = 3 * HEADS * DIM * sizeof(**outs);

	begin(100, sequence, 3);
	fa_check_eq(attend(100, ODD, 0, 0, 3, outs[0]), 2);
	fa_check_eq(attend(100, JOINED, 1, 0, 3, outs[1]), 1);
	fa_check_eq(attend(100, JOINED, 0, 0, 3, outs[1]), 1);
	fa_check(memcmp(outs[0], outs[1], bytes) == 0);
	fa_check_eq(attend(100, READ, 0, 0, 3, outs[1]), 1);
	fa_check(memcmp(outs[0], outs[1], bytes) == 0);
	fa_check_eq(attend(100, APPENDED, 0, 0, 3, NULL), 1);
	fa_check_eq(attend(100, ODD, 1, 0, 3, outs[1]), 2);
	kv_wait(&client, STREAM, kv_end(&client, STREAM, 100, true));
	check_pages(sequence, 3);

	begin(101, sequence, 60);
	for (uint32_t layer = 0; layer < LAYERS; ++layer)
		fa_check_eq(attend(101, JOINED, layer, 3, 60, outs[0]), 2);
	kv_wait(&client, STREAM, kv_end(&client, STREAM, 101, true));
	check_pages(sequence, 63);
	kv_free(&client, sequence);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_launches),
		cmocka_unit_test(test_mixed),
	};

	return cmocka_run_group_tests_name("cuda-append", tests, start, stop);
}
