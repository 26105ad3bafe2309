#include "tests/client/kv.h"

#include "tests/lib/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_MAX 2e-5 /* relative to the largest value */

enum part {
	Q,
	K,
	V
};

static const struct {
	int heads;
} parts[] = { [Q] = { KV_HEADS }, [K] = { KV_KV_HEADS }, [V] = { KV_KV_HEADS } };

/* Between -1 and 1; q and k are spread so that softmax weights differ. */
static float number(uint32_t tag, uint32_t layer, enum part part, uint32_t j)
{
	uint64_t x = ((uint64_t)tag << 32 | layer << 24 | (uint64_t)part << 16 | j) + 1;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (float)((int32_t)(x >> 32) * (1.0 / 2147483648.0)) * (part == Q ? 4 : 1);
}

static void fill(float *to, uint32_t tag, uint32_t layer, enum part part)
{
	for (uint32_t j = 0; j < (uint32_t)(parts[part].heads * KV_DIM); ++j)
		to[j] = number(tag, layer, part, j);
}

static size_t count(enum part part)
{
	return (size_t)KV_LAYERS * KV_ROWS_MAX * (size_t)parts[part].heads * KV_DIM;
}

void kv_init_over(struct kv *kv, struct fa_client *client, uint64_t cache, struct fa_buffer *buffer,
                  void *host)
{
	*kv = (struct kv){ .client = client, .cache = cache, .buffer = buffer, .host = host };
	kv->q = host;
	kv->k = kv->q + count(Q);
	kv->v = kv->k + count(K);
	kv->out = kv->v + count(V);
	kv->lse = kv->out + count(Q);
}

void kv_init_in(struct kv *kv, struct fa_client *client, uint64_t cache)
{
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, KV_BUFFER_BYTES, 0, &buffer), 0);
	kv_init_over(kv, client, cache, buffer, fa_buffer_data(buffer));
	kv->owns_buffer = true;
}

static void push(const struct kv *kv)
{
	if (kv->move)
		kv->move(kv->userdata, true);
}

static void pull(const struct kv *kv)
{
	if (kv->move)
		kv->move(kv->userdata, false);
}

void kv_init(struct kv *kv, struct fa_client *client, const char *name, uint64_t max_pages)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .name = name,
		                            .dtype = FA_F32,
		                            .layers = KV_LAYERS,
		                            .kv_heads = KV_KV_HEADS,
		                            .head_dim = KV_DIM,
		                            .page_tokens = KV_PAGE_TOKENS,
		                            .max_pages = max_pages };
	uint64_t cache;
	int r;

	r = fa_cache_create(client, &options, &cache);
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "no cache: %d, %s", r, fa_error());
	kv_init_in(kv, client, cache);
}

void kv_deinit(struct kv *kv)
{
	if (kv->owns_buffer)
		fa_buffer_free(kv->buffer);
	kv->buffer = NULL;
}

static uint32_t count_rows(const struct kv_item *items, uint32_t n_items)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_items; ++i)
		n += items[i].n_new;
	fa_check(n <= KV_ROWS_MAX);
	return n;
}

/* Returns true if new token i of a tree sees new token j: itself or an ancestor. */
static bool follows(const struct kv_item *item, uint32_t i, uint32_t j)
{
	for (;;) {
		if (i == j)
			return true;
		if (item->parents[i] == i)
			return false;
		i = item->parents[i];
	}
}

int kv_begin(struct kv *kv, const struct kv_item *items, uint32_t n_items,
             struct fa_step **ret_step)
{
	uint32_t tree[4 * KV_ROWS_MAX] = {}, tree_start[KV_ROWS_MAX], n_tree = 0;
	struct fa_step_item wire[KV_ROWS_MAX] = {};
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = n_items,
		                           .items = wire };

	fa_check(n_items <= KV_ROWS_MAX);
	for (uint32_t i = 0; i < n_items; ++i) {
		const struct kv_item *item = &items[i];
		uint32_t words = (item->n_new + 31) / 32;

		wire[i].sequence = item->sequence;
		wire[i].n_new = item->n_new;
		tree_start[i] = FA_STEP_NO_TREE;
		if (!item->parents || !item->n_new)
			continue;
		options.tree = tree;
		options.tree_start = tree_start;
		tree_start[i] = n_tree;
		for (uint32_t row = 0; row < item->n_new; ++row)
			for (uint32_t j = 0; j < item->n_new; ++j)
				if (follows(item, row, j))
					tree[n_tree + row * words + j / 32] |= 1u << j % 32;
		n_tree += item->n_new * words;
	}
	return fa_step_begin(kv->client, &options, ret_step);
}

static struct fa_tensor tensor(const struct kv *kv, const float *at, int64_t rows, int64_t heads)
{
	const int64_t shape[] = { rows, heads, KV_DIM };
	struct fa_tensor tensor;

	fa_tensor_init(&tensor, kv->buffer, (uint64_t)((const char *)at - kv->host), FA_F32, 3,
	               shape);
	return tensor;
}

static void fill_layer(const struct kv *kv, const struct kv_item *items, uint32_t n_items,
                       uint32_t layer)
{
	float *q = kv->q + (size_t)layer * KV_ROWS_MAX * KV_HEADS * KV_DIM;
	float *k = kv->k + (size_t)layer * KV_ROWS_MAX * KV_KV_HEADS * KV_DIM;
	float *v = kv->v + (size_t)layer * KV_ROWS_MAX * KV_KV_HEADS * KV_DIM;
	uint32_t row = 0;

	for (uint32_t i = 0; i < n_items; ++i)
		for (uint32_t j = 0; j < items[i].n_new; ++j, ++row) {
			uint32_t tag = items[i].tags[items[i].length - items[i].n_new + j];

			fill(q + row * KV_HEADS * KV_DIM, tag, layer, Q);
			fill(k + row * KV_KV_HEADS * KV_DIM, tag, layer, K);
			fill(v + row * KV_KV_HEADS * KV_DIM, tag, layer, V);
		}
}

int kv_attend(struct kv *kv, struct fa_step *step, const struct kv_item *items, uint32_t n_items,
              uint32_t stream, bool wait)
{
	const uint32_t rows = count_rows(items, n_items);
	const int64_t lse_shape[] = { KV_HEADS, rows };
	struct fa_step_attend attend = { .size = sizeof(attend),
		                         .flags = FA_STEP_CAUSAL | kv->flags,
		                         .stream = stream,
		                         .cache = kv->cache };
	struct fa_ticket tickets[KV_LAYERS];
	int r = 0;

	memset(kv->out, 0xff, count(Q) * sizeof(float));
	for (uint32_t l = 0; l < KV_LAYERS; ++l)
		fill_layer(kv, items, n_items, l);
	push(kv);
	for (uint32_t l = 0; l < KV_LAYERS && r == 0; ++l) {
		float *q = kv->q + (size_t)l * KV_ROWS_MAX * KV_HEADS * KV_DIM;
		float *k = kv->k + (size_t)l * KV_ROWS_MAX * KV_KV_HEADS * KV_DIM;
		float *v = kv->v + (size_t)l * KV_ROWS_MAX * KV_KV_HEADS * KV_DIM;
		float *out = kv->out + (size_t)l * KV_ROWS_MAX * KV_HEADS * KV_DIM;
		float *lse = kv->lse + (size_t)l * KV_ROWS_MAX * KV_HEADS;

		attend.layer = l;
		attend.q = tensor(kv, q, rows, KV_HEADS);
		attend.k_new = tensor(kv, k, rows, KV_KV_HEADS);
		attend.v_new = tensor(kv, v, rows, KV_KV_HEADS);
		attend.out = tensor(kv, out, rows, KV_HEADS);
		fa_tensor_init(&attend.lse, kv->buffer, (uint64_t)((char *)lse - kv->host), FA_F32,
		               2, lse_shape);
		r = fa_step_attend(step, &attend, &tickets[l]);
	}
	for (uint32_t l = 0; l < KV_LAYERS && r == 0 && wait; ++l)
		r = fa_wait(kv->client, &tickets[l], UINT64_MAX, NULL);
	return r;
}

int kv_write(struct kv *kv, const struct kv_item *item)
{
	struct fa_sequence_copy copy = { .size = sizeof(copy), .sequence = item->sequence };
	int r = 0;

	copy.first = item->length - item->n_new;
	copy.k = tensor(kv, kv->k, item->n_new, KV_KV_HEADS);
	copy.v = tensor(kv, kv->v, item->n_new, KV_KV_HEADS);
	for (copy.layer = 0; copy.layer < KV_LAYERS && r == 0; ++copy.layer) {
		for (uint32_t i = 0; i < item->n_new; ++i) {
			const uint32_t tag = item->tags[copy.first + i];

			fill(kv->k + i * KV_KV_HEADS * KV_DIM, tag, copy.layer, K);
			fill(kv->v + i * KV_KV_HEADS * KV_DIM, tag, copy.layer, V);
		}
		push(kv);
		r = fa_sequence_write(kv->client, &copy, NULL);
	}
	return r;
}

static bool sees(const struct kv_item *item, uint32_t row, uint32_t at)
{
	uint32_t before = item->length - item->n_new;

	if (at < item->first)
		return false;
	if (at < before)
		return true;
	return item->parents ? follows(item, row, at - before) : at - before <= row;
}

static void check_row(const struct kv_item *item, uint32_t row, uint32_t layer, int head,
                      const float *out, float lse)
{
	uint32_t tag = item->tags[item->length - item->n_new + row];
	uint32_t kv_at = (uint32_t)(head / (KV_HEADS / KV_KV_HEADS)) * KV_DIM;
	double sum = 0, result[KV_DIM] = {};

	for (uint32_t at = item->first; at < item->length; ++at) {
		double s = 0, weight;

		if (!sees(item, row, at))
			continue;
		for (uint32_t d = 0; d < KV_DIM; ++d)
			s += (double)number(tag, layer, Q, (uint32_t)head * KV_DIM + d) *
			     number(item->tags[at], layer, K, kv_at + d);
		weight = exp(s / sqrt(KV_DIM));
		sum += weight;
		for (uint32_t d = 0; d < KV_DIM; ++d)
			result[d] += weight * number(item->tags[at], layer, V, kv_at + d);
	}
	for (uint32_t d = 0; d < KV_DIM; ++d)
		if (!(fabs(out[d] - result[d] / sum) <= ERROR_MAX))
			fa_test_fail(__FILE__, __LINE__,
			             "sequence %llx, %u tokens of which %u are new, layer %u, head "
			             "%d, new token %u: %.8g at %u; expected %.8g",
			             (unsigned long long)item->sequence, item->length, item->n_new,
			             layer, head, row, out[d], d, result[d] / sum);
	if (!(fabs(lse - log(sum)) <= ERROR_MAX))
		fa_test_fail(__FILE__, __LINE__, "lse is %.8g; expected %.8g", lse, log(sum));
}

void kv_check_out(const struct kv *kv, const struct kv_item *items, uint32_t n_items)
{
	const uint32_t rows = count_rows(items, n_items);

	pull(kv);
	for (uint32_t l = 0; l < KV_LAYERS; ++l) {
		uint32_t row = 0;

		for (uint32_t i = 0; i < n_items; ++i)
			for (uint32_t j = 0; j < items[i].n_new; ++j, ++row)
				for (int h = 0; h < KV_HEADS; ++h) {
					const float *out = kv->out +
					                   ((size_t)(l * KV_ROWS_MAX + row) *
					                            KV_HEADS +
					                    (size_t)h) *
					                           KV_DIM;
					const float *lse = kv->lse +
					                   (size_t)l * KV_ROWS_MAX * KV_HEADS +
					                   (size_t)h * rows + row;

					check_row(&items[i], j, l, h, out, *lse);
				}
	}
}

static void compare(uint64_t sequence, const float *got, uint32_t tag, uint32_t at, uint32_t layer,
                    enum part part)
{
	float expected[KV_KV_HEADS * KV_DIM];

	fill(expected, tag, layer, part);
	if (memcmp(got, expected, sizeof(expected)) != 0)
		fa_test_fail(__FILE__, __LINE__,
		             "sequence %llx, token %u, layer %u: %s is not that of tag %x",
		             (unsigned long long)sequence, at, layer, part == K ? "K" : "V", tag);
}

static int check_some(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t first,
                      uint32_t n)
{
	struct fa_sequence_copy copy = { .size = sizeof(copy),
		                         .sequence = sequence,
		                         .first = first };
	int r;

	for (uint32_t l = 0; l < KV_LAYERS; ++l) {
		copy.layer = l;
		copy.k = tensor(kv, kv->k, n, KV_KV_HEADS);
		copy.v = tensor(kv, kv->v, n, KV_KV_HEADS);
		memset(kv->k, 0xff, count(K) * sizeof(float));
		memset(kv->v, 0xff, count(V) * sizeof(float));
		push(kv);
		r = fa_sequence_read(kv->client, &copy, NULL);
		if (r < 0)
			return r;
		pull(kv);
		for (uint32_t i = 0; i < n; ++i) {
			const size_t at = (size_t)i * KV_KV_HEADS * KV_DIM;

			compare(sequence, kv->k + at, tags[first + i], first + i, l, K);
			compare(sequence, kv->v + at, tags[first + i], first + i, l, V);
		}
	}
	return 0;
}

int kv_check_pages(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t first,
                   uint32_t n)
{
	const uint32_t at_once = KV_LAYERS * KV_ROWS_MAX;
	int r = 0;

	for (uint32_t i = 0; i < n && r == 0; i += at_once)
		r = check_some(kv, sequence, tags, first + i, n - i < at_once ? n - i : at_once);
	return r;
}

void kv_check_sequence(struct kv *kv, uint64_t sequence, const uint32_t *tags, uint32_t length,
                       uint32_t first)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	int r;

	fa_check_eq(fa_sequence_info(kv->client, sequence, &info), 0);
	fa_check_eq(info.length, length);
	fa_check_eq(info.planned, length);
	fa_check_eq(info.first, first);
	r = kv_check_pages(kv, sequence, tags, first, length - first);
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "sequence %llx cannot be read: %d, %s",
		             (unsigned long long)sequence, r, fa_error());
}
