/*
 * An engine that manages its own pages: two sequences grow token by token in pages that the program
 * hands out. Each request appends a token of both to their pages, and attends to all. K and V are
 * parts of one tensor, as in vLLM.
 */
#include <faclient.h>
#include <math.h>
#include <stdio.h>

enum {
	SEQUENCES = 2,
	HEADS = 8,
	KV_HEADS = 2,
	DIM = 64,
	PAGE = 16,
	PAGES = 12,
	COLUMNS = 4,
	TOKENS = 40
};

struct memory {
	float q[SEQUENCES][HEADS][DIM], out[SEQUENCES][HEADS][DIM];
	float lse[HEADS][SEQUENCES];
	float kv[PAGES][2][PAGE][KV_HEADS][DIM];
	float k_new[SEQUENCES][KV_HEADS][DIM], v_new[SEQUENCES][KV_HEADS][DIM];
	int64_t slots[SEQUENCES];
	int32_t table[SEQUENCES][COLUMNS], lengths[SEQUENCES];
};

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fa_error());
	return 1;
}

#define AT(field, type, n, ...)                                                                    \
	fa_tensor_init(&attend.field, buffer, offsetof(struct memory, field), type, n,             \
	               (const int64_t[]){ __VA_ARGS__ })

int main(void)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_SPAWN };
	struct fa_pages_attend attend = { .size = sizeof(attend), .flags = FA_PAGES_CAUSAL };
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct memory *memory;
	int32_t n_used = 0;

	if (fa_connect(&options, &client) < 0)
		return fail("connect");
	if (fa_buffer_new(client, sizeof(*memory), 0, &buffer) < 0)
		return fail("buffer");
	memory = fa_buffer_data(buffer);
	AT(q, FA_F32, 3, SEQUENCES, HEADS, DIM);
	AT(out, FA_F32, 3, SEQUENCES, HEADS, DIM);
	AT(lse, FA_F32, 2, HEADS, SEQUENCES);
	AT(k_new, FA_F32, 3, SEQUENCES, KV_HEADS, DIM);
	AT(v_new, FA_F32, 3, SEQUENCES, KV_HEADS, DIM);
	AT(slots, FA_I64, 1, SEQUENCES);
	AT(table, FA_I32, 2, SEQUENCES, COLUMNS);
	AT(lengths, FA_I32, 1, SEQUENCES);
	/* Page p has K in kv[p][0] and V in kv[p][1]. */
	attend.k = (struct fa_tensor){
		.buffer = buffer,
		.offset = offsetof(struct memory, kv),
		.dtype = FA_F32,
		.rank = 4,
		.shape = { PAGES, PAGE, KV_HEADS, DIM },
		.strides = { 2 * PAGE * KV_HEADS * DIM, KV_HEADS * DIM, DIM, 1 },
	};
	attend.v = attend.k;
	attend.v.offset += sizeof(memory->kv[0][0]);

	for (int32_t token = 0; token < TOKENS; ++token) {
		for (int i = 0; i < SEQUENCES; ++i) {
			if (token % PAGE == 0)
				memory->table[i][token / PAGE] = n_used++;
			memory->slots[i] = (int64_t)memory->table[i][token / PAGE] * PAGE +
			                   token % PAGE;
			memory->lengths[i] = token + 1;
			for (int h = 0; h < KV_HEADS; ++h)
				memory->v_new[i][h][0] = (float)token;
		}
		attend.max_k = (uint32_t)token + 1;
		if (fa_pages_attend(client, &attend, NULL) < 0)
			return fail("attention");
	}
	/* K is zero: all keys weigh the same, and the result is the mean of 0 to TOKENS - 1. */
	for (int i = 0; i < SEQUENCES; ++i) {
		printf("sequence %d has %d tokens; mean %g, exp(lse) %.1f\n", i, memory->lengths[i],
		       (double)memory->out[i][0][0], exp((double)memory->lse[0][i]));
		if (fabsf(memory->out[i][HEADS - 1][0] - (TOKENS - 1) / 2.0f) > 1e-4f)
			return 1;
	}
	fa_buffer_free(buffer);
	fa_disconnect(client);
	return 0;
}
