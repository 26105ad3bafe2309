#include "asker.h"

#include "tests/lib/check.h"

struct fa_case asker_small_case(void)
{
	struct fa_case attention = { .heads = 2, .head_dim = 64, .seqlen_q = 5, .seqlen_k = 23 };

	fa_case_plan(&attention);
	return attention;
}

struct fa_case asker_long_case(enum fa_wire_dtype dtype)
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

void asker_open(struct asker *asker, const char *socket, struct fa_case attention)
{
	*asker = (struct asker){ .attention = attention };
	fa_raw_open(&asker->raw, socket);
	fa_raw_buffer_register(&asker->raw, &asker->buffer, 1, attention.bytes, 0);
}

void asker_close(struct asker *asker)
{
	fa_raw_close(&asker->raw);
	fa_raw_buffer_free(NULL, &asker->buffer);
}

void asker_ask(struct asker *asker, uint32_t stream)
{
	struct fa_wire_message message;

	asker->attention.seed += 2;
	fa_case_fill(&asker->attention, asker->buffer.data);
	message = fa_case_message(&asker->attention, 1, 0, stream, ++asker->values[stream]);
	fa_check_eq(fa_raw_send(&asker->raw, &message, NULL, 0), 0);
}

void asker_expect(struct asker *asker, uint32_t stream)
{
	fa_raw_wait_expect(&asker->raw, stream, asker->values[stream], 0, NULL);
	fa_check(fa_case_error(&asker->attention, asker->buffer.data) <= 1);
}
