/*
 * One KV cache for three processes: one writes a prompt of 100 tokens, one continues it, and one
 * continues its first half, without copies. Queries are zero, so attention is the mean of the
 * values that a token sees; token i of the prompt has the value i.
 */
#include <faclient.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	PROMPT = 100,
	DIM = 64,
	TENSOR_BYTES = PROMPT * DIM * 2
};

static char cache_name[64], prompt_name[64];

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fa_error());
	return 1;
}

/* Appends n tokens of values first, first + 1, ...; *ret_mean is the last one's attention. */
static int append(struct fa_client *client, uint64_t sequence, uint32_t n, float first,
                  float *ret_mean)
{
	const struct fa_step_item item = { .sequence = sequence, .n_new = n };
	struct fa_step_options options = { .size = sizeof(options), .n_items = 1, .items = &item };
	struct fa_step_attend attend = { .size = sizeof(attend), .flags = FA_STEP_CAUSAL };
	const int64_t shape[] = { n, 1, DIM };
	struct fa_buffer *buffer;
	struct fa_step *step;
	unsigned short *v;
	unsigned int bits;

	/* Buffers start zeroed. bfloat16 is the upper half of a float. */
	if (fa_buffer_new(client, 4 * TENSOR_BYTES, 0, &buffer) < 0)
		return fail("buffer");
	fa_tensor_init(&attend.q, buffer, 0, FA_BF16, 3, shape);
	fa_tensor_init(&attend.k_new, buffer, TENSOR_BYTES, FA_BF16, 3, shape);
	fa_tensor_init(&attend.v_new, buffer, 2 * TENSOR_BYTES, FA_BF16, 3, shape);
	fa_tensor_init(&attend.out, buffer, 3 * TENSOR_BYTES, FA_BF16, 3, shape);
	v = (unsigned short *)fa_buffer_data(buffer) + 2 * PROMPT * DIM;
	for (uint32_t i = 0; i < n; ++i) {
		float value = first + (float)i;

		memcpy(&bits, &value, sizeof(bits));
		for (int d = 0; d < DIM; ++d)
			v[i * DIM + d] = (unsigned short)(bits >> 16);
	}

	/* A model with more layers calls fa_step_attend() for each. */
	if (fa_step_begin(client, &options, &step) < 0)
		return fail("begin");
	if (fa_step_attend(step, &attend, NULL) < 0)
		return fail("attend");
	if (fa_step_commit(step, NULL, NULL) < 0)
		return fail("commit");
	fa_step_free(step);
	bits = (unsigned int)v[PROMPT * DIM + (n - 1) * DIM] << 16;
	memcpy(ret_mean, &bits, sizeof(bits));
	fa_buffer_free(buffer);
	return 0;
}

static int check(const char *who, float mean, float expected)
{
	printf("%s: the mean is %g, expected %g\n", who, mean, expected);
	fflush(stdout);
	return fabsf(mean - expected) > 0.005f * expected;
}

static int prefill(struct fa_client *client)
{
	struct fa_cache_options options = { .size = sizeof(options),
		                            .name = cache_name,
		                            .dtype = FA_BF16,
		                            .layers = 1,
		                            .kv_heads = 1,
		                            .head_dim = DIM };
	uint64_t cache, sequence;
	float mean;

	if (fa_cache_create(client, &options, &cache) < 0 ||
	    fa_sequence_create(client, cache, &sequence) < 0)
		return fail("cache");
	if (append(client, sequence, PROMPT, 0, &mean) != 0)
		return 1;
	/* With a name the sequence outlives this process, and others can find it. */
	if (fa_sequence_set_name(client, sequence, prompt_name, 0, 0) < 0)
		return fail("name");
	return check("prefill", mean, 49.5f);
}

/* Appends 10 tokens one by one to a fork of the prompt's first tokens. */
static int continue_prompt(struct fa_client *client, const char *who, uint64_t tokens, float first,
                           float expected)
{
	uint64_t prompt, sequence;
	float mean = 0;

	if (fa_sequence_find(client, prompt_name, &prompt) < 0 ||
	    fa_sequence_fork(client, prompt, tokens, &sequence) < 0)
		return fail("fork");
	for (int i = 0; i < 10; ++i)
		if (append(client, sequence, 1, first, &mean) != 0)
			return 1;
	return check(who, mean, expected);
}

static int run(const char *socket, int role)
{
	struct fa_options options = { .size = sizeof(options), .socket = socket };
	struct fa_client *client;
	int status;

	if (fa_connect(&options, &client) < 0)
		return fail("connect");
	status = role == 0   ? prefill(client)
	         : role == 1 ? continue_prompt(client, "decode", PROMPT, 105, 54.5454545f)
	                     : continue_prompt(client, "fork", PROMPT / 2, 200, 53.75f);
	fa_disconnect(client);
	return status;
}

int main(void)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_SPAWN };
	struct fa_client *client;
	uint64_t cache;
	int status = 0;

	snprintf(cache_name, sizeof(cache_name), "example-%d", (int)getpid());
	snprintf(prompt_name, sizeof(prompt_name), "example-%d/prompt", (int)getpid());
	if (fa_connect(&options, &client) < 0)
		return fail("connect");
	for (int role = 0; role < 3 && status == 0; ++role) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(run(fa_socket_path(client), role));
		if (pid < 0 || waitpid(pid, &status, 0) < 0)
			status = 1;
	}
	/* Named things are removed by name; sequences go with their cache. */
	if (fa_cache_find(client, cache_name, &cache) < 0 || fa_cache_remove(client, cache) < 0)
		return fail("remove");
	fa_disconnect(client);
	return status != 0;
}
