/*
 * libfaclient on a daemon over the tests' CUDA driver: random requests on every kind of memory are
 * right, freed memory is released, and a program survives the loss of GPU or daemon.
 */
#include "common/cleanup.h"
#include "cuda-client.h"
#include "tests/client/attention-request.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;
static char dir[48];
static uint64_t seed;

static void daemon_begin(void)
{
	fa_test_daemon_start(&daemon_, &(struct fa_test_daemon_options){ .dir = dir });
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
}

static int start(void **state)
{
	const char *text = getenv("FAD_TEST_SEED");

	seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	fa_test_dir_make(dir, sizeof(dir));
	fa_test_cuda_begin(&cuda);
	setenv("FAD_TEST_CUDA_DEVICES", "2", 1);
	return 0;
}

static int stop(void **state)
{
	fa_test_cuda_end(&cuda);
	fa_test_dir_remove(dir);
	return 0;
}

static int each_start(void **state)
{
	daemon_begin();
	return 0;
}

static int each_stop(void **state)
{
	fa_test_daemon_stop(&daemon_);
	fa_check_eq(fa_test_cuda_abandoned(page), 0);
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	fa_test_cuda_detach(page);
	return 0;
}

static void client_new(struct fa_client **ret_client)
{
	const struct fa_options options = { .size = sizeof(options), .socket = daemon_.socket };

	fa_check_eq(fa_connect(&options, ret_client), 0);
}

#define fa_ok(client, call)                                                                        \
	do {                                                                                       \
		const int _r = (call);                                                             \
		if (_r < 0)                                                                        \
			fa_test_fail(__FILE__, __LINE__, "%s gives %d, %s", #call, _r,             \
			             fa_error());                                                  \
	} while (0)

static int64_t below(struct fa_test_random *random, int64_t bound)
{
	return (int64_t)fa_test_random_below(random, (uint64_t)bound);
}

static struct fa_case random_case(struct fa_test_random *random)
{
	static const int64_t dims[] = { 8, 32, 64, 72, 96, 128, 192, 256 };
	struct fa_case attention = {
		.dtype = (enum fa_wire_dtype)(1 + below(random, 3)),
		.batch = 1 + below(random, 3),
		.kv_heads = 1 + below(random, 3),
		.head_dim = dims[below(random, 8)],
		.head_dim_v = dims[below(random, 8)],
		.seqlen_q = 1 + below(random, 40),
		.seqlen_k = 1 + below(random, 60),
		.ragged = !below(random, 3),
		.causal = below(random, 2),
		.lse = below(random, 2),
		.alibi = !below(random, 4),
		.sinks = !below(random, 4),
		.windowed = !below(random, 4),
		.softcap = below(random, 4) ? 0 : 3,
		.scale = below(random, 4) ? 0 : 0.2f,
		.seed = fa_test_random(random),
	};

	attention.heads = attention.kv_heads * (1 + below(random, 3));
	attention.window_left = below(random, 20) - 1;
	attention.window_right = below(random, 20) - 1;
	fa_case_plan(&attention);
	return attention;
}

static void run(struct fa_client *client, const struct fa_case *attention, struct fa_buffer *buffer)
{
	const CUdeviceptr at = fa_buffer_device_data(buffer);
	const struct fa_attention request = fa_case_attention(attention, buffer);
	double error;

	if (at)
		cuda_case_fill(attention, at);
	else
		fa_case_fill(attention, fa_buffer_data(buffer));
	fa_ok(client, fa_attention(client, &request, NULL));
	error = at ? cuda_case_error(attention, at)
	           : fa_case_error(attention, fa_buffer_data(buffer));
	if (!(error <= 1))
		fa_test_fail(__FILE__, __LINE__,
		             "wrong by %g: dtype %d, %s, batch %d, heads %d/%d, dims %d/%d, "
		             "tokens %d/%d, causal %d, window %d %d %d, alibi %d, sinks %d, "
		             "softcap %g",
		             error, attention->dtype, attention->ragged ? "ragged" : "dense",
		             (int)attention->batch, (int)attention->heads, (int)attention->kv_heads,
		             (int)attention->head_dim, (int)attention->head_dim_v,
		             (int)attention->seqlen_q, (int)attention->seqlen_k, attention->causal,
		             attention->windowed, (int)attention->window_left,
		             (int)attention->window_right, attention->alibi, attention->sinks,
		             (double)attention->softcap);
}

static void random_client(int socket)
{
	struct fa_test_random random = { seed };
	struct cuda_buffer legacy, mapped;
	struct fa_client *client;

	client_new(&client);
	cuda_buffer_ipc(&legacy, 0, 16 * MIB);
	cuda_buffer_vmm(&mapped, 0, 11, 0);
	for (int i = 0; i < 200; ++i) {
		const struct fa_case attention = random_case(&random);
		const CUdeviceptr memory = i % 4 ? mapped.at : legacy.at;
		struct fa_buffer *buffer;

		if (i % 4 < 2)
			fa_ok(client, fa_buffer_import_cuda(
					      client, memory + 64 * (uint64_t)below(&random, 60000),
					      attention.bytes, 0, &buffer));
		else
			fa_ok(client, fa_buffer_new(client, attention.bytes,
			                            i % 4 == 2 ? FA_BUFFER_DEVICE : 0, &buffer));
		run(client, &attention, buffer);
		fa_buffer_free(buffer);
	}
	fa_disconnect(client);
	cuda_buffer_end(&legacy);
	cuda_buffer_end(&mapped);
}

static void test_random(void **state)
{
	fa_cuda_alone(random_client);
}

static void refused(struct fa_client *client, CUdeviceptr at, uint64_t bytes, int status,
                    const char *part)
{
	struct fa_buffer *buffer;

	fa_check_eq(fa_buffer_import_cuda(client, at, bytes, 0, &buffer), status);
	fa_check_contains(fa_error(), part);
}

static void refused_client(int socket)
{
	const CUmemAllocationProp unshared = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr async, managed, plain, other, mapped;
	struct fa_client *client;
	CUcontext context;
	void *host;

	client_new(&client);
	fa_cu(cuMemAllocAsync(&async, MIB, NULL));
	fa_cu(cuMemAllocManaged(&managed, MIB, 1));
	fa_cu(cuMemHostAlloc(&host, MIB, 0));
	fa_cu(cuMemAlloc(&plain, 1000));
	fa_cu(cuMemCreate(&handle, CUDA_CHUNK, &unshared, 0));
	fa_cu(cuMemAddressReserve(&mapped, CUDA_CHUNK, 0, 0, 0));
	fa_cu(cuMemMap(mapped, CUDA_CHUNK, 0, handle, 0));
	fa_cu(cuMemSetAccess(mapped, CUDA_CHUNK, &access, 1));
	refused(client, async, MIB, -ENOTSUP, "cuMemAllocAsync");
	refused(client, managed, MIB, -ENOTSUP, "managed");
	refused(client, (CUdeviceptr)(uintptr_t)host, MIB, -ENOTSUP, "host");
	refused(client, (CUdeviceptr)(uintptr_t)&client, 8, -EINVAL, "");
	refused(client, plain, 1001, -EINVAL, "");
	refused(client, plain + 1000, 1, -EINVAL, "");
	refused(client, mapped, MIB, -ENOTSUP, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");

	fa_cu(cuDevicePrimaryCtxRetain(&context, 1));
	fa_cu(cuCtxSetCurrent(context));
	fa_cu(cuMemAlloc(&other, MIB));
	refused(client, other, MIB, -ENOTSUP, "GPU");
	fa_disconnect(client);
}

static void test_refused(void **state)
{
	fa_cuda_alone(refused_client);
}

static void freed_client(int socket)
{
	const uint64_t before = fa_test_cuda_bytes(&cuda);
	struct fa_test_cuda_lives lives;
	struct fa_client *client;

	fa_test_cuda_lives(page, &lives);
	client_new(&client);
	fa_ok(client, fa_marker(client, 0, NULL, NULL));
	++lives.n[FA_TEST_CUDA_REGISTRATIONS];
	lives.n[FA_TEST_CUDA_HOST_BYTES] += 4096;
	fa_check_eventually(fa_test_cuda_lives_equal(page, &lives, false));
	for (int i = 0; i < 40; ++i) {
		struct fa_case attention = { .seqlen_q = 3 + i, .seed = (uint64_t)i };
		struct fa_buffer *buffers[2];
		struct cuda_buffer memory;

		fa_case_plan(&attention);
		if (i % 2)
			cuda_buffer_ipc(&memory, 0, MIB);
		else
			cuda_buffer_vmm(&memory, 0, 3, 0);
		/* Results never come from memory formerly at this address. */
		for (int j = 0; j < 2; ++j)
			fa_ok(client,
			      fa_buffer_import_cuda(client, memory.at + 4096 * (CUdeviceptr)j,
			                            attention.bytes, 0, &buffers[j]));
		run(client, &attention, buffers[0]);
		run(client, &attention, buffers[1]);
		fa_buffer_free(buffers[0]);
		fa_buffer_free(buffers[1]);
		cuda_buffer_end(&memory);
		/* Only the last freed allocation may still be registered. */
		fa_ok(client, fa_ping(client));
	}
	fa_ok(client, fa_cuda_trim(client));
	fa_check_eventually(fa_test_cuda_bytes(&cuda) == before);
	fa_check_eventually(fa_test_cuda_lives_equal(page, &lives, false));
	fa_disconnect(client);
}

static void test_freed(void **state)
{
	fa_cuda_alone(freed_client);
}

struct worker {
	struct fa_client *client;
	CUdeviceptr at;
	CUcontext context;
};

static void *worker_main(void *userdata)
{
	struct worker *worker = userdata;

	for (int i = 0; i < 30; ++i) {
		struct fa_case attention = { .seqlen_q = 9, .seed = (uint64_t)i };
		struct fa_buffer *buffer;
		CUcontext context;

		fa_case_plan(&attention);
		fa_ok(worker->client, fa_buffer_import_cuda(worker->client, worker->at,
		                                            attention.bytes, 0, &buffer));
		fa_cu(cuCtxGetCurrent(&context));
		fa_check(!context);
		fa_cu(cuCtxSetCurrent(worker->context));
		run(worker->client, &attention, buffer);
		fa_cu(cuCtxSetCurrent(NULL));
		fa_buffer_free(buffer);
	}
	return NULL;
}

static void threads_client(int socket)
{
	struct worker workers[4];
	pthread_t threads[4];
	struct cuda_buffer memory;
	struct fa_client *client;

	client_new(&client);
	cuda_buffer_ipc(&memory, 0, MIB);
	for (int i = 0; i < 4; ++i) {
		workers[i] = (struct worker){ client, memory.at + 65536 * (CUdeviceptr)i, NULL };
		fa_cu(cuCtxGetCurrent(&workers[i].context));
		fa_check_eq(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
	}
	for (int i = 0; i < 4; ++i)
		pthread_join(threads[i], NULL);
	fa_disconnect(client);
}

static void test_threads(void **state)
{
	fa_cuda_alone(threads_client);
}

/* ---- loss of daemon or GPU; the client has the test start another daemon */

static void again_client(int socket)
{
	struct fa_case attention = { .heads = 2, .seqlen_q = 20, .lse = true };
	struct fa_buffer *legacy, *mapped, *arena, *host, *gone;
	struct cuda_buffer ipc, fd, freed;
	struct fa_attention request;
	struct fa_client *client;
	struct fa_ticket ticket;
	char byte = 0;
	int r;

	fa_case_plan(&attention);
	client_new(&client);
	cuda_buffer_ipc(&ipc, 0, MIB);
	cuda_buffer_vmm(&fd, 0, 9, 0);
	cuda_buffer_ipc(&freed, 0, MIB);
	fa_ok(client, fa_buffer_import_cuda(client, ipc.at, MIB, 0, &legacy));
	fa_ok(client, fa_buffer_import_cuda(client, fd.at, fd.bytes, 0, &mapped));
	fa_ok(client, fa_buffer_import_cuda(client, freed.at, MIB, 0, &gone));
	fa_ok(client, fa_buffer_new(client, attention.bytes, FA_BUFFER_DEVICE, &arena));
	fa_ok(client, fa_buffer_new(client, attention.bytes, 0, &host));
	for (int round = 0; round < 3; ++round) {
		run(client, &attention, legacy);
		run(client, &attention, mapped);
		run(client, &attention, arena);
		run(client, &attention, host);
		request = fa_case_attention(&attention, mapped);
		fa_ok(client, fa_attention(client, &request, NULL));

		fa_cuda_send(socket, &byte, 1, -1);
		fa_cuda_receive(socket, &byte, 1);
		cuda_case_fill(&attention, fd.at);
		fa_ok(client, fa_attention(client, &request, &ticket));
		fa_cuda_send(socket, &byte, 1, -1);
		fa_cuda_receive(socket, &byte, 1);
		r = fa_wait(client, &ticket, UINT64_MAX, NULL);
		fa_check_eq(r, round ? -ENODEV : -ECONNRESET);
		if (!round) {
			cuda_buffer_end(&freed);
			request = fa_case_attention(&attention, gone);
			fa_check_eq(fa_attention(client, &request, NULL), -ESTALE);
			fa_buffer_free(gone);
		}
	}
	fa_disconnect(client);
}

static void test_new_daemon(void **state)
{
	struct fa_cuda_child child = fa_cuda_child(again_client, 0);
	char byte = 0;
	int status;

	for (int round = 0; round < 3; ++round) {
		const uint64_t kernels = fa_test_cuda_kernels(page);

		fa_cuda_receive(child.socket, &byte, 1);
		fa_test_cuda_hold(page, true);
		fa_cuda_send(child.socket, &byte, 1, -1);
		fa_cuda_receive(child.socket, &byte, 1);
		fa_check_eventually(fa_test_cuda_kernels(page) > kernels);
		if (round) {
			fa_test_cuda_fail(page, "any:1=700");
			fa_test_daemon_wait_dead(&daemon_);
			status = fa_test_daemon_reap(&daemon_);
			fa_check(WIFEXITED(status) && WEXITSTATUS(status) == EX_TEMPFAIL);
		} else {
			fa_test_daemon_signal(&daemon_, SIGKILL);
			fa_test_daemon_reap(&daemon_);
		}
		fa_test_cuda_detach(page);
		daemon_begin();
		fa_cuda_send(child.socket, &byte, 1, -1);
	}
	fa_cuda_child_end(&child);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test_##test, each_start, each_stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(random), CASE(refused), CASE(freed), CASE(threads), CASE(new_daemon),
	};

	return cmocka_run_group_tests_name("cuda-library", tests, start, stop);
}
