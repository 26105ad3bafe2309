/*
 * Requests that a program gets wrong, and requests for nothing, by the socket and by the ring.
 */
#include "client/faclient.h"
#include "common/memfd.h"
#include "tests/client/attention-request.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A case in a buffer of a client. */
struct scene {
	struct fa_client *client;
	struct fa_case attention;
	struct fa_buffer *buffer;
	struct fa_attention good;
};

static void scene_init(struct scene *scene, struct fa_client *client, bool ragged)
{
	scene->client = client;
	scene->attention = (struct fa_case){
		.heads = 4, .kv_heads = 2, .batch = 2, .seqlen_q = 20, .lse = true, .ragged = ragged
	};
	fa_case_plan(&scene->attention);
	must(fa_buffer_new(client, scene->attention.bytes, 0, &scene->buffer), "buffer");
	fa_case_fill(&scene->attention, fa_buffer_data(scene->buffer));
	scene->good = fa_case_attention(&scene->attention, scene->buffer);
}

static void refuse(const struct scene *scene, const struct fa_attention *bad, const char *part)
{
	struct fa_ticket ticket;
	int r;

	/* The library finds most mistakes, the daemon the others. */
	r = fa_attention(scene->client, bad, &ticket);
	if (r == 0)
		r = fa_wait(scene->client, &ticket, UINT64_MAX, NULL);
	fa_check_eq(r, -EINVAL);
	fa_check_contains(fa_error(), part);
	fa_check_eq(fa_attention(scene->client, bad, NULL), -EINVAL);
	fa_check_contains(fa_error(), part);
	fa_check(fa_case_untouched(&scene->attention, fa_buffer_data(scene->buffer)));
}

/* ---- fields without effect, numbers that have no meaning */

static void test_fields(void **state)
{
	for (int i = 0; i < 2; ++i) {
		const uint32_t prefixes[4] = { 0 };
		float numbers[] = { 1, 2, 3, 4 };
		struct scene scene;
		struct fa_attention bad;

		scene_init(&scene, single_pair[i], false);
		bad = scene.good;
		bad.window_left = 5;
		refuse(&scene, &bad,
		       "window_left is 5, which has no effect without "
		       "FA_ATTENTION_WINDOW");
		bad.window_left = -1;
		bad.window_right = -2;
		refuse(&scene, &bad, "window_right is -2");
		bad = scene.good;
		bad.flags &= ~FA_ATTENTION_CAUSAL;
		bad.prefix_lengths = prefixes;
		refuse(&scene, &bad,
		       "prefix_lengths is given, which has no effect without "
		       "FA_ATTENTION_CAUSAL");

		bad = scene.good;
		bad.sinks = numbers;
		numbers[2] = INFINITY;
		refuse(&scene, &bad, "sinks[2] is inf; expected a finite number");
		numbers[2] = NAN;
		refuse(&scene, &bad, "sinks[2] is ");
		bad.sinks = NULL;
		bad.alibi_slopes = numbers;
		refuse(&scene, &bad, "alibi_slopes[2] is ");
		numbers[2] = -INFINITY;
		refuse(&scene, &bad, "alibi_slopes[2] is -inf");

		/* A window of 0 or -1 asks for nothing, and a sink of -infinity is none. */
		bad = scene.good;
		bad.window_left = 0;
		bad.window_right = -1;
		numbers[0] = numbers[1] = numbers[3] = -INFINITY;
		bad.sinks = numbers;
		must(fa_attention(scene.client, &bad, NULL), "attention");
		fa_check(fa_case_error(&scene.attention, fa_buffer_data(scene.buffer)) <= 1);
		fa_buffer_free(scene.buffer);
	}
}

static void test_options(void **state)
{
	struct fa_options options = { .size = sizeof(options),
		                      .socket = single_daemon.socket,
		                      .daemon = "/nonexistent/fad" };
	struct fa_client *client;

	fa_check_eq(fa_connect(&options, &client), -EINVAL);
	fa_check_contains(fa_error(), "fa_options.daemon is given, which has no effect");
	options.daemon = NULL;
	options.config = "/nonexistent/fad.conf";
	fa_check_eq(fa_connect(&options, &client), -EINVAL);
	fa_check_contains(fa_error(), "fa_options.config");
	options.flags = FA_CONNECT_PRIVATE;
	fa_check_eq(fa_connect(&options, &client), -EINVAL);
	fa_check_contains(fa_error(), "fa_options.socket");
}

/* ---- outputs in memory of other tensors */

static void test_overlap(void **state)
{
	for (int i = 0; i < 2; ++i) {
		struct scene scene;
		struct fa_attention bad;

		scene_init(&scene, single_pair[i], i);
		bad = scene.good;
		bad.out = bad.q;
		refuse(&scene, &bad, "out overlaps q; expected memory of its own");
		bad = scene.good;
		bad.out.offset = bad.k.offset;
		refuse(&scene, &bad, "out overlaps k");
		bad.out.offset = bad.v.offset + 256;
		refuse(&scene, &bad, "out overlaps v");
		bad = scene.good;
		bad.lse.offset = bad.q.offset + 4;
		refuse(&scene, &bad, "lse overlaps q");
		bad.lse.offset = bad.out.offset;
		refuse(&scene, &bad, "out overlaps lse");
		/* Inputs may be one tensor. */
		bad = scene.good;
		bad.v = bad.k;
		must(fa_attention(scene.client, &bad, NULL), "attention");
		must(fa_attention(scene.client, &scene.good, NULL), "attention");
		fa_check(fa_case_error(&scene.attention, fa_buffer_data(scene.buffer)) <= 1);
		fa_buffer_free(scene.buffer);
	}
}

/* Two buffers of one file share the memory that both cover. */
static void test_overlapping_buffers(void **state)
{
	const uint64_t page = 65536;
	int fd;

	fa_check_eq(fa_memfd_new("shared", 4 * page, 0, &fd), 0);
	for (int i = 0; i < 2; ++i) {
		struct fa_attention attention = { .size = sizeof(attention) };
		const int64_t shape[] = { 1, 4, 2, 8 };
		struct fa_buffer *whole, *half;

		must(fa_buffer_import_fd(single_pair[i], fd, 0, 4 * page, 0, &whole), "import");
		must(fa_buffer_import_fd(single_pair[i], fd, 2 * page, 2 * page, 0, &half),
		     "import");
		fa_tensor_init(&attention.q, whole, 2 * page + 256, FA_F32, 4, shape);
		attention.k = attention.v = attention.q;
		fa_tensor_init(&attention.out, half, 256, FA_F32, 4, shape);
		fa_check_eq(fa_attention(single_pair[i], &attention, NULL), -EINVAL);
		fa_check_contains(fa_error(), "out overlaps q");
		attention.out.offset = 0;
		must(fa_attention(single_pair[i], &attention, NULL), "attention");
		attention.out.offset = 512;
		must(fa_attention(single_pair[i], &attention, NULL), "attention");
		fa_buffer_free(whole);
		fa_buffer_free(half);
	}
	close(fd);
}

/* q, k, v and out side by side in each token's row. */
static void test_packed(void **state)
{
	enum {
		TOKENS = 40,
		HEADS = 4,
		KV_HEADS = 2,
		DIM = 16,
		ROW = (2 * HEADS + 2 * KV_HEADS) * DIM,
	};
	const int64_t heads_of[] = { HEADS, KV_HEADS, KV_HEADS, HEADS };

	for (int i = 0; i < 2; ++i) {
		struct fa_attention packed = { .size = sizeof(packed),
			                       .flags = FA_ATTENTION_CAUSAL };
		struct fa_attention dense = packed;
		struct fa_tensor *tensors[] = { &packed.q, &packed.k, &packed.v, &packed.out };
		struct fa_tensor *copies[] = { &dense.q, &dense.k, &dense.v, &dense.out };
		struct fa_buffer *buffer;
		float *data;
		uint64_t at = 0, end = TOKENS * ROW;

		must(fa_buffer_new(single_pair[i], (uint64_t)2 * TOKENS * ROW * 4, 0, &buffer),
		     "buffer");
		data = fa_buffer_data(buffer);
		for (int j = 0; j < TOKENS * ROW; ++j)
			data[j] = (float)(j * 37 % 101) / 50 - 1;
		for (int t = 0; t < 4; ++t) {
			const int64_t shape[] = { 1, TOKENS, heads_of[t], DIM };
			const int64_t strides[] = { TOKENS * ROW, ROW, DIM, 1 };

			fa_tensor_init(tensors[t], buffer, at * 4, FA_F32, 4, shape);
			fa_tensor_init(copies[t], buffer, end * 4, FA_F32, 4, shape);
			memcpy(tensors[t]->strides, strides, sizeof(strides));
			for (int64_t j = 0; j < TOKENS; ++j)
				memcpy(data + end + j * heads_of[t] * DIM, data + at + j * ROW,
				       (size_t)heads_of[t] * DIM * 4);
			at += (uint64_t)heads_of[t] * DIM;
			end += (uint64_t)(TOKENS * heads_of[t] * DIM);
		}
		must(fa_attention(single_pair[i], &dense, NULL), "dense");
		must(fa_attention(single_pair[i], &packed, NULL), "packed");
		for (int64_t j = 0; j < TOKENS; ++j)
			fa_check(!memcmp(data + packed.out.offset / 4 + j * ROW,
			                 data + dense.out.offset / 4 + j * HEADS * DIM,
			                 HEADS * DIM * 4));
		packed.out.offset -= 4 * DIM;
		fa_check_eq(fa_attention(single_pair[i], &packed, NULL), -EINVAL);
		fa_check_contains(fa_error(), "out overlaps v");
		fa_buffer_free(buffer);
	}
}

/* ---- handles that were freed */

static void test_freed_buffer(void **state)
{
	for (int i = 0; i < 2; ++i) {
		struct fa_buffer *freed, *next[8];
		struct fa_attention bad;
		struct scene scene;
		struct fa_tensor *tensors[] = { &bad.q, &bad.k, &bad.v, &bad.out, &bad.lse };

		scene_init(&scene, single_pair[i], false);
		must(fa_buffer_new(single_pair[i], scene.attention.bytes, 0, &freed), "buffer");
		fa_check(!fa_buffer_free(freed));
		/* These buffers may reuse the freed one's memory. */
		for (int j = 0; j < 8; ++j)
			must(fa_buffer_new(single_pair[i], scene.attention.bytes, 0, &next[j]),
			     "buffer");
		for (int j = 0; j < 5; ++j) {
			bad = scene.good;
			tensors[j]->buffer = freed;
			refuse(&scene, &bad, ".buffer was freed, or never was a buffer");
		}
		fa_check(!fa_buffer_data(freed));
		fa_check_eq(fa_buffer_bytes(freed), 0);
		fa_check_eq(fa_buffer_device_data(freed), 0);
		fa_check(!fa_buffer_free(freed));
		for (int j = 0; j < 8; ++j) {
			fa_check(fa_buffer_data(next[j]));
			fa_buffer_free(next[j]);
		}

		/* Other objects and addresses never were handles. */
		bad = scene.good;
		bad.q.buffer = (void *)single_pair[i];
		refuse(&scene, &bad, "q.buffer was freed");
		bad.q.buffer = (void *)&scene;
		refuse(&scene, &bad, "q.buffer was freed");
		bad.q.buffer = (void *)UINTPTR_MAX;
		refuse(&scene, &bad, "q.buffer was freed");
		must(fa_attention(scene.client, &scene.good, NULL), "attention");
		fa_buffer_free(scene.buffer);
	}
}

static void test_freed_stream(void **state)
{
	for (int i = 0; i < 2; ++i) {
		struct fa_ticket ticket, of_next;
		uint32_t freed, next;
		struct scene scene;

		scene_init(&scene, single_pair[i], false);
		must(fa_stream_new(single_pair[i], 0, &freed), "stream");
		must(fa_marker(single_pair[i], freed, NULL, &ticket), "marker");
		must(fa_wait(single_pair[i], &ticket, UINT64_MAX, NULL), "wait");
		must(fa_stream_free(single_pair[i], freed), "free");
		must(fa_stream_new(single_pair[i], 1, &next), "stream");
		fa_check(next != freed);
		scene.good.stream = freed;
		refuse(&scene, &scene.good, "which was freed, or never was a stream");
		fa_check_eq(fa_marker(single_pair[i], freed, NULL, NULL), -EINVAL);
		fa_check_eq(fa_stream_free(single_pair[i], freed), -ENOENT);
		scene.good.stream = next;
		must(fa_attention(single_pair[i], &scene.good, &of_next), "attention");
		fa_check_eq(of_next.stream, next);
		must(fa_wait(single_pair[i], &of_next, UINT64_MAX, NULL), "wait");
		/* A ticket outlives its stream. */
		must(fa_wait(single_pair[i], &ticket, 0, NULL), "wait");
		must(fa_stream_free(single_pair[i], next), "free");
		fa_buffer_free(scene.buffer);
	}
}

static void test_freed_client(void **state)
{
	struct fa_options options = { .size = sizeof(options), .socket = single_daemon.socket };
	struct fa_info info = { .size = sizeof(info) };
	struct fa_timeline *timeline, *other;
	struct fa_ticket ticket;
	struct scene scene;
	struct fa_client *client;
	uint64_t value;
	uint32_t stream;
	char *json;

	must(fa_connect(&options, &client), "connect");
	scene_init(&scene, client, false);
	must(fa_timeline_open(client, &timeline), "timeline");
	must(fa_attention(client, &scene.good, &ticket), "attention");
	must(fa_wait(client, &ticket, UINT64_MAX, NULL), "wait");
	fa_check(!fa_disconnect(client));

	fa_check_eq(fa_attention(client, &scene.good, NULL), -EINVAL);
	fa_check_eq(fa_wait(client, &ticket, 0, NULL), -EINVAL);
	fa_check_contains(fa_error(), "freed by fa_disconnect()");
	fa_check_eq(fa_cancel(client, &ticket), -EINVAL);
	fa_check_eq(fa_ping(client), -EINVAL);
	fa_check_eq(fa_info(client, &info), -EINVAL);
	fa_check_eq(fa_fd(client), -EINVAL);
	fa_check_eq(fa_dispatch(client), -EINVAL);
	fa_check_eq(fa_reconnect(client), -EINVAL);
	fa_check_eq(fa_client_state(client), FA_CLIENT_LOST);
	fa_check_eq(fa_marker(client, 0, NULL, NULL), -EINVAL);
	fa_check_eq(fa_stream_new(client, 0, &stream), -EINVAL);
	fa_check_eq(fa_stream_free(client, 1), -EINVAL);
	fa_check_eq(fa_status(client, &json), -EINVAL);
	fa_check_eq(fa_sequence_create(client, 1, &value), -EINVAL);
	fa_check_eq(fa_cuda_trim(client), -EINVAL);
	fa_check_eq(fa_timeline_open(client, &other), -EINVAL);
	fa_check(!fa_socket_path(client));
	fa_check(!fa_disconnect(client));
	/* The client's objects were freed with it. */
	fa_check_eq(fa_timeline_write(timeline, 0, 1), -EINVAL);
	fa_check_contains(fa_error(), "went with its client");
	fa_check_eq(fa_timeline_read(timeline, 0, &value), -EINVAL);
	fa_check_eq(fa_timeline_wait(timeline, 0, 1, 0), -EINVAL);
	fa_check(!fa_buffer_data(scene.buffer));
	fa_check(!fa_buffer_free(scene.buffer));
	fa_check_eq(fa_attention(single_pair[0], &scene.good, NULL), -EINVAL);
	fa_check_contains(fa_error(), "q.buffer was freed");
	fa_check_eq(fa_ping(single_pair[0]), 0);
}

/* ---- requests for nothing */

static void nothing(const struct scene *scene, const struct fa_attention *request)
{
	struct fa_completion completion = { .size = sizeof(completion) };
	struct fa_ticket ticket;

	must(fa_attention(scene->client, request, NULL), "attention");
	must(fa_attention(scene->client, request, &ticket), "attention");
	must(fa_wait(scene->client, &ticket, UINT64_MAX, &completion), "wait");
	fa_check_eq(completion.status, 0);
	fa_check(fa_case_untouched(&scene->attention, fa_buffer_data(scene->buffer)));
}

static void test_empty(void **state)
{
	static const uint32_t none[] = { 0, 0, 0 };

	for (int i = 0; i < 2; ++i) {
		struct fa_attention request;
		struct scene scene;

		scene_init(&scene, single_pair[i], false);
		request = scene.good;
		request.q.shape[0] = request.k.shape[0] = request.v.shape[0] = 0;
		request.out.shape[0] = request.lse.shape[0] = 0;
		nothing(&scene, &request);
		request = scene.good;
		request.q.shape[1] = request.out.shape[1] = request.lse.shape[2] = 0;
		nothing(&scene, &request);
		request.k.shape[1] = request.v.shape[1] = 0;
		nothing(&scene, &request);

		/* An empty batch is checked like any other. */
		request = scene.good;
		request.q.shape[0] = request.k.shape[0] = request.v.shape[0] = 0;
		request.out.shape[0] = request.lse.shape[0] = 0;
		request.k.shape[2] = request.v.shape[2] = 3;
		refuse(&scene, &request, "heads");
		request = scene.good;
		request.q.shape[0] = 0;
		refuse(&scene, &request, "shape[0]");
		fa_buffer_free(scene.buffer);

		scene_init(&scene, single_pair[i], true);
		request = scene.good;
		request.q.shape[0] = request.out.shape[0] = request.lse.shape[1] = 0;
		request.cu_seqlens_q = none;
		nothing(&scene, &request);
		fa_buffer_free(scene.buffer);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fields),       cmocka_unit_test(test_options),
		cmocka_unit_test(test_overlap),      cmocka_unit_test(test_overlapping_buffers),
		cmocka_unit_test(test_packed),       cmocka_unit_test(test_empty),
		cmocka_unit_test(test_freed_buffer), cmocka_unit_test(test_freed_client),
		cmocka_unit_test(test_freed_stream),
	};

	return cmocka_run_group_tests_name("misuse", tests, single_pair_setup,
	                                   single_pair_teardown);
}
