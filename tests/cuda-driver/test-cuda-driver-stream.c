/* Streams of the tests' CUDA driver: order, events, values, injected faults and lost contexts. */
#include "tests/cuda-driver/child.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static struct fa_test_cuda cuda;

static CUstream stream_new(unsigned int flags)
{
	CUstream stream;

	fa_cu(cuStreamCreateWithPriority(&stream, flags, -1));
	return stream;
}

static uint64_t *word_new(CUdeviceptr *ret_at)
{
	void *word;

	fa_cu(cuMemHostAlloc(&word, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
	memset(word, 0, 4096);
	fa_cu(cuMemHostGetDevicePointer(ret_at, word, 0));
	return word;
}

static uint64_t word_get(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* A wait for a word blocks a stream; later work runs after it, in order. */
static void order_case(int socket)
{
	CUstream first = stream_new(CU_STREAM_NON_BLOCKING);
	CUstream second = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr gate, data;
	uint64_t *words;
	unsigned char got[4] = { 0 };
	CUevent event;

	words = word_new(&gate);
	fa_cu(cuMemAlloc(&data, 4096));
	fa_cu(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	fa_check_eq(cu.cuEventQuery(event), CUDA_SUCCESS);
	fa_cu(cuStreamWaitValue64(first, gate, 5, CU_STREAM_WAIT_VALUE_GEQ));
	fa_cu(cuMemsetD8Async(data, 1, 4096, first));
	fa_cu(cuMemsetD8Async(data + 1, 2, 1, first));
	fa_cu(cuStreamWriteValue64(first, gate + 8, 77, CU_STREAM_WRITE_VALUE_DEFAULT));
	fa_cu(cuEventRecord(event, first));

	fa_check_eq(cu.cuStreamQuery(first), CUDA_ERROR_NOT_READY);
	fa_check_eq(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
	fa_check_eq(cu.cuStreamQuery(second), CUDA_SUCCESS);
	fa_cu(cuStreamWriteValue64(second, gate, 4, 0));
	fa_cu(cuStreamSynchronize(second));
	fa_check_eq(word_get(words + 1), 0);
	fa_check_eq(cu.cuStreamQuery(first), CUDA_ERROR_NOT_READY);
	fa_cu(cuStreamWriteValue64(second, gate, 5, 0));
	fa_check_eventually(word_get(words + 1) == 77);
	fa_cu(cuEventSynchronize(event));
	fa_cu(cuStreamSynchronize(first));
	fa_cu(cuMemcpyDtoHAsync(got, data, 3, first));
	fa_check(got[0] == 1 && got[1] == 2 && got[2] == 1);

	fa_check_eq(cu.cuStreamWriteValue64(first, gate + 4, 1, 0), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuStreamWriteValue64(first, (CUdeviceptr)(uintptr_t)got, 1, 0),
	            CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuEventDestroy(event));
	fa_check_eq(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
	fa_cu(cuStreamDestroy(first));
	fa_check_eq(cu.cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
	fa_cu(cuStreamDestroy(second));
	fa_cu(cuMemFree(data));
	fa_cu(cuMemFreeHost(words));
	fa_check_eq(fa_test_cuda_misuses(cu_page), 0);
}

static void order(void **state)
{
	fa_cuda_alone(order_case);
}

/* Pageable memory is copied at once; pinned memory is read when the copy runs. */
static void staging_case(int socket)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	unsigned char pageable[64], got[64];
	unsigned char *pinned;
	CUdeviceptr gate, at;
	uint64_t *word;
	void *data;

	word = word_new(&gate);
	fa_cu(cuMemAlloc(&at, 128));
	fa_cu(cuMemHostAlloc(&data, 64, 0));
	pinned = data;
	memset(pageable, 1, sizeof(pageable));
	memset(pinned, 1, 64);
	fa_cu(cuStreamWaitValue64(stream, gate, 1, 0));
	fa_cu(cuMemcpyHtoDAsync(at, pageable, 64, stream));
	fa_cu(cuMemcpyHtoDAsync(at + 64, pinned, 64, stream));
	memset(pageable, 2, sizeof(pageable));
	memset(pinned, 2, 64);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	fa_cu(cuStreamSynchronize(stream));
	fa_cu(cuMemcpyDtoH(got, at, 64));
	fa_check_eq(got[63], 1);
	fa_cu(cuMemcpyDtoDAsync(at, at + 64, 64, stream));
	fa_cu(cuMemcpyDtoHAsync(got, at, 64, stream));
	fa_check_eq(got[63], 2);
	/* A copy must not cross the border between separately pinned memory. */
	fa_check_eq(cu.cuMemcpyHtoDAsync(at, pinned + 32, 4096, stream), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemcpyHtoD(at + 100, pinned, 64), CUDA_ERROR_INVALID_VALUE);
}

static void staging(void **state)
{
	fa_cuda_alone(staging_case);
}

static void timing_case(int socket)
{
	CUevent start, end;
	float ms = -1;

	fa_cu(cuEventCreate(&start, CU_EVENT_DEFAULT));
	fa_cu(cuEventCreate(&end, CU_EVENT_DEFAULT));
	fa_check_eq(cu.cuEventElapsedTime(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);
	fa_cu(cuEventRecord(start, NULL));
	fa_cu(cuCtxSynchronize());
	fa_test_quiet_ms(5);
	fa_cu(cuEventRecord(end, NULL));
	fa_cu(cuEventSynchronize(end));
	fa_cu(cuEventElapsedTime(&ms, start, end));
	fa_check(ms >= 4);
}

static void timing(void **state)
{
	fa_cuda_alone(timing_case);
}

/* ---- threads without a context */

static void *contextless(void *userdata)
{
	CUdeviceptr at;
	CUstream stream;

	fa_check_eq(cu.cuMemAlloc(&at, 4096), CUDA_ERROR_INVALID_CONTEXT);
	fa_check_eq(cu.cuStreamCreateWithPriority(&stream, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
	fa_check_eq(cu.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
	return NULL;
}

static void current_case(int socket)
{
	pthread_t thread;

	fa_check_eq(pthread_create(&thread, NULL, contextless, NULL), 0);
	pthread_join(thread, NULL);
}

static void current(void **state)
{
	fa_cuda_alone(current_case);
}

/* ---- faults */

static void faults_case(int socket)
{
	CUdeviceptr at[4];

	/* The environment makes the second cuMemAlloc fail, and every call of another function. */
	fa_cu(cuMemAlloc(&at[0], 100));
	fa_check_eq(cu.cuMemAlloc(&at[1], 100), CUDA_ERROR_OUT_OF_MEMORY);
	fa_cu(cuMemAlloc(&at[1], 100));
	fa_check_eq(cu.cuMemFree(at[0]), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemFree(at[0]), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(fa_test_cuda_failed(cu_page), 3);

	/* Faults set through the page count calls from then on. */
	fa_test_cuda_fail(cu_page, NULL);
	fa_cu(cuMemFree(at[0]));
	fa_test_cuda_fail(cu_page, "any:2=801,cuMemFree:1=1");
	fa_cu(cuMemAlloc(&at[0], 100));
	fa_check_eq(cu.cuMemAlloc(&at[2], 100), CUDA_ERROR_NOT_SUPPORTED);
	fa_check_eq(cu.cuMemFree(at[0]), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemFree(at[0]));
	fa_cu(cuMemFree(at[1]));
	fa_check_eq(fa_test_cuda_page_fail(cu_page, "cuNothing:1=2"), -EINVAL);
	fa_check_eq(fa_test_cuda_page_fail(cu_page, "cuMemFree:0=2"), -EINVAL);
}

static void faults(void **state)
{
	setenv("FAD_TEST_CUDA_FAIL", "cuMemAlloc:2=2,cuMemFree:*=1", 1);
	fa_cuda_alone(faults_case);
	unsetenv("FAD_TEST_CUDA_FAIL");
}

/* A sticky error stays; queued work does not run. */
static void sticky_case(int socket)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUcontext context;
	CUdeviceptr gate;
	const char *name;
	uint64_t *words;
	CUdeviceptr at;

	words = word_new(&gate);
	fa_cu(cuStreamWaitValue64(stream, gate, 1, 0));
	fa_cu(cuStreamWriteValue64(stream, gate + 8, 1, 0));
	fa_test_cuda_fail(cu_page, "cuMemAlloc:1=719");
	fa_check_eq(cu.cuMemAlloc(&at, 100), CUDA_ERROR_LAUNCH_FAILED);
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	fa_check_eq(cu.cuMemAlloc(&at, 100), CUDA_ERROR_LAUNCH_FAILED);
	fa_check_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
	fa_check_eq(cu.cuStreamQuery(stream), CUDA_ERROR_LAUNCH_FAILED);
	fa_check_eq(cu.cuMemFreeHost(words), CUDA_ERROR_LAUNCH_FAILED);
	fa_check_eq(cu.cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
	fa_cu(cuGetErrorName(CUDA_ERROR_LAUNCH_FAILED, &name));
	fa_check(!strcmp(name, "CUDA_ERROR_LAUNCH_FAILED"));
	fa_check_eq(word_get(words + 1), 0);

	/* A new context works again. */
	fa_cu(cuDevicePrimaryCtxRelease(0));
	fa_cu(cuDevicePrimaryCtxRetain(&context, 0));
	fa_cu(cuCtxSetCurrent(context));
	fa_cu(cuMemAlloc(&at, 100));
}

static void sticky(void **state)
{
	fa_cuda_alone(sticky_case);
}

/* Work on memory that was freed meanwhile faults. */
static void gone_case(int socket)
{
	const CUmemAllocationProp wanted = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
	};
	const CUmemAccessDesc access = { .location = wanted.location,
		                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr gate, at;
	uint64_t *word;

	word = word_new(&gate);
	fa_cu(cuMemCreate(&handle, 2 * MIB, &wanted, 0));
	fa_cu(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
	fa_cu(cuMemMap(at, 2 * MIB, 0, handle, 0));
	fa_cu(cuMemSetAccess(at, 2 * MIB, &access, 1));
	fa_cu(cuStreamWaitValue64(stream, gate, 1, 0));
	fa_cu(cuMemsetD8Async(at, 1, MIB, stream));
	fa_cu(cuMemUnmap(at, 2 * MIB));
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	fa_check_eq(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	fa_check_eq(fa_test_cuda_misuses(cu_page), 1);
}

static void gone(void **state)
{
	fa_cuda_alone(gone_case);
}

/* Calls that free memory (other than asynchronously) wait for all work, and block launches. */
static CUcontext context_of_waits;

static void *unregister(void *data)
{
	fa_cu(cuCtxSetCurrent(context_of_waits));
	fa_cu(cuMemHostUnregister(data));
	return data;
}

static void *write_word(void *at)
{
	CUstream stream;

	fa_cu(cuCtxSetCurrent(context_of_waits));
	stream = stream_new(CU_STREAM_NON_BLOCKING);
	fa_cu(cuStreamWriteValue64(stream, (CUdeviceptr)(uintptr_t)at, 2, 0));
	return at;
}

static void waits_case(int socket)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	pthread_t unregisters, launches;
	CUdeviceptr gate;
	uint64_t *word;
	void *data;

	word = word_new(&gate);
	data = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fa_check(data != MAP_FAILED);
	fa_cu(cuMemHostRegister(data, MIB, CU_MEMHOSTREGISTER_DEVICEMAP));
	fa_cu(cuStreamWaitValue64(stream, gate, 1, 0));
	fa_cu(cuCtxGetCurrent(&context_of_waits));
	fa_check_eq(pthread_create(&unregisters, NULL, unregister, data), 0);
	fa_check_eventually(atomic_load(&cu_page->calls[FA_TEST_CUDA_cuMemHostUnregister]) == 1);
	fa_test_quiet_ms(20);
	fa_check_eq(pthread_create(&launches, NULL, write_word, (void *)(uintptr_t)(gate + 8)), 0);
	fa_test_quiet_ms(20);
	fa_check_eq(pthread_tryjoin_np(unregisters, NULL), EBUSY);
	fa_check_eq(pthread_tryjoin_np(launches, NULL), EBUSY);
	fa_check_eq(word_get(word + 1), 0);
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	fa_check_eq(pthread_join(unregisters, NULL), 0);
	fa_check_eq(pthread_join(launches, NULL), 0);
	fa_check_eventually(word_get(word + 1) == 2);
}

static void waits(void **state)
{
	fa_cuda_alone(waits_case);
}

/* Memory that was unmapped while registered does not crash, either. */
static void unmapped_case(int socket)
{
	CUdeviceptr at;
	void *data;

	data = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fa_check(data != MAP_FAILED);
	fa_cu(cuMemHostRegister(data, MIB, 0));
	munmap(data, MIB);
	fa_cu(cuMemHostGetDevicePointer(&at, data, 0));
	fa_check(cu.cuMemsetD8(at, 1, MIB) != CUDA_SUCCESS);
}

static void unmapped(void **state)
{
	fa_cuda_alone(unmapped_case);
}

/* ---- what a test sees of another process */

static void watched(int socket)
{
	CUdeviceptr at;
	char word;

	for (int i = 0; i < 3; ++i)
		fa_cu(cuMemAlloc(&at, 100));
	fa_cuda_send(socket, "w", 1, -1);
	fa_cuda_receive(socket, &word, 1);
	fa_check_eq(cu.cuMemAlloc(&at, 100), CUDA_ERROR_OUT_OF_MEMORY);
}

static void watch(void **state)
{
	struct fa_cuda_child child = fa_cuda_child(watched, 0);
	struct fa_test_cuda_page *page;
	struct fa_test_cuda_lives lives;
	struct fa_test_cuda_calls calls;
	char word;

	fa_cuda_receive(child.socket, &word, 1);
	page = fa_test_cuda_attach(&cuda, child.pid);
	fa_test_cuda_calls(page, &calls);
	fa_check_eq(calls.n[FA_TEST_CUDA_cuMemAlloc], 3);
	fa_check_eq(calls.n[FA_TEST_CUDA_cuInit], 1);
	fa_check_eq(calls.n[FA_TEST_CUDA_cuLaunchKernel], 0);
	fa_test_cuda_lives(page, &lives);
	fa_check_eq(lives.n[FA_TEST_CUDA_ALLOCATIONS], 3);
	fa_check_eq(lives.n[FA_TEST_CUDA_CONTEXTS], 1);
	fa_check(lives.n[FA_TEST_CUDA_DEVICE_BYTES] > 0);
	fa_check_eq(lives.n[FA_TEST_CUDA_DEVICE_BYTES], fa_test_cuda_bytes(&cuda));
	fa_test_cuda_fail(page, "cuMemAlloc:1=2");
	fa_cuda_send(child.socket, &word, 1, -1);
	fa_cuda_child_end(&child);
	fa_check_eq(fa_test_cuda_failed(page), 1);
	/* A dead process holds nothing, though its page has counts. */
	fa_check(!fa_test_cuda_lives_equal(page, &(struct fa_test_cuda_lives){ 0 }, false));
	fa_check_eq(fa_test_cuda_bytes(&cuda), 0);
	fa_test_cuda_detach(page);
}

static int setup(void **state)
{
	fa_test_cuda_begin(&cuda);
	return 0;
}

static int teardown(void **state)
{
	fa_test_cuda_end(&cuda);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order),   cmocka_unit_test(staging), cmocka_unit_test(timing),
		cmocka_unit_test(current), cmocka_unit_test(faults),  cmocka_unit_test(sticky),
		cmocka_unit_test(gone),    cmocka_unit_test(waits),   cmocka_unit_test(unmapped),
		cmocka_unit_test(watch),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
