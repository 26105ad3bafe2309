/*
 * Concurrent requests from an event loop, on two streams: long prompts, and short decode steps of
 * high priority.
 */
#include <errno.h>
#include <faclient.h>
#include <poll.h>
#include <stdio.h>

enum {
	PREFILLS = 4,
	STEPS = 16,
	REQUESTS = PREFILLS + STEPS
};

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fa_error());
	return 1;
}

/* Describes one sequence of @n_q queries over @n_k keys. Requests share k and v; each has its own
 * out. */
static void fill(struct fa_attention *attention, struct fa_buffer *buffer, uint64_t out_offset,
                 int64_t n_q, int64_t n_k)
{
	const int64_t q_shape[] = { 1, n_q, 8, 64 }, kv_shape[] = { 1, n_k, 2, 64 };

	*attention = (struct fa_attention){ .size = sizeof(*attention),
		                            .flags = FA_ATTENTION_CAUSAL };
	fa_tensor_init(&attention->q, buffer, 0, FA_BF16, 4, q_shape);
	fa_tensor_init(&attention->k, buffer, 0, FA_BF16, 4, kv_shape);
	fa_tensor_init(&attention->v, buffer, 0, FA_BF16, 4, kv_shape);
	fa_tensor_init(&attention->out, buffer, out_offset, FA_BF16, 4, q_shape);
}

int main(void)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_SPAWN };
	const uint64_t slice = 1 << 20; /* 1024 tokens of 8 heads of 64 numbers of 2 bytes */
	struct fa_ticket tickets[REQUESTS];
	int ended[REQUESTS] = { 0 }, left = REQUESTS;
	struct fa_client *client;
	struct fa_buffer *buffer;
	uint32_t prefill = 0, decode;

	if (fa_connect(&options, &client) < 0)
		return fail("connect");
	if (fa_buffer_new(client, (REQUESTS + 1) * slice, FA_BUFFER_DEVICE, &buffer) < 0)
		return fail("buffer");
	if (fa_stream_new(client, 1, &decode) < 0)
		return fail("stream");

	for (int i = 0; i < REQUESTS; ++i) {
		struct fa_attention attention;

		fill(&attention, buffer, (uint64_t)(i + 1) * slice, i < PREFILLS ? 1024 : 1, 1024);
		attention.stream = i < PREFILLS ? prefill : decode;
		if (fa_attention(client, &attention, &tickets[i]) < 0)
			return fail("attention");
	}

	while (left) {
		struct pollfd pollfd = { .fd = fa_fd(client), .events = POLLIN };

		if (poll(&pollfd, 1, -1) < 0 && errno != EINTR)
			return fail("poll");
		if (fa_dispatch(client) < 0)
			return fail("dispatch");
		for (int i = 0; i < REQUESTS; ++i) {
			struct fa_completion completion = { .size = sizeof(completion) };
			int r;

			if (ended[i])
				continue;
			r = fa_wait(client, &tickets[i], 0, &completion);
			if (r == -EAGAIN)
				continue;
			if (r < 0)
				return fail("wait");
			ended[i] = 1;
			--left;
			printf("%s %2d: waited %llu us, ran %llu us\n",
			       i < PREFILLS ? "prefill" : "decode ", i,
			       (unsigned long long)(completion.started_ns - completion.queued_ns) /
			               1000,
			       (unsigned long long)(completion.finished_ns -
			                            completion.started_ns) /
			               1000);
		}
	}

	fa_stream_free(client, decode);
	fa_buffer_free(buffer);
	fa_disconnect(client);
	return 0;
}
