/*
 * Random attention on a real daemon against the fp64 reference, with tensors in host memory. Most
 * cases are of 16-bit types with few features, which the fastest kernels compute.
 */
#include "client/faclient.h"
#include "tests/client/attention-request.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define CASES 20
#define CASES_LONG 400

static struct fa_test_random random_;

static int64_t below(int64_t bound)
{
	return (int64_t)fa_test_random_below(&random_, (uint64_t)bound);
}

static struct fa_case random_case(void)
{
	static const int64_t dims[] = { 64, 128, 256, 64, 128, 96, 72, 8 };
	const bool rich = !below(6);
	struct fa_case attention = {
		.dtype = below(8) ? (below(2) ? FA_WIRE_DTYPE_BF16 : FA_WIRE_DTYPE_F16)
		                  : FA_WIRE_DTYPE_F32,
		.batch = 1 + below(3),
		.kv_heads = 1 + below(2),
		.head_dim = dims[below(8)],
		.seqlen_q = 1 + below(below(4) ? 90 : 400),
		.seqlen_k = 1 + below(below(4) ? 160 : 500),
		.ragged = !below(3),
		.causal = below(2),
		.lse = below(2),
		.alibi = rich && below(2),
		.sinks = rich && below(2),
		.windowed = !below(4),
		.window_left = below(100) - 1,
		.window_right = below(60) - 1,
		.softcap = rich && below(2) ? 3 : 0,
		.seed = fa_test_random(&random_),
	};

	/* On a GPU chunks need lse's sequences to follow one another. */
	if (!below(4) && (attention.ragged || attention.batch == 1 || !attention.lse))
		attention.chunk_tokens = 1 + (uint64_t)below(below(2) ? 40 : 300);
	/* GPUs have masks for 16-bit tensors, without chunks. */
	if (!below(4) && attention.dtype != FA_WIRE_DTYPE_F32 && !attention.chunk_tokens) {
		attention.block_rows = below(3) ? 64 << below(2) : 0;
		attention.block_keys = attention.block_rows ? 64 << below(2) : 0;
		attention.bits = below(2);
		attention.mask_heads = below(2);
		attention.pattern_tokens = below(2) ? 16u << below(3) : 0;
		attention.pattern_local = (uint32_t)below(3);
		attention.pattern_stride = (uint32_t)(1 + below(4));
		attention.pattern_step = (int32_t)(below(5) - 2);
		if (!attention.pattern_tokens)
			attention.pattern_local = attention.pattern_stride = 0;
		if (!attention.pattern_tokens)
			attention.pattern_step = 0;
	}
	attention.heads = attention.kv_heads * (1 + below(3));
	attention.head_dim_v = below(5) ? attention.head_dim : 8 * (1 + below(32));
	fa_case_plan(&attention);
	return attention;
}

static void run(struct fa_client *client)
{
	const struct fa_case attention = random_case();
	struct fa_attention request;
	struct fa_buffer *buffer;
	double error;

	fa_check_eq(fa_buffer_new(client, attention.bytes, 0, &buffer), 0);
	fa_case_fill(&attention, fa_buffer_data(buffer));
	request = fa_case_attention(&attention, buffer);
	if (fa_attention(client, &request, NULL) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", fa_error());
	error = fa_case_error(&attention, fa_buffer_data(buffer));
	if (!(error <= 1))
		fa_test_fail(
			__FILE__, __LINE__,
			"wrong by %g: dtype %d, %s, batch %d, heads %d/%d, dims %d/%d, "
			"tokens %d/%d, causal %d, chunk %d, window %d %d %d, alibi %d, sinks %d, "
			"softcap %g, blocks %dx%d, bits %d, pattern %u %u %u %d",
			error, attention.dtype, attention.ragged ? "ragged" : "dense",
			(int)attention.batch, (int)attention.heads, (int)attention.kv_heads,
			(int)attention.head_dim, (int)attention.head_dim_v, (int)attention.seqlen_q,
			(int)attention.seqlen_k, attention.causal, (int)attention.chunk_tokens,
			attention.windowed, (int)attention.window_left, (int)attention.window_right,
			attention.alibi, attention.sinks, (double)attention.softcap,
			(int)attention.block_rows, (int)attention.block_keys, attention.bits,
			attention.pattern_tokens, attention.pattern_local, attention.pattern_stride,
			attention.pattern_step);
	fa_buffer_free(buffer);
}

static void test_random(void **state)
{
	static const char *const stages[] = { "auto", "never", "always" };
	const int n = fa_test_long() ? CASES_LONG : CASES;
	const char *text = getenv("FAD_TEST_SEED");
	const uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);

	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	random_ = (struct fa_test_random){ seed };
	for (int i = 0; i < 3; ++i) {
		struct fa_options options = { .size = sizeof(options) };
		struct fa_test_daemon fad;
		struct fa_client *client;

		fa_test_daemon_tune("STAGING", stages[i]);
		fa_test_daemon_start(&fad, NULL);
		options.socket = fad.socket;
		options.connect_ns = fa_test_patience_ns();
		fa_check_eq(fa_connect(&options, &client), 0);
		for (int k = 0; k < n; ++k)
			run(client);
		fa_disconnect(client);
		fa_test_daemon_stop(&fad);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_random) };

	return cmocka_run_group_tests_name("attention-random", tests, NULL, NULL);
}
