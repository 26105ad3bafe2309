#include "kv-client.h"

#include "tests/lib/check.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BUFFER 1
#define BUFFER_BYTES (16u << 20)
#define K_FLOATS (KV_KV_HEADS * KV_DIM)
#define V_FLOATS (KV_KV_HEADS * KV_DIM_V)
#define Q_FLOATS (KV_HEADS * KV_DIM)
#define OUT_FLOATS (KV_HEADS * KV_DIM_V)

uint32_t kv_spare_layers;

static float noise(uint32_t layer, uint32_t number, uint32_t what)
{
	uint64_t x = (uint64_t)number * 0x9e3779b97f4a7c15u + layer * 0xbf58476d1ce4e5b9u +
	             what * 0x94d049bb133111ebu;

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	return (float)(x & 0xffff) / 32768.0f - 1.0f;
}

void kv_fill(uint32_t layer, uint32_t number, float *k, float *v, float *q)
{
	for (uint32_t i = 0; k && i < K_FLOATS; i++)
		k[i] = noise(layer, number, i);
	for (uint32_t i = 0; v && i < V_FLOATS; i++)
		v[i] = noise(layer, number, 1000 + i);
	for (uint32_t i = 0; q && i < Q_FLOATS; i++)
		q[i] = noise(layer, number, 2000 + i);
}

void kv_count(uint32_t *numbers, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		numbers[i] = first + i;
}

void kv_check_out(uint32_t layer, const uint32_t *numbers, uint32_t length, uint32_t n,
                  const float *out)
{
	float q[Q_FLOATS];
	double *weights = calloc(length, sizeof(*weights));
	float(*k)[K_FLOATS] = calloc(length, sizeof(*k));
	float(*v)[V_FLOATS] = calloc(length, sizeof(*v));

	fa_check(weights && k && v);
	for (uint32_t j = 0; j < length; j++)
		kv_fill(layer, numbers[j], k[j], v[j], NULL);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t last = length - n + i;

		kv_fill(layer, numbers[last], NULL, NULL, q);
		for (uint32_t h = 0; h < KV_HEADS; h++) {
			uint32_t g = h / (KV_HEADS / KV_KV_HEADS);
			double sum = 0;

			for (uint32_t j = 0; j <= last; j++) {
				double s = 0;

				for (uint32_t d = 0; d < KV_DIM; d++)
					s += (double)q[h * KV_DIM + d] * k[j][g * KV_DIM + d];
				weights[j] = exp(s / sqrt(KV_DIM));
				sum += weights[j];
			}
			for (uint32_t d = 0; d < KV_DIM_V; d++) {
				float got = out[(i * KV_HEADS + h) * KV_DIM_V + d];
				double want = 0;

				for (uint32_t j = 0; j <= last; j++)
					want += weights[j] / sum * v[j][g * KV_DIM_V + d];
				if (!(fabs(got - want) < 1e-4))
					fa_test_fail(__FILE__, __LINE__,
					             "layer %u, token %u of %u, head %u, dim %u: "
					             "%g is %g",
					             layer, last, length, h, d, want, (double)got);
			}
		}
	}
	free(weights);
	free(k);
	free(v);
}

void kv_open(struct kv_client *client, const char *socket)
{
	memset(client->values, 0, sizeof(client->values));
	client->used = 0;
	fa_raw_open(&client->raw, socket);
	fa_raw_buffer_register(&client->raw, &client->buffer, BUFFER, BUFFER_BYTES, 0);
}

void kv_open_resumed(struct kv_client *client, const char *socket,
                     const struct fa_wire_secret *secret, uint64_t generation)
{
	struct fa_wire_message hello = fa_raw_hello_message("test");

	memset(client->values, 0, sizeof(client->values));
	client->used = 0;
	fa_raw_connect(&client->raw, socket);
	hello.hello.has_resume = true;
	hello.hello.resume_secret = *secret;
	hello.hello.resume_generation = generation;
	fa_raw_hello_with(&client->raw, &hello);
}

void kv_open_buffer(struct kv_client *client)
{
	fa_raw_buffer_register(&client->raw, &client->buffer, BUFFER, BUFFER_BYTES, 0);
}

static void *map_slots(int fd, int protection)
{
	void *slots = mmap(NULL, FA_TIMELINE_BYTES, protection, MAP_SHARED, fd, 0);

	fa_check(slots != MAP_FAILED);
	return slots;
}

void kv_open_timeline(struct kv_client *client, struct fa_timeline_in **ret_in,
                      const struct fa_timeline_out **ret_out)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	fa_raw_call(&client->raw, &message, NULL, 0);
	fa_check_eq(client->raw.message.type, FA_WIRE_TIMELINE_REPLY);
	*ret_in = map_slots(client->raw.fds[0], PROT_READ | PROT_WRITE);
	if (ret_out)
		*ret_out = map_slots(client->raw.fds[1], PROT_READ);
}

void kv_close_timeline(struct fa_timeline_in *in, const struct fa_timeline_out *out)
{
	munmap(in, FA_TIMELINE_BYTES);
	if (out)
		munmap((void *)out, FA_TIMELINE_BYTES);
}

void kv_close(struct kv_client *client)
{
	if (client->buffer.data)
		fa_raw_buffer_free(NULL, &client->buffer);
	fa_raw_close(&client->raw);
}

/* Returns a view of new memory, filled with poisoned floats. */
static struct fa_wire_view new_view(struct kv_client *client, uint32_t tokens, uint32_t heads,
                                    uint32_t dim, float **ret_data)
{
	uint64_t bytes = (uint64_t)tokens * heads * dim * sizeof(float);
	struct fa_wire_view view = {
		.buffer = BUFFER,
		.dtype = FA_WIRE_DTYPE_F32,
		.rank = 3,
		.shape = { tokens, heads, dim },
		.strides = { (int64_t)heads * dim, dim, 1 },
	};

	fa_check(bytes <= BUFFER_BYTES);
	if (client->used + bytes > BUFFER_BYTES)
		client->used = 0;
	view.offset = client->used;
	client->used += (bytes + 63) / 64 * 64;
	*ret_data = (float *)(client->buffer.data + view.offset);
	for (uint64_t i = 0; i < bytes / sizeof(float); i++)
		(*ret_data)[i] = NAN;
	return view;
}

void kv_call(struct kv_client *client, struct fa_wire_message *message, enum fa_wire_type type)
{
	fa_raw_call(&client->raw, message, NULL, 0);
	if (client->raw.message.type == FA_WIRE_REPLY && type != FA_WIRE_REPLY)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", fa_wire_type_name(message->type),
		             client->raw.message.reply.status, client->raw.message.reply.text.text);
	fa_check_eq(client->raw.message.type, type);
}

void kv_call_expect(struct kv_client *client, struct fa_wire_message *message, int status,
                    const char *part)
{
	fa_raw_call_expect(&client->raw, message, NULL, 0, status, part);
}

static struct fa_wire_string string(const char *text)
{
	return (struct fa_wire_string){ .text = text, .length = text ? strlen(text) : 0 };
}

struct fa_wire_message kv_cache_message(const char *name, uint32_t mode)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_CREATE);

	message.cache_create = (struct fa_wire_cache_create){
		.name = string(name),
		.mode = mode,
		.dtype = FA_WIRE_DTYPE_F32,
		.layers = KV_LAYERS + kv_spare_layers,
		.kv_heads = KV_KV_HEADS,
		.head_dim = KV_DIM,
		.head_dim_v = KV_DIM_V,
		.page_tokens = KV_PAGE,
	};
	return message;
}

uint64_t kv_cache(struct kv_client *client, const char *name, uint32_t mode)
{
	struct fa_wire_message message = kv_cache_message(name, mode);

	kv_call(client, &message, FA_WIRE_CACHE_REPLY);
	return client->raw.message.cache_reply.cache;
}

uint64_t kv_cache_find_of(struct kv_client *client, uint64_t user, const char *name)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_FIND);

	message.cache_find.name = string(name);
	message.cache_find.user = user;
	kv_call(client, &message, FA_WIRE_CACHE_REPLY);
	return client->raw.message.cache_reply.cache;
}

uint64_t kv_cache_find(struct kv_client *client, const char *name)
{
	return kv_cache_find_of(client, 0, name);
}

uint64_t kv_sequence(struct kv_client *client, uint64_t cache)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_CREATE);

	message.sequence_create.cache = cache;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
	return client->raw.message.sequence_reply.sequence;
}

uint64_t kv_sequence_find_of(struct kv_client *client, uint64_t user, const char *name)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_FIND);

	message.sequence_find.name = string(name);
	message.sequence_find.user = user;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
	return client->raw.message.sequence_reply.sequence;
}

uint64_t kv_sequence_find(struct kv_client *client, const char *name)
{
	return kv_sequence_find_of(client, 0, name);
}

uint64_t kv_fork(struct kv_client *client, uint64_t sequence, uint64_t tokens)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_FORK);

	message.sequence_fork.sequence = sequence;
	message.sequence_fork.tokens = tokens;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
	return client->raw.message.sequence_reply.sequence;
}

void kv_set_name(struct kv_client *client, uint64_t sequence, const char *name, uint32_t mode)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_SET_NAME);

	message.sequence_set_name.sequence = sequence;
	message.sequence_set_name.name = string(name);
	message.sequence_set_name.mode = mode;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
}

void kv_truncate(struct kv_client *client, uint64_t sequence, uint64_t tokens)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_TRUNCATE);

	message.sequence_truncate.sequence = sequence;
	message.sequence_truncate.tokens = tokens;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
}

void kv_drop(struct kv_client *client, uint64_t sequence, uint64_t first)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_DROP);

	message.sequence_drop.sequence = sequence;
	message.sequence_drop.first = first;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
}

void kv_free(struct kv_client *client, uint64_t sequence)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_FREE);

	message.sequence_free.sequence = sequence;
	kv_call_expect(client, &message, 0, NULL);
}

struct fa_wire_sequence_reply kv_info(struct kv_client *client, uint64_t sequence)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_INFO);

	message.sequence_info.sequence = sequence;
	kv_call(client, &message, FA_WIRE_SEQUENCE_REPLY);
	return client->raw.message.sequence_reply;
}

static struct fa_wire_message begin_message(uint32_t step, const struct fa_wire_step_item *items,
                                            uint32_t n)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);

	message.step_begin.step = step;
	message.step_begin.items = items;
	message.step_begin.n_items = n;
	return message;
}

uint64_t kv_begin(struct kv_client *client, uint32_t step, const struct fa_wire_step_item *items,
                  uint32_t n)
{
	struct fa_wire_message message = begin_message(step, items, n);

	kv_call(client, &message, FA_WIRE_STEP_REPLY);
	fa_check_eq(client->raw.message.step_reply.step, step);
	return client->raw.message.step_reply.number;
}

uint64_t kv_begin_one(struct kv_client *client, uint32_t step, uint64_t sequence, uint32_t n)
{
	const struct fa_wire_step_item item = { .sequence = sequence, .n_new = n };

	return kv_begin(client, step, &item, 1);
}

void kv_begin_expect(struct kv_client *client, uint32_t step, const struct fa_wire_step_item *items,
                     uint32_t n, int status, const char *part)
{
	struct fa_wire_message message = begin_message(step, items, n);

	kv_call_expect(client, &message, status, part);
}

uint64_t kv_send(struct kv_client *client, struct fa_wire_message *message, uint32_t stream)
{
	message->id = ++client->raw.next_id;
	fa_check_eq(fa_raw_send(&client->raw, message, NULL, 0), 0);
	return client->values[stream];
}

struct fa_wire_message kv_attend_message(struct kv_client *client, uint32_t stream, uint32_t step,
                                         uint32_t layer, const uint32_t *numbers, uint32_t n,
                                         const float **ret_out)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_ATTEND);
	struct fa_wire_step_attend *attend = &message.step_attend;
	float *k, *v, *q, *out;

	attend->stream = stream;
	attend->value = ++client->values[stream];
	attend->step = step;
	attend->layer = layer;
	attend->flags = FA_WIRE_STEP_CAUSAL;
	attend->window_left = attend->window_right = -1;
	attend->k = new_view(client, n, KV_KV_HEADS, KV_DIM, &k);
	attend->v = new_view(client, n, KV_KV_HEADS, KV_DIM_V, &v);
	for (uint32_t i = 0; i < n; i++)
		kv_fill(layer, numbers[i], k + i * K_FLOATS, v + i * V_FLOATS, NULL);
	if (!ret_out)
		return message;
	attend->q = new_view(client, n, KV_HEADS, KV_DIM, &q);
	attend->out = new_view(client, n, KV_HEADS, KV_DIM_V, &out);
	for (uint32_t i = 0; i < n; i++)
		kv_fill(layer, numbers[i], NULL, NULL, q + i * Q_FLOATS);
	*ret_out = out;
	return message;
}

uint64_t kv_attend(struct kv_client *client, uint32_t stream, uint32_t step, uint32_t layer,
                   const uint32_t *numbers, uint32_t n, const float **ret_out)
{
	struct fa_wire_message message = kv_attend_message(client, stream, step, layer, numbers, n,
	                                                   ret_out);

	return kv_send(client, &message, stream);
}

uint64_t kv_end(struct kv_client *client, uint32_t stream, uint32_t step, bool commit)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_END);

	message.step_end.stream = stream;
	message.step_end.value = ++client->values[stream];
	message.step_end.step = step;
	message.step_end.flags = commit ? FA_WIRE_STEP_COMMIT : 0;
	return kv_send(client, &message, stream);
}

struct fa_wire_message kv_copy_message(struct kv_client *client, uint32_t stream, uint64_t sequence,
                                       uint32_t layer, uint64_t first, uint32_t n, bool write,
                                       float **ret_k, float **ret_v)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_COPY);
	struct fa_wire_sequence_copy *copy = &message.sequence_copy;

	copy->stream = stream;
	copy->value = ++client->values[stream];
	copy->sequence = sequence;
	copy->layer = layer;
	copy->first = first;
	copy->flags = write ? FA_WIRE_COPY_WRITE : 0;
	copy->k = new_view(client, n, KV_KV_HEADS, KV_DIM, ret_k);
	copy->v = new_view(client, n, KV_KV_HEADS, KV_DIM_V, ret_v);
	return message;
}

void kv_wait(struct kv_client *client, uint32_t stream, uint64_t value)
{
	fa_raw_wait_expect(&client->raw, stream, value, 0, NULL);
}

void kv_wait_expect(struct kv_client *client, uint32_t stream, uint64_t value, int status,
                    const char *part)
{
	fa_raw_wait_expect(&client->raw, stream, value, status, part);
}

void kv_append(struct kv_client *client, uint64_t sequence, const uint32_t *numbers, uint32_t n_old,
               uint32_t n)
{
	const uint32_t step = 1000;
	const float *out[KV_LAYERS];
	uint64_t value, number;

	number = kv_begin_one(client, step, sequence, n);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(client, 0, step, layer, numbers + n_old, n, &out[layer]);
	value = kv_end(client, 0, step, true);
	kv_wait(client, 0, value);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_check_out(layer, numbers, n_old + n, n, out[layer]);
	fa_check_eq(kv_info(client, sequence).step, number);
}

void kv_check(struct kv_client *client, uint64_t sequence, const uint32_t *numbers, uint64_t first,
              uint64_t length)
{
	struct fa_wire_sequence_reply info = kv_info(client, sequence);
	float k[K_FLOATS], v[V_FLOATS], *got_k, *got_v;
	uint32_t n = (uint32_t)(length - first);

	fa_check_eq(info.length, length);
	for (uint32_t layer = 0; layer < KV_LAYERS && n; layer++) {
		struct fa_wire_message message = kv_copy_message(client, 0, sequence, layer, first,
		                                                 n, false, &got_k, &got_v);

		kv_wait(client, 0, kv_send(client, &message, 0));
		for (uint32_t i = 0; i < n; i++) {
			kv_fill(layer, numbers[first + i], k, v, NULL);
			if (memcmp(k, got_k + i * K_FLOATS, sizeof(k)) != 0 ||
			    memcmp(v, got_v + i * V_FLOATS, sizeof(v)) != 0)
				fa_test_fail(__FILE__, __LINE__,
				             "token %llu of layer %u is not number %u",
				             (unsigned long long)(first + i), layer,
				             numbers[first + i]);
		}
	}
}
