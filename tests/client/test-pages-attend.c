/*
 * fa_pages_attend(): every feature on a real daemon against fp64, mistakes, tables that change while
 * requests run, buffers that are freed and clients that are killed meanwhile.
 */
#include "client/faclient.h"
#include "tests/client/single-client.h"
#include "tests/kernels/own-problem.h"
#include "tests/kernels/problem.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A problem whose memory is copied to a buffer, and its request. */
struct scene {
	struct own_problem problem;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_pages_attend attend;
};

static const size_t memories[] = {
	offsetof(struct own_problem, k),        offsetof(struct own_problem, v),
	offsetof(struct own_problem, q),        offsetof(struct own_problem, out),
	offsetof(struct own_problem, lse),      offsetof(struct own_problem, table),
	offsetof(struct own_problem, lengths),  offsetof(struct own_problem, cu_q),
	offsetof(struct own_problem, k_scales), offsetof(struct own_problem, v_scales),
	offsetof(struct own_problem, prefixes),
};

/* Returns where the memory lies in the buffer. */
static uint64_t offset_of(const struct scene *scene, const struct own_memory *memory)
{
	uint64_t at = 0;

	for (size_t i = 0; i < sizeof(memories) / sizeof(*memories); ++i) {
		const struct own_memory *other = (const void *)((const char *)&scene->problem +
		                                                memories[i]);

		if (other == memory)
			return at;
		at += (other->bytes + 63) / 64 * 64;
	}
	return at;
}

static void *data_of(const struct scene *scene, const struct own_memory *memory)
{
	return (char *)fa_buffer_data(scene->buffer) + offset_of(scene, memory);
}

static struct fa_tensor vector(const struct scene *scene, const struct own_memory *memory,
                               uint32_t dtype, int64_t n)
{
	struct fa_tensor tensor = { 0 };

	if (memory->map)
		fa_tensor_init(&tensor, scene->buffer, offset_of(scene, memory), dtype, 1, &n);
	return tensor;
}

static struct fa_tensor rows(const struct scene *scene, const struct own_memory *memory,
                             const struct fa_attention_tensor *from, int64_t n, int64_t heads,
                             int64_t dim)
{
	return (struct fa_tensor){ .buffer = scene->buffer,
		                   .offset = offset_of(scene, memory),
		                   .dtype = (uint32_t)scene->problem.spec.dtype,
		                   .rank = 3,
		                   .shape = { n, heads, dim },
		                   .strides = { from->stride_token, from->stride_head, 1 } };
}

static struct fa_tensor pages(const struct scene *scene, bool v)
{
	const struct own_problem *problem = &scene->problem;
	const struct fa_paged_own *own = &problem->pages;
	const struct fa_attention_tensor *from = v ? &own->v : &own->k;
	const struct own_memory *memory = v && problem->v.map ? &problem->v : &problem->k;

	return (struct fa_tensor){
		.buffer = scene->buffer,
		.offset = offset_of(scene, memory) + (uint64_t)((char *)from->data - memory->data),
		.dtype = problem->spec.e4m3 ? FA_E4M3 : (uint32_t)problem->spec.dtype,
		.rank = 4,
		.shape = { own->pages, own->page_tokens, own->kv_heads,
		           v ? own->head_dim_v : own->head_dim },
		.strides = { from->stride_batch, from->stride_token, from->stride_head, 1 },
	};
}

static void fill_attend(struct scene *scene)
{
	const struct own_problem *problem = &scene->problem;
	const struct fa_paged_own_attention *p = &problem->request.own_attention;
	const struct own_spec *spec = &problem->spec;
	struct fa_pages_attend *attend = &scene->attend;

	*attend = (struct fa_pages_attend){
		.size = sizeof(*attend),
		.flags = (spec->causal ? FA_PAGES_CAUSAL : 0) |
		         (spec->left_1 || spec->right_1 ? FA_PAGES_WINDOW : 0) |
		         (spec->deterministic ? FA_PAGES_DETERMINISTIC : 0),
		.max_q = spec->even ? 0 : (uint32_t)p->max_q,
		.max_k = (uint32_t)p->max_k,
		.q = rows(scene, &problem->q, &p->q, p->total_q, spec->heads, spec->head_dim),
		.out = rows(scene, &problem->out, &p->out, p->total_q, spec->heads,
		            spec->head_dim_v),
		.k = pages(scene, false),
		.v = pages(scene, true),
		.table = { .buffer = scene->buffer,
		           .offset = offset_of(scene, &problem->table),
		           .dtype = FA_I32,
		           .rank = 2,
		           .shape = { spec->batch, p->table_columns },
		           .strides = { p->table_stride, 1 } },
		.lengths = vector(scene, &problem->lengths, FA_I32, spec->batch),
		.cu_q = vector(scene, &problem->cu_q, FA_I32, spec->batch + 1),
		.k_scales = vector(scene, &problem->k_scales, FA_F32, spec->kv_heads),
		.v_scales = vector(scene, &problem->v_scales, FA_F32, spec->kv_heads),
		.softcap = spec->softcap,
		.window_left = spec->left_1 - 1,
		.window_right = spec->right_1 - 1,
		.alibi_slopes = p->alibi_slopes,
		.sinks = p->sinks,
		.chunk_tokens = (uint64_t)spec->chunk,
		.pattern = { .block_tokens = (uint32_t)spec->pattern.block_tokens,
		             .local_blocks = (uint32_t)spec->pattern.local_blocks,
		             .vert_stride = (uint32_t)spec->pattern.vert_stride,
		             .head_step = spec->pattern.head_step,
		             .first_head = (uint32_t)spec->pattern.first_head },
		.prefix_lengths = vector(scene, &problem->prefixes, FA_I32, spec->batch),
	};
	if (!(attend->flags & FA_PAGES_WINDOW))
		attend->window_left = attend->window_right = 0;
	if (p->lse)
		attend->lse = (struct fa_tensor){ .buffer = scene->buffer,
			                          .offset = offset_of(scene, &problem->lse),
			                          .dtype = FA_F32,
			                          .rank = 2,
			                          .shape = { spec->heads, p->total_q } };
}

static void copy_in(struct scene *scene)
{
	own_poison(&scene->problem);
	for (size_t i = 0; i < sizeof(memories) / sizeof(*memories); ++i) {
		const struct own_memory *memory = (const void *)((const char *)&scene->problem +
		                                                 memories[i]);

		if (memory->map)
			memcpy(data_of(scene, memory), memory->data, memory->bytes);
	}
}

static void scene_init(struct scene *scene, struct fa_client *client, const struct own_spec *spec,
                       uint32_t flags)
{
	scene->client = client;
	own_init(&scene->problem, spec);
	must(fa_buffer_new(client, offset_of(scene, NULL) + 64, flags, &scene->buffer), "buffer");
	copy_in(scene);
	fill_attend(scene);
}

static void scene_deinit(struct scene *scene)
{
	fa_buffer_free(scene->buffer);
	own_deinit(&scene->problem);
}

/* Checks out and lse in the buffer. */
static void scene_judge(struct scene *scene)
{
	struct own_problem *problem = &scene->problem;

	memcpy(problem->out.data, data_of(scene, &problem->out), problem->out.bytes);
	if (problem->lse.map)
		memcpy(problem->lse.data, data_of(scene, &problem->lse), problem->lse.bytes);
	own_judge(problem, "the daemon", problem->spec.dtype == FA_ATTENTION_BF16);
}

static void check(int r)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
}

/* ---- results */

static const enum fa_attention_dtype dtypes[] = { FA_ATTENTION_F32, FA_ATTENTION_F16,
	                                          FA_ATTENTION_BF16 };

static void test_features(void **state)
{
	struct fa_buffer *buffer;
	bool gpu;

	/* A GPU's memory is not the host's. */
	must(fa_buffer_new(single_pair[0], 1, FA_BUFFER_DEVICE, &buffer), "buffer");
	gpu = !fa_buffer_data(buffer);
	fa_buffer_free(buffer);
	for (int i = 0; i < 24; ++i) {
		struct own_spec spec = own_usual;
		struct scene scene;

		spec.dtype = dtypes[i % 3];
		spec.page_tokens = i % 4 == 0 ? 1 : i % 4 == 1 ? 3 : i % 4 == 2 ? 16 : 256;
		spec.layout = (enum own_layout)(i % OWN_LAYOUTS);
		spec.e4m3 = i % 5 == 4;
		spec.scales = i % 2;
		spec.causal = i % 6 != 5;
		spec.alibi = i % 7 == 3;
		spec.sinks = i % 7 == 2;
		spec.softcap = i % 8 == 1 ? 5 : 0;
		spec.left_1 = i % 9 == 4 ? 20 : 0;
		spec.right_1 = i % 6 == 5 ? 3 : 0;
		spec.no_lse = i % 11 == 0;
		spec.even = i % 10 == 6;
		spec.deterministic = i % 4 == 3;
		spec.head_dim_v = i % 3 == 1 ? 40 : 64;
		if (!gpu) {
			spec.chunk = i % 5 == 3 ? 30 : 0;
			if (i % 3 == 1)
				spec.pattern = (struct fa_attention_pattern){ 16, 2, 3, i % 2, 1 };
			spec.prefixed = spec.causal && i % 4 == 2;
			spec.prefix[1] = 16;
			spec.prefix[2] = 150;
		}
		/* Kernels for codes have neither fp32 nor odd widths; this test writes its buffers. */
		if (gpu && spec.e4m3) {
			spec.dtype = dtypes[1 + i % 2];
			spec.head_dim_v = 64;
		}
		scene_init(&scene, single_pair[i % 2], &spec,
		           i % 4 == 0 && !gpu ? FA_BUFFER_DEVICE : 0);
		check(fa_pages_attend(scene.client, &scene.attend, NULL));
		scene_judge(&scene);
		scene_deinit(&scene);
	}
}

/* The last rows of each sequence come as k_new and v_new. */
static void test_append(void **state)
{
	for (int i = 0; i < 6; ++i) {
		struct own_spec spec = own_usual;
		struct scene scene;
		const struct own_problem *problem = &scene.problem;
		struct fa_buffer *buffer;
		int64_t n = 39, token = 0, row, *slots;
		size_t bytes;
		char *k_new, *v_new;

		spec.dtype = dtypes[i % 3];
		spec.page_tokens = i < 3 ? 16 : 3;
		spec.layout = (enum own_layout)(i % OWN_LAYOUTS);
		scene_init(&scene, single_pair[i % 2], &spec, 0);
		bytes = spec.dtype == FA_ATTENTION_F32 ? 4 : 2;
		row = (int64_t)spec.kv_heads * spec.head_dim;
		must(fa_buffer_new(scene.client,
		                   (uint64_t)(n + 1) * 8 + 64 + 2 * (uint64_t)(n * row) * bytes, 0,
		                   &buffer),
		     "buffer");
		slots = fa_buffer_data(buffer);
		k_new = (char *)fa_buffer_data(buffer) + (n + 1) * 8;
		v_new = k_new + (size_t)(n * row) * bytes;
		for (int32_t b = 0; b < spec.batch; ++b) {
			for (int32_t j = spec.lengths[b] - spec.n_q[b]; j < spec.lengths[b]; ++j) {
				const struct fa_paged_own_attention *p =
					&problem->request.own_attention;
				int64_t page = p->table[b * p->table_stride + j / spec.page_tokens];
				int64_t at = j % spec.page_tokens;
				char *k_memory = data_of(&scene, &problem->k);
				char *v_memory = problem->v.map ? data_of(&scene, &problem->v)
				                                : k_memory;

				slots[token] = page * spec.page_tokens + at;
				for (int32_t h = 0; h < spec.kv_heads; ++h) {
					const char *k = own_row(problem, false, page, at, h);
					const char *v = own_row(problem, true, page, at, h);
					const char *v_base = problem->v.map ? problem->v.data
					                                    : problem->k.data;
					size_t size = (size_t)spec.head_dim * bytes;
					size_t to = (size_t)(token * row + h * spec.head_dim) *
					            bytes;

					memcpy(k_new + to, k, size);
					memcpy(v_new + to, v, size);
					memset(k_memory + (k - problem->k.data), 0xff, size);
					memset(v_memory + (v - v_base), 0xff, size);
				}
				++token;
			}
		}
		fa_check_eq(token, n);
		slots[n] = -1;
		scene.attend.slots = (struct fa_tensor){
			.buffer = buffer, .dtype = FA_I64, .rank = 1, .shape = { n }
		};
		scene.attend.k_new = (struct fa_tensor){
			.buffer = buffer,
			.offset = (uint64_t)(n + 1) * 8,
			.dtype = (uint32_t)spec.dtype,
			.rank = 3,
			.shape = { n, spec.kv_heads, spec.head_dim },
		};
		scene.attend.v_new = scene.attend.k_new;
		scene.attend.v_new.offset += (uint64_t)(n * row) * bytes;
		check(fa_pages_attend(scene.client, &scene.attend, NULL));
		scene_judge(&scene);
		assert_memory_equal(data_of(&scene, &problem->k), problem->k.data,
		                    problem->k.bytes);
		if (problem->v.map)
			assert_memory_equal(data_of(&scene, &problem->v), problem->v.data,
			                    problem->v.bytes);
		fa_buffer_free(buffer);
		scene_deinit(&scene);
	}
}

/* Without sequences or rows there is nothing to do. */
static void test_empty(void **state)
{
	struct scene scene;
	struct fa_pages_attend attend;

	scene_init(&scene, single_pair[0], &own_usual, 0);
	attend = scene.attend;
	attend.table.shape[0] = attend.lengths.shape[0] = 0;
	attend.cu_q.shape[0] = 1;
	attend.q.shape[0] = attend.out.shape[0] = attend.lse.shape[1] = 0;
	attend.max_q = 0;
	check(fa_pages_attend(single_pair[0], &attend, NULL));
	attend = scene.attend;
	attend.q.shape[0] = attend.out.shape[0] = attend.lse.shape[1] = 0;
	attend.max_q = 0;
	check(fa_pages_attend(single_pair[0], &attend, NULL));
	/* No row was written. */
	fa_check_eq(*(unsigned char *)data_of(&scene, &scene.problem.out), 0xff);
	check(fa_pages_attend(single_pair[0], &scene.attend, NULL));
	scene_judge(&scene);
	scene_deinit(&scene);
}

/* ---- mistakes */

static void refuse_code(const struct scene *scene, const struct fa_pages_attend *bad, int code,
                        const char *part)
{
	struct fa_ticket ticket;
	int r;

	r = fa_pages_attend(scene->client, bad, &ticket);
	if (r == 0)
		r = fa_wait(scene->client, &ticket, UINT64_MAX, NULL);
	if (r != code)
		fa_test_fail(__FILE__, __LINE__, "%d instead of %d (%s): %s", r, code, part,
		             fa_error());
	fa_check_contains(fa_error(), part);
}

static void test_mistakes(void **state)
{
	float numbers[] = { 1, NAN, 1, 1 };

	for (int i = 0; i < 2; ++i) {
		struct scene scene;
		struct fa_pages_attend bad;
		struct fa_buffer *buffer;

		scene_init(&scene, single_pair[i], &own_usual, 0);
#define REFUSE(code, part, ...)                                                                    \
	do {                                                                                       \
		bad = scene.attend;                                                                \
		__VA_ARGS__;                                                                       \
		refuse_code(&scene, &bad, code, part);                                             \
	} while (0)
		REFUSE(-EINVAL, "fa_pages_attend.size", bad.size = 0);
		REFUSE(-EINVAL, "flags has unknown bits: 0x9", bad.flags |= 8);
		REFUSE(-EINVAL, "reserved is not 0", bad.reserved = 1);
		REFUSE(-EINVAL, "window_left is 3, which has no effect", bad.window_left = 3);
		REFUSE(-EINVAL,
		       "prefix_lengths is given, which has no effect without FA_PAGES_CAUSAL",
		       bad.flags &= ~FA_PAGES_CAUSAL;
		       bad.prefix_lengths = bad.lengths);
		REFUSE(-EINVAL, "prefix_lengths.dtype is 6; expected 5",
		       bad.prefix_lengths = bad.lengths;
		       bad.prefix_lengths.dtype = FA_I64);
		REFUSE(-EINVAL, "q.dtype is 5", bad.q.dtype = FA_I32);
		REFUSE(-EINVAL, "table.dtype is 6; expected 5", bad.table.dtype = FA_I64);
		REFUSE(-EINVAL, "k.dtype is 2; expected 3", bad.k.dtype = FA_F16);
		REFUSE(-EINVAL, "v.dtype is 4; expected 3", bad.v.dtype = FA_E4M3);
		REFUSE(-EINVAL, "lengths.buffer is NULL", bad.lengths.buffer = NULL);
		REFUSE(-EINVAL, "k.rank is 3; expected 4", bad.k.rank = 3);
		REFUSE(-EINVAL, "k reaches beyond the end of its buffer", bad.k.shape[0] += 1000);
		REFUSE(-EINVAL, "k.strides[0] is -1; expected 0 or more", bad.k.strides[0] = -1);
		REFUSE(-EINVAL, "k_scales is given, which has no effect as k and v are not FA_E4M3",
		       bad.k_scales = bad.lse);
		REFUSE(-EINVAL, "slots is given, which has no effect", bad.slots = bad.lengths);
		REFUSE(-EINVAL, "slots.buffer is NULL", bad.k_new = bad.q);
		REFUSE(-EINVAL, "sinks[1] is", bad.sinks = numbers);
		REFUSE(-EINVAL, "out overlaps q", bad.out = bad.q);
		REFUSE(-EINVAL, "out overlaps table", bad.table.offset = bad.out.offset);
		/* The daemon finds these. */
		REFUSE(-EINVAL,
		       "max_k is 177; expected at most 176, as table has 11 columns, of "
		       "pages of 16 tokens",
		       bad.max_k = 177;
		       bad.table.shape[1] = 11);
		REFUSE(-EINVAL, "max_q is 40; expected at most 39, the rows of q", bad.max_q = 40);
		REFUSE(-EINVAL, "lengths.shape[0] is 2; expected 3, the batch of table",
		       bad.lengths.shape[0] = 2);
		REFUSE(-EINVAL, "cu_q.shape[0] is 3; expected 4", bad.cu_q.shape[0] = 3);
		REFUSE(-EINVAL, "q.shape[0] is 39; expected 36, max_q 12 for each of 3 sequences",
		       bad.cu_q.buffer = NULL;
		       bad.max_q = 12);
		REFUSE(-EINVAL, "v.shape[0] is", bad.v.shape[0] -= 1);
		REFUSE(-EINVAL, "v.shape[1] is 8; expected 16, the tokens of a page of k",
		       bad.v.shape[1] = 8);
		REFUSE(-EINVAL,
		       "q.shape[1], the heads, is 3; expected a multiple of the heads of "
		       "k, 2",
		       bad.q.shape[1] = bad.out.shape[1] = bad.lse.shape[0] = 3);
		REFUSE(-ENOTSUP, "head_dim 60 is not supported",
		       bad.q.shape[2] = bad.k.shape[3] = 60);
		REFUSE(-EINVAL, "softcap -1 is not a finite number of at least 0",
		       bad.softcap = -1);
		REFUSE(-EINVAL, "there is no stream 9", bad.stream = 9);
#undef REFUSE
		/* All sequences share one row of the table; pages have 256 tokens. */
		must(fa_buffer_new(single_pair[i], 65537 * sizeof(int32_t), 0, &buffer), "buffer");
		bad = scene.attend;
		bad.table = (struct fa_tensor){ .buffer = buffer,
			                        .dtype = FA_I32,
			                        .rank = 2,
			                        .shape = { 3, 65537 },
			                        .strides = { 0, 1 } };
		bad.k.shape[0] = bad.v.shape[0] = 1;
		bad.k.shape[1] = bad.v.shape[1] = 256;
		bad.max_k = (1 << 24) + 1;
		refuse_code(&scene, &bad, -ENOTSUP,
		            "max_k is 16777217; at most 16777216 are supported");
		bad.max_k = 0;
		check(fa_pages_attend(single_pair[i], &bad, NULL));
		fa_buffer_free(buffer);
		/* After all of that a good request works. */
		check(fa_pages_attend(single_pair[i], &scene.attend, NULL));
		scene_judge(&scene);
		scene_deinit(&scene);
	}
}

/* Pages that are written must not overlap. */
static void test_overlapping_pages(void **state)
{
	struct scene scene;
	struct fa_pages_attend bad;
	struct fa_buffer *buffer, *read_only;

	scene_init(&scene, single_pair[0], &own_usual, 0);
	must(fa_buffer_new(single_pair[0], 1 << 16, 0, &buffer), "buffer");
	must(fa_buffer_new(single_pair[0], 1 << 20, FA_BUFFER_READ_ONLY, &read_only), "buffer");
	scene.attend.k_new = (struct fa_tensor){
		.buffer = buffer, .dtype = FA_BF16, .rank = 3, .shape = { 2, 2, 64 }
	};
	scene.attend.v_new = scene.attend.k_new;
	scene.attend.v_new.offset = 4096;
	scene.attend.slots = (struct fa_tensor){
		.buffer = buffer, .offset = 16384, .dtype = FA_I64, .rank = 1, .shape = { 2 }
	};
	bad = scene.attend;
	bad.k.strides[0] /= 2; /* pages overlap */
	refuse_code(&scene, &bad, -EINVAL, "k.strides[0] is 1024, so that elements overlap");
	bad = scene.attend;
	bad.k.strides[2] = 0; /* heads share memory */
	refuse_code(&scene, &bad, -EINVAL, "k.strides[2] is 0, so that elements overlap");
	bad = scene.attend;
	bad.v = bad.k;
	refuse_code(&scene, &bad, -EINVAL, "k overlaps v");
	bad = scene.attend;
	bad.k_new = bad.q;
	bad.k_new.buffer = scene.buffer;
	bad.k_new.offset = bad.k.offset;
	bad.k_new.shape[0] = 2;
	bad.k_new.shape[1] = 2;
	refuse_code(&scene, &bad, -EINVAL, "k overlaps k_new");
	bad = scene.attend;
	bad.slots.shape[0] = 3;
	refuse_code(&scene, &bad, -EINVAL, "k_new.shape[0] is 2; expected 3, the tokens of slots");
	bad = scene.attend;
	bad.k_new.shape[1] = bad.v_new.shape[1] = 1;
	refuse_code(&scene, &bad, -EINVAL, "k_new.shape[1] is 1; expected 2, the heads of k");
	bad = scene.attend;
	bad.k.buffer = read_only;
	bad.k.offset = 0;
	refuse_code(&scene, &bad, -EINVAL, "read-only");

	/* V may be the front of K where K alone is written, and overlapping pages may be read. */
	bad = scene.attend;
	bad.v_new.buffer = NULL;
	bad.v = bad.k;
	*(int64_t *)((char *)fa_buffer_data(buffer) + 16384) = -1;
	check(fa_pages_attend(single_pair[0], &bad, NULL));
	bad = scene.attend;
	bad.k_new.buffer = bad.v_new.buffer = bad.slots.buffer = NULL;
	bad.k.strides[0] = 0;
	check(fa_pages_attend(single_pair[0], &bad, NULL));
	fa_buffer_free(buffer);
	fa_buffer_free(read_only);
	scene_deinit(&scene);
}

/* ---- what happens meanwhile */

static uint64_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 16;
}

struct scribbler {
	const struct scene *scene;
	atomic_bool stop;
};

static void *scribble(void *userdata)
{
	struct scribbler *scribbler = userdata;
	const struct own_problem *problem = &scribbler->scene->problem;
	const struct own_memory *all[] = { &problem->table, &problem->lengths, &problem->cu_q };
	uint64_t state = 1;

	while (!atomic_load(&scribbler->stop)) {
		const struct own_memory *memory = all[random_next(&state) % 3];
		int32_t *words = data_of(scribbler->scene, memory);
		size_t i = random_next(&state) % (memory->bytes / sizeof(*words));

		__atomic_store_n(&words[i],
		                 (int32_t)random_next(&state) >> random_next(&state) % 31,
		                 __ATOMIC_RELAXED);
	}
	return NULL;
}

static void test_changing_tables(void **state)
{
	struct own_spec spec = own_usual;
	struct scene scene, other;
	struct scribbler scribbler = { .scene = &scene };
	struct fa_ticket tickets[200];
	pthread_t thread;

	spec.lengths[0] = 3000;
	scene_init(&scene, single_pair[0], &spec, 0);
	scene_init(&other, single_pair[1], &spec, 0);
	fa_check_eq(pthread_create(&thread, NULL, scribble, &scribbler), 0);
	for (int i = 0; i < 200; ++i) {
		scene.attend.max_k = i % 2 ? 0 : (uint32_t)spec.lengths[0];
		check(fa_pages_attend(single_pair[0], &scene.attend, &tickets[i]));
		if (i % 50 == 0) {
			copy_in(&other);
			check(fa_pages_attend(single_pair[1], &other.attend, NULL));
			scene_judge(&other);
		}
	}
	for (int i = 0; i < 200; ++i)
		check(fa_wait(single_pair[0], &tickets[i], UINT64_MAX, NULL));
	atomic_store(&scribbler.stop, true);
	pthread_join(thread, NULL);
	copy_in(&scene);
	check(fa_pages_attend(single_pair[0], &scene.attend, NULL));
	scene_judge(&scene);
	scene_deinit(&scene);
	scene_deinit(&other);
}

static void test_freed_buffers(void **state)
{
	for (int i = 0; i < 20; ++i) {
		struct own_spec spec = own_usual;
		struct fa_ticket tickets[8];
		struct scene scene;

		spec.lengths[0] = 2000;
		scene_init(&scene, single_pair[i % 2], &spec, 0);
		for (int k = 0; k < 8; ++k)
			check(fa_pages_attend(scene.client, &scene.attend, &tickets[k]));
		fa_buffer_free(scene.buffer);
		for (int k = 0; k < 8; ++k)
			check(fa_wait(scene.client, &tickets[k], UINT64_MAX, NULL));
		fa_check_eq(fa_pages_attend(scene.client, &scene.attend, NULL), -EINVAL);
		fa_check_contains(fa_error(), "was freed");
		own_deinit(&scene.problem);
	}
}

static void __attribute__((noreturn)) run_child(int ready)
{
	struct fa_options options = { .size = sizeof(options), .socket = single_daemon.socket };
	struct own_spec spec = own_usual;
	struct fa_ticket ticket;
	struct fa_client *client;
	struct scribbler scribbler;
	struct scene scene;
	pthread_t thread;

	spec.lengths[2] = 4000;
	if (fa_connect(&options, &client) < 0)
		_exit(2);
	scene_init(&scene, client, &spec, 0);
	scribbler = (struct scribbler){ .scene = &scene };
	if (pthread_create(&thread, NULL, scribble, &scribbler))
		_exit(3);
	for (uint64_t i = 0;; ++i) {
		int r = fa_pages_attend(client, &scene.attend, i % 64 ? &ticket : NULL);

		if (r < 0 && r != -EAGAIN)
			_exit(4);
		if (i == 32 && write(ready, "", 1) != 1)
			_exit(5);
	}
}

static void test_killed_clients(void **state)
{
	for (int i = 0; i < 6; ++i) {
		struct scene scene;
		int status, pipes[2];
		char byte;
		pid_t pid;

		fa_check_eq(pipe(pipes), 0);
		pid = fork();
		if (pid == 0)
			run_child(pipes[1]);
		fa_check(pid > 0);
		close(pipes[1]);
		fa_check_eq(read(pipes[0], &byte, 1), 1);
		close(pipes[0]);
		fa_check_eq(kill(pid, SIGKILL), 0);
		fa_check_eq(waitpid(pid, &status, 0), pid);
		fa_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		scene_init(&scene, single_pair[i % 2], &own_usual, 0);
		check(fa_pages_attend(scene.client, &scene.attend, NULL));
		scene_judge(&scene);
		scene_deinit(&scene);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_append),
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_overlapping_pages),
		cmocka_unit_test(test_changing_tables),
		cmocka_unit_test(test_freed_buffers),
		cmocka_unit_test(test_killed_clients),
	};

	return cmocka_run_group_tests(tests, single_pair_setup, single_pair_teardown);
}
