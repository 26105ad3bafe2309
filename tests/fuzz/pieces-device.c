/*
 * The CPU backend with memory by handle and in several allocations, as the CUDA backend has.
 * Allocations are memfds mapped side by side. A handle whose first byte is 1 stands for new memory;
 * any other is refused. Linked in place of daemon/backend/device.c.
 */
#include "common/memfd.h"
#include "daemon/backend/device.h"
#include "tests/lib/device-memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096

struct whole {
	void *address;
	uint64_t bytes;
};

static int reserve(uint64_t bytes, struct fa_error *error, struct whole **ret_whole)
{
	struct whole *whole = calloc(1, sizeof(*whole));

	if (!whole)
		return fa_fail(error, -ENOMEM, "no memory");
	whole->bytes = bytes;
	whole->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (whole->address == MAP_FAILED) {
		free(whole);
		return fa_fail(error, -ENOMEM, "no addresses");
	}
	*ret_whole = whole;
	return 0;
}

static void whole_free(struct whole *whole)
{
	munmap(whole->address, whole->bytes);
	free(whole);
}

static void release(struct fa_device *device, struct fa_device_memory *const *memories, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct whole *whole = memories[i]->backend;

		if (!whole) {
			fa_test_memory_release(&fa_device_cpu, device, memories[i]);
			continue;
		}
		whole_free(whole);
	}
}

static int give(struct whole *whole, uint64_t offset, uint64_t bytes, bool read_only,
                struct fa_error *error, struct fa_device_memory *ret_memory)
{
	*ret_memory = (struct fa_device_memory){
		.address = (char *)whole->address + offset,
		.bytes = bytes,
		.writable = !read_only,
		.backend = whole,
	};
	if (bytes <= whole->bytes && offset <= whole->bytes - bytes)
		return 0;
	*ret_memory = (struct fa_device_memory){ .backend = whole }; /* the caller releases it */
	return fa_fail(error, -EINVAL, "it is shorter");
}

static int import_ipc(struct fa_device *device, const uint8_t handle[64], uint64_t offset,
                      uint64_t bytes, bool read_only, struct fa_error *error,
                      struct fa_device_memory *ret_memory)
{
	struct whole *whole = NULL;
	int r;

	if (handle[0] != 1)
		return fa_fail(error, -EINVAL, "there is no such memory");
	r = reserve(65536, error, &whole);
	return r < 0 ? r : give(whole, offset, bytes, read_only, error, ret_memory);
}

static int import_pieces(struct fa_device *device, const struct fa_device_piece *pieces,
                         size_t n_pieces, uint64_t offset, uint64_t bytes, bool read_only,
                         struct fa_error *error, struct fa_device_memory *ret_memory)
{
	uint64_t sum = 0, size;
	struct whole *whole = NULL;
	int r = 0, seals;
	char *at;

	for (size_t i = 0; i < n_pieces; ++i)
		if (pieces[i].bytes % PAGE || __builtin_add_overflow(sum, pieces[i].bytes, &sum))
			return fa_fail(error, -EINVAL, "piece %zu has a wrong size", i);
	r = reserve(sum, error, &whole);
	if (r < 0)
		return r;
	at = whole->address;
	for (size_t i = 0; i < n_pieces && r == 0; ++i) {
		r = fa_memfd_check(pieces[i].fd, 0, pieces[i].bytes, error, &size, &seals);
		if (r == 0 && mmap(at, pieces[i].bytes, PROT_READ | PROT_WRITE,
		                   MAP_SHARED | MAP_FIXED, pieces[i].fd, 0) == MAP_FAILED)
			r = fa_fail(error, -EINVAL, "piece %zu cannot be mapped", i);
		at += pieces[i].bytes;
	}
	if (r < 0) {
		whole_free(whole);
		return r;
	}
	return give(whole, offset, bytes, read_only, error, ret_memory);
}

int fa_device_open(const char *name, const struct fa_device_config *config, struct fa_error *error,
                   const struct fa_device_ops **ret_ops, struct fa_device **ret_device)
{
	static struct fa_device_ops ops;

	ops = fa_device_cpu;
	ops.memory_import_ipc = import_ipc;
	ops.memory_import_pieces = import_pieces;
	ops.memory_release = release;
	*ret_ops = &ops;
	return ops.open(config, error, ret_device);
}
