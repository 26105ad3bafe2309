/*
 * The functions of the CPU's kernels, done by the daemon's Vulkan backend, so that all tests of kernels
 * also test Vulkan's: FAD_CPU_ISA=vulkan, or vulkan-matrices where the device has them, is the only
 * instruction set, and a request is one tile. Tensors are imported where the test has them.
 * FAD_TEST_VULKAN_TIER=scalar does without matrices, =matrices fails where there are none, and =splits splits the
 * keys of short sequences, too, which lavapipe takes long to compile. Exits
 * with 77 where there is no Vulkan device.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/memory.h"
#include "kernels/attention.h"
#include "kernels/paged.h"

#include <errno.h>
#include <malloc.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((uintptr_t)4096)
#define IMPORTS_MAX 64
#define PATIENCE_SEC 250

struct fa_cpu_isa {
	const char *name;
};

static const struct fa_cpu_isa scalar = { "vulkan" }, matrices = { "vulkan-matrices" };
static const struct fa_device_ops *const ops = &fa_device_vulkan;

static struct {
	struct fa_device *device;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	sem_t notified;
	struct fa_vk_import *imports[IMPORTS_MAX];
	size_t n_imports;
	char *pool, *chunks; /* while a request over the pool runs */
	size_t pool_bytes;
} scene;

static void __attribute__((noreturn)) die(const char *what, const struct fa_error *error)
{
	printf("%s: %s\n", what, error->text);
	(void)fflush(stdout);
	abort();
}

static void on_notify(void *userdata)
{
	sem_post(&scene.notified);
}

static void close_device(void)
{
	scene.queue = ops->queue_free(scene.device, scene.queue);
	scene.group = ops->group_free(scene.device, scene.group);
	scene.device = ops->close(scene.device);
}

static void open_device(void)
{
	const struct fa_device_config config = { .notify = on_notify };
	struct fa_device_info info;
	struct fa_error error = { "" };
	const char *tier;

	if (scene.device)
		return;
	sem_init(&scene.notified, 0, 0);
	if (ops->open(&config, &error, &scene.device) < 0) {
		printf("skipped: %s\n", error.text);
		exit(77);
	}
	/* Lavapipe compiles within a part; kernels with matrices take it long where others compute, too. */
	scene.device->hang_ns = 200 * FA_NS_PER_SEC;
	tier = getenv("FAD_TEST_VULKAN_TIER");
	if (tier && strcmp(tier, "scalar") == 0)
		scene.device->matrices = (struct fa_vulkan_matrices){ 0 };
	if (tier && strcmp(tier, "splits") == 0)
		scene.device->splits = (struct fa_vulkan_splits){
			.groups = 64,
			.least_keys = 32,
			.most_keys = 2048,
		};
	if (tier && strcmp(tier, "matrices") == 0 && !scene.device->matrices.f16)
		die("FAD_TEST_VULKAN_TIER", &(struct fa_error){ "the device has no matrices" });
	ops->describe(scene.device, &info);
	printf("%s: %s\n", info.name, info.details);
	if (ops->group_new(scene.device, &error, &scene.group) < 0 ||
	    ops->queue_new(scene.device, scene.group, 0, &error, &scene.queue) < 0)
		die("queue", &error);
	(void)atexit(close_device);
}

/* ---- memory */

/* Returns the device's address of @data, of which it may use @bytes. */
static void *import(const void *data, size_t bytes)
{
	const uintptr_t begin = (uintptr_t)data / PAGE * PAGE;
	const uintptr_t end = ((uintptr_t)data + bytes + PAGE - 1) / PAGE * PAGE;
	struct fa_error error = { "too many tensors" };
	struct fa_vk_import *imported;

	if (!data || !bytes)
		return NULL;
	if (scene.n_imports == IMPORTS_MAX ||
	    fa_vk_import_new(scene.device, (void *)begin, end - begin, &error, &imported) < 0)
		die("import", &error);
	scene.imports[scene.n_imports++] = imported;
	return (void *)(uintptr_t)(imported->at + ((uintptr_t)data - begin));
}

static void release_imports(void)
{
	for (size_t i = 0; i < scene.n_imports; i++)
		fa_vk_import_free(scene.device, scene.imports[i]);
	scene.n_imports = 0;
}

static size_t element_bytes(enum fa_attention_dtype dtype)
{
	return dtype == FA_ATTENTION_F32 ? 4 : 2;
}

static void import_tensor(struct fa_attention_tensor *tensor, int64_t batch, int64_t tokens,
                          int64_t heads, int64_t dim, size_t bytes)
{
	int64_t n = 0;

	if (batch && tokens && heads)
		n = (batch - 1) * tensor->stride_batch + (tokens - 1) * tensor->stride_token +
		    (heads - 1) * tensor->stride_head + dim;
	tensor->data = import(tensor->data, (size_t)n * bytes);
}

static void import_lse(float **lse, int64_t batch, int64_t stride_batch, int64_t tokens,
                       int64_t stride_token, int64_t heads, int64_t stride_head)
{
	struct fa_attention_tensor tensor = { *lse, stride_batch, stride_token, stride_head };

	import_tensor(&tensor, batch, tokens, heads, 1, sizeof(float));
	*lse = tensor.data;
}

/*
 * Makes the device's pool of the cache's memory, which is malloc's. Chunks are as small as can be, so that
 * rows lie in two of them, and their copies lie in reverse order, with poison in between.
 */
static void use_pool(const struct fa_paged_cache *cache)
{
	const size_t bytes = malloc_usable_size(cache->pool);
	const size_t n = (bytes + PAGE - 1) / PAGE;
	struct fa_vk_pool *pool = &scene.device->pool;
	struct fa_error error = { "no memory" };
	uint64_t at;

	scene.pool = cache->pool;
	scene.pool_bytes = bytes;
	scene.chunks = aligned_alloc(PAGE, 2 * n * PAGE);
	if (!scene.chunks || fa_vk_blob_new(scene.device, FA_VK_MEMORY_ARGUMENTS,
	                                    n * sizeof(uint64_t), &error, &pool->chunks) < 0)
		die("pool", &error);
	memset(scene.chunks, 0xff, 2 * n * PAGE);
	at = (uint64_t)(uintptr_t)import(scene.chunks, 2 * n * PAGE);
	for (size_t i = 0; i < n; i++) {
		const size_t left = bytes - i * PAGE, place = 2 * (n - 1 - i) * PAGE;

		memcpy(scene.chunks + place, scene.pool + i * PAGE, left < PAGE ? left : PAGE);
		((uint64_t *)pool->chunks->host)[i] = at + place;
	}
	pool->chunk_bytes = PAGE;
	pool->base = cache->pool;
}

/* Copies the chunks back. */
static void drop_pool(void)
{
	const size_t n = (scene.pool_bytes + PAGE - 1) / PAGE;
	struct fa_vk_pool *pool = &scene.device->pool;

	if (!scene.chunks)
		return;
	for (size_t i = 0; i < n; i++) {
		const size_t left = scene.pool_bytes - i * PAGE, place = 2 * (n - 1 - i) * PAGE;

		memcpy(scene.pool + i * PAGE, scene.chunks + place, left < PAGE ? left : PAGE);
	}
	free(fa_steal_ptr(scene.chunks));
	pool->chunks = fa_vk_blob_free(scene.device, pool->chunks);
	pool->base = NULL;
}

/* Masks of no bytes keep addresses, as the daemon gives them. */
static void *import_list(const void *data, size_t bytes)
{
	return bytes ? import(data, bytes) : (void *)data;
}

static void import_masks(struct fa_attention_params *p)
{
	struct fa_attention_blocks *blocks = &p->blocks;
	struct fa_attention_bits *bits = &p->bits;
	const int64_t last_batch = p->batch - 1, last_head = p->heads - 1;

	if (blocks->rows) {
		blocks->offsets = import_list(
			blocks->offsets,
			(size_t)(last_batch * blocks->offsets_stride_batch +
		                 last_head * blocks->offsets_stride_head +
		                 (p->seqlen_q + blocks->rows - 1) / blocks->rows + 1) *
				sizeof(int32_t));
		blocks->columns = import_list(blocks->columns,
		                              (size_t)(last_batch * blocks->columns_stride_batch +
		                                       last_head * blocks->columns_stride_head +
		                                       blocks->n_columns) *
		                                      sizeof(int32_t));
	}
	if (bits->words)
		bits->words = import_list(
			bits->words,
			(size_t)(last_batch * bits->stride_batch + last_head * bits->stride_head +
		                 (p->seqlen_q - 1) * bits->stride_row + bits->row_words) *
				sizeof(uint32_t));
}

static void import_partial(struct fa_paged_partial *partial, const struct fa_paged_merge *p)
{
	import_tensor(&partial->out, 1, p->tokens, p->heads, p->head_dim_v,
	              element_bytes(p->dtype));
	import_lse(&partial->lse, 1, 0, p->tokens, partial->lse_stride_token, p->heads,
	           partial->lse_stride_head);
}

static void import_own(struct fa_paged_own *own)
{
	const size_t scales = (size_t)own->kv_heads * sizeof(float);
	const size_t bytes = own->store == FA_PAGED_PLAIN ? element_bytes(own->dtype) : 1;

	import_tensor(&own->k, own->pages, own->page_tokens, own->kv_heads, own->head_dim, bytes);
	import_tensor(&own->v, own->pages, own->page_tokens, own->kv_heads, own->head_dim_v, bytes);
	own->k_scales = import(own->k_scales, scales);
	own->v_scales = import(own->v_scales, scales);
}

static void import_attention(struct fa_paged_attention *p)
{
	const int64_t tokens = p->step->cu_new[p->step->batch];
	const size_t bytes = element_bytes(p->cache->dtype);

	use_pool(p->cache);
	import_tensor(&p->q, 1, tokens, p->heads, p->cache->head_dim, bytes);
	import_tensor(&p->out, 1, tokens, p->heads, p->cache->head_dim_v, bytes);
	import_lse(&p->lse, 1, 0, tokens, p->lse_stride_token, p->heads, p->lse_stride_head);
}

static void import_append(struct fa_paged_append *p)
{
	const int64_t tokens = p->step->cu_new[p->step->batch];
	const struct fa_paged_cache *cache = p->cache;
	const size_t bytes = element_bytes(cache->dtype);
	const size_t table = (size_t)p->rotary.table_positions * (size_t)p->rotary.dim / 2 * 4;

	use_pool(cache);
	import_tensor(&p->k, 1, tokens, cache->kv_heads, cache->head_dim, bytes);
	import_tensor(&p->v, 1, tokens, cache->kv_heads, cache->head_dim_v, bytes);
	import_tensor(&p->q, 1, tokens, p->heads, cache->head_dim, bytes);
	import_tensor(&p->q_out, 1, tokens, p->heads, cache->head_dim, bytes);
	p->rotary.cos = import(p->rotary.cos, table);
	p->rotary.sin = import(p->rotary.sin, table);
}

static void import_own_attention(struct fa_paged_own_attention *p, struct fa_paged_own *own)
{
	const size_t bytes = element_bytes(own->dtype);
	const size_t batch = (size_t)p->batch;

	import_own(own);
	p->pages = own;
	p->table = import(p->table,
	                  ((batch - 1) * (size_t)p->table_stride + (size_t)p->table_columns) *
	                          sizeof(*p->table));
	p->lengths = import(p->lengths, batch * sizeof(*p->lengths));
	p->cu_q = import(p->cu_q, (batch + 1) * sizeof(*p->cu_q));
	p->prefix_lengths = import(p->prefix_lengths, batch * sizeof(*p->prefix_lengths));
	import_tensor(&p->q, 1, p->total_q, p->heads, own->head_dim, bytes);
	import_tensor(&p->out, 1, p->total_q, p->heads, own->head_dim_v, bytes);
	import_lse(&p->lse, 1, 0, p->total_q, p->lse_stride_token, p->heads, p->lse_stride_head);
}

static void import_own_append(struct fa_paged_own_append *p, struct fa_paged_own *own)
{
	const size_t bytes = element_bytes(own->dtype);

	import_own(own);
	p->pages = own;
	p->slots = import(p->slots, (size_t)p->tokens * sizeof(*p->slots));
	import_tensor(&p->k, 1, p->tokens, own->kv_heads, own->head_dim, bytes);
	import_tensor(&p->v, 1, p->tokens, own->kv_heads, own->head_dim_v, bytes);
}

/* Copies the layers' addresses to @addresses, and imports the memory there. */
static void *const *import_layers(void *const *data, void **addresses, int32_t n,
                                  const struct fa_paged_own_copy *p, bool is_v)
{
	uint32_t pages = 0;

	if (!data)
		return NULL;
	for (uint32_t i = 0; i < p->n_pages; i++)
		pages = p->pages[i] >= pages ? p->pages[i] + 1 : pages;
	for (int32_t i = 0; i < n; i++) {
		struct fa_attention_tensor tensor = is_v ? p->v : p->k;

		tensor.data = data[i];
		import_tensor(&tensor, pages, p->page_tokens, p->cache->kv_heads,
		              is_v ? p->cache->head_dim_v : p->cache->head_dim,
		              element_bytes(p->cache->dtype));
		addresses[i] = tensor.data;
	}
	return addresses;
}

#define LAYERS_MAX 8

/* A request with the device's addresses. */
struct imported {
	struct fa_paged_request request;
	struct fa_paged_own own;
	void *k_data[LAYERS_MAX], *v_data[LAYERS_MAX];
};

static void import_request(const struct fa_paged_request *request, struct imported *ret_imported)
{
	struct fa_paged_request *to = &ret_imported->request;

	*to = *request;
	switch (to->op) {
	case FA_PAGED_ATTEND:
		import_attention(&to->attention);
		break;
	case FA_PAGED_APPEND:
	case FA_PAGED_READ:
		import_append(&to->append);
		break;
	case FA_PAGED_MERGE:
		import_partial(&to->merge.a, &to->merge);
		import_partial(&to->merge.b, &to->merge);
		import_partial(&to->merge.result, &to->merge);
		break;
	case FA_PAGED_COPY:
	case FA_PAGED_CLEAR:
		use_pool(to->pages.cache);
		break;
	case FA_PAGED_MOVE:
		use_pool(to->move.cache);
		break;
	case FA_PAGED_ATTEND_OWN:
		ret_imported->own = *to->own_attention.pages;
		import_own_attention(&to->own_attention, &ret_imported->own);
		break;
	case FA_PAGED_APPEND_OWN:
		ret_imported->own = *to->own_append.pages;
		import_own_append(&to->own_append, &ret_imported->own);
		break;
	case FA_PAGED_READ_OWN:
	case FA_PAGED_WRITE_OWN:
		use_pool(to->own_copy.cache);
		to->own_copy.k_data = import_layers(to->own_copy.k_data, ret_imported->k_data,
		                                    to->own_copy.n_layers, &to->own_copy, false);
		to->own_copy.v_data = import_layers(to->own_copy.v_data, ret_imported->v_data,
		                                    to->own_copy.n_layers, &to->own_copy, true);
		break;
	}
}

/* ---- running */

/* Runs a prepared work to its end. Returns false if it was cancelled. */
static bool run(struct fa_device_work *work, const bool *stop)
{
	struct timespec until;
	struct fa_list done;

	fa_list_init(&done);
	if (ops->launch(scene.device, scene.queue, work) < 0)
		die("launch", &work->error);
	if (stop && *stop)
		ops->cancel(scene.device, work);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_SEC;
	for (;;) {
		ops->reap(scene.device, &done);
		if (!fa_list_empty(&done))
			break;
		if (sem_timedwait(&scene.notified, &until) < 0 && errno == ETIMEDOUT)
			die("a work does not end", &(struct fa_error){ "" });
	}
	if (work->status < 0 && work->status != -ECANCELED)
		die("a work failed", &work->error);
	return work->status == 0;
}

int fa_cpu_isa_select(char *text, size_t text_bytes, const struct fa_cpu_isa **ret_isa)
{
	const char *name = getenv("FAD_CPU_ISA");
	const struct fa_cpu_isa *isa;

	open_device();
	isa = scene.device->matrices.f16 ? &matrices : &scalar;
	if (name && *name && strcmp(name, isa->name) != 0)
		return -EINVAL;
	*ret_isa = isa;
	return 0;
}

const char *fa_cpu_isa_name(const struct fa_cpu_isa *isa)
{
	return isa->name;
}

int64_t fa_cpu_attention_tiles(const struct fa_cpu_isa *isa,
                               const struct fa_attention_params *params)
{
	return 1;
}

size_t fa_cpu_attention_scratch_bytes(const struct fa_cpu_isa *isa,
                                      const struct fa_attention_params *params)
{
	return 0;
}

size_t fa_cpu_attention_workspace_bytes(const struct fa_cpu_isa *isa,
                                        const struct fa_attention_params *params)
{
	return 0;
}

void fa_cpu_attention_begin(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                            void *workspace)
{
}

bool fa_cpu_attention_tile(const struct fa_cpu_isa *isa, const struct fa_attention_params *params,
                           void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	struct fa_attention_params p = *params;
	const bool ragged = p.cu_seqlens_q;
	const int64_t batch = ragged ? 1 : p.batch;
	const int64_t n_q = ragged ? p.cu_seqlens_q[p.batch] : p.seqlen_q;
	const int64_t n_k = ragged ? p.cu_seqlens_k[p.batch] : p.seqlen_k;
	const size_t bytes = element_bytes(p.dtype);
	struct fa_device_work work = { .op = FA_DEVICE_ATTENTION, .params = &p };
	struct fa_error error = { "" };
	bool ran;

	open_device();
	import_tensor(&p.q, batch, n_q, p.heads, p.head_dim, bytes);
	import_tensor(&p.k, batch, n_k, p.kv_heads, p.head_dim, bytes);
	import_tensor(&p.v, batch, n_k, p.kv_heads, p.head_dim_v, bytes);
	import_tensor(&p.out, batch, n_q, p.heads, p.head_dim_v, bytes);
	import_lse(&p.lse, batch, p.lse_stride_batch, n_q, p.lse_stride_token, p.heads,
	           p.lse_stride_head);
	import_masks(&p);
	if (ops->check(scene.device, &p, &error) < 0 ||
	    ops->attention_prepare(scene.device, &work, &error) < 0)
		die("refused", &error);
	ran = run(&work, stop);
	ops->attention_release(scene.device, &work);
	release_imports();
	return ran;
}

size_t fa_cpu_paged_scratch_bytes(const struct fa_cpu_isa *isa,
                                  const struct fa_paged_request *request)
{
	return 0;
}

size_t fa_cpu_paged_workspace_bytes(const struct fa_cpu_isa *isa,
                                    const struct fa_paged_request *request)
{
	return 0;
}

int64_t fa_cpu_paged_begin(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                           void *workspace)
{
	return 1;
}

bool fa_cpu_paged_tile(const struct fa_cpu_isa *isa, const struct fa_paged_request *request,
                       void *workspace, int64_t tile, void *scratch, const bool *stop)
{
	struct fa_device_work work = { .op = FA_DEVICE_PAGED, .n_paged = 1 };
	struct fa_error error = { "" };
	struct imported imported;
	bool ran;

	open_device();
	import_request(request, &imported);
	work.paged = &imported.request;
	if (ops->paged_prepare(scene.device, &work, &error) < 0)
		die("refused", &error);
	ran = run(&work, stop);
	ops->paged_release(scene.device, &work);
	release_imports();
	drop_pool();
	return ran;
}
