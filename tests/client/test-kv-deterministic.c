/*
 * FA_STEP_DETERMINISTIC: out and lse of a sequence are the same bit by bit in every step, alone or
 * beside others, in any order, whatever prefix they share; and equal to those without the flag
 * except for rounding.
 */
#include "client/faclient.h"
#include "kernels/quantise.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	KV_HEADS = 2,
	HEADS = 8,
	DIM_MAX = 128,
	FORKS = 48,
	SHARED = 1500,
	ROWS = 512,
	SEQUENCES = FORKS + 5,
};

struct sequence {
	uint64_t id;
	uint32_t number, length, n_new;
	bool known; /* out and lse are set */
	uint16_t out[64 * HEADS * DIM_MAX * 2];
	float lse[HEADS * 64];
};

static struct scene {
	enum fa_dtype dtype;
	uint32_t dim, bytes;
	uint64_t cache;
	struct fa_buffer *buffer;
	char *host, *q, *k, *v, *out;
	float *lse;
	struct sequence sequences[SEQUENCES];
} scene;

static enum fa_attention_dtype kernel_dtype(void)
{
	return scene.dtype == FA_F32   ? FA_ATTENTION_F32
	       : scene.dtype == FA_F16 ? FA_ATTENTION_F16
	                               : FA_ATTENTION_BF16;
}

/* Returns a roughly normal element of a token's q, k or v. */
static float number(uint32_t token, uint32_t which, uint32_t i)
{
	uint64_t x = ((uint64_t)token << 32 | which << 24 | i) + 1;
	float sum = 0;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	for (int part = 0; part < 4; ++part)
		sum += (float)(x >> 16 * part & 0xffff) / 65536 - 0.5f;
	return sum * 1.7320508f;
}

static void fill(char *to, uint32_t token, uint32_t which, uint32_t heads)
{
	float row[HEADS * DIM_MAX];

	for (uint32_t i = 0; i < heads * scene.dim; ++i)
		row[i] = number(token, which, i);
	fa_floats_to(kernel_dtype(), to, row, (int32_t)(heads * scene.dim));
}

static uint32_t token_of(const struct sequence *s, uint32_t at)
{
	return s->number << 16 | at;
}

static size_t row_bytes(uint32_t heads)
{
	return (size_t)heads * scene.dim * scene.bytes;
}

static void tensor_init(struct fa_tensor *tensor, const char *at, uint32_t n, uint32_t heads)
{
	const int64_t shape[] = { n, heads, scene.dim };

	fa_tensor_init(tensor, scene.buffer, (uint64_t)(at - scene.host), scene.dtype, 3, shape);
}

static void write_sequence(struct sequence *s)
{
	must(fa_sequence_create(single_client, scene.cache, &s->id), "create");
	for (uint32_t first = 0; first < s->length; first += ROWS) {
		const uint32_t left = s->length - first, n = left < ROWS ? left : ROWS;
		struct fa_step_item item = { .sequence = s->id, .n_new = n };
		struct fa_sequence_copy copy = { .size = sizeof(copy),
			                         .sequence = s->id,
			                         .first = first };
		struct fa_step *step = single_begin(&item, 1);

		for (uint32_t i = 0; i < n; ++i) {
			fill(scene.k + i * row_bytes(KV_HEADS), token_of(s, first + i), 1,
			     KV_HEADS);
			fill(scene.v + i * row_bytes(KV_HEADS), token_of(s, first + i), 2,
			     KV_HEADS);
		}
		tensor_init(&copy.k, scene.k, n, KV_HEADS);
		tensor_init(&copy.v, scene.v, n, KV_HEADS);
		must(fa_sequence_write(single_client, &copy, NULL), "write");
		must(fa_step_commit(step, NULL, NULL), "commit");
		fa_step_free(step);
	}
}

static void make_sequences(void)
{
	static const struct {
		uint32_t length, n_new;
	} others[] = { { 3001, 1 }, { 20, 3 }, { 700, 60 }, { 1100, 9 } };
	struct sequence *first = &scene.sequences[0];

	*first = (struct sequence){ .length = SHARED, .n_new = 1 };
	write_sequence(first);
	for (uint32_t i = 1; i <= FORKS; ++i) {
		struct sequence *s = &scene.sequences[i];

		*s = (struct sequence){ .length = SHARED - (i % 4) * 7, .n_new = 1 + i % 2 };
		must(fa_sequence_fork(single_client, first->id, s->length, &s->id), "fork");
	}
	for (uint32_t i = 0; i < SEQUENCES - FORKS - 1; ++i) {
		struct sequence *s = &scene.sequences[FORKS + 1 + i];

		*s = (struct sequence){ .number = 1 + i,
			                .length = others[i].length,
			                .n_new = others[i].n_new };
		write_sequence(s);
	}
}

static void open_scene(enum fa_dtype dtype, uint32_t dim)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .dtype = dtype,
		                            .layers = 1,
		                            .kv_heads = KV_HEADS,
		                            .head_dim = dim,
		                            .page_tokens = 32 };

	scene.dtype = dtype;
	scene.dim = dim;
	scene.bytes = dtype == FA_F32 ? 4 : 2;
	must(fa_cache_create(single_client, &options, &scene.cache), "cache");
	must(fa_buffer_new(single_client,
	                   ROWS * (2 * row_bytes(HEADS) + 2 * row_bytes(KV_HEADS) +
	                           HEADS * sizeof(float)),
	                   0, &scene.buffer),
	     "buffer");
	scene.host = fa_buffer_data(scene.buffer);
	scene.q = scene.host;
	scene.out = scene.q + ROWS * row_bytes(HEADS);
	scene.k = scene.out + ROWS * row_bytes(HEADS);
	scene.v = scene.k + ROWS * row_bytes(KV_HEADS);
	scene.lse = (float *)(scene.v + ROWS * row_bytes(KV_HEADS));
	make_sequences();
}

static void close_scene(void)
{
	must(fa_cache_remove(single_client, scene.cache), "remove");
	fa_buffer_free(scene.buffer);
}

/*
 * Computes the new tokens of the sequences @which in one step, and aborts it. Returns how often a
 * prefix was read once for several sequences.
 */
static uint64_t attend(const uint32_t *which, uint32_t n, uint32_t flags)
{
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL | flags };
	const uint64_t before = single_status("shared_prefixes");
	struct fa_step_item items[SEQUENCES];
	int64_t lse_shape[] = { HEADS, 0 };
	struct fa_ticket ticket;
	struct fa_step *step;
	uint32_t rows = 0;

	for (uint32_t i = 0; i < n; ++i) {
		const struct sequence *s = &scene.sequences[which[i]];

		items[i] = (struct fa_step_item){ .sequence = s->id, .n_new = s->n_new };
		for (uint32_t j = 0; j < s->n_new; ++j, ++rows) {
			const uint32_t token = (2000 + which[i]) << 16 | j;

			fa_check(rows < ROWS);
			fill(scene.q + rows * row_bytes(HEADS), token, 0, HEADS);
			fill(scene.k + rows * row_bytes(KV_HEADS), token, 1, KV_HEADS);
			fill(scene.v + rows * row_bytes(KV_HEADS), token, 2, KV_HEADS);
		}
	}
	memset(scene.out, 0xff, ROWS * row_bytes(HEADS));
	memset(scene.lse, 0xff, ROWS * HEADS * sizeof(float));
	lse_shape[1] = rows;
	tensor_init(&attend.q, scene.q, rows, HEADS);
	tensor_init(&attend.out, scene.out, rows, HEADS);
	tensor_init(&attend.k_new, scene.k, rows, KV_HEADS);
	tensor_init(&attend.v_new, scene.v, rows, KV_HEADS);
	fa_tensor_init(&attend.lse, scene.buffer, (uint64_t)((char *)scene.lse - scene.host),
	               FA_F32, 2, lse_shape);
	step = single_begin(items, n);
	must(fa_step_attend(step, &attend, &ticket), "attend");
	must(fa_wait(single_client, &ticket, UINT64_MAX, NULL), "wait");
	must(fa_step_abort(step, 0, NULL), "abort");
	fa_step_free(step);
	return single_status("shared_prefixes") - before;
}

static double value_at(const void *rows, size_t i)
{
	float value;

	fa_floats_of(kernel_dtype(), &value, (const char *)rows + i * scene.bytes, 1);
	return (double)value;
}

/* @out must equal the known output of @s except for rounding. */
static void compare_close(const struct sequence *s, uint32_t index, const char *out)
{
	const double allowed = scene.dtype == FA_F32 ? 1e-4 : 1.0 / 64;
	const size_t n = (size_t)s->n_new * HEADS * scene.dim;
	double greatest = 0;

	for (size_t i = 0; i < n; ++i)
		greatest = fmax(greatest, fabs(value_at(s->out, i)));
	for (size_t i = 0; i < n; ++i)
		if (!(fabs(value_at(out, i) - value_at(s->out, i)) <= allowed * greatest))
			fa_test_fail(__FILE__, __LINE__,
			             "sequence %u: element %zu is %g; expected %g", index, i,
			             value_at(out, i), value_at(s->out, i));
}

/* Compares a step's results with those of each sequence's first step. */
static void judge(const uint32_t *which, uint32_t n, bool same_bits, const char *what)
{
	uint32_t rows = 0, row = 0;

	for (uint32_t i = 0; i < n; ++i)
		rows += scene.sequences[which[i]].n_new;
	for (uint32_t i = 0; i < n; ++i) {
		struct sequence *s = &scene.sequences[which[i]];
		const char *out = scene.out + row * row_bytes(HEADS);
		const size_t out_bytes = s->n_new * row_bytes(HEADS);
		float lse[HEADS * 64];

		for (uint32_t h = 0; h < HEADS; ++h)
			memcpy(lse + h * s->n_new, scene.lse + h * rows + row,
			       s->n_new * sizeof(float));
		for (uint32_t k = 0; k < HEADS * s->n_new; ++k)
			fa_check(isfinite(lse[k]));
		if (!s->known) {
			fa_check(same_bits);
			memcpy(s->out, out, out_bytes);
			memcpy(s->lse, lse, HEADS * s->n_new * sizeof(float));
			s->known = true;
		} else if (!same_bits) {
			compare_close(s, which[i], out);
		} else if (memcmp(s->out, out, out_bytes) != 0 ||
		           memcmp(s->lse, lse, HEADS * s->n_new * sizeof(float)) != 0) {
			fa_test_fail(__FILE__, __LINE__,
			             "dtype %d, head dim %u: sequence %u has other bits %s",
			             scene.dtype, scene.dim, which[i], what);
		}
		row += s->n_new;
	}
}

static void same(const uint32_t *which, uint32_t n, const char *what)
{
	/* Deterministic steps share no prefix reads. */
	fa_check_eq(attend(which, n, FA_STEP_DETERMINISTIC), 0);
	judge(which, n, true, what);
}

static void check(enum fa_dtype dtype, uint32_t dim)
{
	uint32_t which[SEQUENCES], n = 0;

	open_scene(dtype, dim);
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		if (i < 3 || i > FORKS)
			same(&i, 1, "alone a first time");
	for (uint32_t i = 0; i < SEQUENCES; i += 2)
		which[n++] = i;
	same(which, n, "beside every other");
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		which[i] = SEQUENCES - 1 - i;
	same(which, SEQUENCES, "beside all, in reverse");
	same(which, 4, "beside those that are no forks");
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		which[i] = i * 7 % SEQUENCES;
	same(which, SEQUENCES, "beside all");
	for (uint32_t i = 0; i < SEQUENCES; i += 11)
		same(&i, 1, "alone");

	/* Without the flag a GPU reads shared prefixes once. */
	fa_check_eq(attend(which, SEQUENCES, 0), single_on_gpu());
	judge(which, SEQUENCES, false, "without the flag");
	close_scene();
}

static void test_f32(void **state)
{
	check(FA_F32, 64);
}

static void test_f16(void **state)
{
	check(FA_F16, 64);
}

static void test_bf16(void **state)
{
	check(FA_BF16, 128);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_f32),
		cmocka_unit_test(test_f16),
		cmocka_unit_test(test_bf16),
	};

	/* Also shares short prefixes, which a large GPU would not. */
	fa_test_daemon_tune("SHARE_EARLY", "1");
	return cmocka_run_group_tests_name("kv-deterministic", tests, single_setup,
	                                   single_teardown);
}
