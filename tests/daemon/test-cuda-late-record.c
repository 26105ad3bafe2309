/*
 * Requests that the device reports to the client long before the daemon: what the client may count
 * on in between. The tests' driver delays the daemon's word.
 */
#include "tests/cuda-driver/control.h"
#include "tests/daemon/ring-scene.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* The daemon waits for its own word only for a small part of this. */
#define LATE_US 20000
#define ROUNDS 20

static struct fa_test_cuda cuda;
static struct fa_test_cuda_page *page;

static void start(const char *config)
{
	fa_test_cuda_begin(&cuda);
	fa_scene_start(&scene, &(struct fa_test_daemon_options){ .config = config });
	page = fa_test_cuda_attach(&cuda, scene.daemon.pid);
}

static void stop(void)
{
	fa_test_cuda_detach(page);
	fa_scene_stop(&scene);
	fa_test_cuda_end(&cuda);
}

struct client {
	struct fa_raw raw;
	struct fa_raw_ring ring;
	struct fa_raw_buffer buffer;
	uint64_t value;
};

static bool is_reported(const struct client *client, uint32_t stream)
{
	return fa_completion_device_done(&client->raw.page[stream], client->value);
}

static void send(struct client *client, uint32_t stream, bool by_ring)
{
	struct fa_wire_message message = fa_case_message(&small, 1, 0, stream, ++client->value);

	if (by_ring)
		fa_raw_ring_send(&client->ring, &message);
	else
		fa_check_eq(fa_raw_send(&client->raw, &message, NULL, 0), 0);
}

static void wait_recorded(const struct client *client, uint32_t stream)
{
	fa_check_eq(fa_raw_ring_wait(&client->raw, &client->ring, stream, client->value).status, 0);
}

/* Sends requests until the device reports one: the daemon must register the page first. */
static void client_open(struct client *client, uint32_t stream)
{
	open_ring(0);
	make_small();
	if (stream)
		fa_raw_stream_create(&raw, stream, 0);
	*client = (struct client){ .raw = raw, .ring = ring, .buffer = buffer };
	do {
		send(client, stream, true);
		wait_recorded(client, stream);
	} while (!is_reported(client, stream));
}

static void client_close(struct client *client)
{
	raw = client->raw;
	ring = client->ring;
	close_ring();
}

/* The device reports every request before there is a record of it. */
static void wait_reported(const struct client *client, uint32_t stream)
{
	while (!is_reported(client, stream) && !client->raw.page[stream].failed)
		(void)sched_yield();
	fa_check_eq(client->raw.page[stream].failed, 0);
}

/* One request may be in flight. */
static void test_limits(void **state)
{
	struct client clients[2];

	start("[limits]\nrequests = 1\nsession_requests = 1\n");
	for (int i = 0; i < 2; ++i)
		client_open(&clients[i], 0);
	fa_test_cuda_record_us(page, LATE_US);
	for (int round = 0; round < ROUNDS; ++round) {
		/* Each client sends twice in turn, so that both limits are reached. */
		struct client *client = &clients[round / 2 % 2];

		send(client, 0, round % 3 != 0);
		wait_reported(client, 0);
	}
	fa_test_cuda_record_us(page, 0);
	for (int i = 0; i < 2; ++i) {
		wait_recorded(&clients[i], 0);
		client_close(&clients[i]);
	}
	fa_scene_check(&scene);
	stop();
}

static void test_stream(void **state)
{
	struct fa_wire_message cancel = fa_raw_message(FA_WIRE_CANCEL);
	struct client client;

	start(NULL);
	client_open(&client, 3);
	cancel.cancel.stream = 3;
	for (int round = 0; round < ROUNDS; ++round) {
		fa_test_cuda_record_us(page, LATE_US);
		send(&client, 3, true);
		wait_reported(&client, 3);
		cancel.cancel.value = client.value;
		fa_raw_call_expect(&client.raw, &cancel, NULL, 0, -ENOENT, NULL);
		/* The answer comes only when the record has come. */
		fa_raw_stream_free(&client.raw, 3);
		fa_check(client.raw.page[3].completed == client.value);
		/* A stream with a request that the device has not reported is busy at once. */
		fa_raw_stream_create(&client.raw, 3, 0);
		fa_test_cuda_record_us(page, 0);
		fa_test_cuda_hold(page, true);
		send(&client, 3, true);
		fa_raw_ping(&client.raw);
		{
			struct fa_wire_message message = fa_raw_message(FA_WIRE_STREAM_FREE);

			message.stream_free.stream = 3;
			fa_raw_call_expect(&client.raw, &message, NULL, 0, -EBUSY, "in flight");
		}
		fa_test_cuda_hold(page, false);
		wait_recorded(&client, 3);
	}
	client_close(&client);
	fa_scene_check(&scene);
	stop();
}

/* A buffer that only a reported request uses counts for no limit when it was freed. */
static void test_buffer(void **state)
{
	struct client client;

	/* The bystander has one. */
	start("[limits]\nbuffers = 2\n");
	client_open(&client, 0);
	for (int round = 0; round < ROUNDS; ++round) {
		fa_test_cuda_record_us(page, LATE_US);
		send(&client, 0, true);
		wait_reported(&client, 0);
		fa_raw_buffer_free(&client.raw, &client.buffer);
		fa_raw_buffer_register(&client.raw, &client.buffer, 1, small.bytes, 0);
		fa_case_fill(&small, client.buffer.data);
		fa_test_cuda_record_us(page, 0);
	}
	wait_recorded(&client, 0);
	client_close(&client);
	fa_scene_check(&scene);
	stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_stream),
		cmocka_unit_test(test_buffer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
