/*
 * Clients with GPU memory of the tests' CUDA driver. Each case is a child process with a context
 * and a client (tests/cuda-driver/child.h); the test itself never calls the driver.
 */
#pragma once

#include "client/faclient.h"
#include "tests/client/attention-request.h"
#include "tests/cuda-driver/child.h"
#include "tests/lib/daemon.h"

#include <stdint.h>

#define FA_CUDA_CHUNK ((uint64_t)2 << 20)

struct fa_cuda_scene {
	struct fa_test_cuda cuda;
	struct fa_test_daemon daemon;
	struct fa_test_cuda_page *page;
	struct fa_test_cuda_lives lives;
};

void fa_cuda_scene_start(struct fa_cuda_scene *scene, const struct fa_test_daemon_options *options);
/* Also checks that the daemon holds no more than after its start. */
void fa_cuda_scene_stop(struct fa_cuda_scene *scene);

void fa_cuda_check(int r, const char *file, int line);
#define fa_ok(call) fa_cuda_check(call, __FILE__, __LINE__)
#define fa_refused(call, status, part)                                                             \
	do {                                                                                       \
		fa_check_eq(call, status);                                                         \
		fa_check_contains(fa_error(), part);                                               \
	} while (0)

struct fa_client *fa_cuda_connect(const char *socket);

void fa_cuda_expect_buffers(struct fa_client *client, int64_t n);

/* Allocations of cuMemCreate, mapped side by side. */
struct fa_cuda_vmm {
	uint64_t at, bytes;
	size_t n;
	CUmemGenericAllocationHandle handles[512];
};
void fa_cuda_vmm_new(struct fa_cuda_vmm *vmm, size_t n, unsigned int handle_types);
/* Maps a new allocation in place of allocation @i. */
void fa_cuda_vmm_replace(struct fa_cuda_vmm *vmm, size_t i);
void fa_cuda_vmm_free(struct fa_cuda_vmm *vmm);

/* Checks that attention in @buffer, whose memory is at @at, is right. */
void fa_cuda_attend(struct fa_client *client, struct fa_buffer *buffer, uint64_t at, uint64_t seed);
uint64_t fa_cuda_attend_bytes(void);
void fa_cuda_attend_fails(struct fa_client *client, struct fa_buffer *buffer, int status,
                          const char *part);
