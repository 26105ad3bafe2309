#include "tests/service/service.h"

#include <stdio.h>
#include <string.h>

void fa_service_open(struct fa_service *service, const char *socket)
{
	struct fa_options options = { .size = sizeof(options), .name = "test", .socket = socket };

	*service = (struct fa_service){ 0 };
	if (fa_connect(&options, &service->client) < 0)
		fa_test_fail(__FILE__, __LINE__, "no connection: %s", fa_error());
}

void fa_service_close(struct fa_service *service)
{
	fa_service_drop(service);
	service->client = fa_disconnect(service->client);
}

static struct fa_tensor tensor(struct fa_buffer *buffer, const struct fa_wire_view *view)
{
	struct fa_tensor tensor = {
		.buffer = view->rank ? buffer : NULL,
		.offset = view->offset,
		.dtype = view->dtype,
		.rank = view->rank,
	};

	memcpy(tensor.shape, view->shape, sizeof(tensor.shape));
	memcpy(tensor.strides, view->strides, sizeof(tensor.strides));
	return tensor;
}

void fa_service_make(struct fa_service *service, const struct fa_case *attention,
                     enum demo_memory_kind kind, bool fill)
{
	struct fa_wire_message message;
	const struct fa_wire_attention *wire = &message.attention;
	struct fa_buffer *buffer;
	char text[256];

	service->attention = *attention;
	fa_case_plan(&service->attention);
	if (demo_memory_new(service->client, kind, service->attention.bytes, text, sizeof(text),
	                    &service->memory) < 0)
		fa_test_fail(__FILE__, __LINE__, "no %s memory: %s", demo_memory_name(kind), text);
	if (fill) {
		fa_case_fill(&service->attention, demo_memory_host(service->memory));
		fa_check_eq(demo_memory_push(service->memory), 0);
	}
	message = fa_case_message(&service->attention, 1, 0, 0, 1);
	buffer = demo_memory_buffer(service->memory);
	service->request = (struct fa_attention){
		.size = sizeof(service->request),
		.flags = (wire->flags & FA_WIRE_ATTENTION_CAUSAL ? FA_ATTENTION_CAUSAL : 0) |
		         FA_ATTENTION_WINDOW,
		.batch = wire->n_cu_seqlens_q ? (uint32_t)wire->n_cu_seqlens_q - 1 : 0,
		.q = tensor(buffer, &wire->q),
		.k = tensor(buffer, &wire->k),
		.v = tensor(buffer, &wire->v),
		.out = tensor(buffer, &wire->out),
		.lse = tensor(buffer, &wire->lse),
		.scale = wire->scale,
		.softcap = wire->softcap,
		.window_left = wire->window_left,
		.window_right = wire->window_right,
		.cu_seqlens_q = wire->cu_seqlens_q,
		.cu_seqlens_k = wire->cu_seqlens_k,
		.alibi_slopes = wire->alibi_slopes,
		.sinks = wire->sinks,
	};
}

void fa_service_drop(struct fa_service *service)
{
	demo_memory_free(service->memory);
	service->memory = NULL;
}

double fa_service_error(struct fa_service *service)
{
	if (fa_attention(service->client, &service->request, NULL) < 0)
		fa_test_fail(__FILE__, __LINE__, "the request failed: %s", fa_error());
	fa_check_eq(demo_memory_pull(service->memory), 0);
	return fa_case_error(&service->attention, demo_memory_host(service->memory));
}

static int64_t between(struct fa_test_random *random, int64_t least, int64_t most)
{
	return least + (int64_t)fa_test_random_below(random, (uint64_t)(most - least + 1));
}

static bool one_in(struct fa_test_random *random, uint64_t n)
{
	return fa_test_random_below(random, n) == 0;
}

struct fa_case fa_service_random_case(struct fa_test_random *random)
{
	static const int64_t groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 16 };
	struct fa_case attention = {
		.dtype = (enum fa_wire_dtype)between(random, FA_WIRE_DTYPE_F32, FA_WIRE_DTYPE_BF16),
		.batch = between(random, 1, 3),
		.kv_heads = between(random, 1, 2),
		.head_dim = 8 * between(random, 1, 32),
		.seqlen_q = between(random, 1, 150),
		.seqlen_k = between(random, 1, 300),
		.ragged = one_in(random, 3),
		.causal = one_in(random, 2),
		.lse = one_in(random, 2),
		.alibi = one_in(random, 5),
		.sinks = one_in(random, 5),
		.windowed = one_in(random, 4),
		.window_left = between(random, -1, 200),
		.window_right = between(random, -1, 100),
		.softcap = one_in(random, 5) ? 20 : 0,
		.seed = fa_test_random(random),
	};

	attention.heads = attention.kv_heads *
	                  groups[fa_test_random_below(random, sizeof(groups) / sizeof(groups[0]))];
	if (one_in(random, 4))
		attention.head_dim_v = 8 * between(random, 1, 64);
	return attention;
}

void fa_service_print(const struct fa_case *attention, enum demo_memory_kind kind)
{
	const struct fa_case *a = attention;

	printf("%s dtype %d batch %lld%s heads %lld/%lld dims %lld/%lld tokens %lld:%lld%s%s%s%s",
	       demo_memory_name(kind), (int)a->dtype, (long long)a->batch,
	       a->ragged ? " ragged" : "", (long long)a->heads, (long long)a->kv_heads,
	       (long long)a->head_dim, (long long)a->head_dim_v, (long long)a->seqlen_q,
	       (long long)a->seqlen_k, a->causal ? " causal" : "", a->lse ? " lse" : "",
	       a->alibi ? " alibi" : "", a->sinks ? " sinks" : "");
	if (a->windowed)
		printf(" window %lld,%lld", (long long)a->window_left, (long long)a->window_right);
	if (a->softcap > 0)
		printf(" softcap %g", (double)a->softcap);
	printf("\n");
}
