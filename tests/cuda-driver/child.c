#include "tests/cuda-driver/child.h"

#include "common/packet.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct fa_cudriver cu;
struct fa_test_cuda_page *cu_page;

static void begin(int device)
{
	struct fa_test_cuda cuda;
	struct fa_error error;
	const char *dir = getenv("FAD_TEST_CUDA_DIR");
	CUcontext context;
	int version;

	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &cu) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", error.text);
	fa_cu(cuDriverGetVersion(&version));
	if (dir) {
		strcpy(cuda.dir, dir);
		cu_page = fa_test_cuda_attach(&cuda, getpid());
	}
	if (device < 0)
		return;
	fa_cu(cuInit(0));
	fa_cu(cuDevicePrimaryCtxRetain(&context, device));
	fa_cu(cuCtxSetCurrent(context));
}

struct fa_cuda_child fa_cuda_child(void (*function)(int socket), int device)
{
	struct fa_cuda_child child;
	int sockets[2];

	fa_check(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
	child.pid = fork();
	fa_check(child.pid >= 0);
	if (!child.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(sockets[0]);
		begin(device);
		function(sockets[1]);
		exit(0); /* runs exit handlers, as a program would */
	}
	close(sockets[1]);
	child.socket = sockets[0];
	return child;
}

void fa_cuda_child_end(struct fa_cuda_child *child)
{
	close(child->socket);
	fa_check_eq(fa_test_reap(child->pid), 0);
}

void fa_cuda_alone(void (*function)(int socket))
{
	struct fa_cuda_child child = fa_cuda_child(function, 0);

	fa_cuda_child_end(&child);
}

void fa_cuda_send(int socket, const void *bytes, size_t length, int fd)
{
	fa_check_eq(fa_packet_send(socket, bytes, length, &fd, fd >= 0, 0), 0);
}

int fa_cuda_receive(int socket, void *bytes, size_t length)
{
	int fds[FA_PACKET_FDS_MAX];
	size_t n_fds;

	fa_check_eq(fa_packet_receive(socket, bytes, length, fds, &n_fds, 0), length);
	fa_check(n_fds <= 1);
	return n_fds ? fds[0] : -1;
}
