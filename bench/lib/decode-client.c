#include "bench/lib/decode-client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ELEMENT_BYTES 2

static int fail(struct fa_error *error, const char *what, int r)
{
	return fa_fail(error, r, "%s: %s", what, fa_error());
}

/* ---- tensors */

static uint64_t align(uint64_t bytes)
{
	return (bytes + 255) & ~(uint64_t)255;
}

void fa_decode_random(uint16_t *values, uint64_t n)
{
	uint64_t state = 1;

	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits;
		float value;

		state = state * 6364136223846793005u + 1442695040888963407u;
		value = (float)(int32_t)(state >> 32) / (float)(1u << 31) * 1.7f;
		memcpy(&bits, &value, sizeof(bits));
		values[i] = (uint16_t)(bits >> 16);
	}
}

int fa_decode_tensors_new(struct fa_inproc_gpu *gpu, const struct fa_inproc_decode_shape *shape,
                          struct fa_error *error, struct fa_decode_tensors *ret_tensors)
{
	const struct fa_cudriver *driver = &gpu->driver;
	const uint64_t token_bytes = (uint64_t)shape->kv_heads * (uint64_t)shape->dim *
	                             ELEMENT_BYTES;
	struct fa_decode_tensors tensors = { .shape = *shape };
	uint16_t *values;
	CUresult result;

	tensors.q_bytes = (uint64_t)shape->batch * (uint64_t)shape->heads * (uint64_t)shape->dim *
	                  ELEMENT_BYTES;
	tensors.kv_bytes = shape->batch * token_bytes;
	tensors.out_at = align(tensors.q_bytes);
	tensors.k_at = 2 * align(tensors.q_bytes);
	tensors.v_at = tensors.k_at + align(tensors.kv_bytes);
	tensors.k_before_at = tensors.v_at + align(tensors.kv_bytes);
	tensors.v_before_at = tensors.k_before_at + align((shape->length - 1) * token_bytes);
	tensors.bytes = tensors.v_before_at + align((shape->length - 1) * token_bytes);
	values = malloc(tensors.bytes);
	if (!values)
		return fa_fail(error, -ENOMEM, "no memory");
	fa_decode_random(values, tensors.bytes / ELEMENT_BYTES);
	result = driver->cuMemAlloc(&tensors.at, tensors.bytes);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemcpyHtoD(tensors.at, values, tensors.bytes);
	if (result == CUDA_SUCCESS)
		result = driver->cuCtxSynchronize();
	free(values);
	if (result != CUDA_SUCCESS) {
		fa_decode_tensors_free(gpu, &tensors);
		return fa_cudriver_fail(driver, error, result, "making tensors");
	}
	*ret_tensors = tensors;
	return 0;
}

void fa_decode_tensors_free(struct fa_inproc_gpu *gpu, struct fa_decode_tensors *tensors)
{
	if (tensors->at)
		(void)gpu->driver.cuMemFree(tensors->at);
	*tensors = (struct fa_decode_tensors){ 0 };
}

struct fa_inproc_decode_tensors fa_decode_tensors_at(const struct fa_decode_tensors *tensors)
{
	return (struct fa_inproc_decode_tensors){
		.q = tensors->at,
		.out = tensors->at + tensors->out_at,
		.k = tensors->at + tensors->k_at,
		.v = tensors->at + tensors->v_at,
		.k_before = tensors->at + tensors->k_before_at,
		.v_before = tensors->at + tensors->v_before_at,
	};
}

/* ---- a client */

static int begin_step(struct fa_decode_client *c, const struct fa_step_item *items, uint32_t n,
                      struct fa_error *error)
{
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = n,
		                                 .items = items };
	const int r = fa_step_begin(c->client, &options, &c->step);

	return r < 0 ? fail(error, "a step cannot be begun", r) : 0;
}

/* Fills a sequence with K and V of all tokens but the last; layers are equal. */
static int fill_sequence(struct fa_decode_client *c, const struct fa_decode_tensors *tensors,
                         uint64_t sequence, struct fa_error *error)
{
	const struct fa_inproc_decode_shape *shape = &tensors->shape;
	const int64_t dims[] = { shape->length - 1, shape->kv_heads, shape->dim };
	const struct fa_step_item item = { .sequence = sequence, .n_new = shape->length - 1 };
	struct fa_step_attend attend = { .size = sizeof(attend) };
	int r;

	fa_tensor_init(&attend.k_new, c->buffer, tensors->k_before_at, FA_BF16, 3, dims);
	fa_tensor_init(&attend.v_new, c->buffer, tensors->v_before_at, FA_BF16, 3, dims);
	r = begin_step(c, &item, 1, error);
	for (uint32_t layer = 0; layer < (uint32_t)shape->layers && r == 0; layer++) {
		attend.layer = layer;
		r = fa_step_attend(c->step, &attend, NULL);
		if (r < 0)
			fail(error, "a sequence cannot be filled", r);
	}
	return r == 0 ? fa_decode_client_commit(c, error) : r;
}

static int make_sequences(struct fa_decode_client *c, const struct fa_decode_tensors *tensors,
                          struct fa_error *error)
{
	const struct fa_inproc_decode_shape *shape = &tensors->shape;
	const struct fa_cache_options options = {
		.size = sizeof(options),
		.dtype = FA_BF16,
		.layers = (uint32_t)shape->layers,
		.kv_heads = (uint32_t)shape->kv_heads,
		.head_dim = (uint32_t)shape->dim,
		.page_tokens = (uint32_t)shape->page_tokens,
	};
	uint64_t cache;
	int r;

	c->items = calloc(shape->batch, sizeof(*c->items));
	c->batch = shape->batch;
	if (!c->items)
		return fa_fail(error, -ENOMEM, "no memory");
	r = fa_cache_create(c->client, &options, &cache);
	if (r < 0)
		return fail(error, "a cache cannot be made", r);
	for (uint32_t i = 0; i < shape->batch; i++) {
		c->items[i].n_new = 1;
		r = fa_sequence_create(c->client, cache, &c->items[i].sequence);
		if (r < 0)
			return fail(error, "a sequence cannot be made", r);
		r = fill_sequence(c, tensors, c->items[i].sequence, error);
		if (r < 0)
			return r;
	}
	return 0;
}

int fa_decode_client_open(const struct fa_decode_tensors *tensors, const char *socket,
                          uint32_t flags, uint64_t spin_ns, struct fa_error *error,
                          struct fa_decode_client *ret_client)
{
	const struct fa_inproc_decode_shape *shape = &tensors->shape;
	const int64_t q_dims[] = { shape->batch, shape->heads, shape->dim };
	const int64_t kv_dims[] = { shape->batch, shape->kv_heads, shape->dim };
	const struct fa_options options = { .size = sizeof(options),
		                            .flags = flags,
		                            .name = "fabench",
		                            .socket = socket,
		                            .spin_ns = spin_ns };
	struct fa_decode_client *c = ret_client;
	struct fa_step_attend *attend = &c->attend;
	int r;

	*c = (struct fa_decode_client){ 0 };
	r = fa_connect(&options, &c->client);
	if (r == 0)
		r = fa_buffer_import_cuda(c->client, tensors->at, tensors->bytes, 0, &c->buffer);
	*attend = (struct fa_step_attend){ .size = sizeof(*attend), .flags = FA_STEP_CAUSAL };
	if (r == 0)
		r = fa_stream_new(c->client, 1, &attend->stream);
	if (r == 0)
		r = fa_timeline_open(c->client, &c->timeline);
	if (r < 0)
		return fail(error, "a client cannot be made", r);
	fa_tensor_init(&attend->q, c->buffer, 0, FA_BF16, 3, q_dims);
	fa_tensor_init(&attend->out, c->buffer, tensors->out_at, FA_BF16, 3, q_dims);
	fa_tensor_init(&attend->k_new, c->buffer, tensors->k_at, FA_BF16, 3, kv_dims);
	fa_tensor_init(&attend->v_new, c->buffer, tensors->v_at, FA_BF16, 3, kv_dims);
	r = make_sequences(c, tensors, error);
	return r < 0 ? r : fa_decode_client_begin(c, error);
}

void fa_decode_client_close(struct fa_decode_client *c)
{
	fa_step_free(c->step);
	fa_buffer_free(c->buffer);
	fa_disconnect(c->client);
	free(c->items);
	*c = (struct fa_decode_client){ 0 };
}

int fa_decode_client_begin(struct fa_decode_client *c, struct fa_error *error)
{
	return begin_step(c, c->items, c->batch, error);
}

int fa_decode_client_commit(struct fa_decode_client *c, struct fa_error *error)
{
	const int r = fa_step_commit(c->step, NULL, NULL);

	if (r < 0)
		return fail(error, "a step cannot be committed", r);
	c->step = fa_step_free(c->step);
	return 0;
}

int fa_decode_client_truncate(struct fa_decode_client *c, uint32_t length, struct fa_error *error)
{
	for (uint32_t i = 0; i < c->batch; i++) {
		const int r = fa_sequence_truncate(c->client, c->items[i].sequence, length);

		if (r < 0)
			return fail(error, "a token cannot be removed", r);
	}
	return 0;
}

int fa_decode_client_attend(struct fa_decode_client *c, uint32_t layer, bool append,
                            const struct fa_gates *gates, struct fa_error *error,
                            struct fa_ticket *ret_ticket)
{
	struct fa_step_attend request = c->attend;
	int r;

	request.layer = layer;
	request.gates = gates;
	if (!append)
		request.k_new = request.v_new = (struct fa_tensor){ 0 };
	r = fa_step_attend(c->step, &request, ret_ticket);
	return r < 0 ? fail(error, "attention", r) : 0;
}

int fa_decode_client_attend_layers(struct fa_decode_client *c, uint32_t n_layers,
                                   const struct fa_gate *wait, const struct fa_gate *signal,
                                   bool append, struct fa_error *error,
                                   struct fa_ticket *ret_ticket)
{
	struct fa_step_attend first = c->attend;
	const struct fa_step_attend_layers layers = {
		.size = sizeof(layers),
		.n_layers = n_layers,
		.attend = &first,
		.wait = wait,
		.wait_increment = wait ? 1 : 0,
		.signal = signal,
		.signal_increment = signal ? 1 : 0,
	};
	int r;

	if (!append)
		first.k_new = first.v_new = (struct fa_tensor){ 0 };
	r = fa_step_attend_layers(c->step, &layers, ret_ticket);
	return r < 0 ? fail(error, "the layers of a step", r) : 0;
}
