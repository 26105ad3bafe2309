/* The CPU backend: opens and closes its device. */
#include "common/clock.h"
#include "common/cpu.h"
#include "daemon/backend/cpu/memory.h"
#include "daemon/backend/cpu/queue.h"
#include "daemon/backend/cpu/worker.h"
#include "daemon/backend/cpu/workspace.h"
#include "daemon/base/fault_guard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#define THREADS_MAX 1024
/* Works of a queue: enough to last while the engine wakes up. */
#define DEPTH 8
/* Bounds what a group of the fair queue may claim later. */
#define SLACK_NS (10 * FA_NS_PER_MS)

static struct fa_device *cpu_close(struct fa_device *device)
{
	if (!device)
		return NULL;
	pthread_mutex_lock(&device->mutex);
	device->stop = true;
	pthread_cond_broadcast(&device->work_available);
	pthread_mutex_unlock(&device->mutex);
	for (unsigned int i = 0; i < device->n_workers; i++) {
		fa_cpu_worker_join(&device->workers[i]);
	}
	fa_cpu_pool_close(&device->pool);
	pthread_cond_destroy(&device->work_available);
	pthread_mutex_destroy(&device->mutex);
	free(device);
	return NULL;
}

static int cpu_open(const struct fa_device_config *config, struct fa_error *error,
                    struct fa_device **ret_device)
{
	unsigned int n = config->threads ? config->threads : fa_cpu_count();
	const struct fa_cpu_isa *isa;
	struct fa_device *device;
	int r;

	if (n > THREADS_MAX)
		return fa_fail(error, -EINVAL, "%u threads are more than %d", n, THREADS_MAX);
	r = fa_cpu_isa_select(error ? error->text : NULL, error ? sizeof(error->text) : 0, &isa);
	if (r < 0)
		return r;
	device = calloc(1, sizeof(*device) + n * sizeof(device->workers[0]));
	if (!device)
		return fa_fail(error, -ENOMEM, "no memory for %u threads", n);
	fa_fault_guard_install();
	device->config = *config;
	device->isa = isa;
	pthread_mutex_init(&device->mutex, NULL);
	pthread_cond_init(&device->work_available, NULL);
	device->fair.slack = n * SLACK_NS;
	fa_list_init(&device->done);
	for (; device->n_workers < n; device->n_workers++) {
		device->workers[device->n_workers].device = device;
		r = fa_cpu_worker_start(&device->workers[device->n_workers]);
		if (r < 0) {
			fa_fail(error, r, "thread %u of %u cannot be started: %s",
			        device->n_workers + 1, n, strerrordesc_np(-r));
			cpu_close(device);
			return r;
		}
	}
	*ret_device = device;
	return 0;
}

static void describe_model(char *name, size_t size)
{
	char line[256], model[64] = "";
	struct utsname uts;
	FILE *file;

	file = fopen("/proc/cpuinfo", "re");
	while (file && !model[0] && fgets(line, sizeof(line), file))
		(void)sscanf(line, "model name : %63[^\n]", model);
	if (file)
		(void)fclose(file);
	if (!model[0] && uname(&uts) == 0)
		snprintf(model, sizeof(model), "%.63s", uts.machine);
	snprintf(name, size, "%s", model);
}

/* The UUID is the same on each start: a hash of the machine's confidential id. */
static void describe_uuid(uint64_t uuid[2])
{
	uint64_t hash = 0xcbf29ce484222325;
	char id[33] = "";
	FILE *file;

	uuid[0] = uuid[1] = 0;
	file = fopen("/etc/machine-id", "re");
	if (!file)
		return;
	if (fgets(id, sizeof(id), file) && id[0]) {
		for (int half = 0; half < 2; half++) {
			for (const char *c = id; *c; c++)
				hash = (hash ^ (unsigned char)*c) * 0x100000001b3;
			uuid[half] = hash;
		}
	}
	(void)fclose(file);
}

static void cpu_describe(struct fa_device *device, struct fa_device_info *ret_info)
{
	struct fa_device_info info = {
		.backend = "cpu",
		.threads = device->n_workers,
		.depth = DEPTH,
	};
	const char *isa = fa_cpu_isa_name(device->isa);
	size_t used;

	/* May cut the model's name, not the kernels'. */
	describe_model(info.name, sizeof(info.name) - strlen(isa) - 3);
	used = strlen(info.name);
	snprintf(info.name + used, sizeof(info.name) - used, used ? " (%s)" : "%s", isa);
	snprintf(info.details, sizeof(info.details), "%u threads", device->n_workers);
	describe_uuid(info.uuid);
	*ret_info = info;
}

static int cpu_check(struct fa_device *device, const struct fa_attention_params *params,
                     struct fa_error *error)
{
	return fa_attention_check(params, error ? error->text : NULL,
	                          error ? sizeof(error->text) : 0);
}

static int cpu_paged_cache_check(struct fa_device *device, const struct fa_paged_cache *cache,
                                 struct fa_error *error)
{
	return fa_paged_check_cache(cache, error->text, sizeof(error->text));
}

static int cpu_paged_prepare(struct fa_device *device, struct fa_device_work *work,
                             struct fa_error *error)
{
	return fa_cpu_workspace_new_paged(device->isa, work, error);
}

static int cpu_attention_prepare(struct fa_device *device, struct fa_device_work *work,
                                 struct fa_error *error)
{
	return fa_cpu_workspace_new_attention(device->isa, work, error);
}

static void cpu_workspace_free(struct fa_device *device, struct fa_device_work *work)
{
	fa_cpu_workspace_free(work);
}

static int cpu_pool_open(struct fa_device *device, uint64_t chunk_bytes, uint32_t max_chunks,
                         struct fa_error *error, void **ret_base)
{
	return fa_cpu_pool_open(&device->pool, chunk_bytes, max_chunks, error, ret_base);
}

static void cpu_pool_close(struct fa_device *device)
{
	fa_cpu_pool_close(&device->pool);
}

static int cpu_pool_chunk_add(struct fa_device *device, uint32_t chunk, struct fa_error *error,
                              bool *ret_zeroed, int *ret_fd)
{
	int r;

	r = fa_cpu_pool_chunk_add(&device->pool, chunk, error, ret_fd);
	if (r == 0)
		*ret_zeroed = true;
	return r;
}

static int cpu_pool_chunk_adopt(struct fa_device *device, uint32_t chunk, int fd,
                                struct fa_error *error)
{
	return fa_cpu_pool_chunk_adopt(&device->pool, chunk, fd, error);
}

static void cpu_pool_chunk_remove(struct fa_device *device, uint32_t chunk)
{
	fa_cpu_pool_chunk_remove(&device->pool, chunk);
}

const struct fa_device_ops fa_device_cpu = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.describe = cpu_describe,
	.memory_import_host = fa_cpu_memory_import_host,
	.memory_new_arena = fa_cpu_memory_new_arena,
	.memory_release = fa_cpu_memory_release,
	.memory_host = fa_cpu_memory_host,
	.pool_open = cpu_pool_open,
	.pool_close = cpu_pool_close,
	.pool_chunk_add = cpu_pool_chunk_add,
	.pool_chunk_adopt = cpu_pool_chunk_adopt,
	.pool_chunk_remove = cpu_pool_chunk_remove,
	.paged_cache_check = cpu_paged_cache_check,
	.paged_prepare = cpu_paged_prepare,
	.paged_release = cpu_workspace_free,
	.attention_prepare = cpu_attention_prepare,
	.attention_release = cpu_workspace_free,
	.check = cpu_check,
	.group_new = fa_cpu_group_new,
	.group_free = fa_cpu_group_free,
	.queue_new = fa_cpu_queue_new,
	.queue_free = fa_cpu_queue_free,
	.launch = fa_cpu_launch,
	.cancel = fa_cpu_cancel,
	.reap = fa_cpu_reap,
};
