/*
 * Times the parts of a small request on the Vulkan backend, without the daemon: one row of fp32 over 128 keys of
 * dimension 64, in imported host memory.
 *
 *   time-vulkan-request [--reps N] [--keys N] [--heads N]
 *
 * Prints for each part the median and the tenth percentile in microseconds. "backend" is all of it: preparing,
 * launching, and seeing the end as the engine does. The others run the same kernel from this thread.
 */
#include "bench/kernels/vulkan.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/memory.h"
#include "daemon/backend/vulkan/pipelines.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define DIM 64
#define POISON 1e30f
#define PATIENCE_NS UINT64_C(10000000000)

/* How the host learns of the end. */
enum end {
	END_FILL,      /* a command that fills a word */
	END_UPDATE,    /* a command that writes a word */
	END_RESULT,    /* the kernel's result */
	END_SEMAPHORE, /* the semaphore's value, polled */
};

static struct {
	struct vulkan vulkan;
	struct fa_vk_blob *word;
	struct fa_attention_params params;
	struct fa_vulkan_writer writer;
	struct fa_vk_blob *blob;
	float *out; /* as the host sees it */
	uint32_t heads;
	PFN_vkCmdFillBuffer fill;
} bench;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void print(const char *name, uint64_t *ns, int n)
{
	qsort(ns, (size_t)n, sizeof(*ns), compare);
	printf("%-36s p50 %7.1f  p10 %7.1f us\n", name, (double)ns[n / 2] / 1e3,
	       (double)ns[n / 10] / 1e3);
	(void)fflush(stdout);
}

/* ---- parts */

static void barrier(VkPipelineStageFlags from, VkPipelineStageFlags to)
{
	const VkMemoryBarrier memory = {
		.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
		.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
		.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT,
	};

	bench.vulkan.device->driver.CmdPipelineBarrier(bench.vulkan.command, from, to, 0, 1,
	                                               &memory, 0, NULL, 0, NULL);
}

static void record(enum end end, uint32_t value)
{
	struct fa_device *d = bench.vulkan.device;
	struct fa_error error;
	VkPipeline pipeline;

	vulkan_begin(&bench.vulkan);
	for (unsigned int i = 0; i < bench.writer.n_dispatches; i++) {
		const struct fa_vulkan_dispatch *what = &bench.writer.dispatches[i];
		const uint64_t constants[2] = { what->arguments, 0 };

		if (fa_vk_pipeline_find(d, what, &error, &pipeline) < 0)
			vulkan_die("pipeline", error.text);
		if (i > 0)
			barrier(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
			        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT);
		d->driver.CmdBindPipeline(bench.vulkan.command, VK_PIPELINE_BIND_POINT_COMPUTE,
		                          pipeline);
		d->driver.CmdPushConstants(bench.vulkan.command, d->layout,
		                           VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(constants),
		                           constants);
		d->driver.CmdDispatch(bench.vulkan.command, (uint32_t)what->groups, 1, 1);
	}
	if (end == END_FILL || end == END_UPDATE)
		barrier(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
		        VK_PIPELINE_STAGE_TRANSFER_BIT | VK_PIPELINE_STAGE_HOST_BIT);
	if (end == END_FILL)
		bench.fill(bench.vulkan.command, bench.word->buffer, bench.word->offset, 4, value);
	if (end == END_UPDATE)
		d->driver.CmdUpdateBuffer(bench.vulkan.command, bench.word->buffer,
		                          bench.word->offset, 4, &value);
	barrier(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
	        VK_PIPELINE_STAGE_HOST_BIT);
	vulkan_must(d->driver.EndCommandBuffer(bench.vulkan.command), "end");
}

static void submit(bool signal)
{
	struct fa_device *d = bench.vulkan.device;
	const VkTimelineSemaphoreSubmitInfo values = {
		.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
		.signalSemaphoreValueCount = 1,
		.pSignalSemaphoreValues = &d->timeline_value,
	};
	const VkSubmitInfo info = {
		.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
		.pNext = signal ? &values : NULL,
		.commandBufferCount = 1,
		.pCommandBuffers = &bench.vulkan.command,
		.signalSemaphoreCount = signal,
		.pSignalSemaphores = &d->timeline,
	};

	if (signal)
		d->timeline_value++;
	vulkan_must(d->driver.QueueSubmit(d->queue, 1, &info, VK_NULL_HANDLE), "submit");
}

static void await(enum end end, uint32_t value)
{
	const uint64_t until = now_ns() + PATIENCE_NS;
	const volatile float *last = bench.out + (uint64_t)bench.heads * DIM - 1;
	uint64_t seen = 0;

	while (now_ns() < until) {
		if (end == END_RESULT && *last != POISON)
			return;
		if ((end == END_FILL || end == END_UPDATE) &&
		    __atomic_load_n((uint32_t *)bench.word->host, __ATOMIC_ACQUIRE) == value)
			return;
		if (end == END_SEMAPHORE &&
		    bench.vulkan.device->driver.GetSemaphoreCounterValue(
			    bench.vulkan.device->device, bench.vulkan.device->timeline, &seen) ==
		            VK_SUCCESS &&
		    seen == bench.vulkan.device->timeline_value)
			return;
	}
	vulkan_die("a submission", "does not end");
}

static void time_submissions(const char *name, enum end end, bool again, bool signal, int reps)
{
	uint64_t *recording = calloc((size_t)reps, sizeof(uint64_t));
	uint64_t *submitting = calloc((size_t)reps, sizeof(uint64_t));
	uint64_t *waiting = calloc((size_t)reps, sizeof(uint64_t));
	volatile float *last = bench.out + (uint64_t)bench.heads * DIM - 1;
	char text[80];

	for (int i = 0; i < reps; i++) {
		const uint32_t value = again ? 7 : (uint32_t)i + 10;
		uint64_t t[4];

		__atomic_store_n((uint32_t *)bench.word->host, 0, __ATOMIC_RELEASE);
		*last = POISON;
		t[0] = now_ns();
		if (!again || i == 0)
			record(end, value);
		t[1] = now_ns();
		submit(signal);
		t[2] = now_ns();
		await(end, value);
		t[3] = now_ns();
		recording[i] = t[1] - t[0];
		submitting[i] = t[2] - t[1];
		waiting[i] = t[3] - t[2];
		/* All has ended before the next is recorded. */
		vulkan_must(bench.vulkan.device->driver.DeviceWaitIdle(bench.vulkan.device->device),
		            "idle");
	}
	snprintf(text, sizeof(text), "%s: record", name);
	print(text, recording, reps);
	snprintf(text, sizeof(text), "%s: submit", name);
	print(text, submitting, reps);
	snprintf(text, sizeof(text), "%s: until seen", name);
	print(text, waiting, reps);
	free(recording);
	free(submitting);
	free(waiting);
}

static void time_backend(int reps)
{
	const struct fa_device_ops *ops = &fa_device_vulkan;
	uint64_t *all = calloc((size_t)reps, sizeof(uint64_t));
	uint64_t *preparing = calloc((size_t)reps, sizeof(uint64_t));
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct fa_error error;

	if (ops->group_new(bench.vulkan.device, &error, &group) < 0 ||
	    ops->queue_new(bench.vulkan.device, group, 0, &error, &queue) < 0)
		vulkan_die("queue", error.text);
	for (int i = 0; i < reps; i++) {
		struct fa_device_work work = { .op = FA_DEVICE_ATTENTION, .params = &bench.params };
		struct fa_list done;
		uint64_t t = now_ns();

		fa_list_init(&done);
		if (ops->attention_prepare(bench.vulkan.device, &work, &error) < 0)
			vulkan_die("prepare", error.text);
		preparing[i] = now_ns() - t;
		if (ops->launch(bench.vulkan.device, queue, &work) < 0)
			vulkan_die("launch", work.error.text);
		while (fa_list_empty(&done))
			ops->reap(bench.vulkan.device, &done);
		all[i] = now_ns() - t;
		if (work.status < 0)
			vulkan_die("work", work.error.text);
		ops->attention_release(bench.vulkan.device, &work);
	}
	print("backend: prepare", preparing, reps);
	print("backend", all, reps);
	ops->queue_free(bench.vulkan.device, queue);
	ops->group_free(bench.vulkan.device, group);
	free(all);
	free(preparing);
}

/* ---- the request */

static void make_request(int64_t keys)
{
	const uint64_t q = (uint64_t)bench.heads * DIM, k = (uint64_t)keys * q;
	const uint64_t bytes = ((2 * q + 2 * k) * sizeof(float) + 4095) / 4096 * 4096;
	struct fa_vk_import *import;
	struct fa_vk_blob *parts;
	struct fa_error error;
	float *host;
	uint64_t at;

	host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (host == MAP_FAILED)
		vulkan_die("memory", "there is none");
	for (uint64_t i = 0; i < 2 * k + q; i++)
		host[i] = (float)(i * 37 % 101) / 101 - 0.5f;
	if (fa_vk_import_new(bench.vulkan.device, host, bytes, &error, &import) < 0)
		vulkan_die("import", error.text);
	at = import->at;
	bench.out = host + 2 * k + q;
	bench.params = (struct fa_attention_params){
		.dtype = FA_ATTENTION_F32,
		.batch = 1,
		.heads = (int32_t)bench.heads,
		.kv_heads = (int32_t)bench.heads,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.seqlen_q = 1,
		.seqlen_k = keys,
		.q = { (void *)(uintptr_t)(at + 8 * k), (int64_t)q, (int64_t)q, DIM },
		.k = { (void *)(uintptr_t)at, (int64_t)k, (int64_t)q, DIM },
		.v = { (void *)(uintptr_t)(at + 4 * k), (int64_t)k, (int64_t)q, DIM },
		.out = { (void *)(uintptr_t)(at + 8 * k + 4 * q), (int64_t)q, (int64_t)q, DIM },
		.scale = 1 / sqrtf(DIM),
		.window_left = -1,
		.window_right = -1,
	};
	if (fa_vk_blob_new(bench.vulkan.device, FA_VK_MEMORY_ARGUMENTS, 1 << 16, &error,
	                   &bench.blob) < 0 ||
	    fa_vk_blob_new(bench.vulkan.device, FA_VK_MEMORY_DEVICE, 1 << 20, &error, &parts) < 0 ||
	    fa_vk_blob_new(bench.vulkan.device, FA_VK_MEMORY_HOST, 64, &error, &bench.word) < 0)
		vulkan_die("memory", error.text);
	memset(bench.blob->host, 0, 64);
	bench.writer = (struct fa_vulkan_writer){
		.host = bench.blob->host + 64,
		.at = bench.blob->at + 64,
		.stop = bench.blob->at,
		.matrices = &bench.vulkan.device->matrices,
		.splits = &bench.vulkan.device->splits,
		.parts = parts->at,
	};
	fa_vulkan_plan_attention(&bench.params, &bench.writer);
	if (bench.writer.parts_bytes > parts->bytes)
		vulkan_die("request", "it is too large");
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "reps", required_argument, NULL, 'r' },
		{ "keys", required_argument, NULL, 'k' },
		{ "heads", required_argument, NULL, 'h' },
		{ 0 },
	};
	int reps = 1000, c;
	int64_t keys = 128;

	bench.heads = 1;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		const long n = c == '?' ? 0 : strtol(optarg, NULL, 10);

		if (n <= 0)
			return 2;
		if (c == 'r')
			reps = (int)n;
		else if (c == 'k')
			keys = n;
		else
			bench.heads = (uint32_t)n;
	}
	if (!vulkan_open(&bench.vulkan))
		return 77;
	bench.fill = (PFN_vkCmdFillBuffer)bench.vulkan.device->driver.GetDeviceProcAddr(
		bench.vulkan.device->device, "vkCmdFillBuffer");
	make_request(keys);
	time_backend(reps);
	time_submissions("fill", END_FILL, false, true, reps);
	time_submissions("update", END_UPDATE, false, true, reps);
	time_submissions("update, no semaphore", END_UPDATE, false, false, reps);
	time_submissions("update, recorded once", END_UPDATE, true, true, reps);
	time_submissions("result", END_RESULT, false, true, reps);
	time_submissions("semaphore", END_SEMAPHORE, false, true, reps);
	/* The process ends, and with it what it has. */
	(void)fflush(stdout);
	_Exit(0);
}
