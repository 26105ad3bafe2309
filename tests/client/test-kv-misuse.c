/*
 * Steps that a program gets wrong: layers with a wrong number of tokens, layers that fail, and steps
 * that went with their connection.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum {
	DIM = 16,
	HEADS = 2,
	ROWS = 16,
	LAYERS = 2,
};

struct scene {
	struct fa_client *client;
	uint64_t cache;
	struct fa_buffer *buffer;
};

static void scene_init(struct scene *scene, struct fa_client *client, const char *name)
{
	const struct fa_cache_options options = { .size = sizeof(options),
		                                  .name = name,
		                                  .dtype = FA_F32,
		                                  .layers = LAYERS,
		                                  .kv_heads = HEADS,
		                                  .head_dim = DIM,
		                                  .page_tokens = 16 };

	scene->client = client;
	must(fa_cache_create(client, &options, &scene->cache), "cache");
	must(fa_buffer_new(client, (uint64_t)4 * ROWS * HEADS * DIM * sizeof(float), 0,
	                   &scene->buffer),
	     "buffer");
}

static uint64_t sequence_new(const struct scene *scene)
{
	uint64_t sequence;

	must(fa_sequence_create(scene->client, scene->cache, &sequence), "sequence");
	return sequence;
}

static struct fa_step *begin(const struct scene *scene, uint64_t sequence, uint32_t n_new)
{
	const struct fa_step_item item = { .sequence = sequence, .n_new = n_new };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;

	must(fa_step_begin(scene->client, &options, &step), "begin");
	return step;
}

/* Tensor @at, 0 to 3, of the buffer. */
static struct fa_tensor tensor(const struct scene *scene, uint64_t at, int64_t rows)
{
	const int64_t shape[] = { rows, HEADS, DIM };
	struct fa_tensor tensor;

	fa_tensor_init(&tensor, scene->buffer, at * ROWS * HEADS * DIM * sizeof(float), FA_F32, 3,
	               shape);
	return tensor;
}

static struct fa_step_attend layer(const struct scene *scene, uint32_t layer, int64_t rows)
{
	return (struct fa_step_attend){ .size = sizeof(struct fa_step_attend),
		                        .flags = FA_STEP_CAUSAL,
		                        .layer = layer,
		                        .q = tensor(scene, 0, rows),
		                        .k_new = tensor(scene, 1, rows),
		                        .v_new = tensor(scene, 2, rows),
		                        .out = tensor(scene, 3, rows) };
}

static void refuse(struct fa_step *step, const struct fa_step_attend *attend, const char *part)
{
	const struct fa_step_attend_layers layers = { .size = sizeof(layers),
		                                      .n_layers = 1,
		                                      .attend = attend };

	fa_check_eq(fa_step_attend(step, attend, NULL), -EINVAL);
	fa_check_contains(fa_error(), part);
	fa_check_eq(fa_step_attend_layers(step, &layers, NULL), -EINVAL);
	fa_check_contains(fa_error(), part);
}

/* A layer with wrong tensors is refused at once, and the step goes on. */
static void test_wrong_shapes(void **state)
{
	struct scene scene;
	struct fa_step_attend attend;
	struct fa_sequence_info info = { .size = sizeof(info) };
	const uint32_t positions[] = { 0, 1, 2 };
	const float sinks[] = { 0, INFINITY };
	struct fa_step_attend_layers layers = { .size = sizeof(layers),
		                                .n_layers = LAYERS,
		                                .attend = &attend };
	struct fa_sequence_copy copy = { .size = sizeof(copy) };
	struct fa_step *step;
	uint64_t sequence;

	scene_init(&scene, single_client, NULL);
	sequence = sequence_new(&scene);
	step = begin(&scene, sequence, 3);

	attend = layer(&scene, 0, 4);
	refuse(step, &attend, "q.shape[0] is 4; expected 3, the new tokens of the step's items");
	attend.cache = scene.cache;
	refuse(step, &attend, "q.shape[0] is 4; expected 3");
	attend = layer(&scene, 0, 2);
	attend.cache = scene.cache;
	refuse(step, &attend, "q.shape[0] is 2; expected 3");
	attend.q.buffer = attend.out.buffer = NULL;
	refuse(step, &attend, "k_new.shape[0] is 2; expected 3");
	attend = layer(&scene, 0, 3);
	attend.k_new.shape[0] = 2;
	refuse(step, &attend, "k_new.shape[0] is 2; expected 3, the tokens of q");
	attend = layer(&scene, 0, 3);
	attend.v_new.shape[0] = 4;
	refuse(step, &attend, "v_new.shape[0] is 4");
	attend = layer(&scene, 0, 3);
	attend.out.shape[0] = 4;
	refuse(step, &attend, "out.shape[0] is 4");
	attend = layer(&scene, 0, 3);
	attend.out.shape[1] = 1;
	refuse(step, &attend, "out.shape[1] is 1; expected 2, the heads of q");
	attend = layer(&scene, 0, 3);
	attend.k_new.shape[2] = 8;
	refuse(step, &attend, "k_new.shape[2] is 8; expected 16, the head dim of q");
	attend = layer(&scene, 0, 3);
	attend.k_new.dtype = FA_BF16;
	refuse(step, &attend, "several dtypes");

	attend = layer(&scene, 0, 3);
	attend.window_right = 1;
	refuse(step, &attend, "window_right is 1, which has no effect without FA_STEP_WINDOW");
	attend = layer(&scene, 0, 3);
	attend.flags &= ~FA_STEP_CAUSAL;
	attend.prefix_lengths = positions;
	refuse(step, &attend,
	       "prefix_lengths is given, which has no effect without FA_STEP_CAUSAL");
	attend = layer(&scene, 0, 3);
	attend.q.buffer = attend.out.buffer = NULL;
	attend.chunk_tokens = 3;
	refuse(step, &attend, "chunk_tokens is given, which has no effect as out.buffer is NULL");
	attend.chunk_tokens = 0;
	attend.pattern = (struct fa_block_pattern){ .block_tokens = 64, .vert_stride = 8 };
	refuse(step, &attend, "pattern is given, which has no effect as out.buffer is NULL");
	attend = layer(&scene, 0, 3);
	attend.out.buffer = NULL;
	refuse(step, &attend, "q is given, which has no effect");
	attend = layer(&scene, 0, 3);
	attend.flags |= FA_STEP_ROTARY_INTERLEAVED;
	refuse(step, &attend, "FA_STEP_ROTARY_INTERLEAVED is given");
	attend = layer(&scene, 0, 3);
	attend.rotary_first = 8;
	refuse(step, &attend, "rotary_first is given");
	attend.rotary_first = 0;
	attend.rotary_base = 10000;
	refuse(step, &attend, "rotary_base is given");
	attend.rotary_base = 0;
	attend.rotary_scale = 1;
	refuse(step, &attend, "rotary_scale is given");
	attend = layer(&scene, 0, 3);
	attend.positions = positions;
	refuse(step, &attend, "positions is given");
	attend = layer(&scene, 0, 3);
	attend.sinks = sinks;
	refuse(step, &attend, "sinks[1] is inf");
	attend.q.buffer = attend.out.buffer = NULL;
	refuse(step, &attend, "sinks is given, which has no effect as out.buffer is NULL");

	attend = layer(&scene, 0, 3);
	attend.out = attend.q;
	refuse(step, &attend, "out overlaps q");
	attend.out = attend.k_new;
	attend.out.offset += 64;
	refuse(step, &attend, "out overlaps k_new");
	/* The second layer's output lies where its queries do. */
	attend = layer(&scene, 0, 3);
	layers.q_bytes = attend.out.offset;
	fa_check_eq(fa_step_attend_layers(step, &layers, NULL), -EINVAL);
	fa_check_contains(fa_error(), "out overlaps q");
	copy.k = copy.v = tensor(&scene, 0, 3);
	copy.sequence = sequence;
	fa_check_eq(fa_sequence_read(scene.client, &copy, NULL), -EINVAL);
	fa_check_contains(fa_error(), "k overlaps v");
	must(fa_sequence_write(scene.client, &copy, NULL), "write");

	for (uint32_t i = 0; i < LAYERS; ++i) {
		attend = layer(&scene, i, 3);
		attend.cache = i ? scene.cache : 0;
		must(fa_step_attend(step, &attend, NULL), "attend");
	}
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	must(fa_sequence_info(scene.client, sequence, &info), "info");
	fa_check_eq(info.length, 3);
	must(fa_cache_remove(scene.client, scene.cache), "remove");
	fa_buffer_free(scene.buffer);
}

/* Steps, layers and copies of no tokens succeed. */
static void test_empty(void **state)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_sequence_copy copy;
	struct scene scene;
	struct fa_step_attend attend;
	struct fa_step *step;
	uint64_t sequence;

	scene_init(&scene, single_client, NULL);
	sequence = sequence_new(&scene);
	copy = (struct fa_sequence_copy){ .size = sizeof(copy),
		                          .sequence = sequence,
		                          .k = tensor(&scene, 1, 0),
		                          .v = tensor(&scene, 2, 0) };
	step = begin(&scene, sequence, 0);
	for (uint32_t i = 0; i < LAYERS; ++i) {
		attend = layer(&scene, i, 0);
		must(fa_step_attend(step, &attend, NULL), "attend");
		must(fa_sequence_write(scene.client, &copy, NULL), "write");
	}
	must(fa_step_commit(step, NULL, NULL), "commit");
	fa_step_free(step);
	must(fa_sequence_read(scene.client, &copy, NULL), "read");
	copy.first = 1;
	fa_check_eq(fa_sequence_read(scene.client, &copy, NULL), -EINVAL);
	must(fa_sequence_info(scene.client, sequence, &info), "info");
	fa_check_eq(info.length, 0);
	must(fa_cache_remove(scene.client, scene.cache), "remove");
	fa_buffer_free(scene.buffer);
}

/* Sequences that another client made: the daemon knows their cache, this client does not. */
static void test_foreign_sequence(void **state)
{
	struct fa_options options = { .size = sizeof(options), .socket = single_daemon.socket };
	struct scene scene;
	struct fa_step_attend attend;
	struct fa_client *other;
	struct fa_step *step;
	uint64_t sequence;

	scene_init(&scene, single_client, "shared");
	sequence = sequence_new(&scene);
	must(fa_sequence_set_name(single_client, sequence, "foreign", 0, 0), "name");
	must(fa_connect(&options, &other), "connect");
	scene.client = other;
	fa_buffer_free(scene.buffer);
	must(fa_buffer_new(other, (uint64_t)4 * ROWS * HEADS * DIM * sizeof(float), 0,
	                   &scene.buffer),
	     "buffer");

	/* Without a step's tokens per cache the library refuses more than all, the daemon less. */
	step = begin(&scene, sequence, 3);
	attend = layer(&scene, 1, 4);
	attend.cache = scene.cache;
	refuse(step, &attend, "q.shape[0] is 4; expected at most 3");
	attend = layer(&scene, 1, 2);
	attend.cache = scene.cache;
	fa_check_eq(fa_step_attend(step, &attend, NULL), -EINVAL);
	/* The commit quotes the first cause, not the second. */
	attend = layer(&scene, 0, 3);
	fa_check_eq(fa_step_attend(step, &attend, NULL), -ECANCELED);
	fa_check_contains(fa_error(), "layer 1: ");
	fa_check_eq(fa_step_commit(step, NULL, NULL), -ECANCELED);
	fa_check_contains(fa_error(), "layer 1: ");
	fa_check_contains(fa_error(), "shape[0] is 2; expected 3");
	fa_step_free(step);
	fa_disconnect(other);
	must(fa_cache_remove(single_client, scene.cache), "remove");
}

static void test_freed_step(void **state)
{
	struct fa_sequence_copy copy = { .size = sizeof(copy) };
	struct fa_step_attend_layers layers = { .size = sizeof(layers), .n_layers = 1 };
	struct fa_step_attend attend;
	struct fa_step *step, *next;
	struct scene scene;

	scene_init(&scene, single_client, NULL);
	copy.sequence = sequence_new(&scene);
	step = begin(&scene, copy.sequence, 3);
	fa_check(!fa_step_free(step));
	next = begin(&scene, copy.sequence, 3);
	layers.attend = &attend;
	attend = layer(&scene, 0, 3);
	fa_check_eq(fa_step_attend(step, &attend, NULL), -EINVAL);
	fa_check_contains(fa_error(), "was freed");
	fa_check_eq(fa_step_attend_layers(step, &layers, NULL), -EINVAL);
	fa_check_eq(fa_step_commit(step, NULL, NULL), -EINVAL);
	fa_check_contains(fa_error(), "was freed");
	fa_check_eq(fa_step_abort(step, 0, NULL), -EINVAL);
	fa_check_eq(fa_step_number(step), 0);
	fa_check(!fa_step_free(step));
	fa_check(fa_step_number(next));

	/* A freed buffer is refused at once, and the step goes on. */
	fa_buffer_free(scene.buffer);
	refuse(next, &attend, "q.buffer was freed");
	copy.k = copy.v = tensor(&scene, 0, 3);
	fa_check_eq(fa_sequence_write(single_client, &copy, NULL), -EINVAL);
	fa_check_contains(fa_error(), "k.buffer was freed");
	must(fa_step_commit(next, NULL, NULL), "commit");
	fa_step_free(next);
	must(fa_cache_remove(single_client, scene.cache), "remove");
}

/* ---- a step that went with its connection */

static void test_lost_step(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options daemon_options = {
		.args = args, .config = "[pool]\nbytes = 64M\nchunk_bytes = 2M\n"
	};
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon supervisor;
	struct fa_sequence_copy copy;
	struct fa_step_attend attend;
	struct fa_client *client;
	struct fa_step *step, *next;
	struct fa_ticket ticket;
	struct scene scene;
	uint64_t sequence;
	pid_t pid;

	fa_test_daemon_start(&supervisor, &daemon_options);
	options.socket = supervisor.socket;
	must(fa_connect(&options, &client), "connect");
	scene_init(&scene, client, NULL);
	sequence = sequence_new(&scene);
	step = begin(&scene, sequence, 4);
	copy = (struct fa_sequence_copy){ .size = sizeof(copy),
		                          .sequence = sequence,
		                          .k = tensor(&scene, 1, 4),
		                          .v = tensor(&scene, 2, 4) };
	attend = layer(&scene, 0, 4);
	must(fa_sequence_write(client, &copy, NULL), "write");

	pid = fa_test_daemon_child(&supervisor);
	fa_check(!kill(pid, SIGKILL));
	(void)fa_test_daemon_next_child(&supervisor, pid);
	for (int i = 0; i < 2; ++i) {
		/* At first the client has not noticed the loss. */
		fa_check_eq(fa_sequence_write(client, &copy, NULL), -ECONNRESET);
		fa_check_eq(fa_sequence_write(client, &copy, &ticket), -ECONNRESET);
		fa_check_contains(fa_error(), "the step is gone with the connection");
		fa_check_eq(fa_step_attend(step, &attend, NULL), -ECONNRESET);
		fa_check_eq(fa_step_commit(step, NULL, NULL), -ECONNRESET);
		fa_check_eq(fa_step_abort(step, 0, NULL), -ECONNRESET);
		must(fa_reconnect(client), "reconnect");
	}
	must(fa_sequence_info(client, sequence, &info), "info");
	fa_check_eq(info.length, 0);

	/* A new step takes the sequence over, also while the old handle exists. */
	next = begin(&scene, sequence, 4);
	for (uint32_t i = 0; i < LAYERS; ++i) {
		copy.layer = i;
		must(fa_sequence_write(client, &copy, NULL), "write");
	}
	must(fa_step_commit(next, NULL, NULL), "commit");
	fa_step_free(next);
	fa_check_eq(fa_sequence_write(client, &copy, NULL), -ECONNRESET);
	fa_step_free(step);
	/* Without any step it is a mistake of the program. */
	fa_check_eq(fa_sequence_write(client, &copy, NULL), -EINVAL);
	fa_check_contains(fa_error(), "a step in flight has planned");
	fa_disconnect(client);
	fa_test_daemon_stop(&supervisor);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_wrong_shapes, single_setup, single_teardown),
		cmocka_unit_test_setup_teardown(test_empty, single_setup, single_teardown),
		cmocka_unit_test_setup_teardown(test_freed_step, single_setup, single_teardown),
		cmocka_unit_test_setup_teardown(test_foreign_sequence, single_setup,
		                                single_teardown),
		cmocka_unit_test(test_lost_step),
	};

	return cmocka_run_group_tests_name("kv-misuse", tests, NULL, NULL);
}
