/*
 * The cases of cases.json against a real daemon, by the C library. README.md describes the format;
 * the packages of other languages run the same file.
 */
#include "client/faclient.h"
#include "kernels/quantise.h"
#include "tests/conformance/fields.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum {
	CLIENTS = 2,
	STEPS = 4, /* that a case has open at once */
	BUFFER_BYTES = 1 << 20,
	OWN = 2, /* pages of the client's own that a case has at once */
	OWN_LAYERS = 2,
	OWN_BYTES = 1 << 16,
};

static const char *const dtype_names[] = { [FA_F32] = "f32", [FA_F16] = "f16", [FA_BF16] = "bf16" };
static const enum fa_attention_dtype kernel_dtypes[] = {
	[FA_F32] = FA_ATTENTION_F32, [FA_F16] = FA_ATTENTION_F16, [FA_BF16] = FA_ATTENTION_BF16
};

static struct fa_test_daemon fad;
static json_t *file;
static struct fa_client *clients[CLIENTS];
static struct fa_buffer *buffers[CLIENTS];
static bool gpu; /* the daemon computes on one */

/* The case that runs. */
static json_t *this_case;
static uint32_t dtype;
static double tolerance;
static uint64_t cache;
static json_t *sequences; /* name: number */
static struct {
	const char *name; /* NULL: free */
	struct fa_step *step;
} steps[STEPS];
static unsigned int wrong;
/* Pages of the client's own, by their place in the case. */
static struct {
	const char *name; /* NULL: free */
	struct fa_buffer *buffer;
	struct fa_tensor k[OWN_LAYERS], v[OWN_LAYERS];
	uint32_t layers;
} own[OWN];

/* The operation that runs. */
static struct fa_client *client;
static struct fa_buffer *buffer;
static uint64_t used_bytes; /* of the buffer */

static const char *case_name(void)
{
	return json_string_value(json_object_get(this_case, "name"));
}

static uint64_t number(const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_integer(value))
		fa_test_fail(__FILE__, __LINE__, "%s: %s is no integer", case_name(), key);
	return (uint64_t)json_integer_value(value);
}

static uint64_t number_or(const json_t *object, const char *key, uint64_t otherwise)
{
	return json_object_get(object, key) ? number(object, key) : otherwise;
}

static const char *string(const json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	if (!value)
		fa_test_fail(__FILE__, __LINE__, "%s: %s is no string", case_name(), key);
	return value;
}

static uint64_t sequence_of(const char *name)
{
	return number(sequences, name);
}

static void keep_sequence(const char *name, uint64_t sequence)
{
	fa_check(!json_object_set_new(sequences, name, json_integer((json_int_t)sequence)));
}

/* ---- tensors */

/* Puts a tensor of the shape json into the buffer; returns its number of elements. */
static uint64_t place(const json_t *shape, uint32_t of_dtype, struct fa_tensor *ret_tensor)
{
	int64_t sizes[4] = { 0 };
	uint64_t n = 1;
	size_t i;
	json_t *size;

	json_array_foreach((json_t *)shape, i, size)
	{
		sizes[i] = json_integer_value(size);
		n *= (uint64_t)sizes[i];
	}
	fa_tensor_init(ret_tensor, buffer, used_bytes, of_dtype, (uint32_t)json_array_size(shape),
	               sizes);
	used_bytes += (n * fa_dtype_bytes(of_dtype) + 63) / 64 * 64;
	fa_check(used_bytes <= BUFFER_BYTES);
	return n;
}

static void random_tensor(const json_t *random, struct fa_tensor *ret_tensor)
{
	uint64_t seed, n;
	char *to;

	seed = number(random, "seed");
	n = place(json_object_get(random, "shape"), dtype, ret_tensor);
	to = (char *)fa_buffer_data(buffer) + ret_tensor->offset;
	for (uint64_t i = 0; i < n; ++i) {
		const float value = field_element(seed, i);

		fa_floats_to(kernel_dtypes[dtype], to + i * fa_dtype_bytes(dtype), &value, 1);
	}
}

static void place_random(const json_t *operation, const char *key, struct fa_tensor *ret_tensor)
{
	const json_t *random = json_object_get(operation, key);

	if (random)
		random_tensor(random, ret_tensor);
}

/* Compares a tensor with the numbers of the case, where null is -infinity. */
static void compare(const struct fa_tensor *tensor, const json_t *expected)
{
	const char *from = (const char *)fa_buffer_data(buffer) + tensor->offset;
	size_t i;
	json_t *value;

	fa_check_eq(fa_tensor_bytes(tensor->dtype, tensor->rank, tensor->shape),
	            json_array_size(expected) * fa_dtype_bytes(tensor->dtype));
	json_array_foreach((json_t *)expected, i, value)
	{
		double wanted = json_is_null(value) ? -INFINITY : json_number_value(value);
		float found;

		fa_floats_of(kernel_dtypes[tensor->dtype], &found,
		             from + i * fa_dtype_bytes(tensor->dtype), 1);
		if (!(found == wanted || fabs(found - wanted) <= tolerance)) {
			if (!wrong++ && !json_object_get(this_case, "wrong"))
				print_error("%s: number %zu is %g; expected %g\n", case_name(), i,
				            found, wanted);
		}
	}
}

/* Puts a tensor of 32-bit integers, with its shape and values, into the buffer. */
static void place_numbers(const json_t *operation, const char *key, struct fa_tensor *ret_tensor)
{
	const json_t *numbers = json_object_get(operation, key);
	size_t i;
	json_t *value;
	char *to;

	if (!numbers)
		return;
	fa_check_eq(place(json_object_get(numbers, "shape"), FA_I32, ret_tensor),
	            json_array_size(json_object_get(numbers, "values")));
	to = (char *)fa_buffer_data(buffer) + ret_tensor->offset;
	json_array_foreach(json_object_get(numbers, "values"), i, value)
	{
		int32_t narrow = (int32_t)json_integer_value(value);

		memcpy(to + i * sizeof(narrow), &narrow, sizeof(narrow));
	}
}

/* ---- operations; each returns the library's result */

static int op_attention(const json_t *operation)
{
	struct fa_attention attention = { .size = sizeof(attention),
		                          .scale = field_real(operation, "scale"),
		                          .softcap = field_real(operation, "softcap") };
	float slopes[FIELD_FLOATS_MAX], sinks[FIELD_FLOATS_MAX];
	uint32_t cu_q[FIELD_INTEGERS_MAX], cu_k[FIELD_INTEGERS_MAX], prefixes[FIELD_INTEGERS_MAX];
	int r;

	place_random(operation, "q", &attention.q);
	place_random(operation, "k", &attention.k);
	place_random(operation, "v", &attention.v);
	place(json_object_get(operation, "out_shape"), dtype, &attention.out);
	if (json_object_get(operation, "lse"))
		place(json_object_get(operation, "lse_shape"), FA_F32, &attention.lse);
	if (json_is_true(json_object_get(operation, "causal")))
		attention.flags |= FA_ATTENTION_CAUSAL;
	if (field_window(operation, &attention.window_left, &attention.window_right))
		attention.flags |= FA_ATTENTION_WINDOW;
	if (json_object_get(operation, "cu_seqlens_q")) {
		attention.batch = field_integers(operation, "cu_seqlens_q", cu_q) - 1;
		fa_check_eq(field_integers(operation, "cu_seqlens_k", cu_k), attention.batch + 1);
		attention.cu_seqlens_q = cu_q;
		attention.cu_seqlens_k = cu_k;
	}
	attention.alibi_slopes = field_floats(operation, "alibi_slopes", slopes);
	attention.sinks = field_floats(operation, "sinks", sinks);
	attention.chunk_tokens = number_or(operation, "chunk_tokens", 0);
	if (json_object_get(operation, "prefix_lengths")) {
		field_integers(operation, "prefix_lengths", prefixes);
		attention.prefix_lengths = prefixes;
	}
	attention.block_rows = (uint32_t)number_or(operation, "block_rows", 0);
	attention.block_keys = (uint32_t)number_or(operation, "block_keys", 0);
	place_numbers(operation, "block_offsets", &attention.block_offsets);
	place_numbers(operation, "block_columns", &attention.block_columns);
	place_numbers(operation, "mask", &attention.mask);
	attention.pattern = field_pattern(operation);
	r = fa_attention(client, &attention, NULL);
	if (r == 0) {
		compare(&attention.out, json_object_get(operation, "out"));
		if (attention.lse.buffer)
			compare(&attention.lse, json_object_get(operation, "lse"));
	}
	return r;
}

static int create_cache(const json_t *of, const char *name)
{
	struct fa_cache_options options = { .size = sizeof(options), .name = name, .dtype = dtype };

	options.layers = (uint32_t)number(of, "layers");
	options.kv_heads = (uint32_t)number(of, "kv_heads");
	options.head_dim = (uint32_t)number(of, "head_dim");
	options.head_dim_v = (uint32_t)number(of, "head_dim_v");
	options.page_tokens = (uint32_t)number(of, "page_tokens");
	return fa_cache_create(client, &options, &cache);
}

static int op_cache(const json_t *operation)
{
	const json_t *of = json_object_get(operation, "cache");

	if (!of)
		of = json_object_get(this_case, "cache");
	return create_cache(of, json_string_value(json_object_get(of, "name")));
}

static int op_create(const json_t *operation)
{
	uint64_t sequence;
	int r = fa_sequence_create(client, cache, &sequence);

	if (r == 0)
		keep_sequence(string(operation, "sequence"), sequence);
	return r;
}

/* Returns the place of a step, or a free one for NULL. */
static unsigned int step_at(const char *name)
{
	for (unsigned int i = 0; i < STEPS; ++i)
		if (name ? steps[i].name && !strcmp(steps[i].name, name) : !steps[i].name)
			return i;
	fa_test_fail(__FILE__, __LINE__, "%s: no step %s", case_name(), name ? name : "is free");
	return 0;
}

static int op_begin(const json_t *operation)
{
	const json_t *list = json_object_get(operation, "items");
	struct fa_step_item items[4] = { 0 };
	struct fa_step_options options = { .size = sizeof(options), .items = items };
	unsigned int at = step_at(NULL);
	size_t i;
	json_t *item;
	int r;

	fa_check(json_array_size(list) <= sizeof(items) / sizeof(*items));
	options.n_items = (uint32_t)json_array_size(list);
	json_array_foreach((json_t *)list, i, item)
	{
		items[i].sequence = sequence_of(json_string_value(json_array_get(item, 0)));
		items[i].n_new = (uint32_t)json_integer_value(json_array_get(item, 1));
	}
	r = fa_step_begin(client, &options, &steps[at].step);
	if (r == 0)
		steps[at].name = string(operation, "step");
	return r;
}

static int op_attend(const json_t *operation)
{
	struct fa_step_attend attend = { .size = sizeof(attend),
		                         .layer = (uint32_t)number(operation, "layer"),
		                         .scale = field_real(operation, "scale"),
		                         .softcap = field_real(operation, "softcap") };
	const json_t *expected = json_object_get(operation, "out");
	float slopes[FIELD_FLOATS_MAX], sinks[FIELD_FLOATS_MAX];
	uint32_t prefixes[FIELD_INTEGERS_MAX];
	int r;

	place_random(operation, "q", &attend.q);
	place_random(operation, "k_new", &attend.k_new);
	place_random(operation, "v_new", &attend.v_new);
	if (expected)
		place(json_object_get(operation, "out_shape"), dtype, &attend.out);
	if (json_is_true(json_object_get(operation, "causal")))
		attend.flags |= FA_STEP_CAUSAL;
	if (field_window(operation, &attend.window_left, &attend.window_right))
		attend.flags |= FA_STEP_WINDOW;
	attend.alibi_slopes = field_floats(operation, "alibi_slopes", slopes);
	attend.sinks = field_floats(operation, "sinks", sinks);
	attend.chunk_tokens = number_or(operation, "chunk_tokens", 0);
	if (json_object_get(operation, "prefix_lengths")) {
		field_integers(operation, "prefix_lengths", prefixes);
		attend.prefix_lengths = prefixes;
	}
	attend.pattern = field_pattern(operation);
	r = fa_step_attend(steps[step_at(string(operation, "step"))].step, &attend, NULL);
	if (r == 0 && expected)
		compare(&attend.out, expected);
	return r;
}

static int op_commit(const json_t *operation)
{
	unsigned int at = step_at(string(operation, "step"));
	int r = fa_step_commit(steps[at].step, NULL, NULL);

	steps[at].name = NULL;
	if (r < 0)
		return r; /* fa_error() belongs to it; the step ends with the client */
	steps[at].step = fa_step_free(steps[at].step);
	return 0;
}

static int op_abort(const json_t *operation)
{
	unsigned int at = step_at(string(operation, "step"));
	int r = fa_step_abort(steps[at].step, 0, NULL);

	steps[at].name = NULL;
	steps[at].step = fa_step_free(steps[at].step);
	return r;
}

static int op_length(const json_t *operation)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	int r = fa_sequence_info(client, sequence_of(string(operation, "sequence")), &info);

	if (r == 0) {
		fa_check_eq(info.length, number(operation, "expect"));
		fa_check_eq(info.first, number(operation, "first"));
	}
	return r;
}

static int op_fork(const json_t *operation)
{
	uint64_t fork;
	int r = fa_sequence_fork(client, sequence_of(string(operation, "sequence")),
	                         number_or(operation, "tokens", UINT64_MAX), &fork);

	if (r == 0)
		keep_sequence(string(operation, "to"), fork);
	return r;
}

static int op_truncate(const json_t *operation)
{
	return fa_sequence_truncate(client, sequence_of(string(operation, "sequence")),
	                            number(operation, "tokens"));
}

static int op_drop(const json_t *operation)
{
	uint64_t first;
	int r = fa_sequence_drop_before(client, sequence_of(string(operation, "sequence")),
	                                number(operation, "before"), &first);

	if (r == 0)
		fa_check_eq(first, number(operation, "expect"));
	return r;
}

static int op_remove(const json_t *operation)
{
	return fa_sequence_remove(client, sequence_of(string(operation, "sequence")));
}

static int op_name(const json_t *operation)
{
	return fa_sequence_set_name(client, sequence_of(string(operation, "sequence")),
	                            string(operation, "name"), 0, 0);
}

static int op_sequence(const json_t *operation)
{
	uint64_t sequence;
	int r = fa_sequence_find(client, string(operation, "name"), &sequence);

	if (r == 0)
		keep_sequence(string(operation, "sequence"), sequence);
	return r;
}

/* publish, attach and find: *ret_found is what the library counts. */
static int with_prefix(const json_t *operation, uint64_t *ret_found)
{
	uint32_t tokens[FIELD_INTEGERS_MAX];
	struct fa_prefix prefix = { .size = sizeof(prefix), .tokens = tokens };
	const char *op = string(operation, "op");
	uint64_t sequence;

	prefix.n_tokens = field_integers(operation, "tokens", tokens);
	if (!strcmp(op, "find"))
		return fa_prefix_find(client, cache, &prefix, ret_found);
	sequence = sequence_of(string(operation, "sequence"));
	return !strcmp(op, "publish") ? fa_sequence_publish(client, sequence, &prefix, ret_found)
	                              : fa_sequence_attach(client, sequence, &prefix, ret_found);
}

static int op_prefix(const json_t *operation)
{
	uint64_t found;
	int r = with_prefix(operation, &found);

	if (r == 0)
		fa_check_eq(found, number(operation, "expect"));
	return r;
}

/* ---- pages of the client's own */

/* Returns the place of pages, or a free one for NULL. */
static unsigned int own_at(const char *name)
{
	for (unsigned int i = 0; i < OWN; ++i)
		if (name ? own[i].name && !strcmp(own[i].name, name) : !own[i].name)
			return i;
	fa_test_fail(__FILE__, __LINE__, "%s: no pages %s", case_name(), name ? name : "are free");
	return 0;
}

/* Makes a dense tensor [pages, heads, tokens, dim] one with tokens before heads, in the same place. */
static void heads_second(struct fa_tensor *tensor)
{
	const int64_t *n = tensor->shape;
	const struct fa_tensor stored = *tensor;

	tensor->shape[1] = n[2];
	tensor->shape[2] = stored.shape[1];
	tensor->strides[3] = 1;
	tensor->strides[1] = n[3];
	tensor->strides[2] = stored.shape[2] * n[3];
	tensor->strides[0] = stored.shape[1] * stored.shape[2] * n[3];
}

static int op_pages(const json_t *operation)
{
	unsigned int at = own_at(NULL);
	int r = fa_buffer_new(client, OWN_BYTES, 0, &own[at].buffer);

	if (r < 0)
		return r;
	own[at].name = string(operation, "pages");
	own[at].layers = (uint32_t)json_array_size(json_object_get(operation, "k"));
	fa_check(own[at].layers <= OWN_LAYERS);
	buffer = own[at].buffer;
	for (uint32_t layer = 0; layer < own[at].layers; ++layer) {
		struct fa_tensor *sides[] = { &own[at].k[layer], &own[at].v[layer] };

		for (int i = 0; i < 2; ++i) {
			json_t *list = json_object_get(operation, i ? "v" : "k");

			random_tensor(json_array_get(list, layer), sides[i]);
			fa_check(used_bytes <= OWN_BYTES);
			if (json_is_true(json_object_get(operation, "heads_first")))
				heads_second(sides[i]);
		}
	}
	return 0;
}

/* Puts integers, nested or not, into the buffer as a tensor of this rank. */
static void place_integers(const json_t *operation, const char *key, uint32_t of_dtype,
                           struct fa_tensor *ret_tensor)
{
	const json_t *list = json_object_get(operation, key);
	const json_t *first = json_array_get(list, 0);
	int64_t columns = json_is_array(first) ? (int64_t)json_array_size(first) : 1;
	int64_t shape[] = { (int64_t)json_array_size(list), columns };
	char *to;

	if (!list)
		return;
	fa_tensor_init(ret_tensor, buffer, used_bytes, of_dtype, json_is_array(first) ? 2 : 1,
	               shape);
	to = (char *)fa_buffer_data(buffer) + used_bytes;
	for (int64_t i = 0; i < shape[0] * columns; ++i) {
		const json_t *row = json_array_get(list, (size_t)(i / columns));
		int64_t value = json_integer_value(
			json_is_array(row) ? json_array_get(row, (size_t)(i % columns)) : row);
		int32_t narrow = (int32_t)value;

		memcpy(to + i * fa_dtype_bytes(of_dtype),
		       of_dtype == FA_I64 ? (const void *)&value : &narrow,
		       fa_dtype_bytes(of_dtype));
	}
	used_bytes += (uint64_t)(shape[0] * columns * 8 + 63) / 64 * 64;
	fa_check(used_bytes <= BUFFER_BYTES);
}

static int op_pages_attend(const json_t *operation)
{
	struct fa_pages_attend attend = { .size = sizeof(attend),
		                          .max_q = (uint32_t)number_or(operation, "max_q", 0),
		                          .max_k = (uint32_t)number(operation, "max_k"),
		                          .scale = field_real(operation, "scale"),
		                          .softcap = field_real(operation, "softcap") };
	unsigned int at = own_at(string(operation, "pages"));
	float slopes[FIELD_FLOATS_MAX], sinks[FIELD_FLOATS_MAX];
	int r;

	attend.k = own[at].k[number(operation, "layer")];
	attend.v = own[at].v[number(operation, "layer")];
	place_random(operation, "q", &attend.q);
	place_random(operation, "k_new", &attend.k_new);
	place_random(operation, "v_new", &attend.v_new);
	place_integers(operation, "table", FA_I32, &attend.table);
	place_integers(operation, "lengths", FA_I32, &attend.lengths);
	place_integers(operation, "cu_q", FA_I32, &attend.cu_q);
	place_integers(operation, "prefix_lengths", FA_I32, &attend.prefix_lengths);
	place_integers(operation, "slots", FA_I64, &attend.slots);
	place(json_object_get(operation, "out_shape"), dtype, &attend.out);
	if (json_object_get(operation, "lse"))
		place(json_object_get(operation, "lse_shape"), FA_F32, &attend.lse);
	if (json_is_true(json_object_get(operation, "causal")))
		attend.flags |= FA_PAGES_CAUSAL;
	if (field_window(operation, &attend.window_left, &attend.window_right))
		attend.flags |= FA_PAGES_WINDOW;
	attend.alibi_slopes = field_floats(operation, "alibi_slopes", slopes);
	attend.sinks = field_floats(operation, "sinks", sinks);
	attend.chunk_tokens = number_or(operation, "chunk_tokens", 0);
	attend.pattern = field_pattern(operation);
	r = fa_pages_attend(client, &attend, NULL);
	if (r == 0) {
		compare(&attend.out, json_object_get(operation, "out"));
		if (attend.lse.buffer)
			compare(&attend.lse, json_object_get(operation, "lse"));
	}
	return r;
}

/* read_pages and write_pages */
static int op_copy_pages(const json_t *operation)
{
	unsigned int at = own_at(string(operation, "pages"));
	uint32_t numbers[FIELD_INTEGERS_MAX];
	struct fa_sequence_pages pages = { .size = sizeof(pages),
		                           .sequence = sequence_of(string(operation, "sequence")),
		                           .first = number(operation, "first"),
		                           .n_tokens = number(operation, "tokens"),
		                           .n_layers = own[at].layers,
		                           .k = own[at].k,
		                           .v = own[at].v,
		                           .pages = numbers,
		                           .page_offset = (uint32_t)number(operation,
		                                                           "page_offset") };
	int r;

	pages.n_pages = field_integers(operation, "numbers", numbers);
	if (!strcmp(string(operation, "op"), "write_pages"))
		return fa_sequence_write_pages(client, &pages, NULL);
	r = fa_sequence_read_pages(client, &pages, NULL);
	if (r < 0)
		return r;
	buffer = own[at].buffer;
	for (uint32_t i = 0; i < own[at].layers; ++i) {
		compare(&own[at].k[i], json_array_get(json_object_get(operation, "k"), i));
		compare(&own[at].v[i], json_array_get(json_object_get(operation, "v"), i));
	}
	return 0;
}

static const struct {
	const char *name;
	int (*function)(const json_t *operation);
} operations[] = {
	{ "abort", op_abort },
	{ "attach", op_prefix },
	{ "attend", op_attend },
	{ "attention", op_attention },
	{ "begin", op_begin },
	{ "cache", op_cache },
	{ "commit", op_commit },
	{ "create", op_create },
	{ "drop", op_drop },
	{ "find", op_prefix },
	{ "fork", op_fork },
	{ "length", op_length },
	{ "name", op_name },
	{ "publish", op_prefix },
	{ "remove", op_remove },
	{ "sequence", op_sequence },
	{ "truncate", op_truncate },
	{ "pages", op_pages },
	{ "pages_attend", op_pages_attend },
	{ "read_pages", op_copy_pages },
	{ "write_pages", op_copy_pages },
};

/* Returns false if a GPU lacks the case's feature. */
static bool run_operation(const json_t *operation)
{
	const char *name = string(operation, "op");
	const char *error = json_string_value(json_object_get(operation, "error"));
	int64_t expected = error ? -(int64_t)number(json_object_get(file, "errno"), error) : 0;
	size_t i = 0;
	int r;

	client = clients[number_or(operation, "client", 0)];
	buffer = buffers[number_or(operation, "client", 0)];
	used_bytes = 0;
	while (i < sizeof(operations) / sizeof(*operations) && strcmp(operations[i].name, name))
		++i;
	if (i == sizeof(operations) / sizeof(*operations))
		fa_test_fail(__FILE__, __LINE__, "%s: unknown operation %s", case_name(), name);
	r = operations[i].function(operation);
	if (r == -ENOTSUP && gpu && json_is_false(json_object_get(this_case, "gpu")))
		return false;
	if (r != expected)
		fa_test_fail(__FILE__, __LINE__, "%s: %s gives %d (%s); expected %d", case_name(),
		             name, r, fa_error(), (int)expected);
	if (error && !strchr(fa_error(), ' '))
		fa_test_fail(__FILE__, __LINE__, "%s: %s fails without a sentence: '%s'",
		             case_name(), name, fa_error());
	return true;
}

static void run_case(void)
{
	const json_t *shape = json_object_get(this_case, "cache");
	const char *name = string(this_case, "dtype");
	size_t i;
	json_t *operation;

	for (dtype = FA_F32; strcmp(dtype_names[dtype], name);)
		fa_check(++dtype <= FA_BF16);
	tolerance = json_number_value(json_object_get(json_object_get(file, "tolerance"), name));
	fa_check(tolerance > 0);
	sequences = json_object();
	memset(steps, 0, sizeof(steps));
	wrong = 0;
	client = clients[0];
	cache = 0;
	if (shape)
		fa_check_eq(create_cache(shape, json_string_value(json_object_get(shape, "name"))),
		            0);
	json_array_foreach(json_object_get(this_case, "operations"), i,
	                   operation) if (!run_operation(operation)) break;
	fa_check_eq(wrong > 0, json_is_true(json_object_get(this_case, "wrong")));
	for (i = 0; i < STEPS; ++i)
		fa_step_free(steps[i].step);
	for (i = 0; i < OWN; ++i)
		fa_buffer_free(own[i].buffer);
	memset(own, 0, sizeof(own));
	if (shape)
		fa_check_eq(fa_cache_remove(clients[0], cache), 0);
	json_decref(sequences);
}

static void test_cases(void **state)
{
	size_t i;

	fa_check_eq(number(file, "version"), 1);
	fa_check(json_array_size(json_object_get(file, "cases")) >= 50);
	json_array_foreach(json_object_get(file, "cases"), i, this_case) run_case();
}

static int setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct fa_info info = { .size = sizeof(info) };

	fa_test_daemon_start(&fad, NULL);
	options.socket = fad.socket;
	for (int i = 0; i < CLIENTS; ++i) {
		fa_check_eq(fa_connect(&options, &clients[i]), 0);
		fa_check_eq(fa_buffer_new(clients[i], BUFFER_BYTES, 0, &buffers[i]), 0);
	}
	fa_check_eq(fa_info(clients[0], &info), 0);
	gpu = strcmp(info.backend, "cpu") != 0;
	return 0;
}

static int teardown(void **state)
{
	for (int i = 0; i < CLIENTS; ++i)
		fa_disconnect(clients[i]);
	fa_test_daemon_stop(&fad);
	json_decref(file);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cases),
	};
	json_error_t error;

	if (argc != 2)
		return fprintf(stderr, "usage: test-conformance CASES.JSON\n"), 2;
	file = json_load_file(argv[1], 0, &error);
	if (!file)
		return fprintf(stderr, "%s:%d: %s\n", argv[1], error.line, error.text), 1;
	return cmocka_run_group_tests_name("conformance", tests, setup, teardown);
}
