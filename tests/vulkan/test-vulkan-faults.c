/*
 * The daemon on a Vulkan device that is lost, hangs, or has no memory, by a layer that makes calls fail
 * (layer.c): each request is answered with the reason, a lost device ends the process and asks for a restart,
 * and all other faults leave the daemon in service.
 */
#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/memfd.h"
#include "tests/client/kv-load.h"
#include "tests/client/kv.h"
#include "tests/daemon/attention-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/scene.h"
#include "tests/vulkan/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include <cmocka.h>

#define FOREVER UINT32_MAX
#define BYTES 65536

static struct fa_test_vulkan vulkan;
static struct fa_test_daemon daemon_;
static struct attention_client clients[2];

static void open_all(void)
{
	fa_test_daemon_start(&daemon_, NULL);
	for (int i = 0; i < 2; ++i)
		attention_client_open(&clients[i], daemon_.socket, attention_client_small_case());
}

static int start(void **state)
{
	fa_test_vulkan_begin(&vulkan);
	open_all();
	return 0;
}

/* A device that claims to be a GPU, with a driver that pins pages as NVIDIA's does. */
static int start_gpu(void **state)
{
	fa_test_vulkan_begin(&vulkan);
	atomic_store(&vulkan.page->is_gpu, 1);
	atomic_store(&vulkan.page->pins_for_writing, 1);
	open_all();
	return 0;
}

static int stop(void **state)
{
	for (int i = 0; i < 2; ++i)
		attention_client_close(&clients[i]);
	fa_test_daemon_stop(&daemon_);
	fa_test_vulkan_end(&vulkan);
	return 0;
}

static void compute(int client)
{
	attention_client_submit(&clients[client], 0);
	attention_client_expect(&clients[client], 0);
}

static void expect(int client, int status, const char *part)
{
	attention_client_submit(&clients[client], 0);
	fa_raw_wait_expect(&clients[client].raw, 0, clients[client].values[0], status, part);
}

/* All clients see the end of the daemon, whose log says @part, and whose status asks for a new start. */
static void expect_lost(const char *part)
{
	_fa_cleanup_(fa_freep) char *log = NULL;
	int status;

	for (int i = 0; i < 2; ++i)
		fa_raw_expect_end(&clients[i].raw);
	fa_test_daemon_wait_dead(&daemon_);
	log = fa_test_daemon_log(&daemon_);
	status = fa_test_daemon_reap(&daemon_);
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), EX_TEMPFAIL);
	fa_check_contains(log, "the device is lost, and this process ends");
	fa_check_contains(log, part);
}

static void test_lost_at_submission(void **state)
{
	compute(0);
	fa_test_vulkan_fail(&vulkan, FA_TEST_VULKAN_SUBMIT, 0, FOREVER, VK_ERROR_DEVICE_LOST);
	expect(1, -ENODEV, "VK_ERROR_DEVICE_LOST");
	expect_lost("VK_ERROR_DEVICE_LOST");
}

/* Requests that wait for the one that meets the fault end, too, each once and in order. */
static void test_lost_at_wait(void **state)
{
	struct fa_case slow = fa_case_slow();
	struct fa_wire_message message;
	struct fa_raw *raw = &clients[0].raw;
	struct fa_raw_buffer buffer;

	compute(0);
	fa_raw_buffer_register(raw, &buffer, 2, slow.bytes, 0);
	message = fa_case_message(&slow, 2, 0, 0, 2);
	fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
	for (uint64_t value = 3; value <= 40; ++value) {
		message = fa_case_message(&clients[0].attention, 1, 0, 0, value);
		fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
	}
	/* Make the daemon read all requests: unread ones may end with the connection. */
	fa_raw_ping(raw);
	fa_test_vulkan_fail(&vulkan, FA_TEST_VULKAN_WAIT, 0, FOREVER, VK_ERROR_DEVICE_LOST);
	for (uint64_t value = 2; value <= 40; ++value)
		fa_raw_wait_expect(raw, 0, value, -ENODEV, "VK_ERROR_DEVICE_LOST");
	expect_lost("VK_ERROR_DEVICE_LOST");
	fa_raw_buffer_free(NULL, &buffer);
}

/* A part that takes too long is stopped, and its request alone fails. */
static void test_slow_part(void **state)
{
	compute(0);
	fa_test_vulkan_fail(&vulkan, FA_TEST_VULKAN_WAIT, 0, 1, VK_TIMEOUT);
	expect(1, -ETIME, "a part of the request took more than");
	fa_check_eq(fa_test_vulkan_failed(&vulkan, FA_TEST_VULKAN_WAIT), 1);
	compute(0);
	compute(1);
}

/* A device that cannot be stopped is lost. */
static void test_hang(void **state)
{
	compute(0);
	fa_test_vulkan_fail(&vulkan, FA_TEST_VULKAN_WAIT, 0, FOREVER, VK_TIMEOUT);
	expect(1, -ENODEV, "has not finished a part of a request");
	expect_lost("has not finished a part of a request");
}

static void no_memory_once(void)
{
	fa_test_vulkan_fail(&vulkan, FA_TEST_VULKAN_ALLOCATE, 0, 1, VK_ERROR_OUT_OF_DEVICE_MEMORY);
}

/* The next request asks again for memory that was refused. */
static void test_no_memory(void **state)
{
	struct fa_wire_message message = fa_raw_register_message(2, BYTES);
	struct fa_raw *raw = &clients[0].raw;
	struct fa_raw_buffer buffer;

	fa_raw_buffer_make(&buffer, 2, BYTES);
	no_memory_once();
	message.fds = 1;
	fa_raw_call_expect(raw, &message, &buffer.fd, 1, -ENOMEM,
	                   "memory cannot be imported: VK_ERROR_OUT_OF_DEVICE_MEMORY");
	fa_check_eq(fa_test_vulkan_failed(&vulkan, FA_TEST_VULKAN_ALLOCATE), 1);
	fa_raw_call(raw, &message, &buffer.fd, 1);
	fa_check_eq(raw->message.type, FA_WIRE_BUFFER_REPLY);
	compute(0);
	fa_raw_buffer_free(raw, &buffer);
}

static void test_kernel_does_not_compile(void **state)
{
	fa_test_vulkan_fail(&vulkan, FA_TEST_VULKAN_COMPILE, 0, 1, VK_ERROR_OUT_OF_DEVICE_MEMORY);
	expect(0, -ENOMEM, "a Vulkan kernel cannot be compiled: VK_ERROR_OUT_OF_DEVICE_MEMORY");
	compute(0);
}

static void register_read_only(int fd, uint64_t bytes, int status, const char *part)
{
	struct fa_wire_message message = fa_raw_register_message(2, bytes);

	message.buffer_register.flags = FA_WIRE_BUFFER_READ_ONLY;
	message.fds = 1;
	fa_raw_call(&clients[0].raw, &message, &fd, 1);
	if (status == 0) {
		fa_check_eq(clients[0].raw.message.type, FA_WIRE_BUFFER_REPLY);
		return;
	}
	fa_check_eq(clients[0].raw.message.type, FA_WIRE_REPLY);
	fa_check_eq(clients[0].raw.message.reply.status, status);
	fa_check_contains(clients[0].raw.message.reply.text.text, part);
}

static void unregister(void)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = 2;
	fa_raw_call_expect(&clients[0].raw, &message, NULL, 0, 0, NULL);
}

/* Computes with q, k and v in buffer 2. */
static void compute_from_read_only(const char *inputs)
{
	struct fa_case *attention = &clients[0].attention;
	struct fa_wire_message message = fa_case_message(attention, 1, 0, 0,
	                                                 ++clients[0].values[0]);
	unsigned char *data = clients[0].buffer.data;

	message.attention.q.buffer = message.attention.k.buffer = message.attention.v.buffer = 2;
	memset(data, 0xff, attention->bytes);
	fa_check_eq(fa_raw_send(&clients[0].raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&clients[0].raw, 0, clients[0].values[0], 0, NULL);
	memcpy(data, inputs, attention->offset_out);
	fa_check(fa_case_error(attention, data) <= 1);
}

/* Where a driver pins all pages for writing, memory that can only be read is mapped for writing or copied. */
static void test_read_only_memory(void **state)
{
	const struct fa_case *attention = &clients[0].attention;
	_fa_cleanup_(fa_close_fdp) int fd = memfd_create("inputs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	_fa_cleanup_(fa_close_fdp) int reading = -1;
	char path[64];
	char *inputs = test_malloc(attention->bytes);

	fa_test_daemon_log_wait(&daemon_, "sealed memory is copied");
	fa_case_fill(attention, inputs);
	fa_check_eq(pwrite(fd, inputs, attention->bytes, 0), (ssize_t)attention->bytes);
	fa_check(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	register_read_only(fd, attention->bytes, 0, NULL);
	compute_from_read_only(inputs);
	unregister();

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	reading = open(path, O_RDONLY | O_CLOEXEC);
	fa_check(reading >= 0);
	register_read_only(reading, attention->bytes, -ENOTSUP,
	                   "open for writing, or has F_SEAL_WRITE");

	/* The daemon lets go of what was mapped for writing in the background. */
	fa_check_eventually(!fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
	register_read_only(fd, attention->bytes, 0, NULL);
	compute_from_read_only(inputs);
	unregister();
	register_read_only(reading, attention->bytes, 0, NULL);
	compute_from_read_only(inputs);
	unregister();
	test_free(inputs);
}

/* ---- a pool whose device is lost again and again */

static void start_supervisor(void)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = {
		.args = args, .config = "[pool]\nbytes = 1G\nchunk_bytes = 2M\n"
	};

	fa_test_daemon_start(&daemon_, &options);
}

static int start_supervised(void **state)
{
	fa_test_vulkan_begin(&vulkan);
	start_supervisor();
	return 0;
}

static int start_supervised_gpu(void **state)
{
	fa_test_vulkan_begin(&vulkan);
	atomic_store(&vulkan.page->is_gpu, 1);
	start_supervisor();
	return 0;
}

/* A chunk of the pool that cannot be had now is had later. */
static void test_no_memory_for_the_pool(void **state)
{
	struct fa_options options = { .size = sizeof(options), .socket = daemon_.socket };
	uint32_t tags[4] = { 1, 2, 3, 4 };
	struct kv_item item = { .tags = tags, .length = 4, .n_new = 4 };
	struct fa_client *client;
	struct fa_step *step;
	struct kv kv;

	fa_check_eq(fa_connect(&options, &client), 0);
	kv_init(&kv, client, NULL, 0);
	fa_check_eq(fa_sequence_create(client, kv.cache, &item.sequence), 0);
	no_memory_once();
	fa_check_eq(kv_begin(&kv, &item, 1, &step), -ENOMEM);
	fa_check_contains(fa_error(), "the pool is exhausted");
	fa_test_daemon_log_wait(&daemon_, "VK_ERROR_OUT_OF_DEVICE_MEMORY");
	fa_check_eventually(kv_begin(&kv, &item, 1, &step) == 0);
	fa_check_eq(kv_attend(&kv, step, &item, 1, 0, true), 0);
	kv_check_out(&kv, &item, 1);
	fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
	fa_step_free(step);
	fa_check_eq(kv_check_pages(&kv, item.sequence, tags, 0, 4), 0);
	kv_deinit(&kv);
	fa_disconnect(client);
}

static int stop_supervised(void **state)
{
	fa_test_daemon_stop(&daemon_);
	fa_test_vulkan_end(&vulkan);
	return 0;
}

/* Committed tokens survive, except in sequences that a step was writing. */
static void test_lost_under_load(void **state)
{
	const int rounds = fa_test_long() ? 50 : 3;
	struct fa_test_random random = { .state = 9 };

	kv_load_begin(daemon_.socket, true);
	for (int i = 0; i < rounds; ++i) {
		const uint64_t before = kv_load_progress();
		const pid_t pid = fa_test_daemon_child(&daemon_);
		char said[64];

		fa_check_eventually(kv_load_progress() > before + 5);
		fa_test_vulkan_fail(&vulkan,
		                    i % 2 && !vulkan.page->is_gpu ? FA_TEST_VULKAN_WAIT
		                                                  : FA_TEST_VULKAN_SUBMIT,
		                    fa_test_random_below(&random, 10), 1, VK_ERROR_DEVICE_LOST);
		(void)fa_test_daemon_next_child(&daemon_, pid);
		snprintf(said, sizeof(said), "fad (%ld) exited with status %d", (long)pid,
		         EX_TEMPFAIL);
		fa_test_daemon_log_wait(&daemon_, said);
	}
	kv_load_end();
}

/* ---- the validation layers */

/* Ends with FA_TEST_EXIT if the daemon's log shows a mistake. */
static int plant_mistake(void *userdata)
{
	struct fa_test_daemon daemon;
	struct fa_wire_message message = fa_raw_register_message(1, BYTES);
	struct fa_raw_buffer buffer;
	struct fa_raw raw;

	fa_test_daemon_start(&daemon, NULL);
	fa_raw_open(&raw, daemon.socket);
	fa_raw_buffer_make(&buffer, 1, BYTES);
	if (userdata)
		atomic_store(&vulkan.page->mistake, 1);
	message.fds = 1;
	fa_check_eq(fa_raw_send(&raw, &message, &buffer.fd, 1), 0);
	if (userdata) {
		fa_test_daemon_log_wait(&daemon, "Validation Error");
		fa_test_daemon_wait_dead(&daemon);
	} else {
		fa_check_eq(fa_raw_receive(&raw, 60000), 1);
		fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	}
	if (!userdata)
		fa_test_daemon_signal(&daemon, SIGTERM);
	(void)fa_test_daemon_reap(&daemon);
	return 0;
}

static void test_mistakes_are_seen(void **state)
{
	int status;

	fa_test_vulkan_begin(&vulkan);
	fa_check_eq(fa_test_reap(fa_test_fork(plant_mistake, NULL)), 0);
	status = fa_test_reap(fa_test_fork(plant_mistake, &vulkan));
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), FA_TEST_EXIT);
	fa_check(!atomic_load(&vulkan.page->mistake));
	fa_test_vulkan_end(&vulkan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_lost_at_submission, start, stop),
		cmocka_unit_test_setup_teardown(test_lost_at_submission, start_gpu, stop),
		cmocka_unit_test_setup_teardown(test_lost_at_wait, start, stop),
		cmocka_unit_test_setup_teardown(test_lost_at_wait, start_gpu, stop),
		cmocka_unit_test_setup_teardown(test_slow_part, start, stop),
		cmocka_unit_test_setup_teardown(test_hang, start, stop),
		cmocka_unit_test_setup_teardown(test_no_memory, start, stop),
		cmocka_unit_test_setup_teardown(test_kernel_does_not_compile, start, stop),
		cmocka_unit_test_setup_teardown(test_read_only_memory, start_gpu, stop),
		cmocka_unit_test_setup_teardown(test_no_memory_for_the_pool, start_supervised,
		                                stop_supervised),
		cmocka_unit_test_setup_teardown(test_lost_under_load, start_supervised,
		                                stop_supervised),
		cmocka_unit_test_setup_teardown(test_lost_under_load, start_supervised_gpu,
		                                stop_supervised),
		cmocka_unit_test(test_mistakes_are_seen),
	};

	return cmocka_run_group_tests_name("vulkan-faults", tests, NULL, NULL);
}
