/*
 * Each kind of memory on the tests' CUDA driver: results are right; invalid, stale or foreign
 * memory is refused; all is released.
 */
#include "common/cleanup.h"
#include "cuda-client.h"
#include "tests/lib/ring.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static struct fa_test_cuda cuda;
static struct fa_test_daemon daemon_;
static struct fa_test_cuda_page *page;
static struct fa_test_cuda_lives lives;

static int start(void **state)
{
	struct fa_raw raw;

	fa_test_cuda_begin(&cuda);
	setenv("FAD_TEST_CUDA_DEVICES", "2", 1);
	fa_test_daemon_start(&daemon_, NULL);
	page = fa_test_cuda_attach(&cuda, daemon_.pid);
	fa_raw_open(&raw, daemon_.socket);
	fa_check_contains(raw.message.hello_reply.backend.text, "cuda");
	fa_raw_close(&raw);
	fa_test_cuda_lives(page, &lives);
	return 0;
}

static bool nothing_is_left(bool loud)
{
	return fa_test_cuda_lives_equal(page, &lives, loud) &&
	       (int64_t)fa_test_cuda_bytes(&cuda) == lives.n[FA_TEST_CUDA_DEVICE_BYTES];
}

static int check(void **state)
{
	const uint64_t deadline = fa_deadline_ns(fa_test_patience_ns());
	uint64_t pause_ns = 0;

	while (!nothing_is_left(fa_now_ns() > deadline)) {
		fa_check(fa_now_ns() <= deadline);
		fa_test_poll_pause(&pause_ns);
	}
	fa_check(!fa_test_daemon_is_dead(&daemon_));
	fa_check_eq(fa_test_cuda_misuses(page), 0);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_);
	fa_check_eq(fa_test_cuda_abandoned(page), 0);
	fa_check(fa_test_cuda_lives_equal(page, &(struct fa_test_cuda_lives){ 0 }, true));
	fa_test_cuda_detach(page);
	fa_test_cuda_end(&cuda);
	return 0;
}

static struct fa_case small(void)
{
	struct fa_case attention = {
		.heads = 4,
		.kv_heads = 2,
		.head_dim = 64,
		.seqlen_q = 7,
		.seqlen_k = 41,
		.causal = true,
		.lse = true,
	};

	fa_case_plan(&attention);
	return attention;
}

static void several(struct fa_raw *raw, uint32_t id, CUdeviceptr at, uint64_t *value)
{
	for (int i = 0; i < 12; ++i) {
		struct fa_case attention = {
			.dtype = (enum fa_wire_dtype)(i % 3 + 1),
			.batch = 2,
			.heads = 6,
			.kv_heads = 3,
			.head_dim = i % 2 ? 64 : 40,
			.seqlen_q = 17,
			.seqlen_k = 29,
			.lse = true,
			.ragged = i % 4 == 1,
			.causal = i % 2,
			.windowed = i % 5 == 2,
			.window_left = 5,
			.window_right = 3,
			.alibi = i % 4 == 3,
			.sinks = i % 4 >= 2,
			.softcap = i % 3 == 1 ? 2 : 0,
		};

		fa_case_plan(&attention);
		cuda_attention(raw, &attention, id, at, ++*value);
	}
}

static void ipc_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer buffer;
	struct fa_raw raw;
	uint64_t value = 0;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&buffer, 1, MIB);
	cuda_register(&raw, &buffer, 0, MIB, 0, 0, NULL);
	several(&raw, 1, buffer.at, &value);
	buffer.id = 2;
	cuda_register(&raw, &buffer, 65536, attention.bytes, 0, 0, NULL);
	cuda_attention(&raw, &attention, 2, buffer.at + 65536, ++value);
	cuda_unregister(&raw, 1);
	cuda_attention(&raw, &attention, 2, buffer.at + 65536, ++value);
	cuda_unregister(&raw, 2);
	cuda_register(&raw, &buffer, 0, MIB, 0, 0, NULL);
	cuda_attention(&raw, &attention, 2, buffer.at, ++value);
	fa_raw_close(&raw);
}

static void test_ipc(void **state)
{
	fa_cuda_alone(ipc_client);
}

static void fd_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer buffer, many;
	struct fa_raw raw;
	uint64_t value = 0;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_vmm(&buffer, 1, 1, 0);
	cuda_register(&raw, &buffer, 0, buffer.bytes, 0, 0, NULL);
	several(&raw, 1, buffer.at, &value);

	/* Several packets; tensors cross the borders of pieces. */
	cuda_buffer_vmm(&many, 2, 19, 0);
	cuda_register(&raw, &many, 0, many.bytes, 0, 0, NULL);
	many.id = 3;
	cuda_register(&raw, &many, 17 * CUDA_CHUNK - 4096, attention.bytes, 0, 0, NULL);
	cuda_attention(&raw, &attention, 3, many.at + 17 * CUDA_CHUNK - 4096, ++value);
	cuda_unregister(&raw, 3);
	/* The daemon's mapping keeps memory that the client has freed. */
	cuda_case_fill(&attention, many.at);
	cuda_buffer_end(&many);
	struct fa_wire_message message = fa_case_message(&attention, 2, 0, 0, ++value);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, value, 0, NULL);
	cuda_unregister(&raw, 2);
	fa_raw_close(&raw);
}

static void test_fd(void **state)
{
	fa_cuda_alone(fd_client);
}

static void arena_client(int socket)
{
	_fa_cleanup_(fa_freep) unsigned char *data = malloc(3 * MIB);
	struct cuda_buffer buffer;
	struct fa_raw raw;
	uint64_t value = 0;

	fa_check(data);
	fa_raw_open(&raw, daemon_.socket);
	cuda_arena(&raw, &buffer, 1, 3 * MIB);
	fa_check_eq(buffer.bytes, 4 * MIB);
	fa_cu(cuMemcpyDtoH(data, buffer.at, 3 * MIB));
	for (size_t i = 0; i < 3 * MIB; ++i)
		if (data[i])
			fa_test_fail(__FILE__, __LINE__, "an arena is not zeroed at %zu", i);
	several(&raw, 1, buffer.at, &value);
	cuda_buffer_end(&buffer);
	cuda_unregister(&raw, 1);
	fa_raw_close(&raw);
}

/*
 * The client's charge. Arenas, and memory registered again after a restart, are charged for what
 * they take of the GPU: a client at its limit can come back.
 */
static long long charged(struct fa_raw *raw)
{
	_fa_cleanup_(fa_freep) char *status = fa_raw_status(raw);
	const char *at = strstr(status, "\"tenants\":");

	at = at ? strstr(at, "\"device_bytes\":") : NULL;
	fa_check(at);
	return strtoll(at + strlen("\"device_bytes\":"), NULL, 10);
}

static void small_arena_client(int socket)
{
	struct cuda_buffer buffers[2];
	struct fa_raw raw;
	long long before;

	fa_raw_open(&raw, daemon_.socket);
	before = charged(&raw);
	cuda_arena(&raw, &buffers[0], 1, 1);
	fa_check_eq(charged(&raw) - before, 2 * MIB);
	cuda_arena(&raw, &buffers[1], 2, 2 * MIB + 1);
	fa_check_eq(charged(&raw) - before, 6 * MIB);
	for (int i = 0; i < 2; i++) {
		cuda_buffer_end(&buffers[i]);
		cuda_unregister(&raw, 1 + (uint32_t)i);
	}
	fa_check_eventually(charged(&raw) == before);
	fa_raw_close(&raw);
}

static void test_small_arena(void **state)
{
	fa_cuda_alone(small_arena_client);
}

static void test_arena(void **state)
{
	fa_cuda_alone(arena_client);
}

static void test_host(void **state)
{
	struct fa_case attention = small();
	struct fa_raw_buffer buffer;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	fa_raw_buffer_register(&raw, &buffer, 1, attention.bytes, 0);
	for (uint64_t value = 1; value <= 8; ++value) {
		struct fa_wire_message message = fa_case_message(&attention, 1, 0, 0, value);

		attention.seed++;
		fa_case_fill(&attention, buffer.data);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 0, value, 0, NULL);
		fa_check(fa_case_error(&attention, buffer.data) <= 1);
	}
	fa_raw_buffer_free(&raw, &buffer);
	fa_raw_close(&raw);
}

static void mixed_client(int socket)
{
	_fa_cleanup_(fa_freep) unsigned char *data = NULL;
	struct fa_case attention = small();
	struct cuda_buffer ipc, fd;
	struct fa_raw_buffer host;
	struct fa_wire_message message;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&ipc, 1, MIB);
	cuda_buffer_vmm(&fd, 2, 1, 0);
	cuda_register(&raw, &ipc, 0, MIB, 0, 0, NULL);
	cuda_register(&raw, &fd, 0, fd.bytes, 0, 0, NULL);
	fa_raw_buffer_register(&raw, &host, 3, attention.bytes, 0);
	data = malloc(attention.bytes);
	fa_check(data);
	fa_case_fill(&attention, data);
	fa_cu(cuMemcpyHtoD(ipc.at, data, attention.bytes));
	fa_cu(cuMemcpyHtoD(fd.at, data, attention.bytes));
	memcpy(host.data, data, attention.bytes);
	message = fa_case_message(&attention, 1, 0, 0, 1);
	message.attention.k.buffer = 3;
	message.attention.v.buffer = 2;
	message.attention.out.buffer = 3;
	message.attention.lse.buffer = 2;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 1, 0, NULL);
	memcpy(data, host.data, attention.bytes);
	fa_cu(cuMemcpyDtoH(data + attention.offset_lse, fd.at + attention.offset_lse,
	                   attention.bytes - attention.offset_lse));
	fa_check(fa_case_error(&attention, data) <= 1);
	fa_raw_buffer_free(&raw, &host);
	fa_raw_close(&raw);
}

static void test_mixed(void **state)
{
	fa_cuda_alone(mixed_client);
}

static void read_only_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer ipc, fd;
	struct fa_wire_message message;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&ipc, 1, MIB);
	cuda_buffer_vmm(&fd, 2, 1, 0);
	cuda_register(&raw, &ipc, 0, MIB, FA_WIRE_BUFFER_READ_ONLY, 0, NULL);
	cuda_register(&raw, &fd, 0, fd.bytes, FA_WIRE_BUFFER_READ_ONLY, 0, NULL);
	for (uint32_t id = 1; id <= 2; ++id) {
		message = fa_case_message(&attention, id, 0, 0, id);
		fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		fa_raw_wait_expect(&raw, 0, id, -EINVAL, "read-only");
	}
	cuda_case_fill(&attention, ipc.at);
	message = fa_case_message(&attention, 1, 0, 0, 3);
	ipc.id = 3;
	cuda_register(&raw, &ipc, 0, MIB, 0, 0, NULL);
	message.attention.out.buffer = message.attention.lse.buffer = 3;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 3, 0, NULL);
	fa_check(cuda_case_error(&attention, ipc.at) <= 1);
	fa_raw_close(&raw);
}

static void test_read_only(void **state)
{
	fa_cuda_alone(read_only_client);
}

static void garbage_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer buffer, good;
	struct fa_test_random random = { 5 };
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&good, 1, MIB);
	for (int i = 0; i < 200; ++i) {
		buffer = good;
		if (i % 2)
			buffer.handle.reserved[fa_test_random_below(&random, 48)] ^=
				(char)(1 << fa_test_random_below(&random, 8));
		else
			for (int j = 0; j < 64; ++j)
				buffer.handle.reserved[j] = (char)fa_test_random(&random);
		cuda_register(&raw, &buffer, 0, MIB, 0, -EINVAL, "handle");
	}
	cuda_register(&raw, &good, 0, MIB, 0, 0, NULL);
	cuda_attention(&raw, &attention, 1, good.at, 1);
	fa_raw_close(&raw);
}

static void test_garbage(void **state)
{
	fa_cuda_alone(garbage_client);
}

static void stale_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer buffer;
	CUdeviceptr at;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&buffer, 1, MIB);
	cuda_buffer_end(&buffer);
	cuda_register(&raw, &buffer, 0, MIB, 0, -EINVAL, "freed");
	/* New memory at the old address is different memory. */
	fa_cu(cuMemAlloc(&at, MIB));
	fa_check_eq(at, buffer.at);
	cuda_register(&raw, &buffer, 0, MIB, 0, -EINVAL, "freed");
	fa_cu(cuIpcGetMemHandle(&buffer.handle, at));
	cuda_register(&raw, &buffer, 0, MIB, 0, 0, NULL);
	cuda_attention(&raw, &attention, 1, at, 1);
	fa_raw_close(&raw);
}

static void test_stale(void **state)
{
	fa_cuda_alone(stale_client);
}

static void beyond_client(int socket)
{
	const uint64_t bytes = 3 * MIB + 100;
	struct cuda_buffer ipc, fd;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&ipc, 1, bytes);
	cuda_buffer_vmm(&fd, 1, 2, 0);
	cuda_register(&raw, &ipc, 0, bytes + 1, 0, -EINVAL, "beyond the allocation");
	cuda_register(&raw, &ipc, 1, bytes, 0, -EINVAL, "3145828");
	cuda_register(&raw, &ipc, bytes, 1, 0, -EINVAL, "beyond");
	cuda_register(&raw, &ipc, bytes - 1, 1, 0, 0, NULL);
	cuda_unregister(&raw, 1);
	cuda_register(&raw, &ipc, UINT64_MAX - 5, 100, 0, -EINVAL, NULL);
	cuda_register(&raw, &ipc, 0, UINT64_MAX, 0, -EDQUOT, NULL);
	cuda_register(&raw, &fd, 0, fd.bytes + 1, 0, -EINVAL, "beyond");
	cuda_register(&raw, &fd, fd.bytes, 1, 0, -EINVAL, "beyond");
	cuda_register(&raw, &fd, fd.bytes - 1, 1, 0, 0, NULL);
	cuda_unregister(&raw, 1);
	fa_raw_close(&raw);
}

static void test_beyond(void **state)
{
	fa_cuda_alone(beyond_client);
}

static void pieces_client(int socket)
{
	struct fa_wire_message message;
	struct fa_case attention = small();
	struct cuda_buffer buffer;
	struct fa_raw raw;
	int fds[2], host;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_vmm(&buffer, 1, 2, 0);
	message = cuda_register_message(&buffer, 0, CUDA_CHUNK, 0);
	message.buffer_register.piece_bytes[1] = 2 * CUDA_CHUNK;
	fa_raw_call_expect(&raw, &message, buffer.fds, 2, -EINVAL, "piece 1 of 2");
	message.buffer_register.piece_bytes[1] = CUDA_CHUNK / 2;
	fa_raw_call_expect(&raw, &message, buffer.fds, 2, -EINVAL, "multiple");
	message.buffer_register.piece_bytes[1] = CUDA_CHUNK;

	host = memfd_create("fad-cuda-vmm:0:1", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	fa_check(host >= 0 && !ftruncate(host, (off_t)CUDA_CHUNK));
	fds[0] = buffer.fds[0];
	fds[1] = host;
	fa_raw_call_expect(&raw, &message, fds, 2, -EINVAL, "stands for no allocation");
	fds[1] = raw.fd;
	fa_raw_call_expect(&raw, &message, fds, 2, -EINVAL, "stands for no allocation");
	fds[1] = STDERR_FILENO;
	fa_raw_call_expect(&raw, &message, fds, 2, -EINVAL, "stands for no allocation");
	close(host);

	fds[1] = buffer.fds[0];
	fa_raw_call(&raw, &message, fds, 2);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	cuda_unregister(&raw, 1);
	cuda_register(&raw, &buffer, 0, buffer.bytes, 0, 0, NULL);
	cuda_attention(&raw, &attention, 1, buffer.at, 1);
	fa_raw_close(&raw);
}

static void test_pieces(void **state)
{
	fa_cuda_alone(pieces_client);
}

static void other_gpu_client(int socket)
{
	CUcontext context;
	struct cuda_buffer buffer;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	fa_cu(cuDevicePrimaryCtxRetain(&context, 1));
	fa_cu(cuCtxSetCurrent(context));
	cuda_buffer_ipc(&buffer, 1, MIB);
	cuda_register(&raw, &buffer, 0, MIB, 0, -ENOTSUP, "GPU 1");
	cuda_buffer_vmm(&buffer, 1, 1, 1);
	cuda_register(&raw, &buffer, 0, MIB, 0, -ENOTSUP, "GPU 0");
	fa_raw_close(&raw);
}

static void test_other_gpu(void **state)
{
	fa_cuda_alone(other_gpu_client);
}

/* Client and daemon have the same pid, each in its namespace. */
static void same_pid_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer ipc, fd;
	struct fa_wire_message message;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&ipc, 1, MIB);
	message = cuda_register_message(&ipc, 0, MIB, 0);
	message.buffer_register.pid = (uint32_t)daemon_.pid;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOTSUP, "same process id");
	fa_check_contains(raw.message.reply.text.text, "descriptors");
	cuda_buffer_vmm(&fd, 1, 1, 0);
	cuda_register(&raw, &fd, 0, fd.bytes, 0, 0, NULL);
	cuda_attention(&raw, &attention, 1, fd.at, 1);
	fa_raw_close(&raw);
}

static void test_same_pid(void **state)
{
	struct fa_cuda_child child;
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", daemon_.pid);
	setenv("FAD_TEST_CUDA_PID", pid, 1);
	child = fa_cuda_child(same_pid_client, 0);
	unsetenv("FAD_TEST_CUDA_PID");
	fa_cuda_child_end(&child);
}

static void owner(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer buffer;
	char byte;

	cuda_buffer_ipc(&buffer, 1, MIB);
	cuda_case_fill(&attention, buffer.at);
	fa_cuda_send(socket, &buffer.handle, sizeof(buffer.handle), -1);
	fa_cuda_receive(socket, &byte, 1);
}

/* The owner of imported memory dies while it is registered, and before. */
static void test_dead_owner(void **state)
{
	struct fa_cuda_child child = fa_cuda_child(owner, 0);
	struct fa_case attention = small();
	struct cuda_buffer buffer = { .id = 1, .kind = FA_WIRE_BUFFER_CUDA_IPC, .bytes = MIB };
	struct fa_wire_message message;
	struct fa_raw raw;

	fa_cuda_receive(child.socket, &buffer.handle, sizeof(buffer.handle));
	fa_raw_open(&raw, daemon_.socket);
	cuda_register(&raw, &buffer, 0, MIB, 0, 0, NULL);
	kill(child.pid, SIGKILL);
	fa_test_reap(child.pid);
	close(child.socket);
	message = fa_case_message(&attention, 1, 0, 0, 1);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 1, 0, NULL);
	cuda_unregister(&raw, 1);
	fa_check_eventually(nothing_is_left(false));
	cuda_register(&raw, &buffer, 0, MIB, 0, -EINVAL, "ended");
	fa_raw_close(&raw);
}

static void free_in_flight_client(int socket)
{
	struct fa_case attention = small();
	struct cuda_buffer ipc, fd;
	struct fa_wire_message message;
	const uint64_t kernels = fa_test_cuda_kernels(page);
	CUdeviceptr at;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	fa_raw_stream_create(&raw, 1, 1); /* two priorities run concurrently */
	cuda_buffer_ipc(&ipc, 1, MIB);
	cuda_buffer_vmm(&fd, 2, 2, 0);
	cuda_register(&raw, &ipc, 0, MIB, 0, 0, NULL);
	cuda_register(&raw, &fd, 0, fd.bytes, 0, 0, NULL);
	cuda_case_fill(&attention, ipc.at);
	cuda_case_fill(&attention, fd.at);
	fa_test_cuda_hold(page, true);
	for (uint32_t stream = 0; stream < 2; ++stream)
		for (uint64_t value = 1; value <= 3; ++value) {
			message = fa_case_message(&attention, stream + 1, 0, stream, value);
			fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
		}
	fa_check_eventually(fa_test_cuda_kernels(page) >= kernels + 2);
	cuda_buffer_end(&ipc);
	cuda_buffer_end(&fd);
	fa_cu(cuMemAlloc(&at, MIB));
	fa_cu(cuMemsetD8(at, 0xff, MIB));
	fa_cu(cuCtxSynchronize());
	cuda_unregister(&raw, 1);
	cuda_unregister(&raw, 2);
	fa_test_cuda_hold(page, false);
	for (uint32_t stream = 0; stream < 2; ++stream)
		for (uint64_t value = 1; value <= 3; ++value)
			fa_raw_wait_expect(&raw, stream, value, 0, NULL);
	fa_raw_close(&raw);
}

static void test_freed_in_flight(void **state)
{
	fa_cuda_alone(free_in_flight_client);
}

static void again_client(int socket)
{
	struct cuda_buffer ipc, fd;
	struct fa_raw raw;

	fa_raw_open(&raw, daemon_.socket);
	cuda_buffer_ipc(&ipc, 1, MIB);
	cuda_buffer_vmm(&fd, 1, 9, 0);
	for (int i = 0; i < 50; ++i) {
		cuda_register(&raw, &ipc, 0, MIB, 0, 0, NULL);
		cuda_unregister(&raw, 1);
		cuda_register(&raw, &fd, 0, fd.bytes, 0, 0, NULL);
		cuda_unregister(&raw, 1);
	}
	fa_raw_close(&raw);
}

static void test_repeated_registration(void **state)
{
	fa_cuda_alone(again_client);
}

/* Two registrations pin slowly; other clients do not wait. */
static void test_slow_pins(void **state)
{
	struct fa_raw_buffer buffers[2];
	struct fa_raw slow[2], other, visitor;
	struct fa_test_accounts before, now;
	struct fa_wire_message message;
	struct fa_raw_ring ring;

	fa_raw_open(&other, daemon_.socket);
	for (int i = 0; i < 2; ++i) {
		fa_raw_open(&slow[i], daemon_.socket);
		fa_raw_buffer_make(&buffers[i], 1, MIB);
	}
	fa_test_accounts(&other, &before);
	fa_test_cuda_hold_pins(page, true);
	for (int i = 0; i < 2; ++i) {
		message = fa_raw_register_message(1, MIB);
		message.id = 1000;
		message.fds = 1;
		fa_check_eq(fa_raw_send(&slow[i], &message, &buffers[i].fd, 1), 0);
		fa_check_eventually((fa_test_accounts(&other, &now), now.buffers == i + 1));
	}
	for (int i = 0; i < 3; ++i) {
		fa_raw_open(&visitor, daemon_.socket);
		fa_raw_ring_open(&visitor, &ring, 65536);
		fa_raw_ring_close(&ring);
		fa_raw_close(&visitor);
	}
	fa_check_eventually((fa_test_accounts(&other, &now), now.sessions == before.sessions));
	fa_test_cuda_hold_pins(page, false);
	for (int i = 0; i < 2; ++i) {
		fa_raw_receive_reply(&slow[i]);
		fa_check_eq(slow[i].message.id, 1000);
		fa_check_eq(slow[i].message.type, FA_WIRE_BUFFER_REPLY);
		fa_raw_buffer_free(&slow[i], &buffers[i]);
		fa_raw_close(&slow[i]);
	}
	fa_raw_close(&other);
}

#define CASE(test) cmocka_unit_test_teardown(test_##test, check)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(ipc),
		CASE(fd),
		CASE(arena),
		CASE(small_arena),
		CASE(host),
		CASE(mixed),
		CASE(garbage),
		CASE(stale),
		CASE(beyond),
		CASE(pieces),
		CASE(read_only),
		CASE(other_gpu),
		CASE(same_pid),
		CASE(dead_owner),
		CASE(repeated_registration),
		CASE(freed_in_flight),
		CASE(slow_pins),
	};

	return cmocka_run_group_tests_name("cuda-memory", tests, start, stop);
}
