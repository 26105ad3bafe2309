/*
 * Prints the support matrix of docs/kernels.md: what each backend's checks and plans say to one
 * request per feature and kind of request. Markdown, on stdout.
 */
#include "kernels/cuda/paged-plan.h"
#include "kernels/cuda/plan.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 4096
#define PAGE_TOKENS 64
#define PARTS_MAX 4096 /* as FA_CUDA_SEQUENCES_MAX of the daemon */

enum kind {
	DENSE,
	PAGED_PREFILL,
	PAGED_DECODE,
	OWN_PREFILL,
	OWN_DECODE,
	KINDS,
};

static const struct fa_cuda_chip chips[] = {
	{ .arch = 80,
	  .shared_bytes_max = 166912,
	  .l2_bytes = 40 << 20,
	  .sms = 108,
	  .workspace = true },
	{ .arch = 89,
	  .shared_bytes_max = 101376,
	  .l2_bytes = 72 << 20,
	  .sms = 128,
	  .workspace = true },
	{ .arch = 90,
	  .shared_bytes_max = 232448,
	  .l2_bytes = 50 << 20,
	  .sms = 132,
	  .workspace = true },
};

#define CHIPS (sizeof(chips) / sizeof(chips[0]))

static const char *const backends[] = { "sm80", "sm89", "sm90" };

/* What a request has beyond causal attention of 32 heads on 8, in bf16, without codes. */
struct feature {
	const char *name;
	int32_t head_dim, head_dim_v;  /* 0: 128 */
	enum fa_attention_dtype dtype; /* 0: bf16 */
	enum fa_paged_store store;
	bool token_scales, v_in_k, deterministic, alibi, sinks, tree, full, unaligned, ragged;
	int64_t window_left, chunk_tokens;
	uint32_t prefix; /* of all sequences; 0: none */
	int32_t block_tokens, pattern_tokens;
	bool bits;
	float softcap;
	int32_t heads, kv_heads, page_tokens; /* 0: 32, 8, PAGE_TOKENS */
	/* Kinds of requests for which there is no such thing: bits. */
	uint32_t without;
};

#define NOT_OWN (1u << OWN_PREFILL | 1u << OWN_DECODE)
#define NOT_DENSE (1u << DENSE)

static const struct feature features[] = {
	{ .name = "head dims 64/64", .head_dim = 64, .head_dim_v = 64 },
	{ .name = "96/96", .head_dim = 96, .head_dim_v = 96 },
	{ .name = "128/128", .head_dim = 128, .head_dim_v = 128 },
	{ .name = "192/128 (MLA, plain form)", .head_dim = 192, .head_dim_v = 128, .kv_heads = 32 },
	{ .name = "256/256", .head_dim = 256, .head_dim_v = 256 },
	{ .name = "other multiples of 8 up to 256, as 80/72", .head_dim = 80, .head_dim_v = 72 },
	{ .name = "V wider than K, as 64/512", .head_dim = 64, .head_dim_v = 512 },
	{ .name = "512/512", .head_dim = 512, .head_dim_v = 512 },
	{ .name = "576/512, one KV head (MLA, absorbed)",
	  .head_dim = 576,
	  .head_dim_v = 512,
	  .heads = 128,
	  .kv_heads = 1 },
	{ .name = "V the front of K, 128/128", .v_in_k = true, .without = NOT_DENSE | NOT_OWN },
	{ .name = "V the front of K, 576/512",
	  .v_in_k = true,
	  .head_dim = 576,
	  .head_dim_v = 512,
	  .heads = 128,
	  .kv_heads = 1,
	  .without = NOT_DENSE | NOT_OWN },
	{ .name = "fp16", .dtype = FA_ATTENTION_F16 },
	{ .name = "fp32", .dtype = FA_ATTENTION_F32 },
	{ .name = "fp32, 576/512",
	  .dtype = FA_ATTENTION_F32,
	  .head_dim = 576,
	  .head_dim_v = 512,
	  .heads = 128,
	  .kv_heads = 1 },
	{ .name = "e4m3, scales of heads", .store = FA_PAGED_E4M3, .without = NOT_DENSE },
	{ .name = "e4m3, scales of tokens",
	  .store = FA_PAGED_E4M3,
	  .token_scales = true,
	  .without = NOT_DENSE | NOT_OWN },
	{ .name = "int8, scales of heads", .store = FA_PAGED_INT8, .without = NOT_DENSE },
	{ .name = "int8, scales of tokens",
	  .store = FA_PAGED_INT8,
	  .token_scales = true,
	  .without = NOT_DENSE | NOT_OWN },
	{ .name = "e4m3, V the front of K, 576/512",
	  .store = FA_PAGED_E4M3,
	  .v_in_k = true,
	  .head_dim = 576,
	  .head_dim_v = 512,
	  .heads = 128,
	  .kv_heads = 1,
	  .without = NOT_DENSE | NOT_OWN },
	{ .name = "int8, tokens' scales, V the front of K, 576/512",
	  .store = FA_PAGED_INT8,
	  .token_scales = true,
	  .v_in_k = true,
	  .head_dim = 576,
	  .head_dim_v = 512,
	  .heads = 128,
	  .kv_heads = 1,
	  .without = NOT_DENSE | NOT_OWN },
	{ .name = "e4m3, head dims not multiples of 16, as 72/72",
	  .store = FA_PAGED_E4M3,
	  .head_dim = 72,
	  .head_dim_v = 72,
	  .without = NOT_DENSE },
	{ .name = "e4m3 with fp32",
	  .store = FA_PAGED_E4M3,
	  .dtype = FA_ATTENTION_F32,
	  .without = NOT_DENSE },
	{ .name = "neither causal nor windows", .full = true },
	{ .name = "windows", .window_left = 1023 },
	{ .name = "attention chunks", .chunk_tokens = 1024 },
	{ .name = "prefixes of all keys (prefix-LM)", .prefix = KEYS },
	{ .name = "prefixes that end among the rows", .prefix = KEYS - 100 },
	{ .name = "block-sparse, blocks of 128", .block_tokens = 128, .without = ~NOT_DENSE },
	{ .name = "local and strided blocks, by numbers", .pattern_tokens = 64 },
	{ .name = "bit masks", .bits = true, .without = ~NOT_DENSE },
	{ .name = "soft cap", .softcap = 30 },
	{ .name = "ALiBi", .alibi = true },
	{ .name = "ALiBi and soft cap", .alibi = true, .softcap = 30 },
	{ .name = "attention sinks", .sinks = true },
	{ .name = "attention sinks, 64/64", .sinks = true, .head_dim = 64, .head_dim_v = 64 },
	{ .name = "trees", .tree = true, .without = NOT_DENSE | NOT_OWN },
	{ .name = "trees, e4m3",
	  .tree = true,
	  .store = FA_PAGED_E4M3,
	  .without = NOT_DENSE | NOT_OWN },
	{ .name = "ragged batches", .ragged = true, .without = ~NOT_DENSE },
	{ .name = "deterministic", .deterministic = true, .without = NOT_DENSE },
	{ .name = "deterministic, e4m3",
	  .deterministic = true,
	  .store = FA_PAGED_E4M3,
	  .without = NOT_DENSE },
	{ .name = "one query head per KV head", .heads = 8 },
	{ .name = "groups of 7 query heads", .heads = 56 },
	{ .name = "rows that are not 16-byte aligned", .unaligned = true },
	{ .name = "pages of 16 tokens", .page_tokens = 16, .without = NOT_DENSE },
	{ .name = "pages of 256 tokens", .page_tokens = 256, .without = NOT_DENSE },
	{ .name = "pages of 1 token", .page_tokens = 1, .without = ~NOT_OWN },
};

#define FEATURES (sizeof(features) / sizeof(features[0]))

struct scene {
	const struct feature *feature;
	enum kind kind;
	int32_t heads, kv_heads, head_dim, head_dim_v, page_tokens, n_q;
	enum fa_attention_dtype dtype;
	struct fa_attention_params dense;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	struct fa_paged_own own;
	struct fa_paged_request request;
	uint32_t cu_new[2], lengths, before, table_start, tree_start, positions[1024];
	uint32_t cu_q[3], cu_k[3], prefixes[2];
};

static float scales[1024];
static char memory[64] __attribute__((aligned(16)));

static struct fa_attention_tensor tensor(const struct scene *scene, int32_t heads, int32_t dim)
{
	const int64_t gap = scene->feature->unaligned ? 1 : 0;

	return (struct fa_attention_tensor){ memory, KEYS * (heads * dim + gap), heads * dim + gap,
		                             dim };
}

static struct fa_attention_pattern pattern(const struct feature *f)
{
	return (struct fa_attention_pattern){ f->pattern_tokens, 4, 8, 1, 0 };
}

static void fill_dense(struct scene *scene)
{
	const struct feature *f = scene->feature;

	scene->cu_q[1] = scene->cu_k[1] = 300;
	scene->cu_q[2] = scene->cu_k[2] = KEYS + 300;
	scene->dense = (struct fa_attention_params){
		.dtype = scene->dtype,
		.batch = 2,
		.heads = scene->heads,
		.kv_heads = scene->kv_heads,
		.head_dim = scene->head_dim,
		.head_dim_v = scene->head_dim_v,
		.seqlen_q = KEYS,
		.seqlen_k = KEYS,
		.cu_seqlens_q = f->ragged ? scene->cu_q : NULL,
		.cu_seqlens_k = f->ragged ? scene->cu_k : NULL,
		.q = tensor(scene, scene->heads, scene->head_dim),
		.k = tensor(scene, scene->kv_heads, scene->head_dim),
		.v = tensor(scene, scene->kv_heads, scene->head_dim_v),
		.out = tensor(scene, scene->heads, scene->head_dim_v),
		.scale = 0.1f,
		.softcap = f->softcap,
		.causal = !f->full,
		.chunk_tokens = f->chunk_tokens,
		.prefix_lengths = f->prefix ? scene->prefixes : NULL,
		.blocks = { .rows = f->block_tokens, .keys = f->block_tokens },
		.pattern = pattern(f),
		.bits = { .words = f->bits ? scene->cu_q : NULL },
		.window_left = f->window_left ? f->window_left : -1,
		.window_right = -1,
		.alibi_slopes = f->alibi ? scales : NULL,
		.sinks = f->sinks ? scales : NULL,
	};
}

static void fill_paged(struct scene *scene)
{
	const struct feature *f = scene->feature;
	const int64_t bytes = f->store ? 1 : scene->dtype == FA_ATTENTION_F32 ? 4 : 2;
	const int64_t rows = (int64_t)scene->kv_heads * scene->page_tokens;

	scene->cache = (struct fa_paged_cache){
		.dtype = scene->dtype,
		.layers = 1,
		.kv_heads = scene->kv_heads,
		.head_dim = scene->head_dim,
		.head_dim_v = scene->head_dim_v,
		.page_tokens = scene->page_tokens,
		.v_offset = f->v_in_k ? 0 : rows * (scene->head_dim * bytes + 16),
		.store = f->store,
		.k_scales = f->store && !f->token_scales ? scales : NULL,
		.v_scales = f->store && !f->token_scales ? scales : NULL,
	};
	scene->cu_new[1] = (uint32_t)scene->n_q;
	scene->lengths = scene->before = KEYS;
	scene->step = (struct fa_paged_step){
		.batch = 1,
		.cu_new = scene->cu_new,
		.lengths = &scene->lengths,
		.lengths_before = &scene->before,
		.table_start = &scene->table_start,
		.table_entries = KEYS,
	};
	scene->request = (struct fa_paged_request){
		.op = FA_PAGED_ATTEND,
		.attention = {
			.cache = &scene->cache,
			.step = &scene->step,
			.heads = scene->heads,
			.q = tensor(scene, scene->heads, scene->head_dim),
			.out = tensor(scene, scene->heads, scene->head_dim_v),
			.scale = 0.1f,
			.softcap = f->softcap,
			.causal = !f->full,
			.chunk_tokens = f->chunk_tokens,
			.prefix_lengths = f->prefix ? scene->prefixes : NULL,
			.pattern = pattern(f),
			.window_left = f->window_left ? f->window_left : -1,
			.window_right = -1,
			.alibi_slopes = f->alibi ? scales : NULL,
			.sinks = f->sinks ? scales : NULL,
			.deterministic = f->deterministic,
			.tree = f->tree ? scene->positions : NULL,
			.tree_start = f->tree ? &scene->tree_start : NULL,
			.positions = f->tree ? scene->positions : NULL,
		},
	};
}

static void fill_own(struct scene *scene)
{
	const struct feature *f = scene->feature;

	scene->own = (struct fa_paged_own){
		.dtype = scene->dtype,
		.kv_heads = scene->kv_heads,
		.head_dim = scene->head_dim,
		.head_dim_v = scene->head_dim_v,
		.page_tokens = scene->page_tokens,
		.pages = KEYS,
		.store = f->store,
		.k = tensor(scene, scene->kv_heads, scene->head_dim),
		.v = tensor(scene, scene->kv_heads, scene->head_dim_v),
	};
	scene->own.k.stride_batch = scene->own.k.stride_token * scene->page_tokens;
	scene->own.v.stride_batch = scene->own.v.stride_token * scene->page_tokens;
	scene->request = (struct fa_paged_request){
		.op = FA_PAGED_ATTEND_OWN,
		.own_attention = {
			.pages = &scene->own,
			.batch = 1,
			.heads = scene->heads,
			.table = (const int32_t *)scene->positions,
			.table_columns = KEYS / scene->page_tokens,
			.table_stride = KEYS / scene->page_tokens,
			.lengths = (const int32_t *)scene->positions,
			.max_q = scene->n_q,
			.total_q = scene->n_q,
			.max_k = KEYS,
			.q = tensor(scene, scene->heads, scene->head_dim),
			.out = tensor(scene, scene->heads, scene->head_dim_v),
			.scale = 0.1f,
			.softcap = f->softcap,
			.causal = !f->full,
			.chunk_tokens = f->chunk_tokens,
			.prefix_lengths = f->prefix ? (const int32_t *)scene->prefixes : NULL,
			.pattern = pattern(f),
			.window_left = f->window_left ? f->window_left : -1,
			.window_right = -1,
			.alibi_slopes = f->alibi ? scales : NULL,
			.sinks = f->sinks ? scales : NULL,
			.deterministic = f->deterministic,
		},
	};
}

static void fill(struct scene *scene, const struct feature *f, enum kind kind)
{
	*scene = (struct scene){
		.feature = f,
		.kind = kind,
		.heads = f->heads ? f->heads : 32,
		.kv_heads = f->kv_heads ? f->kv_heads : 8,
		.head_dim = f->head_dim ? f->head_dim : 128,
		.head_dim_v = f->head_dim_v ? f->head_dim_v : 128,
		.page_tokens = f->page_tokens ? f->page_tokens : PAGE_TOKENS,
		.n_q = kind == PAGED_DECODE || kind == OWN_DECODE ? 1 : 512,
		.prefixes = { f->prefix, f->prefix },
		.dtype = f->dtype ? f->dtype : FA_ATTENTION_BF16,
	};
	if (kind == DENSE)
		fill_dense(scene);
	else if (kind == PAGED_PREFILL || kind == PAGED_DECODE)
		fill_paged(scene);
	else
		fill_own(scene);
}

static bool is_covered_by_cpu(const struct scene *scene, char *text, size_t text_bytes)
{
	if (scene->kind == DENSE)
		return fa_attention_check(&scene->dense, text, text_bytes) == 0;
	return fa_paged_check(&scene->request, text, text_bytes) == 0;
}

/* Also tells if a kernel that was made for the chip computes it. */
static bool is_covered(const struct scene *scene, const struct fa_cuda_chip *chip,
                       bool *ret_special, char *text, size_t text_bytes)
{
	struct fa_cuda_paged_plan plan;
	struct fa_cuda_launch launch;
	void *blob;
	int r;

	if (scene->kind == DENSE) {
		struct fa_attention_params params = scene->dense;
		uint32_t *lengths = NULL;

		r = fa_cuda_masks_rewrite(&params, PARTS_MAX, text, text_bytes, &lengths);
		if (r == 0)
			r = fa_cuda_attention_plan(chip, &params, text, text_bytes, &launch);
		free(lengths);
		*ret_special = r == 0 && fa_cuda_kernel_is_special(launch.kernel);
		return r == 0;
	}
	blob = malloc(fa_cuda_paged_blob_bytes(&scene->request) + 1);
	if (!blob)
		abort();
	r = scene->request.op == FA_PAGED_ATTEND
	            ? fa_cuda_paged_check_cache(chip, &scene->cache, text, text_bytes)
	            : 0;
	if (r == 0)
		r = fa_cuda_paged_plan(chip, &scene->request, blob, text, text_bytes, &plan);
	*ret_special = r == 0 &&
	               fa_cuda_paged_kernel_is_special(plan.forward ? plan.forward : plan.decode);
	free(blob);
	return r == 0;
}

/* Where some backends refuse, the first one's sentence. */
static char sentences[FEATURES * KINDS][256];
static size_t n_sentences;

static size_t add_sentence(const char *text)
{
	for (size_t i = 0; i < n_sentences; i++)
		if (strcmp(sentences[i], text) == 0)
			return i + 1;
	snprintf(sentences[n_sentences], sizeof(sentences[0]), "%s", text);
	return ++n_sentences;
}

static void say_cell(const struct feature *f, enum kind kind)
{
	char missing[64] = "", text[256], first[256] = "";
	bool special = false, any = false;
	struct scene scene;

	if (f->without & 1u << kind) {
		printf("| ");
		return;
	}
	fill(&scene, f, kind);
	if (!is_covered_by_cpu(&scene, text, sizeof(text))) {
		printf("| no (%zu) ", add_sentence(text));
		return;
	}
	for (size_t i = 0; i < CHIPS; i++) {
		bool of_chip = false;

		if (is_covered(&scene, &chips[i], &of_chip, text, sizeof(text))) {
			any = true;
			special |= of_chip;
			continue;
		}
		snprintf(missing + strlen(missing), sizeof(missing) - strlen(missing), " %s",
		         backends[i]);
		if (!first[0])
			memcpy(first, text, sizeof(first));
	}
	if (!any)
		printf("| CPU (%zu) ", add_sentence(first));
	else if (missing[0])
		printf("| not%s (%zu)%s ", missing, add_sentence(first), special ? ", sm90" : "");
	else
		printf("| %s ", special ? "yes, sm90" : "yes");
}

int main(void)
{
	printf("| | dense | paged prefill | paged decode | own pages, prefill | own pages, decode "
	       "|\n|---|---|---|---|---|---|\n");
	for (size_t i = 0; i < sizeof(scales) / sizeof(scales[0]); i++)
		scales[i] = 0.5f;
	for (size_t i = 0; i < FEATURES; i++) {
		printf("| %s ", features[i].name);
		for (int kind = 0; kind < KINDS; kind++)
			say_cell(&features[i], (enum kind)kind);
		printf("|\n");
	}
	printf("\nWhat the refusals say:\n");
	for (size_t i = 0; i < n_sentences; i++)
		printf("%zu. %s\n", i + 1, sentences[i]);
	return 0;
}
