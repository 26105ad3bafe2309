/* Memory of the tests' CUDA driver, of each kind, in one process and shared with others. */
#include "common/cleanup.h"
#include "tests/cuda-driver/child.h"
#include "tests/lib/check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)
#define CHUNK (2 * MIB)

static struct fa_test_cuda cuda;

static CUmemAllocationProp properties(int device, unsigned int handle_types)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = handle_types,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
}

static uint64_t buffer_id(CUdeviceptr at)
{
	unsigned long long id;

	fa_cu(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
	return id;
}

static int attribute(CUpointer_attribute which, CUdeviceptr at)
{
	int value[2] = { -1, -1 };

	fa_cu(cuPointerGetAttribute(value, which, at));
	return value[0];
}

static void nothing_is_left(void)
{
	const struct fa_test_cuda_lives none = { 0 };

	fa_cu(cuDevicePrimaryCtxRelease(0));
	fa_check(fa_test_cuda_lives_equal(cu_page, &none, true));
	fa_check_eq(fa_test_cuda_abandoned(cu_page), 0);
	fa_check_eq(fa_test_cuda_misuses(cu_page), 0);
}

/* ---- one process */

static void alloc_case(int socket)
{
	CUdeviceptr at, again, base;
	char text[16] = "";
	size_t bytes, total;
	uint64_t id;

	fa_cu(cuMemAlloc(&at, 1000));
	fa_cu(cuMemcpyHtoD(at + 100, "hello", 6));
	fa_cu(cuMemcpyDtoH(text, at + 100, 6));
	fa_check(!strcmp(text, "hello"));
	fa_check_eq(cu.cuMemcpyDtoH(text, at + 995, 6), CUDA_ERROR_INVALID_VALUE);

	fa_cu(cuMemGetAddressRange(&base, &bytes, at + 999));
	fa_check_eq(base, at);
	fa_check_eq(bytes, 1000);
	fa_check(cu.cuMemGetAddressRange(&base, &bytes, at + 1000) != CUDA_SUCCESS);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), CU_MEMORYTYPE_DEVICE);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 1);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, at), 0);
	fa_check_eq(cu.cuPointerGetAttribute(text, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                                     (CUdeviceptr)(uintptr_t)text),
	            CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemGetInfo(&bytes, &total));
	fa_check_eq(total - bytes, 4096);

	/* A new allocation reuses the address, but not the buffer id. */
	id = buffer_id(at);
	fa_cu(cuMemFree(at));
	fa_check_eq(cu.cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemAlloc(&again, 1000));
	fa_check_eq(again, at);
	fa_check(buffer_id(again) != id);
	fa_check_eq(cu.cuMemFree(again + 4), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemFree(again));
	fa_check_eq(cu.cuMemAlloc(&at, 0), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemAlloc(&at, (size_t)1 << 40), CUDA_ERROR_OUT_OF_MEMORY);
	nothing_is_left();
}

static void alloc(void **state)
{
	fa_cuda_alone(alloc_case);
}

static void other_kinds_case(int socket)
{
	CUipcMemHandle handle;
	CUdeviceptr async, managed;
	void *pool;

	fa_cu(cuMemAllocAsync(&async, MIB, NULL));
	fa_cu(cuMemAllocManaged(&managed, MIB, 1));
	fa_check_eq(cu.cuIpcGetMemHandle(&handle, async), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuIpcGetMemHandle(&handle, managed), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, async), 0);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, async), 0);
	fa_cu(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, async));
	fa_check(pool);
	fa_cu(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, managed));
	fa_check(!pool);
	fa_cu(cuMemFreeAsync(async, NULL));
	fa_cu(cuCtxSynchronize());
	fa_cu(cuMemFree(managed));
	nothing_is_left();
}

static void other_kinds(void **state)
{
	fa_cuda_alone(other_kinds_case);
}

static void host_case(int socket)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	CUdeviceptr device, base;
	unsigned char *data, *reading;
	size_t bytes;
	void *at;

	fa_cu(cuMemHostAlloc(&at, 100, CU_MEMHOSTALLOC_PORTABLE));
	fa_cu(cuMemHostGetDevicePointer(&device, at, 0));
	fa_cu(cuMemGetAddressRange(&base, &bytes, device + 99));
	fa_check_eq(base, device);
	fa_check_eq(bytes, 100);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device), CU_MEMORYTYPE_HOST);
	fa_cu(cuMemFreeHost(at));

	fd = memfd_create("host", MFD_CLOEXEC);
	fa_check(fd >= 0 && !ftruncate(fd, MIB));
	data = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	reading = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
	fa_check(data != MAP_FAILED && reading != MAP_FAILED);
	fa_check_eq(cu.cuMemHostRegister(data + 8, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemHostRegister(data, MIB, CU_MEMHOSTREGISTER_PORTABLE));
	fa_check_eq(cu.cuMemHostRegister(data + 4096, 4096, 0),
	            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	fa_cu(cuMemHostGetDevicePointer(&device, data + 64, 0));
	fa_check_eq(device, (uintptr_t)data + 64);

	/* Read-only memory must be registered as read-only. */
	fa_check_eq(cu.cuMemHostRegister(reading, MIB, 0), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemHostRegister(reading, MIB, CU_MEMHOSTREGISTER_READ_ONLY));
	fa_check_eq(cu.cuMemsetD8((CUdeviceptr)(uintptr_t)reading, 1, 4), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemHostUnregister(reading));
	fa_cu(cuMemHostUnregister(data));
	fa_check_eq(cu.cuMemHostUnregister(data), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	munmap(data, MIB);
	munmap(reading, MIB);
	fa_check_eq(cu.cuMemHostRegister(data, MIB, 0), CUDA_ERROR_INVALID_VALUE);
	nothing_is_left();
}

static void host(void **state)
{
	fa_cuda_alone(host_case);
}

static void vmm_case(int socket)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const CUmemAllocationProp wanted = properties(0, 1);
	CUmemGenericAllocationHandle handle, same;
	CUmemAllocationProp got;
	CUdeviceptr at, base;
	CUipcMemHandle ipc;
	size_t bytes;
	int value;

	fa_cu(cuMemGetAllocationGranularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	fa_check_eq(bytes, CHUNK);
	fa_check_eq(cu.cuMemCreate(&handle, MIB, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemCreate(&handle, CHUNK, &wanted, 0));
	fa_cu(cuMemAddressReserve(&at, 3 * CHUNK, 0, 0, 0));
	fa_check_eq(cu.cuMemMap(at, MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemMap(at + 3 * CHUNK, CHUNK, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemMap(at + CHUNK, CHUNK, 0, handle, 0));
	fa_check_eq(cu.cuMemMap(at + CHUNK, CHUNK, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemcpyHtoD(at + CHUNK, "x", 1), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemSetAccess(at, CHUNK, &access, 1), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemSetAccess(at + CHUNK, CHUNK, &access, 1));
	fa_cu(cuMemcpyHtoD(at + CHUNK, "x", 1));

	/* The same memory can be mapped a second time. */
	fa_cu(cuMemMap(at + 2 * CHUNK, CHUNK, 0, handle, 0));
	fa_cu(cuMemSetAccess(at + CHUNK, 2 * CHUNK, &access, 1));
	value = 0;
	fa_cu(cuMemcpyDtoH(&value, at + 2 * CHUNK, 1));
	fa_check_eq(value, 'x');
	fa_cu(cuMemGetAddressRange(&base, &bytes, at + 2 * CHUNK + 5));
	fa_check_eq(base, at + 2 * CHUNK);
	fa_check_eq(bytes, CHUNK);
	fa_check_eq(cu.cuIpcGetMemHandle(&ipc, at + CHUNK), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at + CHUNK), 1);
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at + CHUNK), 0);

	/* A mapping keeps its memory alive, and the handle can be retained from it. */
	fa_cu(cuMemRelease(handle));
	fa_check_eq(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(at + CHUNK + 7)));
	fa_cu(cuMemGetAllocationPropertiesFromHandle(&got, same));
	fa_check_eq(got.requestedHandleTypes, 1);
	fa_check_eq(got.location.id, 0);
	fa_cu(cuMemRelease(same));

	fa_check_eq(cu.cuMemAddressFree(at, 3 * CHUNK), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemUnmap(at, 3 * CHUNK), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemUnmap(at + CHUNK, 2 * CHUNK));
	fa_cu(cuMemAddressFree(at, 3 * CHUNK));

	/* Memory that was not made for export is not exported. */
	got.requestedHandleTypes = 0;
	fa_cu(cuMemCreate(&handle, CHUNK, &got, 0));
	fa_check_eq(cu.cuMemExportToShareableHandle(&value, handle, 1, 0),
	            CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemRelease(handle));
	nothing_is_left();
}

static void vmm(void **state)
{
	fa_cuda_alone(vmm_case);
}

/* ---- two processes */

/* Exports 1 MiB, and frees it on request. */
static void exporter(int socket)
{
	CUipcMemHandle handle, again;
	CUdeviceptr at, opened;
	char word;

	fa_cu(cuMemAlloc(&at, MIB));
	fa_cu(cuMemsetD8(at, 7, MIB));
	fa_cu(cuCtxSynchronize());
	fa_cu(cuIpcGetMemHandle(&handle, at));
	fa_cu(cuIpcGetMemHandle(&again, at + 4096));
	fa_check(!memcmp(&handle, &again, sizeof(handle)));
	fa_check_eq(cu.cuIpcOpenMemHandle(&opened, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
	fa_cuda_send(socket, &handle, sizeof(handle), -1);
	fa_cuda_receive(socket, &word, 1);
	fa_cu(cuMemFree(at));
	fa_cuda_send(socket, &word, 1, -1);
	fa_cuda_receive(socket, &word, 1);
}

static struct fa_cuda_child other; /* the exporter that the importer talks to */

static void importer(int socket)
{
	unsigned char data[2] = { 0, 0 };
	CUdeviceptr at, again, base;
	CUipcMemHandle handle;
	size_t bytes;

	fa_cuda_receive(other.socket, &handle, sizeof(handle));
	fa_check_eq(cu.cuIpcOpenMemHandle(&at, handle, 0), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuIpcOpenMemHandle(&at, handle, 1));
	fa_cu(cuIpcOpenMemHandle(&again, handle, 1));
	fa_check_eq(at, again);
	fa_cu(cuMemGetAddressRange(&base, &bytes, at + 5));
	fa_check_eq(base, at);
	fa_check_eq(bytes, MIB);
	fa_check_eq(fa_test_cuda_bytes(&cuda), MIB);
	fa_check_eq(cu.cuMemFree(at), CUDA_ERROR_INVALID_VALUE);

	/* After the exporter has freed the memory and died, it stays valid while it is open
	 * here. */
	fa_cuda_send(other.socket, "f", 1, -1);
	fa_cuda_receive(other.socket, data, 1);
	fa_cu(cuMemcpyDtoH(data, at + MIB - 2, 2));
	fa_check(data[0] == 7 && data[1] == 7);
	fa_cu(cuIpcCloseMemHandle(at));
	kill(other.pid, SIGKILL);
	fa_check_eventually(!fa_test_cuda_started(other.pid));
	fa_check_eq(fa_test_cuda_bytes(&cuda), MIB);
	fa_cu(cuMemcpyDtoH(data, at, 2));
	fa_check(data[0] == 7 && data[1] == 7);
	fa_cu(cuIpcCloseMemHandle(at));
	fa_check_eq(cu.cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(fa_test_cuda_bytes(&cuda), 0);

	/* Now the handle is stale. */
	fa_check_eq(cu.cuIpcOpenMemHandle(&at, handle, 1), CUDA_ERROR_MAP_FAILED);
	++handle.reserved[20];
	fa_check_eq(cu.cuIpcOpenMemHandle(&at, handle, 1), CUDA_ERROR_INVALID_VALUE);
	nothing_is_left();
}

static void ipc(void **state)
{
	struct fa_cuda_child child;

	other = fa_cuda_child(exporter, 0);
	child = fa_cuda_child(importer, 0);
	fa_cuda_child_end(&child);
	close(other.socket);
	fa_test_reap(other.pid);
}

static void same_pid_importer(int socket)
{
	CUipcMemHandle handle;
	CUdeviceptr at;

	fa_cuda_receive(other.socket, &handle, sizeof(handle));
	fa_check_eq(cu.cuIpcOpenMemHandle(&at, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
}

static void same_pid(void **state)
{
	struct fa_cuda_child child;

	setenv("FAD_TEST_CUDA_PID", "7", 1);
	other = fa_cuda_child(exporter, 0);
	child = fa_cuda_child(same_pid_importer, 0);
	unsetenv("FAD_TEST_CUDA_PID");
	fa_cuda_child_end(&child);
	kill(other.pid, SIGKILL);
	close(other.socket);
	fa_test_reap(other.pid);
}

/* Exports a chunk by descriptor, and waits to be killed. */
static void fd_exporter(int socket)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const CUmemAllocationProp wanted = properties(0, 1);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	char word;
	int fd;

	fa_cu(cuMemCreate(&handle, CHUNK, &wanted, 0));
	fa_cu(cuMemAddressReserve(&at, CHUNK, 0, 0, 0));
	fa_cu(cuMemMap(at, CHUNK, 0, handle, 0));
	fa_cu(cuMemSetAccess(at, CHUNK, &access, 1));
	fa_cu(cuMemcpyHtoD(at + CHUNK - 3, "vmm", 3));
	fa_cu(cuMemExportToShareableHandle(&fd, handle, 1, 0));
	fa_cuda_send(socket, "v", 1, fd);
	fa_cuda_receive(socket, &word, 1);
}

static void fd_importer(int socket)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         CU_MEM_ACCESS_FLAGS_PROT_READ };
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp got;
	CUdeviceptr at;
	char text[4] = "";
	int fd;

	fd = fa_cuda_receive(other.socket, text, 1);
	kill(other.pid, SIGKILL);
	fa_check_eventually(!fa_test_cuda_started(other.pid));
	fa_cu(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1));
	close(fd);
	fa_cu(cuMemGetAllocationPropertiesFromHandle(&got, handle));
	fa_check_eq(got.location.id, 0);
	fa_cu(cuMemAddressReserve(&at, CHUNK, 0, 0, 0));
	fa_check_eq(cu.cuMemMap(at, 2 * CHUNK, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemMap(at, CHUNK, 0, handle, 0));
	fa_cu(cuMemRelease(handle));
	fa_cu(cuMemSetAccess(at, CHUNK, &access, 1));
	fa_cu(cuMemcpyDtoH(text, at + CHUNK - 3, 3));
	fa_check(!strcmp(text, "vmm"));
	fa_check_eq(cu.cuMemsetD8(at, 0, 1), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemUnmap(at, CHUNK));
	fa_cu(cuMemAddressFree(at, CHUNK));

	/* Descriptors of other files are refused. */
	fa_check_eq(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1, 1),
	            CUDA_ERROR_INVALID_VALUE);
	fa_check_eq(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)0, 1),
	            CUDA_ERROR_INVALID_VALUE);
	fd = memfd_create("fad-cuda-vmm:0:1", MFD_CLOEXEC);
	fa_check_eq(cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1),
	            CUDA_ERROR_INVALID_VALUE);
	close(fd);
	nothing_is_left();
}

static void vmm_fd(void **state)
{
	struct fa_cuda_child child;

	other = fa_cuda_child(fd_exporter, 0);
	child = fa_cuda_child(fd_importer, 0);
	fa_cuda_child_end(&child);
	close(other.socket);
	fa_test_reap(other.pid);
}

/* ---- other devices, other processes */

static void two_devices_case(int socket)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const CUmemAllocationProp wanted = properties(1, 1);
	CUmemGenericAllocationHandle handle;
	CUcontext first, second;
	CUuuid uuids[2];
	CUdeviceptr at;
	int count;

	fa_cu(cuDeviceGetCount(&count));
	fa_check_eq(count, 2);
	fa_cu(cuDeviceGetUuid(&uuids[0], 0));
	fa_cu(cuDeviceGetUuid(&uuids[1], 1));
	fa_check(memcmp(&uuids[0], &uuids[1], sizeof(uuids[0])));
	fa_cu(cuCtxGetCurrent(&first));
	fa_cu(cuDevicePrimaryCtxRetain(&second, 1));
	fa_cu(cuCtxSetCurrent(second));
	fa_cu(cuMemAlloc(&at, 100));
	fa_check_eq(attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 1);
	fa_cu(cuCtxSetCurrent(first));
	fa_check_eq(cu.cuMemsetD8(at, 0, 100), CUDA_ERROR_INVALID_VALUE);
	fa_cu(cuMemFree(at));

	fa_cu(cuMemCreate(&handle, CHUNK, &wanted, 0));
	fa_cu(cuMemAddressReserve(&at, CHUNK, 0, 0, 0));
	fa_cu(cuMemMap(at, CHUNK, 0, handle, 0));
	fa_check_eq(cu.cuMemSetAccess(at, CHUNK, &access, 1), CUDA_ERROR_INVALID_DEVICE);
	fa_cu(cuMemUnmap(at, CHUNK));
	fa_cu(cuMemAddressFree(at, CHUNK));
	fa_cu(cuMemRelease(handle));
	fa_cu(cuDevicePrimaryCtxRelease(1));
	fa_check_eq(cu.cuCtxSetCurrent(second), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	nothing_is_left();
}

static void two_devices(void **state)
{
	setenv("FAD_TEST_CUDA_DEVICES", "2", 1);
	fa_cuda_alone(two_devices_case);
	unsetenv("FAD_TEST_CUDA_DEVICES");
}

static int forked_main(void *userdata)
{
	const CUdeviceptr at = *(CUdeviceptr *)userdata;

	fa_check_eq(cu.cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
	fa_check_eq(cu.cuMemFree(at), CUDA_ERROR_NOT_INITIALIZED);
	return 0;
}

static void forked_case(int socket)
{
	CUdeviceptr at;

	fa_cu(cuMemAlloc(&at, 100));
	fa_check_eq(fa_test_reap(fa_test_fork(forked_main, &at)), 0);
	fa_cu(cuMemFree(at));
	nothing_is_left();
}

static void forked(void **state)
{
	fa_cuda_alone(forked_case);
}

static void no_device_case(int socket)
{
	int count;

	fa_check_eq(cu.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
	fa_check_eq(cu.cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void no_device(void **state)
{
	struct fa_cuda_child child;

	setenv("FAD_TEST_CUDA_DEVICES", "0", 1);
	child = fa_cuda_child(no_device_case, -1);
	unsetenv("FAD_TEST_CUDA_DEVICES");
	fa_cuda_child_end(&child);
}

/* Objects left at the end of the context are counted and freed. */
static void leak_case(int socket)
{
	struct fa_test_cuda_lives lives;
	CUdeviceptr at;
	CUstream stream;

	fa_cu(cuMemAlloc(&at, 100));
	fa_cu(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
	fa_cu(cuMemsetD8Async(at, 0, 100, stream));
	fa_cu(cuDevicePrimaryCtxRelease(0));
	fa_check_eq(fa_test_cuda_abandoned(cu_page), 2);
	fa_test_cuda_lives(cu_page, &lives);
	for (int i = 0; i < FA_TEST_CUDA_LIVE; ++i)
		fa_check_eq(lives.n[i], 0);
	fa_check_eq(cu.cuMemFree(at), CUDA_ERROR_INVALID_CONTEXT);
}

static void leak(void **state)
{
	fa_cuda_alone(leak_case);
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
		cmocka_unit_test(alloc),  cmocka_unit_test(other_kinds),
		cmocka_unit_test(host),   cmocka_unit_test(vmm),
		cmocka_unit_test(ipc),    cmocka_unit_test(same_pid),
		cmocka_unit_test(vmm_fd), cmocka_unit_test(two_devices),
		cmocka_unit_test(forked), cmocka_unit_test(no_device),
		cmocka_unit_test(leak),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
