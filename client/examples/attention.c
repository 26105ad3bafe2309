/* Causal attention over random numbers: cc attention.c $(pkg-config --cflags --libs libfaclient) */
#include <faclient.h>
#include <stdio.h>
#include <stdlib.h>

static const int64_t shape[] = { 1, 512, 8, 64 }; /* batch, tokens, heads, dim */

int main(void)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_SPAWN };
	struct fa_attention attention = { .size = sizeof(attention), .flags = FA_ATTENTION_CAUSAL };
	uint64_t bytes = fa_tensor_bytes(FA_F32, 4, shape);
	struct fa_client *client;
	struct fa_buffer *buffer;

	if (fa_connect(&options, &client) < 0 || fa_buffer_new(client, 4 * bytes, 0, &buffer) < 0)
		return fprintf(stderr, "%s\n", fa_error()), 1;

	float *numbers = fa_buffer_data(buffer), *out = numbers + 3 * bytes / sizeof(float);
	for (uint64_t i = 0; i < 3 * bytes / sizeof(float); ++i)
		numbers[i] = (float)(rand() % 1000) / 1000 - 0.5f;
	fa_tensor_init(&attention.q, buffer, 0 * bytes, FA_F32, 4, shape);
	fa_tensor_init(&attention.k, buffer, 1 * bytes, FA_F32, 4, shape);
	fa_tensor_init(&attention.v, buffer, 2 * bytes, FA_F32, 4, shape);
	fa_tensor_init(&attention.out, buffer, 3 * bytes, FA_F32, 4, shape);
	if (fa_attention(client, &attention, NULL) < 0)
		return fprintf(stderr, "%s\n", fa_error()), 1;
	printf("%f %f %f\n", out[0], out[1], out[2]); /* row 0 sees only itself: v's numbers */
	fa_disconnect(client);
}
