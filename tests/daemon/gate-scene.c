#include "gate-scene.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct fa_test_cuda cuda;
struct fa_test_daemon daemon_;
struct fa_test_cuda_page *page;
int priority;

void serve(void)
{
	fa_test_daemon_start(&daemon_,
	                     &(struct fa_test_daemon_options){ .config = "[pool]\nbytes = 16M\n"
	                                                                 "chunk_bytes = 2M\n" });
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
}

int gates_start(void **state)
{
	setenv("FAD_TEST_CUDA_MPS", "1", 1);
	/* Every preemptible kernel is preempted. */
	setenv("FAD_TUNE_PREEMPT_WORK_NS", "0", 1);
	/* One stream per priority: clients share it. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1);
	fa_test_cuda_begin(&cuda);
	serve();
	return 0;
}

int gates_stop(void **state)
{
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_test_daemon_stop(&daemon_);
	fa_check_eq(fa_test_cuda_abandoned(page), 0);
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

void engine_end(struct engine *engine)
{
	struct kv_client *client = &engine->client;

	kv_wait(client, STREAM, kv_end(client, STREAM, STEP, true));
	kv_check(client, engine->sequence, engine->numbers, 0, OLD + TOKENS);
	munmap(engine->in, FA_TIMELINE_BYTES);
	kv_close(client);
}

uint64_t attend(struct engine *engine, uint32_t layer, const struct fa_wire_gate *gates, uint32_t n,
                const float **ret_out)
{
	struct fa_wire_message message = kv_attend_message(&engine->client, STREAM, STEP, layer,
	                                                   engine->numbers + OLD, TOKENS, ret_out);

	memset(&message.step_attend.k, 0, sizeof(message.step_attend.k));
	memset(&message.step_attend.v, 0, sizeof(message.step_attend.v));
	memset((void *)*ret_out, 0xff, TOKENS * KV_HEADS * KV_DIM_V * sizeof(float));
	message.waits = gates;
	message.n_waits = n;
	return kv_send(&engine->client, &message, STREAM);
}

uint64_t attend_at(struct engine *engine, uint64_t value, const float **ret_out)
{
	const struct fa_wire_gate gate = { .slot = WANTED, .value = value };

	return attend(engine, value % KV_LAYERS, &gate, 1, ret_out);
}

void check_out(const struct engine *engine, uint32_t layer, const float *out)
{
	kv_check_out(layer, engine->numbers, OLD + TOKENS, TOKENS, out);
}

bool is_untouched(const float *out)
{
	uint32_t word;

	memcpy(&word, out, sizeof(word));
	return word == UINT32_MAX;
}

void write_slot(struct engine *engine, uint32_t slot, uint64_t value)
{
	atomic_store(&engine->in[slot].value, value);
}

uint64_t slot(const struct engine *engine)
{
	return atomic_load(&engine->in[WANTED].value);
}

/* The device learns of slots later than the client: waits until it takes a gate. */
static void wait_known(struct engine *engine)
{
	const struct fa_test_cuda_gates before = fa_test_cuda_gates(page);

	for (uint64_t value = 1; fa_test_cuda_gates(page).began == before.began; value++) {
		const struct fa_wire_gate gate = { .slot = READY, .value = value };
		const float *out;
		uint64_t request;

		request = attend(engine, 0, &gate, 1, &out);
		fa_test_let_sleep_ms(5);
		write_slot(engine, READY, value);
		kv_wait(&engine->client, STREAM, request);
	}
}

void engine_begin(struct engine *engine)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);
	struct kv_client *client = &engine->client;

	kv_open(client, daemon_.socket);
	fa_raw_stream_create(&client->raw, STREAM, priority);
	fa_raw_call(&client->raw, &message, NULL, 0);
	fa_check_eq(client->raw.message.type, FA_WIRE_TIMELINE_REPLY);
	engine->in = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
	                  client->raw.fds[0], 0);
	fa_check(engine->in != MAP_FAILED);
	kv_count(engine->numbers, 1, OLD + TOKENS);
	engine->sequence = kv_sequence(client, kv_cache(client, NULL, 0));
	kv_append(client, engine->sequence, engine->numbers, 0, OLD);
	kv_begin_one(client, STEP, engine->sequence, TOKENS);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(client, STREAM, STEP, layer, engine->numbers + OLD, TOKENS, NULL);
	kv_wait(client, STREAM, client->values[STREAM]);
	fa_test_cuda_gate_us(page, FOR_EVER_US);
	wait_known(engine);
}

void wait_began(const struct fa_test_cuda_gates *before, uint32_t n)
{
	fa_check_eventually(fa_test_cuda_gates(page).began - before->began >= n);
}

struct fa_test_cuda_gates ask_two(struct engine *engine, uint64_t value, uint64_t *requests,
                                  const float **outs)
{
	const struct fa_test_cuda_gates before = fa_test_cuda_gates(page);

	for (uint64_t i = 0; i < 2; i++)
		requests[i] = attend_at(engine, value + i, &outs[i]);
	wait_began(&before, 1);
	return before;
}

void let_pass(struct engine *engine)
{
	const float *out;

	for (int i = 0; i < 70; i++) {
		const uint64_t value = slot(engine) + 1;
		uint64_t request;

		write_slot(engine, WANTED, value);
		request = attend_at(engine, value, &out);
		kv_wait(&engine->client, STREAM, request);
	}
}

void begin_again(struct engine *engine, int status)
{
	kv_wait_expect(&engine->client, STREAM, kv_end(&engine->client, STREAM, STEP, true), status,
	               NULL);
	kv_begin_one(&engine->client, STEP, engine->sequence, TOKENS);
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
		kv_attend(&engine->client, STREAM, STEP, layer, engine->numbers + OLD, TOKENS,
		          NULL);
	kv_wait(&engine->client, STREAM, engine->client.values[STREAM]);
}
