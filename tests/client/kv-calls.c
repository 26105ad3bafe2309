#include "tests/client/kv-calls.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

struct fa_client *client;

static struct fake_daemon fake;
static struct seen seen;
static pthread_mutex_t seen_mutex = PTHREAD_MUTEX_INITIALIZER;

/*
 * The reply may come through shared memory, which TSan cannot follow: the mutex orders the two
 * threads.
 */
struct seen *heard(void)
{
	pthread_mutex_lock(&seen_mutex);
	pthread_mutex_unlock(&seen_mutex);
	return &seen;
}

static void serve(struct fa_raw *raw, void *userdata)
{
	struct fa_completion_slot *page = fake_daemon_welcome(raw);

	while (page && fake_daemon_next(raw)) {
		int status;

		pthread_mutex_lock(&seen_mutex);
		seen.last = raw->message;
		++seen.count[raw->message.type];
		if (raw->message.type == FA_WIRE_BUFFER_REGISTER) {
			seen.buffer_bytes = raw->message.buffer_register.bytes;
			seen.buffer = mmap(NULL, seen.buffer_bytes, PROT_READ, MAP_SHARED,
			                   raw->fds[0], 0);
			fa_check(seen.buffer != MAP_FAILED);
		}
		if (raw->message.type == FA_WIRE_SEQUENCE_PUBLISH)
			seen.tokens_view = raw->message.sequence_publish.tokens_view;
		status = seen.status;
		pthread_mutex_unlock(&seen_mutex);
		if (status)
			fake_daemon_reply(raw, raw->message.id, status, "for a reason");
		else
			fake_daemon_answer(raw, page);
	}
}

int calls_setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fake_daemon_start(&fake, serve, NULL);
	options.socket = fake.socket;
	fa_check_eq(fa_connect(&options, &client), 0);
	return 0;
}

int calls_teardown(void **state)
{
	fa_disconnect(client);
	fake_daemon_stop(&fake);
	return 0;
}

struct fa_step *begin(uint32_t n_items)
{
	static struct fa_step_item items[64];
	struct fa_step_options options = { .size = sizeof(options),
		                           .n_items = n_items,
		                           .items = items };
	struct fa_step *step;

	for (uint32_t i = 0; i < n_items; ++i)
		items[i] = (struct fa_step_item){ .sequence = i + 1, .n_new = 4 };
	fa_check_eq(fa_step_begin(client, &options, &step), 0);
	return step;
}

struct fa_tensor tensor(struct fa_buffer *buffer, uint32_t rank, int64_t a, int64_t b, int64_t c)
{
	const int64_t shape[] = { a, b, c };
	struct fa_tensor tensor;

	fa_tensor_init(&tensor, buffer, 64, FA_F32, rank, shape);
	return tensor;
}

struct fa_step_attend attend_all(struct fa_buffer *buffer)
{
	struct fa_step_attend attend = {
		.size = sizeof(attend),
		.flags = FA_STEP_CAUSAL | FA_STEP_WINDOW | FA_STEP_ROTARY_INTERLEAVED |
		         FA_STEP_DETERMINISTIC,
		.layer = 5,
		.cache = 6,
		.q = tensor(buffer, 3, 4, 2, 16),
		.k_new = tensor(buffer, 3, 4, 1, 16),
		.v_new = tensor(buffer, 3, 4, 1, 8),
		.out = tensor(buffer, 3, 4, 2, 8),
		.lse = tensor(buffer, 2, 2, 4, 0),
		.scale = 0.5f,
		.softcap = 30,
		.window_left = 128,
		.window_right = 0,
		.rotary_dim = 8,
		.cos = tensor(buffer, 2, 32, 4, 0),
		.sin = tensor(buffer, 2, 32, 4, 0),
		.timeout_ns = 123456789,
	};

	attend.out.offset = 4096;
	attend.lse.offset = 8192;
	return attend;
}
