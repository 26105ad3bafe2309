/*
 * Sequences of different lengths in one request, without padding: cu_seqlens has the start of each.
 * Four query heads share a key head; lse is returned as well.
 */
#include <faclient.h>
#include <math.h>
#include <stdio.h>

enum {
	SEQUENCES = 3,
	HEADS = 8,
	KV_HEADS = 2,
	DIM = 32
};

/* Sequence lengths: new tokens, and all tokens with these. */
static const uint32_t cu_seqlens_q[SEQUENCES + 1] = { 0, 5, 6, 134 };
static const uint32_t cu_seqlens_k[SEQUENCES + 1] = { 0, 5, 306, 434 };

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fa_error());
	return 1;
}

int main(void)
{
	const int64_t q_shape[] = { cu_seqlens_q[SEQUENCES], HEADS, DIM };
	const int64_t kv_shape[] = { cu_seqlens_k[SEQUENCES], KV_HEADS, DIM };
	const int64_t lse_shape[] = { HEADS, cu_seqlens_q[SEQUENCES] };
	const uint64_t q_bytes = fa_tensor_bytes(FA_F32, 3, q_shape);
	const uint64_t kv_bytes = fa_tensor_bytes(FA_F32, 3, kv_shape);
	const uint64_t lse_bytes = fa_tensor_bytes(FA_F32, 2, lse_shape);
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_SPAWN };
	struct fa_attention attention = {
		.size = sizeof(attention),
		.flags = FA_ATTENTION_CAUSAL,
		.batch = SEQUENCES,
		.cu_seqlens_q = cu_seqlens_q,
		.cu_seqlens_k = cu_seqlens_k,
	};
	struct fa_client *client;
	struct fa_buffer *buffer;
	const float *lse;

	if (fa_connect(&options, &client) < 0)
		return fail("connect");
	/* The buffer is zero: keys weigh the same, and lse is the logarithm of their number. */
	if (fa_buffer_new(client, 2 * q_bytes + 2 * kv_bytes + lse_bytes, 0, &buffer) < 0)
		return fail("buffer");
	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 3, q_shape);
	fa_tensor_init(&attention.k, buffer, q_bytes, FA_F32, 3, kv_shape);
	fa_tensor_init(&attention.v, buffer, q_bytes + kv_bytes, FA_F32, 3, kv_shape);
	fa_tensor_init(&attention.out, buffer, q_bytes + 2 * kv_bytes, FA_F32, 3, q_shape);
	fa_tensor_init(&attention.lse, buffer, 2 * q_bytes + 2 * kv_bytes, FA_F32, 2, lse_shape);
	if (fa_attention(client, &attention, NULL) < 0)
		return fail("attention");

	lse = (const float *)((const char *)fa_buffer_data(buffer) + attention.lse.offset);
	for (int i = 0; i < SEQUENCES; ++i)
		printf("sequence %d: its last row sees %.0f keys\n", i,
		       expf(lse[cu_seqlens_q[i + 1] - 1]));

	fa_buffer_free(buffer);
	fa_disconnect(client);
	return 0;
}
