#include "attention-client.h"

#include "tests/lib/check.h"

struct fa_case attention_client_small_case(void)
{
	struct fa_case attention = { .heads = 2, .head_dim = 64, .seqlen_q = 5, .seqlen_k = 23 };

	fa_case_plan(&attention);
	return attention;
}

struct fa_case attention_client_long_case(enum fa_wire_dtype dtype)
{
	struct fa_case attention = {
		.dtype = dtype,
		.heads = 2,
		.head_dim = 128,
		.seqlen_q = 300,
		.seqlen_k = 300,
		.causal = true,
	};

	fa_case_plan(&attention);
	return attention;
}

void attention_client_open(struct attention_client *client, const char *socket,
                           struct fa_case attention)
{
	*client = (struct attention_client){ .attention = attention };
	fa_raw_open(&client->raw, socket);
	fa_raw_buffer_register(&client->raw, &client->buffer, 1, attention.bytes, 0);
}

void attention_client_close(struct attention_client *client)
{
	fa_raw_close(&client->raw);
	fa_raw_buffer_free(NULL, &client->buffer);
}

void attention_client_submit(struct attention_client *client, uint32_t stream)
{
	struct fa_wire_message message;

	client->attention.seed += 2;
	fa_case_fill(&client->attention, client->buffer.data);
	message = fa_case_message(&client->attention, 1, 0, stream, ++client->values[stream]);
	fa_check_eq(fa_raw_send(&client->raw, &message, NULL, 0), 0);
}

void attention_client_expect(struct attention_client *client, uint32_t stream)
{
	fa_raw_wait_expect(&client->raw, stream, client->values[stream], 0, NULL);
	fa_check(fa_case_error(&client->attention, client->buffer.data) <= 1);
}
