/*
 * Client for test-metrics.py: sends requests, prints that they are done, and stays until its
 * stdin ends.
 *   metrics-client NAME ATTENTIONS REFUSED MARKERS, with FAD_SOCKET
 */
#include "client/faclient.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static const int64_t shape[] = { 1, 64, 2, 64 }; /* batch, tokens, heads, dim */

static void must(int r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "metrics-client: %s: %s\n", what, fa_error());
	exit(1);
}

/* Sends a request that succeeds if @good; otherwise the daemon refuses it. */
static void attend(struct fa_client *client, struct fa_buffer *buffer, uint64_t bytes, bool good)
{
	struct fa_attention attention = { .size = sizeof(attention), .flags = FA_ATTENTION_CAUSAL };
	struct fa_tensor *const tensors[] = { &attention.q, &attention.k, &attention.v,
		                              &attention.out };
	int r;

	for (unsigned int i = 0; i < 4; ++i)
		fa_tensor_init(tensors[i], buffer, i * bytes, FA_F32, 4, shape);
	/* The library does not check that dtypes match, but the daemon does. */
	if (!good)
		attention.k.dtype = FA_F16;
	r = fa_attention(client, &attention, NULL);
	if (good)
		must(r, "attention");
	else if (r >= 0)
		must(-EINVAL, "what should be refused was not");
}

int main(int argc, char **argv)
{
	struct fa_options options = { .size = sizeof(options), .name = argc > 1 ? argv[1] : NULL };
	const uint64_t bytes = fa_tensor_bytes(FA_F32, 4, shape);
	struct fa_ticket ticket;
	struct fa_client *client;
	struct fa_buffer *buffer;

	if (argc != 5)
		return 2;
	must(fa_connect(&options, &client), "no connection");
	must(fa_buffer_new(client, 4 * bytes, 0, &buffer), "no buffer");
	for (int i = atoi(argv[2]); i > 0; --i)
		attend(client, buffer, bytes, true);
	for (int i = atoi(argv[3]); i > 0; --i)
		attend(client, buffer, bytes, false);
	for (int i = atoi(argv[4]); i > 0; --i) {
		must(fa_marker(client, 0, NULL, &ticket), "marker");
		must(fa_wait(client, &ticket, UINT64_MAX, NULL), "wait");
	}
	puts("done");
	fflush(stdout);
	while (getchar() != EOF)
		;
	fa_disconnect(client);
	return 0;
}
