#include "daemon/engine/completion_records.h"

#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Send buffer of the wake-up socket, for a few one-byte packets. */
#define WAKE_BYTES 4096

static int map(int fd, uint64_t bytes, void **ret_memory)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return -errno;
	*ret_memory = memory;
	return 0;
}

static int make(struct fa_completion_records *records, uint64_t bytes, uint32_t n_records,
                int *ring_fd, int *records_fd, int *wake_fd)
{
	_fa_cleanup_(fa_close_fdp) int own_fd = -1;
	uint64_t records_bytes = fa_results_bytes(n_records);
	void *entries = NULL;
	int r, ends[2];

	r = fa_memfd_new("fad-ring", FA_RING_HEAD_BYTES + bytes, 1, ring_fd);
	if (r < 0)
		return r;
	r = map(*ring_fd, FA_RING_HEAD_BYTES + bytes, &records->memory);
	if (r < 0)
		return r;
	records->memory_bytes = FA_RING_HEAD_BYTES + bytes;

	r = fa_memfd_new("fad-results", records_bytes, 1, &own_fd);
	if (r < 0)
		return r;
	r = map(own_fd, records_bytes, &entries);
	if (r < 0)
		return r;
	records->entries = entries;
	records->n_records = n_records;
	r = fa_memfd_reopen_read_only(own_fd, records_fd);
	if (r < 0)
		return r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return -errno;
	*wake_fd = ends[0];
	records->wake_fd = ends[1];
	/* The client cannot grow this buffer nor leave packets here. */
	(void)setsockopt(records->wake_fd, SOL_SOCKET, SO_SNDBUF, &(int){ WAKE_BYTES },
	                 sizeof(int));
	(void)shutdown(records->wake_fd, SHUT_RD);
	return 0;
}

int fa_completion_records_new(uint64_t bytes, uint32_t n_records,
                              struct fa_completion_records **ret_records, int ret_fds[3])
{
	_fa_cleanup_(fa_close_fdp) int ring_fd = -1;
	_fa_cleanup_(fa_close_fdp) int records_fd = -1;
	_fa_cleanup_(fa_close_fdp) int wake_fd = -1;
	struct fa_completion_records *records;
	int r;

	records = fa_new(struct fa_completion_records);
	if (!records)
		return -ENOMEM;
	atomic_init(&records->n_refs, 1);
	records->wake_fd = -1;
	r = make(records, bytes, n_records, &ring_fd, &records_fd, &wake_fd);
	if (r < 0) {
		fa_completion_records_unref(records);
		return r;
	}
	ret_fds[0] = fa_steal_fd(&ring_fd);
	ret_fds[1] = fa_steal_fd(&records_fd);
	ret_fds[2] = fa_steal_fd(&wake_fd);
	*ret_records = records;
	return 0;
}

struct fa_completion_records *fa_completion_records_ref(struct fa_completion_records *records)
{
	atomic_fetch_add_explicit(&records->n_refs, 1, memory_order_relaxed);
	return records;
}

struct fa_completion_records *fa_completion_records_unref(struct fa_completion_records *records)
{
	if (!records || atomic_fetch_sub_explicit(&records->n_refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	/* The page of the ring's words stays: the client may be about to write there. */
	if (records->memory && !records->keep_memory)
		fa_memfd_discard((uint8_t *)records->memory + FA_RING_HEAD_BYTES,
		                 records->memory_bytes - FA_RING_HEAD_BYTES);
	if (records->memory)
		(void)munmap(records->memory, records->memory_bytes);
	if (records->entries && !records->keep_memory)
		fa_memfd_discard(records->entries, fa_results_bytes(records->n_records));
	if (records->entries)
		(void)munmap(records->entries, fa_results_bytes(records->n_records));
	fa_close_fdp(&records->wake_fd);
	free(records);
	return NULL;
}

void fa_completion_records_wake(struct fa_completion_records *records)
{
	(void)send(records->wake_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
