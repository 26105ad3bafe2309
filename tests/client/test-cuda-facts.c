/*
 * What libfaclient assumes of the CUDA driver: how kinds of memory are told apart, where
 * allocations begin and end, that their ids are unique. Run by hand it can ask a real driver.
 */
#include "common/cudriver.h"
#include "tests/lib/check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#define CHUNK ((size_t)2 << 20)
#define PIECES 3

static struct fa_cudriver cu;

#define fa_cu(call)                                                                                \
	do {                                                                                       \
		const CUresult _result = cu.call;                                                  \
		if (_result != CUDA_SUCCESS)                                                       \
			fa_test_fail(__FILE__, __LINE__, "%s gives %d", #call, (int)_result);      \
	} while (0)

/* Attributes of a pointer; -1 where the driver refuses. */
struct facts {
	long long type, managed, ordinal, legacy, pool, has_context, handle_types;
	unsigned long long id;
	CUdeviceptr base;
	size_t bytes;
};

static long long ask(CUpointer_attribute attribute, CUdeviceptr at)
{
	uint64_t value = 0;

	return cu.cuPointerGetAttribute(&value, attribute, at) ? -1 : (long long)value;
}

static struct facts facts_of(const char *what, CUdeviceptr at)
{
	struct facts facts = {
		.type = ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at),
		.managed = ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, at),
		.ordinal = ask(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at),
		.legacy = ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at),
		.pool = ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at),
		.has_context = ask(CU_POINTER_ATTRIBUTE_CONTEXT, at),
		.handle_types = ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at),
		.id = (unsigned long long)ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, at),
	};

	if (cu.cuMemGetAddressRange(&facts.base, &facts.bytes, at))
		facts.bytes = 0;
	if (facts.pool > 0)
		facts.pool = 1;
	if (facts.has_context > 0)
		facts.has_context = 1;
	print_message("%-16s type %lld, managed %lld, device %lld, legacy %lld, pool %lld, "
	              "context %lld, handle types %lld, id %llu, range %+lld of %zu\n",
	              what, facts.type, facts.managed, facts.ordinal, facts.legacy, facts.pool,
	              facts.has_context, facts.handle_types, facts.id,
	              facts.bytes ? (long long)(facts.base - at) : 0, facts.bytes);
	return facts;
}

static void test_alloc(void **state)
{
	struct facts first, inside, again;
	CUdeviceptr at, other;
	CUipcMemHandle handle;

	fa_cu(cuMemAlloc(&at, 5 * CHUNK));
	first = facts_of("cuMemAlloc", at);
	inside = facts_of("  inside", at + CHUNK + 100);
	fa_check_eq(first.type, CU_MEMORYTYPE_DEVICE);
	fa_check_eq(first.managed, 0);
	fa_check_eq(first.ordinal, 0);
	fa_check_eq(first.legacy, 1);
	fa_check(first.pool <= 0);
	fa_check_eq(first.base, at);
	fa_check_eq(first.bytes, 5 * CHUNK);
	fa_check_eq(inside.base, at);
	fa_check_eq(inside.id, first.id);
	fa_cu(cuIpcGetMemHandle(&handle, at));

	/* The new allocation has the old address, but another id. */
	fa_cu(cuMemFree(at));
	fa_check_eq(ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, at), -1);
	fa_cu(cuMemAlloc(&other, 5 * CHUNK));
	again = facts_of("  another", other);
	print_message("the same address: %s\n", other == at ? "yes" : "no");
	fa_check(again.id != first.id);
	fa_cu(cuMemFree(other));
}

/* Small allocations share a block of the driver but count as separate ones. */
static void test_small(void **state)
{
	struct facts first, second;
	CUdeviceptr a, b;

	fa_cu(cuMemAlloc(&a, 1000));
	fa_cu(cuMemAlloc(&b, 3000));
	first = facts_of("small", a + 999);
	second = facts_of("small", b + 2999);
	fa_check_eq(first.base, a);
	fa_check_eq(second.base, b);
	fa_check(first.bytes >= 1000);
	fa_check(second.bytes >= 3000);
	fa_check(first.id != second.id);
	fa_cu(cuMemFree(a));
	fa_cu(cuMemFree(b));
}

static CUmemAllocationProp properties(unsigned int handle_types)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = handle_types,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
}

static void map(CUdeviceptr at, unsigned int handle_types)
{
	const CUmemAccessDesc access = { .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const CUmemAllocationProp wanted = properties(handle_types);
	CUmemGenericAllocationHandle handle;

	fa_cu(cuMemCreate(&handle, CHUNK, &wanted, 0));
	fa_cu(cuMemMap(at, CHUNK, 0, handle, 0));
	fa_cu(cuMemSetAccess(at, CHUNK, &access, 1));
	fa_cu(cuMemRelease(handle));
}

static void check_export(CUdeviceptr at, unsigned int handle_types)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp found;
	int fd = -1;

	fa_cu(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)at));
	fa_cu(cuMemGetAllocationPropertiesFromHandle(&found, handle));
	fa_check_eq(found.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	            handle_types);
	fa_check_eq(found.location.id, 0);
	if (handle_types) {
		fa_cu(cuMemExportToShareableHandle(&fd, handle,
		                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		fa_check(fcntl(fd, F_GETFD) >= 0);
		close(fd);
	}
	fa_cu(cuMemRelease(handle));
}

static void test_pieces(void **state)
{
	const unsigned int posix = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	struct facts facts[PIECES], replaced;
	CUipcMemHandle handle;
	CUdeviceptr at;

	/* The reservation is one chunk larger, but the range reported must be the mapping's. */
	fa_cu(cuMemAddressReserve(&at, (PIECES + 1) * CHUNK, 0, 0, 0));
	for (size_t i = 0; i < PIECES; ++i)
		map(at + i * CHUNK, i == 2 ? 0 : posix);
	for (size_t i = 0; i < PIECES; ++i) {
		facts[i] = facts_of("cuMemCreate", at + i * CHUNK + 4096);
		fa_check_eq(facts[i].type, CU_MEMORYTYPE_DEVICE);
		fa_check_eq(facts[i].managed, 0);
		fa_check_eq(facts[i].ordinal, 0);
		fa_check(facts[i].legacy <= 0);
		fa_check(facts[i].pool <= 0);
		fa_check_eq(facts[i].base, at + i * CHUNK);
		fa_check_eq(facts[i].bytes, CHUNK);
		check_export(at + i * CHUNK, i == 2 ? 0 : posix);
	}
	fa_check(facts[0].id != facts[1].id && facts[1].id != facts[2].id);
	fa_check(cu.cuIpcGetMemHandle(&handle, at) != CUDA_SUCCESS);
	fa_check(!facts_of("reserved", at + PIECES * CHUNK).bytes);

	fa_cu(cuMemUnmap(at + CHUNK, CHUNK));
	fa_check(!facts_of("unmapped", at + CHUNK).bytes);
	map(at + CHUNK, posix);
	replaced = facts_of("mapped anew", at + CHUNK);
	fa_check(replaced.id != facts[1].id);
	fa_check_eq(facts_of("its neighbour", at).id, facts[0].id);
	for (size_t i = 0; i < PIECES; ++i)
		fa_cu(cuMemUnmap(at + i * CHUNK, CHUNK));
	fa_cu(cuMemAddressFree(at, (PIECES + 1) * CHUNK));
}

static void test_others(void **state)
{
	CUdeviceptr async, managed;
	struct facts facts;
	static char own;
	void *host;

	fa_cu(cuMemAllocAsync(&async, CHUNK, NULL));
	facts = facts_of("cuMemAllocAsync", async);
	fa_check_eq(facts.type, CU_MEMORYTYPE_DEVICE);
	fa_check_eq(facts.pool, 1);
	fa_cu(cuMemFreeAsync(async, NULL));
	fa_cu(cuCtxSynchronize());

	fa_cu(cuMemAllocManaged(&managed, CHUNK, 1));
	facts = facts_of("managed", managed);
	fa_check_eq(facts.managed, 1);
	fa_cu(cuMemFree(managed));

	fa_cu(cuMemHostAlloc(&host, CHUNK, CU_MEMHOSTALLOC_PORTABLE));
	facts = facts_of("cuMemHostAlloc", (CUdeviceptr)(uintptr_t)host);
	fa_check_eq(facts.type, CU_MEMORYTYPE_HOST);
	fa_check_eq(facts.managed, 0);
	fa_cu(cuMemFreeHost(host));

	facts = facts_of("of the program", (CUdeviceptr)(uintptr_t)&own);
	fa_check_eq(facts.type, -1);
}

static int setup(void **state)
{
	CUcontext context;

	fa_cu(cuDevicePrimaryCtxRetain(&context, 0));
	fa_cu(cuCtxSetCurrent(context));
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_alloc),
		cmocka_unit_test(test_small),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_others),
	};
	struct fa_error error;

	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &cu) < 0 || cu.cuInit(0)) {
		fprintf(stderr, "no GPU\n");
		return 77;
	}
	return cmocka_run_group_tests_name("cuda facts", tests, setup, NULL);
}
