#include "daemon/persist/timeline_release.h"

#include "common/memfd.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAKES_MAX 64

void fa_timeline_wake(_Atomic uint32_t *changes)
{
	(void)syscall(SYS_futex, changes, FUTEX_WAKE, WAKES_MAX, NULL, NULL, 0);
}

void fa_timeline_out_release(struct fa_timeline_out *out, const uint64_t *values)
{
	for (unsigned int i = 0; i < FA_TIMELINE_SLOTS; i++) {
		uint64_t value = values ? values[i]
		                        : atomic_load_explicit(&out[i].value, memory_order_relaxed);

		/* A daemon may have died between releasing a timeline and removing it from the
		 * store: a second FA_TIMELINE_RELEASE would wrap to "not reached". */
		if (!values &&
		    atomic_load_explicit(&out[i].status, memory_order_relaxed) == -ECONNRESET &&
		    atomic_load_explicit(&out[i].failed, memory_order_relaxed) ==
		            atomic_load_explicit(&out[i].value, memory_order_relaxed))
			continue;
		value += FA_TIMELINE_RELEASE;
		atomic_store_explicit(&out[i].status, -ECONNRESET, memory_order_relaxed);
		atomic_store_explicit(&out[i].failed, value, memory_order_relaxed);
		atomic_store_explicit(&out[i].value, value, memory_order_release);
		atomic_fetch_add_explicit(&out[i].changes, 1, memory_order_seq_cst);
		fa_timeline_wake(&out[i].changes);
	}
}

bool fa_timeline_fd_release(int fd)
{
	struct fa_error error;
	uint64_t size;
	void *memory;
	int seals;

	if (fa_memfd_check(fd, 0, FA_TIMELINE_BYTES, &error, &size, &seals) < 0)
		return false;
	memory = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return false;
	fa_timeline_out_release(memory, NULL);
	(void)munmap(memory, FA_TIMELINE_BYTES);
	return true;
}
