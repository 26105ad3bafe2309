/*
 * A client generates its tensors or reads them from files, computes attention in double precision,
 * and repeats the request to fad, checking every number, until the driver says stop.
 *
 * The tolerance of a number x, with u the dtype's unit roundoff and m the result for |v| instead of
 * v: u m, as kernels may round softmax weights, u |x|, as the result is rounded, and SUMS m for
 * sums in fp32.
 */
#include "demo/client.h"

#include "client/faclient.h"
#include "demo/memory.h"
#include "demo/npy.h"
#include "demo/process.h"
#include "demo/reference.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEQUENCES_MAX 4

/* Checked before a client says that it runs: the next is in flight then. */
#define ROUNDS_BEFORE 2

static const struct demo_case {
	const char *name;
	uint32_t dtype;
	int heads, kv_heads, dim;
	bool causal;
	bool files;                   /* Q, K and V come from .npy files */
	enum demo_memory_kind on_gpu; /* its tensors' memory if the daemon has a GPU */
	int sequences;                /* above one: ragged batch */
	uint32_t n_q[SEQUENCES_MAX], n_k[SEQUENCES_MAX];
} cases[] = {
	{ "alpha", FA_F32, 4, 4, 128, false, false, DEMO_CUDA_IPC, 1, { 2048 }, { 2048 } },
	{ "bravo",
	  FA_F16,
	  8,
	  2,
	  64,
	  true,
	  false,
	  DEMO_CUDA_FD,
	  4,
	  { 1, 777, 1300, 150 },
	  { 1, 777, 1300, 150 } },
	{ "charlie",
	  FA_BF16,
	  4,
	  1,
	  128,
	  true,
	  false,
	  DEMO_ARENA,
	  2,
	  { 301, 1748 },
	  { 1024, 2100 } },
	{ "delta", FA_F16, 2, 1, 64, false, true, DEMO_MEMFD, 1, { 2050 }, { 2050 } },
	/* 4.4 * 10^12 operations: still running at the kill */
	{ "victim", FA_F32, 32, 1, 64, false, false, DEMO_CUDA_IPC, 1, { 8192 }, { 65536 } },
};
_Static_assert(sizeof(cases) / sizeof(cases[0]) == DEMO_VICTIM + 1, "one case a client");

static const struct {
	const char *name;
	double roundoff;
} dtypes[] = {
	[FA_F32] = { "fp32", 0x1p-24 },
	[FA_F16] = { "fp16", 0x1p-11 },
	[FA_BF16] = { "bf16", 0x1p-8 },
};

/* Relative error of sums in fp32. */
#define SUMS 2e-6

enum {
	Q,
	K,
	V,
	OUT,
	TENSORS
};

struct run {
	const struct demo_case *spec;
	struct fa_client *client;
	struct demo_memory *memories[TENSORS];
	bool gpu; /* the daemon has one */
	struct fa_attention attention;
	uint32_t cu_seqlens_q[SEQUENCES_MAX + 1], cu_seqlens_k[SEQUENCES_MAX + 1];
	size_t elements[TENSORS];
	double *expected, *magnitude; /* of out; see the tolerance above */
	double flops;
	int rounds;
	double seconds[4096]; /* per round */
	double error;         /* the largest */
	double fraction;      /* the largest error / tolerance */
	bool wrong;
};

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Roughly normal, variance 1; always the same. */
static double next_number(uint64_t *state)
{
	double sum = 0;

	for (int i = 0; i < 4; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		sum += (double)(*state >> 40) / (1 << 24);
	}
	return (sum - 2) * sqrt(3);
}

static int make_tensors(struct run *run)
{
	const struct demo_case *c = run->spec;
	struct fa_attention *attention = &run->attention;
	struct fa_tensor *tensors[TENSORS] = { &attention->q, &attention->k, &attention->v,
		                               &attention->out };
	bool ragged = c->sequences > 1;

	for (int i = 0; i < c->sequences; i++) {
		run->cu_seqlens_q[i + 1] = run->cu_seqlens_q[i] + c->n_q[i];
		run->cu_seqlens_k[i + 1] = run->cu_seqlens_k[i] + c->n_k[i];
	}
	attention->size = sizeof(*attention);
	attention->flags = c->causal ? FA_ATTENTION_CAUSAL : 0;
	if (ragged) {
		attention->batch = (uint32_t)c->sequences;
		attention->cu_seqlens_q = run->cu_seqlens_q;
		attention->cu_seqlens_k = run->cu_seqlens_k;
	}
	for (int i = 0; i < TENSORS; i++) {
		bool of_q = i == Q || i == OUT;
		int64_t tokens = (of_q ? run->cu_seqlens_q : run->cu_seqlens_k)[c->sequences];
		/* the batch form has one dimension more */
		int64_t shape[4] = { 1, tokens, of_q ? c->heads : c->kv_heads, c->dim };
		uint64_t bytes = fa_tensor_bytes(c->dtype, 4, shape);
		/* On the CPU both kinds of memory are tried. */
		enum demo_memory_kind kind = run->gpu   ? c->on_gpu
		                             : i == OUT ? DEMO_ARENA
		                                        : DEMO_MEMFD;
		char text[256];

		run->elements[i] = (size_t)(tokens * shape[2] * c->dim);
		if (demo_memory_new(run->client, kind, bytes, text, sizeof(text),
		                    &run->memories[i]) < 0)
			return demo_client_fail("no %s memory: %s", demo_memory_name(kind), text);
		fa_tensor_init(tensors[i], demo_memory_buffer(run->memories[i]), 0, c->dtype,
		               ragged ? 3 : 4, ragged ? shape + 1 : shape);
	}
	return 0;
}

static int read_file(struct run *run, const char *data, const char *name, int index)
{
	struct demo_npy npy;
	char path[4096], text[4200];
	const char *type = run->spec->dtype == FA_F32 ? "f4" : "f2";
	int r;

	snprintf(path, sizeof(path), "%s/%s.npy", data, name);
	r = demo_npy_read(path, text, sizeof(text), &npy);
	if (r < 0)
		return demo_client_fail("%s", text);
	if (strcmp(npy.type, type) != 0 ||
	    npy.bytes != fa_buffer_bytes(demo_memory_buffer(run->memories[index]))) {
		demo_npy_free(&npy);
		return demo_client_fail("%s is not of the shape and type the demo expects", path);
	}
	memcpy(demo_memory_host(run->memories[index]), npy.data, npy.bytes);
	demo_npy_free(&npy);
	return 0;
}

static int fill_tensors(struct run *run, const char *data, uint64_t seed)
{
	static const char *const names[] = { "query", "key", "value" };

	for (int i = Q; i <= V; i++) {
		if (run->spec->files) {
			if (read_file(run, data, names[i], i) != 0)
				return 1;
		} else {
			for (size_t j = 0; j < run->elements[i]; j++)
				demo_store(demo_memory_host(run->memories[i]), run->spec->dtype, j,
				           next_number(&seed));
		}
		if (demo_memory_push(run->memories[i]) < 0)
			return demo_client_fail("a tensor cannot be copied to the GPU");
	}
	return 0;
}

static double *load_tensor(struct run *run, int index)
{
	double *values = malloc(sizeof(double) * run->elements[index]);

	for (size_t i = 0; values && i < run->elements[index]; i++)
		values[i] = demo_load(demo_memory_host(run->memories[index]), run->spec->dtype, i);
	return values;
}

static int compute_expected(struct run *run)
{
	const struct demo_case *c = run->spec;
	double *inputs[3] = { load_tensor(run, Q), load_tensor(run, K), load_tensor(run, V) };
	int r = inputs[Q] && inputs[K] && inputs[V] ? 0 : -ENOMEM;

	run->expected = malloc(sizeof(double) * run->elements[OUT]);
	run->magnitude = malloc(sizeof(double) * run->elements[OUT]);
	if (!run->expected || !run->magnitude)
		r = -ENOMEM;
	for (int i = 0; r == 0 && i < c->sequences; i++) {
		size_t q = (size_t)run->cu_seqlens_q[i] * (size_t)(c->heads * c->dim);
		size_t k = (size_t)run->cu_seqlens_k[i] * (size_t)(c->kv_heads * c->dim);
		struct demo_sequence sequence = {
			.q = inputs[Q] + q,
			.k = inputs[K] + k,
			.v = inputs[V] + k,
			.n_q = c->n_q[i],
			.n_k = c->n_k[i],
			.heads = c->heads,
			.kv_heads = c->kv_heads,
			.dim = c->dim,
			.causal = c->causal,
		};

		r = demo_reference(&sequence, run->expected + q, run->magnitude + q);
		run->flops += demo_flops(&sequence);
	}
	for (int i = Q; i <= V; i++)
		free(inputs[i]);
	return r < 0 ? demo_client_fail("no memory") : 0;
}

static void check(struct run *run)
{
	uint32_t dtype = run->spec->dtype;

	for (size_t i = 0; i < run->elements[OUT]; i++) {
		double value = demo_load(demo_memory_host(run->memories[OUT]), dtype, i);
		double error = fabs(value - run->expected[i]);
		double allowed = dtypes[dtype].roundoff *
		                         (run->magnitude[i] + fabs(run->expected[i])) +
		                 SUMS * run->magnitude[i];

		/* NaN is wrong as well. */
		if (!(error <= allowed))
			run->wrong = true;
		if (isnan(error))
			run->error = run->fraction = INFINITY;
		else if (error > run->error)
			run->error = error;
		if (error > run->fraction * allowed)
			run->fraction = error / allowed;
	}
}

/* Numbers that the daemon does not write stay NaN. */
static int run_round(struct run *run)
{
	struct fa_ticket ticket;
	double start;

	memset(demo_memory_host(run->memories[OUT]), 0xff,
	       fa_buffer_bytes(run->attention.out.buffer));
	if (demo_memory_push(run->memories[OUT]) < 0)
		return demo_client_fail("a tensor cannot be copied to the GPU");
	start = demo_now();
	if (fa_attention(run->client, &run->attention, &ticket) < 0)
		return demo_client_fail("fad refused the request: %s", fa_error());
	if (run->rounds == ROUNDS_BEFORE)
		demo_client_say("running");
	if (fa_wait(run->client, &ticket, UINT64_MAX, NULL) < 0)
		return demo_client_fail("the request failed: %s", fa_error());
	run->seconds[run->rounds++] = demo_now() - start;
	if (demo_memory_pull(run->memories[OUT]) < 0)
		return demo_client_fail("the result cannot be copied from the GPU");
	check(run);
	return 0;
}

static void print_result(struct run *run)
{
	const struct demo_case *c = run->spec;
	char shape[128];
	int used;

	used = snprintf(shape, sizeof(shape), "%d/%d heads, d%d, ", c->heads, c->kv_heads, c->dim);
	for (int i = 0; i < c->sequences; i++) {
		used += snprintf(shape + used, sizeof(shape) - (size_t)used, "%s%u", i ? "+" : "",
		                 c->n_q[i]);
		if (c->n_q[i] != c->n_k[i])
			used += snprintf(shape + used, sizeof(shape) - (size_t)used, ":%u",
			                 c->n_k[i]);
	}
	qsort(run->seconds, (size_t)run->rounds, sizeof(double), compare_doubles);
	printf("result %s\t%s\t%s\t%s\t%d\t%.6f\t%.0f\t%.3g\t%.0f %%\t%s\n", shape,
	       demo_memory_name(run->gpu ? c->on_gpu : DEMO_MEMFD), dtypes[c->dtype].name,
	       c->causal ? "causal" : "full", run->rounds, run->seconds[run->rounds / 2],
	       run->flops, run->error, run->fraction * 100, run->wrong ? "WRONG" : "right");
	fflush(stdout);
}

/* True: there is input, or the driver has exited. */
static bool has_input(void)
{
	struct pollfd stdin_poll = { .fd = STDIN_FILENO, .events = POLLIN };

	return poll(&stdin_poll, 1, 0) != 0;
}

/* On a GPU one request could end before the kill. */
static int run_victim(struct run *run)
{
	const int n = run->gpu ? 100 : 1;
	struct fa_ticket ticket;

	for (int i = 0; i < n; i++) {
		if (fa_attention(run->client, &run->attention, &ticket) < 0)
			return demo_client_fail("fad refused the request: %s", fa_error());
	}
	demo_client_say("running");
	(void)fa_wait(run->client, &ticket, UINT64_MAX, NULL);
	return demo_client_fail("its requests ended before it was killed");
}

static int run_client(struct run *run, const char *data, int index)
{
	const size_t rounds_max = sizeof(run->seconds) / sizeof(run->seconds[0]);
	struct fa_options options = { .size = sizeof(options), .name = run->spec->name };
	struct fa_info info;

	if (fa_connect(&options, &run->client) < 0)
		return demo_client_fail("no connection to fad: %s", fa_error());
	info.size = sizeof(info);
	if (fa_info(run->client, &info) < 0)
		return demo_client_fail("%s", fa_error());
	run->gpu = strcmp(info.backend, "cuda") == 0;
	if (make_tensors(run) != 0)
		return 1;
	if (index == DEMO_VICTIM) {
		/* Nobody uses the results. */
		demo_client_say("ready");
		if (demo_client_wait("go") != 0)
			return 1;
		return run_victim(run);
	}
	if (fill_tensors(run, data, 1000 + (uint64_t)index) != 0 || compute_expected(run) != 0)
		return 1;
	demo_client_say("ready");
	if (demo_client_wait("go") != 0)
		return 1;
	while (!has_input() && (size_t)run->rounds + 1 < rounds_max) {
		if (run_round(run) != 0)
			return 1;
	}
	/* This round started after the kill. */
	if (demo_client_wait("stop") != 0 || run_round(run) != 0)
		return 1;
	print_result(run);
	return run->wrong ? 1 : 0;
}

const char *demo_client_name(int index)
{
	return cases[index].name;
}

int demo_client_run(int index, const char *data)
{
	struct run *run = calloc(1, sizeof(*run));
	int status;

	if (!run)
		return demo_client_fail("no memory");
	run->spec = &cases[index];
	status = run_client(run, data, index);
	for (int i = 0; i < TENSORS; i++)
		demo_memory_free(run->memories[i]);
	fa_disconnect(run->client);
	free(run->expected);
	free(run->magnitude);
	free(run);
	return status;
}
