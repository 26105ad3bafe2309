/*
 * The memory that requests of all clients use one after another: what one leaves there no other sees, and it can
 * be had again.
 */
#include "common/clock.h"
#include "daemon/backend/vulkan/blob.h"
#include "daemon/backend/vulkan/queue.h"

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct fa_device_ops *const ops = &fa_device_vulkan;

#define DIM 32
#define KEYS 256
#define ROW (DIM * sizeof(float))
/* Where things lie in the client's memory. */
#define Q 0
#define OUT 4096
#define CU_Q 8192
#define LENGTHS 8256
#define TABLE 8320
#define KV 12288
#define BYTES (KV + KEYS * ROW)

#define SECRET 7.0f
#define UNTOUCHED 3.0f

static sem_t notified;

static struct {
	struct fa_device *device;
	struct fa_device_group *group;
	struct fa_device_queue *queue;
	struct fa_device_memory memory;
	char *host;
	int fd;
	struct fa_paged_own own;
	struct fa_paged_request request;
	struct fa_error error;
} scene;

static void on_notify(void *userdata)
{
	sem_post(&notified);
}

static float *floats(size_t at)
{
	return (float *)(scene.host + at);
}

static void fill(size_t at, size_t n, float x)
{
	for (size_t i = 0; i < n; i++)
		floats(at)[i] = x;
}

/* One row over a client's own pages, whose keys are in several parts. */
static void set_request(void)
{
	char *const at = scene.memory.address;

	scene.own = (struct fa_paged_own){
		.dtype = FA_ATTENTION_F32,
		.kv_heads = 1,
		.head_dim = DIM,
		.head_dim_v = DIM,
		.page_tokens = KEYS,
		.pages = 1,
		.store = FA_PAGED_PLAIN,
		.k = { .data = at + KV, .stride_token = DIM },
		.v = { .data = at + KV, .stride_token = DIM },
	};
	scene.request = (struct fa_paged_request){
		.op = FA_PAGED_ATTEND_OWN,
		.own_attention = {
			.pages = &scene.own,
			.batch = 1,
			.heads = 1,
			.table = (const int32_t *)(at + TABLE),
			.table_columns = 1,
			.table_stride = 1,
			.lengths = (const int32_t *)(at + LENGTHS),
			.cu_q = (const int32_t *)(at + CU_Q),
			.max_q = 1,
			.total_q = 1,
			.max_k = KEYS,
			.q = { .data = at + Q },
			.out = { .data = at + OUT },
			.scale = 1,
			.window_left = -1,
			.window_right = -1,
		},
	};
	((int32_t *)(scene.host + LENGTHS))[0] = KEYS;
	((int32_t *)(scene.host + TABLE))[0] = 0;
}

static void set_rows(int32_t n)
{
	((int32_t *)(scene.host + CU_Q))[0] = 0;
	((int32_t *)(scene.host + CU_Q))[1] = n;
}

static void prepare(struct fa_device_work *work)
{
	*work = (struct fa_device_work){
		.op = FA_DEVICE_PAGED,
		.paged = &scene.request,
		.n_paged = 1,
	};
	assert_int_equal(ops->paged_prepare(scene.device, work, &scene.error), 0);
}

static void run(struct fa_device_work *work)
{
	struct fa_list done;

	fa_list_init(&done);
	assert_int_equal(ops->launch(scene.device, scene.queue, work), 0);
	while (fa_list_empty(&done)) {
		sem_wait(&notified);
		ops->reap(scene.device, &done);
	}
	assert_int_equal(work->status, 0);
}

/* A client computes what no other may see. */
static void compute_secret(void)
{
	struct fa_device_work work;

	set_request();
	set_rows(1);
	fill(KV, KEYS * (size_t)DIM, SECRET);
	prepare(&work);
	run(&work);
	ops->paged_release(scene.device, &work);
	assert_true(floats(OUT)[0] == SECRET);
	fill(OUT, DIM, UNTOUCHED);
	fill(KV, KEYS * (size_t)DIM, 0);
}

static void expect_no_secret(void)
{
	for (size_t i = 0; i < DIM; i++)
		assert_true(floats(OUT)[i] == UNTOUCHED || floats(OUT)[i] == 0);
}

/* Kernels of a cancelled request leave early. */
static void test_stopped(void **state)
{
	const struct fa_vk_prepared *prepared;
	struct fa_device_work work;

	compute_secret();
	prepare(&work);
	prepared = work.prepared;
	assert_int_equal(prepared->n_dispatches, 2);
	*(uint32_t *)prepared->blob->host = 1;
	run(&work);
	ops->paged_release(scene.device, &work);
	expect_no_secret();
}

/* A client adds a row while its request runs. */
static void test_row_added(void **state)
{
	struct fa_vk_prepared *prepared;
	struct fa_device_work work;

	compute_secret();
	prepare(&work);
	prepared = work.prepared;
	assert_int_equal(prepared->n_dispatches, 2);
	prepared->n_dispatches = 1;
	set_rows(0);
	run(&work);
	prepared->dispatches[0] = prepared->dispatches[1];
	set_rows(1);
	run(&work);
	ops->paged_release(scene.device, &work);
	expect_no_secret();
}

/* All that a request holds counts for its tenant. */
static void test_counted(void **state)
{
	const struct fa_vk_prepared *prepared;
	struct fa_device_work work;

	set_request();
	set_rows(1);
	prepare(&work);
	prepared = work.prepared;
	assert_non_null(prepared->parts);
	assert_int_equal(work.host_bytes, prepared->blob->bytes + prepared->parts->bytes);
	ops->paged_release(scene.device, &work);
}

/* Many small blobs leave room for others, once they are freed. */
static void test_room_again(void **state)
{
	const uint64_t used = ((uint64_t)1 << 30) - ((uint64_t)8 << 20);
	struct fa_device *device = scene.device;
	struct fa_vk_blob *blobs[256], *blob, *held;
	size_t n = 0;

	assert_int_equal(fa_vk_blob_new(device, FA_VK_MEMORY_ARGUMENTS, 8192, &scene.error, &held),
	                 0);
	device->blob_bytes += used;
	while (fa_vk_blob_new(device, FA_VK_MEMORY_HOST, 65536, &scene.error, &blobs[n]) == 0)
		assert_in_range(++n, 1, 255);
	assert_non_null(strstr(scene.error.text, "requests in flight are so large"));
	while (n)
		fa_vk_blob_free(device, blobs[--n]);
	assert_int_equal(fa_vk_blob_new(device, FA_VK_MEMORY_DEVICE, 4 << 20, &scene.error, &blob),
	                 0);
	memset(held->host, 1, held->bytes); /* not freed */
	fa_vk_blob_free(device, blob);
	fa_vk_blob_free(device, held);
	device->blob_bytes -= used;
}

/* ---- a GPU without room */

static unsigned int n_elsewhere;

static VKAPI_ATTR VkResult VKAPI_CALL allocate_nothing(VkDevice device,
                                                       const VkMemoryAllocateInfo *info,
                                                       const VkAllocationCallbacks *callbacks,
                                                       VkDeviceMemory *ret_memory)
{
	n_elsewhere += info->memoryTypeIndex != 1;
	return VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

static PFN_vkGetBufferMemoryRequirements next_requirements;

static VKAPI_ATTR void VKAPI_CALL get_requirements(VkDevice device, VkBuffer buffer,
                                                   VkMemoryRequirements *needs)
{
	next_requirements(device, buffer, needs);
	needs->memoryTypeBits = 3;
}

/* Chunks go nowhere else, and one that cannot be adopted yet is not thrown away. */
static void test_no_room_for_chunks(void **state)
{
	const uint64_t chunk_bytes = 1 << 21;
	struct fa_device *device = scene.device;
	const struct fa_vk_driver driver = device->driver;
	const VkPhysicalDeviceMemoryProperties types = device->memory_types;
	const bool exported = device->exports_memory;
	int fds[2], fd = -1;
	bool zeroed;
	void *base;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(ops->pool_open(device, chunk_bytes, 4, &scene.error, &base), 0);
	device->exports_memory = true;
	next_requirements = driver.GetBufferMemoryRequirements;
	device->driver.AllocateMemory = allocate_nothing;
	device->driver.GetBufferMemoryRequirements = get_requirements;
	device->memory_types.memoryTypeCount = 2;
	device->memory_types.memoryTypes[0] = (VkMemoryType){ .heapIndex = 0 };
	device->memory_types.memoryTypes[1] = (VkMemoryType){
		.propertyFlags = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
	};
	assert_int_equal(ops->pool_chunk_add(device, 0, &scene.error, &zeroed, &fd), -ENOMEM);
	assert_int_equal(ops->pool_chunk_adopt(device, 0, fds[0], &scene.error), -ENOMEM);
	assert_int_equal(n_elsewhere, 0);
	device->driver = driver;
	device->memory_types = types;
	device->exports_memory = exported;
	ops->pool_close(device);
	close(fds[0]);
	close(fds[1]);
}

/* A GPU may still write to the pool when the next process adopts it; a processor ends with its process. */
static void test_lingers(void **state)
{
	const bool is_gpu = scene.device->is_gpu;
	struct fa_device_info info;

	scene.device->is_gpu = true;
	ops->describe(scene.device, &info);
	assert_true(info.linger_ns >= 100 * FA_NS_PER_MS);
	scene.device->is_gpu = false;
	ops->describe(scene.device, &info);
	assert_int_equal(info.linger_ns, 0);
	scene.device->is_gpu = is_gpu;
}

static int set_up(void **state)
{
	const struct fa_device_config config = { .notify = on_notify };
	uint64_t piece_bytes;

	sem_init(&notified, 0, 0);
	if (ops->open(&config, &scene.error, &scene.device) < 0) {
		printf("skipped: %s\n", scene.error.text);
		_exit(77);
	}
	scene.device->splits = (struct fa_vulkan_splits){
		.groups = 4,
		.least_keys = 32,
		.most_keys = UINT32_MAX,
	};
	if (ops->memory_new_arena(scene.device, BYTES, &scene.error, &scene.memory, &scene.fd,
	                          &piece_bytes) < 0 ||
	    ops->group_new(scene.device, &scene.error, &scene.group) < 0 ||
	    ops->queue_new(scene.device, scene.group, 0, &scene.error, &scene.queue) < 0)
		return -1;
	scene.host = (char *)(uintptr_t)ops->memory_host(scene.device, &scene.memory);
	return 0;
}

static int tear_down(void **state)
{
	struct fa_device_memory *memories[] = { &scene.memory };

	ops->queue_free(scene.device, scene.queue);
	ops->group_free(scene.device, scene.group);
	ops->memory_release(scene.device, memories, 1);
	close(scene.fd);
	ops->close(scene.device);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_row_added),
		cmocka_unit_test(test_counted),
		cmocka_unit_test(test_room_again),
		cmocka_unit_test(test_no_room_for_chunks),
		cmocka_unit_test(test_lingers),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
