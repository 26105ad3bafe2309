/*
 * The functions of the CPU's kernels, done by the daemon's Vulkan backend, so that all tests of kernels
 * also test Vulkan's: FAD_CPU_ISA=vulkan is the only instruction set, and a request is one tile. Tensors
 * are imported where the test has them. Exits with 77 where there is no Vulkan device.
 */
#include "common/cleanup.h"
#include "daemon/backend/vulkan/memory.h"
#include "kernels/attention.h"
#include "kernels/paged.h"

#include <errno.h>
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

static const struct fa_cpu_isa vulkan = { "vulkan" };
static const struct fa_device_ops *const ops = &fa_device_vulkan;

static struct {
	struct fa_device *device;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	sem_t notified;
	struct fa_vk_import *imports[IMPORTS_MAX];
	size_t n_imports;
} scene;

static void die(const char *what, const struct fa_error *error)
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

	if (scene.device)
		return;
	sem_init(&scene.notified, 0, 0);
	if (ops->open(&config, &error, &scene.device) < 0) {
		printf("skipped: %s\n", error.text);
		exit(77);
	}
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

	if (name && *name && strcmp(name, vulkan.name) != 0)
		return -EINVAL;
	*ret_isa = &vulkan;
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
	if (ops->check(scene.device, &p, &error) < 0 ||
	    ops->attention_prepare(scene.device, &work, &error) < 0)
		die("refused", &error);
	ran = run(&work, stop);
	ops->attention_release(scene.device, &work);
	release_imports();
	return ran;
}
