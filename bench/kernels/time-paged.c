/*
 * Times the bf16 kernels over pages, against their bounds. Samples are taken as in
 * bench/fabench/prefill.c. All contestants alternate. Decode is first compared with fp64: a wrong
 * result has no rows, and exit status 1. Without a GPU: 77.
 *   time-paged [--page N] [--samples N] [--heads N] [--kv-heads N] [--dim N] [--new N]
 *              [--only PART] [--peer LIBRARY[:NAME]]... [--json] [--quick]
 *              [--profile] [--shapes PATTERN] [--pack N]
 *              [--store plain|e4m3|int8|e4m3-heads|int8-heads]
 *   decode   equal lengths, and 64 sequences of 128 to 32k tokens ("mixed"), against a bare read
 *            of K and V, the portable kernel ("sm80") and every peer (peer.h)
 *   prefill  8,192 tokens, causal, against the dense kernels, portable ("sm80") and best ("dense")
 *   append   8,192 tokens in one layer, against a copy of as many bytes
 * and only if named by --only:
 *   extend   16 to 2,048 new tokens on 8k to 128k, against a bare read of K and V, one row of heads
 *            at a time ("unpacked") and every peer; over codes, also of prompts, against bf16
 *   codes    decode over each kind of codes, against a bare read and bf16
 *   shared   decode with a common prefix, against a bare read of each page once and private
 *            pages ("unshared"), and as many launches of one sequence ("singles"); also extends
 *            of a common prefix; fails if the plan groups the wrong sequences
 *   deterministic  against the usual decode ("usual") and a bare read
 *   own      a client's own pages of 1 to 128 tokens, NHD and HND, decode to prefill, against the
 *            pool's pages ("pool")
 *   copies   32,768 tokens between the pool and a client's own pages of 1 to 128 tokens, against a
 *            copy of as many bytes
 * --store: pages hold codes with scales per token or head; no prefill, no peers. --pack: of shared
 * prefixes: tiles of a unit of packed rows, whatever the plan would choose. --shapes: only
 * matching decode shapes, e.g. 'b8-*'. --quick: a smoke test. --profile: run ours once and print
 * its name, for profiles.py.
 */
#include "bench/kernels/paged-copies.h"
#include "bench/kernels/paged-decode.h"
#include "bench/kernels/paged-scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- prefill */

struct dense {
	struct fa_attention_params params;
	struct fa_cuda_chip chip;
};

static void run_dense(void *userdata)
{
	const struct dense *dense = userdata;

	if (paged_gpu_dense(time_gpu, &dense->chip, &dense->params) < 0)
		exit(1);
}

static struct fa_attention_tensor batched(uint64_t data, int32_t heads, uint32_t length)
{
	struct fa_attention_tensor tensor = time_tensor(data, heads);

	tensor.stride_batch = (int64_t)length * heads * time_options.dim;
	return tensor;
}

static void prefill(int32_t batch, uint32_t length)
{
	const double pairs = 0.5 * length * (length + 1.0) * batch * time_options.heads;
	uint32_t *lengths = calloc((size_t)batch, sizeof(*lengths));
	struct time_scene scene;
	struct time_run run;
	struct dense dense, dense_80;
	const struct time_contestant contestants[] = { { time_run, &run },
		                                       { run_dense, &dense_80 },
		                                       { run_dense, &dense } };
	double ns[3];
	char name[128];
	bool fits;

	for (int32_t b = 0; b < batch; b++)
		lengths[b] = length;
	fits = time_scene_init(&scene, batch, lengths, length);
	free(lengths);
	if (!fits)
		return;
	time_run_init(&run, &scene, NULL, NULL, false);
	dense.chip = *paged_gpu_chip(time_gpu);
	dense.params = (struct fa_attention_params){
		.dtype = FA_ATTENTION_BF16,
		.batch = batch,
		.heads = time_options.heads,
		.kv_heads = time_options.kv_heads,
		.head_dim = time_options.dim,
		.head_dim_v = time_options.dim,
		.seqlen_q = length,
		.seqlen_k = length,
		.q = batched(scene.q, time_options.heads, length),
		.k = batched(scene.k, time_options.kv_heads, length),
		.v = batched(scene.v, time_options.kv_heads, length),
		.out = batched(run.out, time_options.heads, length),
		.lse = TIME_POINTER(run.lse),
		.lse_stride_batch = (int64_t)length * time_options.heads,
		.lse_stride_token = time_options.heads,
		.lse_stride_head = 1,
		.scale = 1 / sqrtf((float)time_options.dim),
		.causal = true,
		.window_left = -1,
		.window_right = -1,
	};
	dense_80 = dense;
	dense_80.chip.arch = 80;
	time_measure(contestants, 3, ns);
	snprintf(name, sizeof(name), "prefill/bf16/b%d-s%u-h%d.%d-d%d-p%d/causal", batch, length,
	         time_options.heads, time_options.kv_heads, time_options.dim, time_options.page);
	for (int i = 1; i < 3; i++)
		time_print(name, 4 * pairs * time_options.dim / ns[0] / 1e3, "TFLOP/s",
		           i == 1 ? "sm80" : "dense", ns[i] / ns[0]);
	time_run_deinit(&run);
	time_scene_deinit(&scene);
}

/* ---- append */

static void run_copy(void *userdata)
{
	const struct time_scene *scene = userdata;

	/* The bytes of K and V. */
	paged_gpu_copy(time_gpu, scene->pool, scene->q, 2 * scene->kv_bytes);
}

static void append(const char *variant, int32_t rotary_dim, bool with_q)
{
	const uint32_t length = time_options.quick ? 128 : 8192;
	struct time_scene scene;
	struct time_run run;
	const struct time_contestant contestants[] = { { time_run, &run }, { run_copy, &scene } };
	double ns[2];
	char name[128];

	if (!time_scene_init(&scene, 1, &length, length))
		return;
	run = (struct time_run){ .scene = &scene, .out = paged_gpu_alloc(time_gpu, scene.q_bytes) };
	run.request.op = FA_PAGED_APPEND;
	run.request.append = (struct fa_paged_append){
		.cache = &scene.cache,
		.step = &scene.step,
		.k = time_tensor(scene.k, time_options.kv_heads),
		.v = time_tensor(scene.v, time_options.kv_heads),
		.heads = with_q ? time_options.heads : 0,
		.q = time_tensor(scene.q, time_options.heads),
		.q_out = time_tensor(run.out, time_options.heads),
		.rotary = { .dim = rotary_dim, .base = 10000, .scale = 1 },
	};
	if (paged_gpu_plan(time_gpu, paged_gpu_chip(time_gpu), &run.request, &run.plan) < 0)
		exit(1);
	time_measure(contestants, 2, ns);
	if (with_q)
		ns[1] *= (double)(2 * scene.kv_bytes + scene.q_bytes) /
		         (double)(2 * scene.kv_bytes);
	snprintf(name, sizeof(name), "append/%s/t%u-h%d.%d-d%d-p%d/%s", time_options.type, length,
	         time_options.heads, time_options.kv_heads, time_options.dim, time_options.page,
	         variant);
	time_print(name, ns[0] / 1e3, "us", "copy", ns[1] / ns[0]);
	time_run_deinit(&run);
	time_scene_deinit(&scene);
}

/* ---- command line */

static void prefills(void)
{
	if (time_options.store != FA_PAGED_PLAIN)
		return;
	if (time_options.quick) {
		prefill(1, 128);
		return;
	}
	prefill(1, 8192);
	prefill(2, 8192);
	prefill(8, 1024);
}

static void appends(void)
{
	append("plain", 0, false);
	append("rotary", time_options.dim, false);
	append("rotary-q", time_options.dim, true);
}

static const struct {
	const char *name;
	void (*run)(void);
	bool asked_for;
} parts[] = {
	{ "decode", time_decode, false },
	{ "codes", time_codes, true },
	{ "extend", time_extend, true },
	{ "shared", time_shared, true },
	{ "deterministic", time_deterministic, true },
	{ "own", time_own, true },
	{ "copies", time_copies, true },
	{ "prefill", prefills, false },
	{ "append", appends, false },
};

#define PARTS (sizeof(parts) / sizeof(parts[0]))

static bool set_part(const char *name)
{
	time_options.only = name;
	for (size_t i = 0; i < PARTS; i++)
		if (!strcmp(name, parts[i].name))
			return true;
	return false;
}

/* Returns false if an option or value is wrong. */
static bool parse(const char *option, const char *value)
{
	const struct {
		const char *name;
		int32_t *number;
	} numbers[] = {
		{ "--page", &time_options.page },         { "--samples", &time_options.samples },
		{ "--heads", &time_options.heads },       { "--dim", &time_options.dim },
		{ "--kv-heads", &time_options.kv_heads }, { "--new", &time_options.n_new },
		{ "--pack", &time_options.pack },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!strcmp(option, numbers[i].name)) {
			*numbers[i].number = atoi(value);
			return *numbers[i].number > 0;
		}
	if (!strcmp(option, "--only"))
		return set_part(value);
	if (!strcmp(option, "--shapes")) {
		time_options.shapes = value;
		return true;
	}
	if (!strcmp(option, "--store"))
		return time_set_store(value);
	return !strcmp(option, "--peer") && time_peer_open(value);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json")) {
			time_options.json = true;
		} else if (!strcmp(argv[i], "--quick")) {
			time_options.quick = true;
		} else if (!strcmp(argv[i], "--profile")) {
			time_options.profile = time_options.json = true;
		} else if (i + 1 < argc && parse(argv[i], argv[i + 1])) {
			i++;
		} else {
			fprintf(stderr, "%s: unknown, or without a value that it can have\n",
			        argv[i]);
			return 2;
		}
	}
	if (time_options.samples > TIME_SAMPLES_MAX)
		time_options.samples = TIME_SAMPLES_MAX;
	if (time_has_peers() &&
	    (time_options.store != FA_PAGED_PLAIN || !strcmp(time_options.only, "codes"))) {
		fprintf(stderr, "peers do not read codes\n");
		return 2;
	}
	time_gpu = paged_gpu_open();
	if (!time_gpu)
		return 77;
	if (time_options.json)
		printf("{\"device\": \"%s\", \"results\": [", paged_gpu_name(time_gpu));
	for (size_t i = 0; i < PARTS; i++)
		if (time_options.only[0] ? !strcmp(time_options.only, parts[i].name)
		                         : !parts[i].asked_for)
			parts[i].run();
	if (time_options.json)
		printf("\n]}\n");
	time_peers_close();
	paged_gpu_close(time_gpu);
	return time_failed;
}
