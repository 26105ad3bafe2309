/* Child processes of a test. The test itself never calls the driver, so it can fork at any time;
 * children call it, and exchange packets with the test. A child begins with the table of functions,
 * a context and its page. */
#pragma once

#include "common/cudriver.h"
#include "tests/cuda-driver/control.h"

#include <stddef.h>

struct fa_cuda_child {
	pid_t pid;
	int socket; /* packets to the other side */
};

/* The child's table of driver functions and its page; unset in the test. */
extern struct fa_cudriver cu;
extern struct fa_test_cuda_page *cu_page;

/* Calls a driver function, which must succeed. */
#define fa_cu(call)                                                                                \
	do {                                                                                       \
		const CUresult _result = cu.call;                                                  \
		if (_result != CUDA_SUCCESS)                                                       \
			fa_test_fail(__FILE__, __LINE__, "%s gives %d", #call, (int)_result);      \
	} while (0)

/* Forks a child that runs @function(socket) with device @device current (-1: without
 * cuInit), and then exits with 0. */
struct fa_cuda_child fa_cuda_child(void (*function)(int socket), int device);

/* Waits until the child ends, and checks its exit status. */
void fa_cuda_child_end(struct fa_cuda_child *child);

/* Runs @function in one child, and waits for its end. */
void fa_cuda_alone(void (*function)(int socket));

/* Sends a packet from the child to the test, or back; @fd -1: without a descriptor. */
void fa_cuda_send(int socket, const void *bytes, size_t length, int fd);
/* Receives a packet. Returns the descriptor that came with it, or -1. */
int fa_cuda_receive(int socket, void *bytes, size_t length);
