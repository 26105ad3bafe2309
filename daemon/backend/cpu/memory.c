#include "daemon/backend/cpu/memory.h"

#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

/* The memory may hold clients' tensors, so it does not go into core dumps. */
static void *map_shared(int fd, uint64_t offset, uint64_t bytes, int protection)
{
	void *address;

	address = mmap(NULL, bytes, protection, MAP_SHARED, fd, (off_t)offset);
	if (address != MAP_FAILED)
		(void)madvise(address, bytes, MADV_DONTDUMP);
	return address;
}

int fa_cpu_memory_import_host(struct fa_device *device, int fd, uint64_t offset, uint64_t bytes,
                              bool read_only, struct fa_error *error,
                              struct fa_device_memory *ret_memory)
{
	void *address;

	address = map_shared(fd, offset, bytes, PROT_READ | (read_only ? 0 : PROT_WRITE));
	if (address == MAP_FAILED)
		return fa_fail(error, -errno,
		               "%" PRIu64 " bytes at %" PRIu64
		               " of the memfd cannot be mapped %s: %m",
		               bytes, offset, read_only ? "for reading" : "for writing");
	*ret_memory = (struct fa_device_memory){
		.address = address,
		.bytes = bytes,
		.writable = !read_only,
	};
	return 0;
}

int fa_cpu_memory_new_arena(struct fa_device *device, uint64_t bytes, struct fa_error *error,
                            struct fa_device_memory *ret_memory, int *ret_fd,
                            uint64_t *ret_piece_bytes)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	char why[FA_MEMFD_EXPLAIN_BYTES];
	int r;

	r = fa_memfd_new("fad-arena", bytes, true, &fd);
	if (r < 0)
		return fa_fail(error, r, "%" PRIu64 " bytes of memory cannot be made: %s", bytes,
		               fa_memfd_explain(r, why, sizeof(why)));
	r = fa_cpu_memory_import_host(device, fd, 0, bytes, false, error, ret_memory);
	if (r < 0)
		return r;
	*ret_fd = fa_steal_fd(&fd);
	*ret_piece_bytes = 0;
	return 0;
}

void fa_cpu_memory_release(struct fa_device *device, struct fa_device_memory *const *memories,
                           size_t n)
{
	for (size_t i = 0; i < n; i++) {
		(void)munmap(memories[i]->address, memories[i]->bytes);
		*memories[i] = (struct fa_device_memory){ 0 };
	}
}

const void *fa_cpu_memory_host(struct fa_device *device, const struct fa_device_memory *memory)
{
	return memory->address;
}
