#include "tests/cuda-driver/control.h"

#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void fa_test_cuda_begin(struct fa_test_cuda *cuda)
{
	fa_test_dir_make(cuda->dir, sizeof(cuda->dir));
	fa_check(!chmod(cuda->dir, 01777));
	setenv("FAD_TEST_CUDA_DIR", cuda->dir, 1);
}

void fa_test_cuda_end(struct fa_test_cuda *cuda)
{
	fa_test_dir_remove(cuda->dir);
	unsetenv("FAD_TEST_CUDA_DIR");
}

struct fa_test_cuda_page *fa_test_cuda_attach(const struct fa_test_cuda *cuda, pid_t pid)
{
	struct fa_test_cuda_page *page;
	char path[sizeof(cuda->dir) + 24];

	snprintf(path, sizeof(path), "%s/process-%d", cuda->dir, pid);
	fa_check_eventually((page = fa_test_cuda_page_map(path, false)));
	fa_check_eventually(__atomic_load_n(&page->magic, __ATOMIC_ACQUIRE) ==
	                    FA_TEST_CUDA_PAGE_MAGIC);
	return page;
}

void fa_test_cuda_detach(struct fa_test_cuda_page *page)
{
	munmap(page, sizeof(*page));
}

void fa_test_cuda_fail(struct fa_test_cuda_page *page, const char *text)
{
	if (text)
		fa_check_eq(fa_test_cuda_page_fail(page, text), 0);
	else
		for (size_t i = 0; i < FA_TEST_CUDA_RULES; ++i)
			atomic_store(&page->rules[i].state, 0);
}

void fa_test_cuda_fail_next(const struct fa_test_cuda *cuda, const char *text)
{
	char path[sizeof(cuda->dir) + 24], made[sizeof(path) + 4];
	FILE *file;

	snprintf(path, sizeof(path), "%s/fail", cuda->dir);
	if (!text) {
		fa_check(!unlink(path));
		return;
	}
	snprintf(made, sizeof(made), "%s.new", path);
	file = fopen(made, "we");
	fa_check(file && fputs(text, file) >= 0 && !fclose(file));
	fa_check(!rename(made, path));
}

uint64_t fa_test_cuda_failed(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->failed);
}

enum fa_test_cuda_call fa_test_cuda_failed_at(const struct fa_test_cuda_page *page)
{
	return (enum fa_test_cuda_call)atomic_load(&page->failed_at);
}

bool fa_test_cuda_is_lost(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->lost);
}

void fa_test_cuda_kernel_us(struct fa_test_cuda_page *page, uint32_t us)
{
	atomic_store(&page->kernel_us, us);
}

void fa_test_cuda_record_us(struct fa_test_cuda_page *page, uint32_t us)
{
	atomic_store(&page->record_us, us);
}

void fa_test_cuda_hold(struct fa_test_cuda_page *page, bool hold)
{
	atomic_store(&page->held, hold);
}

void fa_test_cuda_hold_pins(struct fa_test_cuda_page *page, bool hold)
{
	atomic_store(&page->pins_held, hold);
}

void fa_test_cuda_gate_us(struct fa_test_cuda_page *page, uint32_t us)
{
	atomic_store(&page->gate_us, us);
}

void fa_test_cuda_hold_gates(struct fa_test_cuda_page *page, bool hold)
{
	atomic_store(&page->gates_held, hold);
}

struct fa_test_cuda_gates fa_test_cuda_gates(const struct fa_test_cuda_page *page)
{
	return (struct fa_test_cuda_gates){
		.began = atomic_load(&page->gates_began),
		.opened = atomic_load(&page->gates_opened),
		.shut = atomic_load(&page->gates_shut),
	};
}

uint64_t fa_test_cuda_kernels(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->calls[FA_TEST_CUDA_kernel]);
}

uint64_t fa_test_cuda_stopped(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->stopped);
}

void fa_test_cuda_calls(const struct fa_test_cuda_page *page, struct fa_test_cuda_calls *ret_calls)
{
	for (int i = 0; i < FA_TEST_CUDA_CALLS; ++i)
		ret_calls->n[i] = atomic_load(&page->calls[i]);
}

uint64_t fa_test_cuda_launches(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->calls[FA_TEST_CUDA_cuLaunchKernel]) +
	       atomic_load(&page->calls[FA_TEST_CUDA_cuLaunchKernelEx]) +
	       atomic_load(&page->calls[FA_TEST_CUDA_cuGraphLaunch]);
}

void fa_test_cuda_lives(const struct fa_test_cuda_page *page, struct fa_test_cuda_lives *ret_lives)
{
	for (int i = 0; i < FA_TEST_CUDA_LIVE; ++i)
		ret_lives->n[i] = atomic_load(&page->live[i]);
}

bool fa_test_cuda_lives_equal(const struct fa_test_cuda_page *page,
                              const struct fa_test_cuda_lives *then, bool loud)
{
	static const char *const names[FA_TEST_CUDA_LIVE] = {
		[FA_TEST_CUDA_CONTEXTS] = "contexts",
		[FA_TEST_CUDA_ALLOCATIONS] = "allocations",
		[FA_TEST_CUDA_HANDLES] = "handles",
		[FA_TEST_CUDA_RESERVATIONS] = "reservations",
		[FA_TEST_CUDA_MAPPINGS] = "mappings",
		[FA_TEST_CUDA_IPC_OPENS] = "opened IPC handles",
		[FA_TEST_CUDA_HOST_ALLOCATIONS] = "host allocations",
		[FA_TEST_CUDA_REGISTRATIONS] = "registrations",
		[FA_TEST_CUDA_STREAMS] = "streams",
		[FA_TEST_CUDA_EVENTS] = "events",
		[FA_TEST_CUDA_MODULES] = "modules",
		[FA_TEST_CUDA_DEVICE_BYTES] = "bytes of device memory",
		[FA_TEST_CUDA_HOST_BYTES] = "bytes of pinned memory",
	};
	bool equal = true;

	for (int i = 0; i < FA_TEST_CUDA_LIVE; ++i) {
		const int64_t now = atomic_load(&page->live[i]);

		if (now == then->n[i])
			continue;
		equal = false;
		if (loud)
			fprintf(stderr, "%s: %lld, were %lld\n", names[i], (long long)now,
			        (long long)then->n[i]);
	}
	return equal;
}

uint64_t fa_test_cuda_abandoned(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->abandoned);
}

uint64_t fa_test_cuda_misuses(const struct fa_test_cuda_page *page)
{
	return atomic_load(&page->misuses);
}

uint64_t fa_test_cuda_bytes(const struct fa_test_cuda *cuda)
{
	return fa_test_cuda_dir_bytes(cuda->dir, -1);
}
