/*
 * Registration of GPU memory in pieces, by hand: valid and invalid forms, pieces that arrive over
 * time, and every way to end early.
 */
#include "tests/daemon/cuda-client.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PIECES 20

static struct fa_test_cuda cuda;
static struct fa_test_daemon server;
static struct fa_raw bystander;
static struct fa_test_accounts accounts;
static int n_fds;

static struct fa_raw raw;
static struct cuda_buffer memory;

static int start(const char *config)
{
	const struct fa_test_daemon_options options = { .config = config };

	fa_test_cuda_begin(&cuda);
	fa_test_daemon_start(&server, &options);
	fa_raw_open(&bystander, server.socket);
	fa_test_accounts(&bystander, &accounts);
	n_fds = fa_test_count_fds(server.pid);
	return 0;
}

static int setup(void **state)
{
	return start(NULL);
}

static int stop(void **state)
{
	fa_raw_close(&bystander);
	fa_test_daemon_stop(&server);
	fa_test_cuda_end(&cuda);
	return 0;
}

static bool is_quiet(void)
{
	struct fa_test_accounts now;

	fa_test_accounts(&bystander, &now);
	return !memcmp(&now, &accounts, sizeof(now)) && fa_test_count_fds(server.pid) == n_fds;
}

static void run(void (*function)(int socket))
{
	fa_cuda_alone(function);
	fa_check_eventually(is_quiet());
}

static void begin(void)
{
	fa_raw_open(&raw, server.socket);
	cuda_buffer_vmm(&memory, 7, PIECES, 0);
}

static void end(void)
{
	fa_raw_ping(&raw);
	fa_raw_close(&raw);
	cuda_buffer_end(&memory);
}

static uint64_t send_first(size_t n, uint64_t timeout_ns)
{
	struct fa_wire_message message = cuda_register_message(&memory, 0, memory.bytes, 0);

	message.id = ++raw.next_id;
	message.timeout_ns = timeout_ns;
	message.fds = (uint8_t)n;
	message.buffer_register.n_piece_bytes = n;
	fa_check_eq(fa_raw_send(&raw, &message, memory.fds, n), 0);
	return message.id;
}

static struct fa_wire_message pieces_message(uint32_t buffer, size_t n)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_PIECES);

	message.buffer_pieces.buffer = buffer;
	message.buffer_pieces.n_piece_bytes = n;
	for (size_t i = 0; i < n; ++i)
		message.buffer_pieces.piece_bytes[i] = CUDA_CHUNK;
	return message;
}

static void send_pieces(size_t first, size_t n, int status, const char *part)
{
	struct fa_wire_message message = pieces_message(memory.id, n);

	fa_raw_call_expect(&raw, &message, memory.fds + first, n, status, part);
}

static void expect_registered(uint64_t id)
{
	fa_raw_receive_reply(&raw);
	fa_check_eq(raw.message.id, id);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	fa_check_eq(raw.message.buffer_reply.bytes, memory.bytes);
	fa_check_eq(raw.message.buffer_reply.piece_bytes, 0);
}

static void attend(uint64_t value)
{
	struct fa_case attention = { .dtype = FA_WIRE_DTYPE_F16, .heads = 2, .seqlen_q = 20 };

	fa_case_plan(&attention);
	cuda_attention(&raw, &attention, memory.id, memory.at, value);
}

static void refuse(struct fa_wire_message message, size_t n, int status, const char *part)
{
	fa_raw_call_expect(&raw, &message, memory.fds, n, status, part);
}

static void shapes_case(int socket)
{
	struct fa_wire_message good, bad;
	struct cuda_buffer handle;

	begin();
	cuda_buffer_ipc(&handle, 3, 4096);
	good = cuda_register_message(&memory, 0, memory.bytes, 0);
	bad = good;
	bad.buffer_register.n_pieces = 0;
	refuse(bad, 8, -EINVAL, "n_pieces is 0");
	bad.buffer_register.n_pieces = FA_WIRE_PIECES_MAX + 1;
	refuse(bad, 8, -EINVAL, "n_pieces is 4097");
	bad.buffer_register.n_pieces = UINT32_MAX;
	refuse(bad, 8, -EINVAL, "expected 1 to 4096");
	bad.buffer_register.n_pieces = 7;
	refuse(bad, 8, -EINVAL, "expected 7");
	bad = good;
	refuse(bad, 7, -EINVAL, "piece_bytes has 8 entries, and 7 descriptors");
	bad.buffer_register.n_piece_bytes = 7;
	refuse(bad, 8, -EINVAL, "piece_bytes has 7 entries");
	bad = good;
	bad.buffer_register.piece_bytes[3] = 0;
	refuse(bad, 8, -EINVAL, "piece 3 has 0 bytes");
	bad.buffer_register.piece_bytes[3] = UINT64_MAX - CUDA_CHUNK;
	refuse(bad, 8, -EINVAL, "64 bits");
	bad = good;
	bad.buffer_register.n_pieces = 8;
	refuse(bad, 8, -EINVAL, "beyond the pieces");
	bad.buffer_register.bytes = 8 * CUDA_CHUNK;
	bad.buffer_register.offset = 1;
	refuse(bad, 8, -EINVAL, "beyond the pieces");
	bad.buffer_register.offset = UINT64_MAX;
	refuse(bad, 8, -EINVAL, "64 bits");
	bad = good;
	bad.buffer_register.n_pieces = 8;
	bad.buffer_register.bytes = 8 * CUDA_CHUNK;
	bad.buffer_register.piece_bytes[7] = 2 * CUDA_CHUNK;
	refuse(bad, 8, -EINVAL, "piece 7 of 8");
	bad = good;
	bad.buffer_register.handle[0] = 1;
	refuse(bad, 8, -EINVAL, "only CUDA_IPC has one");
	bad = fa_raw_register_message(7, 4096);
	bad.buffer_register.n_pieces = 1;
	refuse(bad, 1, -EINVAL, "only CUDA_FD has them");

	bad = cuda_register_message(&handle, 0, 4096, 0);
	refuse(bad, 1, -EINVAL, "with 1 descriptors; expected none");
	memset(bad.buffer_register.handle, 0, sizeof(bad.buffer_register.handle));
	refuse(bad, 0, -EINVAL, "without a handle");
	bad = cuda_register_message(&handle, 4096, 1, 0);
	refuse(bad, 0, -EINVAL, "beyond the allocation");
	bad = cuda_register_message(&handle, UINT64_MAX, 1, 0);
	refuse(bad, 0, -EINVAL, "64 bits");
	/* With equal PIDs of both processes the driver's error is explained. */
	bad = cuda_register_message(&handle, 0, 4096, 0);
	bad.buffer_register.handle[40] ^= 1;
	refuse(bad, 0, -EINVAL, "this is no handle");
	bad.buffer_register.pid = (uint32_t)server.pid;
	refuse(bad, 0, -EINVAL, "the same process id");
	bad = cuda_register_message(&handle, 0, 4096, 0);
	bad.buffer_register.kind = FA_WIRE_BUFFER_CUDA_FD + 1;
	refuse(bad, 0, -ENOTSUP, "CUDA_FD (4)");

	bad = pieces_message(memory.id, 1);
	refuse(bad, 1, -ENOENT, "waits for no pieces");
	fa_raw_ping(&raw);
	cuda_buffer_end(&handle);
	end();
}

static void test_shapes(void **state)
{
	run(shapes_case);
}

static void collect_case(int socket)
{
	static const size_t first[] = { 0, 1, 5, 8 };

	begin();
	for (size_t i = 0; i < 4; ++i) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);
		uint64_t id = send_first(first[i], 0);

		for (size_t at = first[i], n; at < PIECES; at += n) {
			n = i == 0 ? 1 : i == 1 ? 3 : 8;
			n = n < PIECES - at ? n : PIECES - at;
			send_pieces(at, n, 0, NULL);
			if (at + n < PIECES)
				fa_raw_ping(&raw);
		}
		expect_registered(id);
		attend(i + 1);
		message.buffer_free.buffer = memory.id;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	}
	for (int round = 0; round < 5; ++round) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);
		uint64_t id = send_first(8, 0), first_id = raw.next_id;

		for (size_t at = 8; at < PIECES; at += 4) {
			struct fa_wire_message pieces = pieces_message(memory.id, 4);

			pieces.id = ++raw.next_id;
			pieces.fds = 4;
			fa_check_eq(fa_raw_send(&raw, &pieces, memory.fds + at, 4), 0);
		}
		for (uint64_t i = 1; i <= 3; ++i)
			fa_raw_expect_reply(&raw, first_id + i, 0, NULL, false);
		expect_registered(id);
		message.buffer_free.buffer = memory.id;
		fa_raw_call_expect(&raw, &message, NULL, 0, 0, NULL);
	}
	end();
}

static void test_collect(void **state)
{
	run(collect_case);
}

static void between_case(int socket)
{
	struct fa_wire_message message;
	struct cuda_buffer handle;
	struct fa_raw_buffer host;
	uint64_t id;

	begin();
	cuda_buffer_ipc(&handle, 3, 4096);
	id = send_first(8, 0);
	fa_raw_buffer_register(&raw, &host, 1, 4096, 0);
	cuda_register(&raw, &handle, 0, 4096, 0, 0, NULL);
	refuse(cuda_register_message(&memory, 0, memory.bytes, 0), 8, -EEXIST, "buffer 7");
	message = cuda_register_message(&memory, 0, memory.bytes, 0);
	message.buffer_register.buffer = 8;
	refuse(message, 8, -EBUSY, "buffer 7 waits for 12 more pieces");
	message.buffer_register.n_pieces = 8;
	message.buffer_register.bytes = 8 * CUDA_CHUNK;
	fa_raw_call(&raw, &message, memory.fds, 8);
	fa_check_eq(raw.message.type, FA_WIRE_BUFFER_REPLY);
	message = pieces_message(8, 1);
	refuse(message, 1, -ENOENT, "buffer 8 waits for no pieces");
	message = pieces_message(0, 1);
	refuse(message, 1, -ENOENT, NULL);
	send_pieces(8, 8, 0, NULL);
	cuda_unregister(&raw, 3);
	send_pieces(16, 4, 0, NULL);
	expect_registered(id);
	attend(1);
	fa_raw_buffer_free(&raw, &host);
	cuda_buffer_end(&handle);
	end();
}

static void test_between(void **state)
{
	run(between_case);
}

static void expect_ended(uint64_t id, struct fa_wire_message message, size_t n, int status,
                         const char *part)
{
	message.id = ++raw.next_id;
	message.fds = (uint8_t)n;
	fa_check_eq(fa_raw_send(&raw, &message, memory.fds, n), 0);
	fa_raw_expect_reply(&raw, id, status, part, false);
	fa_raw_expect_reply(&raw, message.id, status, part, false);
	send_pieces(8, 1, -ENOENT, "waits for no pieces");
}

/* A registration whose descriptors the daemon cannot receive ends. */
static void no_descriptors_case(int socket)
{
	uint64_t id;

	begin();
	fa_raw_ping(&raw);
	fa_test_daemon_leave_fds(&server, 5);
	id = send_first(8, 0);
	fa_raw_expect_reply(&raw, id, -EMFILE, "no descriptors left for the 8", false);
	fa_test_daemon_leave_fds(&server, 10);
	id = send_first(8, 0);
	expect_ended(id, pieces_message(memory.id, 8), 8, -EMFILE, "no descriptors left for the 8");
	fa_test_daemon_leave_fds(&server, UINT_MAX);
	id = send_first(8, 0);
	send_pieces(8, 8, 0, NULL);
	send_pieces(16, 4, 0, NULL);
	expect_registered(id);
	attend(1);
	end();
}

static void test_no_descriptors(void **state)
{
	run(no_descriptors_case);
}

static void wrong_pieces_case(int socket)
{
	struct fa_wire_message message;
	uint64_t id;

	begin();
	id = send_first(8, 0);
	expect_ended(id, pieces_message(memory.id, 0), 0, -EINVAL, "no pieces came");

	id = send_first(8, 0);
	send_pieces(8, 8, 0, NULL);
	expect_ended(id, pieces_message(memory.id, 5), 5, -EINVAL,
	             "5 more pieces of buffer 7 came; expected 4");

	id = send_first(8, 0);
	expect_ended(id, pieces_message(memory.id, 5), 4, -EINVAL, "5 entries");
	id = send_first(8, 0);
	expect_ended(id, pieces_message(memory.id, 0), 4, -EINVAL, "0 entries");

	message = pieces_message(memory.id, 2);
	message.buffer_pieces.piece_bytes[1] = 0;
	id = send_first(8, 0);
	expect_ended(id, message, 2, -EINVAL, "piece 9 has 0 bytes");
	message.buffer_pieces.piece_bytes[1] = UINT64_MAX - 9 * CUDA_CHUNK + 1;
	id = send_first(8, 0);
	expect_ended(id, message, 2, -EINVAL, "64 bits");

	/* A short last piece is noticed on arrival. */
	id = send_first(8, 0);
	send_pieces(8, 8, 0, NULL);
	message = pieces_message(memory.id, 4);
	message.buffer_pieces.piece_bytes[3] = 1;
	expect_ended(id, message, 4, -EINVAL, "beyond the pieces");
	end();
}

static void test_wrong_pieces(void **state)
{
	run(wrong_pieces_case);
}

static void wrong_fds_case(int socket)
{
	struct fa_wire_message message;
	int fds[4], pipes[2];
	uint64_t id;

	begin();
	fa_check(!pipe2(pipes, O_CLOEXEC));
	fds[0] = pipes[0];
	fds[1] = pipes[1];
	fds[2] = open("/dev/null", O_RDWR | O_CLOEXEC);
	fds[3] = raw.fd;
	id = send_first(8, 0);
	send_pieces(8, 8, 0, NULL);
	message = pieces_message(memory.id, 4);
	fa_raw_call_expect(&raw, &message, fds, 4, 0, NULL);
	fa_raw_expect_reply(&raw, id, -EINVAL, "piece 16 of 20", false);
	for (int i = 0; i < 3; ++i)
		close(fds[i]);
	end();
}

static void test_wrong_fds(void **state)
{
	run(wrong_fds_case);
}

static void freed_case(int socket)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);
	uint64_t id;

	begin();
	id = send_first(3, 0);
	message.buffer_free.buffer = memory.id + 1;
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, NULL);
	message.buffer_free.buffer = memory.id;
	message.id = ++raw.next_id;
	message.fds = 0;
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_expect_reply(&raw, id, -ECANCELED, "freed before", false);
	fa_raw_expect_reply(&raw, message.id, 0, NULL, false);
	fa_raw_call_expect(&raw, &message, NULL, 0, -ENOENT, NULL);
	send_pieces(3, 1, -ENOENT, NULL);
	cuda_register(&raw, &memory, 0, memory.bytes, 0, 0, NULL);
	attend(1);
	end();
}

static void test_freed_while_incomplete(void **state)
{
	run(freed_case);
}

static void deadline_case(int socket)
{
	uint64_t id;

	begin();
	id = send_first(8, 20 * FA_NS_PER_MS);
	fa_raw_expect_reply(&raw, id, -ETIMEDOUT, "pieces are missing", false);
	send_pieces(8, 8, -ENOENT, NULL);
	id = send_first(8, 3600 * FA_NS_PER_SEC);
	send_pieces(8, 8, 0, NULL);
	send_pieces(16, 4, 0, NULL);
	expect_registered(id);
	attend(1);
	end();
}

static void test_deadline(void **state)
{
	run(deadline_case);
}

static void not_yet_case(int socket)
{
	struct fa_case attention = { .dtype = FA_WIRE_DTYPE_F16, .heads = 2, .seqlen_q = 20 };
	struct fa_wire_message message;

	begin();
	(void)send_first(8, 0);
	fa_case_plan(&attention);
	message = fa_case_message(&attention, memory.id, 0, 0, 1);
	fa_check_eq(fa_raw_send(&raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(&raw, 0, 1, -ENOENT, "not registered");
	end();
}

static void test_used_before_complete(void **state)
{
	run(not_yet_case);
}

static void killed_case(int socket)
{
	begin();
	(void)send_first(8, 0);
	send_pieces(8, 8, 0, NULL);
	fa_cuda_send(socket, "", 1, -1);
	for (;;)
		pause();
}

static void test_client_killed(void **state)
{
	for (int i = 0; i < 5; ++i) {
		struct fa_cuda_child child = fa_cuda_child(killed_case, 0);
		char byte;

		(void)fa_cuda_receive(child.socket, &byte, 1);
		fa_check(!is_quiet());
		fa_check(!kill(child.pid, SIGKILL));
		close(child.socket);
		fa_check_eq(WTERMSIG(fa_test_reap(child.pid)), SIGKILL);
		fa_check_eventually(is_quiet());
	}
}

static void limits_case(int socket)
{
	struct fa_raw_buffer host;
	struct fa_wire_message message;
	uint64_t id;

	begin();
	message = cuda_register_message(&memory, 0, memory.bytes, 0);
	message.buffer_register.n_pieces = FA_WIRE_PIECES_MAX;
	refuse(message, 8, -EDQUOT, "4096 more would exceed the limit fds");
	/* An incomplete registration is a buffer, charged for its missing descriptors. */
	id = send_first(0, 0);
	fa_raw_buffer_register(&raw, &host, 1, 4096, 0);
	message = fa_raw_register_message(2, 4096);
	fa_raw_call_expect(&raw, &message, &host.fd, 1, -EDQUOT, "session_buffers");
	for (size_t at = 0; at < PIECES; at += 5)
		send_pieces(at, 5, 0, NULL);
	expect_registered(id);
	attend(1);
	fa_raw_buffer_free(&raw, &host);
	end();
}

static void test_limits(void **state)
{
	fa_check_eq(start("[limits]\nsession_buffers = 2\nfds = 30\n"), 0);
	run(limits_case);
	stop(state);
}

static void stopping_case(int socket)
{
	uint64_t id;
	char byte;

	begin();
	id = send_first(8, 0);
	fa_raw_ping(&raw);
	fa_cuda_send(socket, "", 1, -1);
	(void)fa_cuda_receive(socket, &byte, 1);
	fa_raw_expect_reply(&raw, id, -ESHUTDOWN, "stopping", true);
	fa_raw_close(&raw);
	cuda_buffer_end(&memory);
}

static void test_stopping(void **state)
{
	struct fa_cuda_child child;
	char byte;

	fa_check_eq(start(NULL), 0);
	child = fa_cuda_child(stopping_case, 0);
	(void)fa_cuda_receive(child.socket, &byte, 1);
	fa_raw_close(&bystander);
	fa_test_daemon_signal(&server, SIGTERM);
	fa_cuda_send(child.socket, "", 1, -1);
	fa_cuda_child_end(&child);
	fa_check_eq(fa_test_daemon_reap(&server), 0);
	fa_test_cuda_end(&cuda);
}

static void cpu_case(int socket)
{
	struct cuda_buffer handle;

	begin();
	cuda_buffer_ipc(&handle, 3, 4096);
	refuse(cuda_register_message(&memory, 0, memory.bytes, 0), 8, -ENOTSUP,
	       "CUDA_FD is memory of a GPU, and this daemon's backend is cpu");
	refuse(cuda_register_message(&handle, 0, 4096, 0), 0, -ENOTSUP, "CUDA_IPC is memory");
	refuse(pieces_message(memory.id, 1), 1, -ENOENT, NULL);
	cuda_buffer_end(&handle);
	end();
}

static void test_cpu(void **state)
{
	fa_check_eq(start("[daemon]\nbackend = cpu\n"), 0);
	run(cpu_case);
	stop(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes),        cmocka_unit_test(test_collect),
		cmocka_unit_test(test_between),       cmocka_unit_test(test_wrong_pieces),
		cmocka_unit_test(test_wrong_fds),     cmocka_unit_test(test_freed_while_incomplete),
		cmocka_unit_test(test_deadline),      cmocka_unit_test(test_used_before_complete),
		cmocka_unit_test(test_client_killed), cmocka_unit_test(test_no_descriptors),
	};
	const struct CMUnitTest others[] = {
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_stopping),
		cmocka_unit_test(test_cpu),
	};

	return cmocka_run_group_tests_name("cuda pieces", tests, setup, stop) |
	       cmocka_run_group_tests_name("cuda pieces: daemons of their own", others, NULL, NULL);
}
