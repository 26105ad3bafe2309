#include "tests/daemon/attackers.h"

#include "client/faclient.h"
#include "client/faclient_kv.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum {
	DIM = 16,
	PAGE_TOKENS = 16,
	ITEMS = 2048, /* of a step */
	STEP_TOKENS = 1 << 16,
	LONG_TOKENS = 1 << 20,
	IN_FLIGHT = 512,
};

#define SPARSE_BYTES (1ull << 30)

void attack_has_begun(int begun)
{
	fa_check_eq(write(begun, "", 1), 1);
}

static struct fa_client *connect_to(const char *socket)
{
	struct fa_options options = { .size = sizeof(options), .socket = socket };
	struct fa_client *client;

	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static uint64_t make_cache(struct fa_client *client)
{
	const struct fa_cache_options options = { .size = sizeof(options),
		                                  .dtype = FA_F16,
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = DIM,
		                                  .page_tokens = PAGE_TOKENS };
	uint64_t cache;

	fa_check_eq(fa_cache_create(client, &options, &cache), 0);
	return cache;
}

static void attack_begins(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	const uint64_t cache = make_cache(client);
	static struct fa_step_item items[ITEMS];
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = ITEMS,
		                                 .items = items };
	struct fa_step *step;

	for (int i = 0; i < ITEMS; i++)
		fa_check_eq(fa_sequence_create(client, cache, &items[i].sequence), 0);
	attack_has_begun(begun);
	for (;;) {
		fa_check_eq(fa_step_begin(client, &options, &step), 0);
		fa_step_free(step);
	}
}

/* Returns a sequence of LONG_TOKENS tokens. */
static uint64_t make_long(struct fa_client *client, uint64_t cache)
{
	struct fa_step_item item = { .n_new = STEP_TOKENS };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step;

	fa_check_eq(fa_sequence_create(client, cache, &item.sequence), 0);
	for (int n = 0; n < LONG_TOKENS; n += STEP_TOKENS) {
		fa_check_eq(fa_step_begin(client, &options, &step), 0);
		fa_check_eq(fa_step_commit(step, NULL, NULL), 0);
		fa_step_free(step);
	}
	return item.sequence;
}

static void attack_forks(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	const uint64_t parent = make_long(client, make_cache(client));
	uint64_t child;

	attack_has_begun(begun);
	for (;;) {
		fa_check_eq(fa_sequence_fork(client, parent, LONG_TOKENS, &child), 0);
		fa_check_eq(fa_sequence_remove(client, child), 0);
	}
}

static void attack_attaches(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	const uint64_t cache = make_cache(client), published = make_long(client, cache);
	uint32_t *tokens = calloc(LONG_TOKENS, sizeof(*tokens));
	const struct fa_prefix prefix = { .size = sizeof(prefix),
		                          .tokens = tokens,
		                          .n_tokens = LONG_TOKENS };
	uint64_t sequence, n;

	fa_check(tokens);
	fa_check_eq(fa_sequence_publish(client, published, &prefix, NULL), 0);
	attack_has_begun(begun);
	for (;;) {
		fa_check_eq(fa_sequence_create(client, cache, &sequence), 0);
		fa_check_eq(fa_sequence_attach(client, sequence, &prefix, &n), 0);
		fa_check_eq(n, LONG_TOKENS);
		fa_check_eq(fa_sequence_remove(client, sequence), 0);
	}
}

static void init_attention(struct fa_attention *attention, struct fa_buffer *buffer, int64_t keys)
{
	const int64_t q_shape[] = { 1, 1, 1, DIM }, k_shape[] = { 1, keys, 1, DIM };

	*attention = (struct fa_attention){ .size = sizeof(*attention) };
	fa_tensor_init(&attention->q, buffer, 0, FA_F32, 4, q_shape);
	fa_tensor_init(&attention->out, buffer, 4096, FA_F32, 4, q_shape);
	fa_tensor_init(&attention->k, buffer, 8192, FA_F32, 4, k_shape);
	fa_tensor_init(&attention->v, buffer, 8192, FA_F32, 4, k_shape);
}

/* Requests are sent and cancelled, many at once. */
static void attack_cancels(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	static struct fa_ticket tickets[IN_FLIGHT];
	struct fa_attention attention;
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_new(client, 1 << 20, 0, &buffer), 0);
	init_attention(&attention, buffer, 4096);
	attack_has_begun(begun);
	for (;;) {
		int n = 0;

		while (n < IN_FLIGHT && fa_attention(client, &attention, &tickets[n]) == 0)
			n++;
		for (int i = n; i-- > 0;)
			(void)fa_cancel(client, &tickets[i]);
		for (int i = 0; i < n; i++)
			(void)fa_wait(client, &tickets[i], UINT64_MAX, NULL);
	}
}

/* The daemon gets and maps large memory without pages, and reads some of it. */
static void attack_sparse(const char *socket, int begun)
{
	struct fa_client *client = connect_to(socket);
	struct fa_attention attention;
	struct fa_buffer *buffer;

	attack_has_begun(begun);
	for (;;) {
		int r = fa_buffer_new(client, SPARSE_BYTES, 0, &buffer);

		if (r == -EDQUOT)
			continue;
		fa_check_eq(r, 0);
		init_attention(&attention, buffer, 1 << 16);
		fa_check_eq(fa_attention(client, &attention, NULL), 0);
		fa_buffer_free(buffer);
	}
}

/* Requests whose ends nobody reads, as many as may be in flight. */
static void attack_slow_readers(const char *socket, int begun)
{
	attack_has_begun(begun);
	for (;;) {
		struct fa_client *client = connect_to(socket);
		struct fa_attention attention;
		struct fa_buffer *buffer;
		struct fa_ticket ticket;

		fa_check_eq(fa_buffer_new(client, 1 << 20, 0, &buffer), 0);
		init_attention(&attention, buffer, 16);
		while (fa_attention(client, &attention, &ticket) == 0)
			;
		fa_disconnect(client);
	}
}

const struct attack attacks_by_library[] = {
	{ "begins of 2048 empty sequences", attack_begins },
	{ "attaches of a million tokens", attack_attaches },
	{ "forks of a million tokens", attack_forks },
	{ "cancellations", attack_cancels },
	{ "sparse memory", attack_sparse },
	{ "slow readers", attack_slow_readers },
	{},
};
