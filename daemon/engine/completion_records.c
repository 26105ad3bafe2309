#include "daemon/engine/completion_records.h"

#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* For a few packets of one byte. */
#define WAKE_BYTES 4096

static int map(int fd, uint64_t bytes, void **ret_memory)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return -errno;
	*ret_memory = memory;
	return 0;
}

static int make(struct fa_completion_records *results, uint64_t bytes, uint32_t n_records,
                int *ring_fd, int *records_fd, int *wake_fd)
{
	_fa_cleanup_(fa_close_fdp) int own_fd = -1;
	uint64_t records_bytes = fa_results_bytes(n_records);
	void *records = NULL;
	int r, ends[2];

	r = fa_memfd_new("fad-ring", FA_RING_HEAD_BYTES + bytes, 1, ring_fd);
	if (r < 0)
		return r;
	r = map(*ring_fd, FA_RING_HEAD_BYTES + bytes, &results->memory);
	if (r < 0)
		return r;
	results->memory_bytes = FA_RING_HEAD_BYTES + bytes;

	r = fa_memfd_new("fad-results", records_bytes, 1, &own_fd);
	if (r < 0)
		return r;
	r = map(own_fd, records_bytes, &records);
	if (r < 0)
		return r;
	results->records = records;
	results->n_records = n_records;
	r = fa_memfd_reopen_read_only(own_fd, records_fd);
	if (r < 0)
		return r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return -errno;
	*wake_fd = ends[0];
	results->wake_fd = ends[1];
	/* One byte is all that is ever needed; and the client can leave nothing with us. */
	(void)setsockopt(results->wake_fd, SOL_SOCKET, SO_SNDBUF, &(int){ WAKE_BYTES },
	                 sizeof(int));
	(void)shutdown(results->wake_fd, SHUT_RD);
	return 0;
}

int fa_completion_records_new(uint64_t bytes, uint32_t n_records,
                              struct fa_completion_records **ret_results, int ret_fds[3])
{
	_fa_cleanup_(fa_close_fdp) int ring_fd = -1;
	_fa_cleanup_(fa_close_fdp) int records_fd = -1;
	_fa_cleanup_(fa_close_fdp) int wake_fd = -1;
	struct fa_completion_records *results;
	int r;

	results = fa_new(struct fa_completion_records);
	if (!results)
		return -ENOMEM;
	atomic_init(&results->n_refs, 1);
	results->wake_fd = -1;
	r = make(results, bytes, n_records, &ring_fd, &records_fd, &wake_fd);
	if (r < 0) {
		fa_completion_records_unref(results);
		return r;
	}
	ret_fds[0] = fa_steal_fd(&ring_fd);
	ret_fds[1] = fa_steal_fd(&records_fd);
	ret_fds[2] = fa_steal_fd(&wake_fd);
	*ret_results = results;
	return 0;
}

struct fa_completion_records *fa_completion_records_ref(struct fa_completion_records *results)
{
	atomic_fetch_add_explicit(&results->n_refs, 1, memory_order_relaxed);
	return results;
}

struct fa_completion_records *fa_completion_records_unref(struct fa_completion_records *results)
{
	if (!results || atomic_fetch_sub_explicit(&results->n_refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	/* The client may keep both for as long as it likes, and pays for them no more. The page
	 * with the words stays: it may be about to put something. */
	if (results->memory && !results->stays)
		fa_memfd_give_back((uint8_t *)results->memory + FA_RING_HEAD_BYTES,
		                   results->memory_bytes - FA_RING_HEAD_BYTES);
	if (results->memory)
		(void)munmap(results->memory, results->memory_bytes);
	if (results->records && !results->stays)
		fa_memfd_give_back(results->records, fa_results_bytes(results->n_records));
	if (results->records)
		(void)munmap(results->records, fa_results_bytes(results->n_records));
	fa_close_fdp(&results->wake_fd);
	free(results);
	return NULL;
}

void fa_completion_records_wake(struct fa_completion_records *results)
{
	/* One that is full wakes as well, and one that nobody reads need not. */
	(void)send(results->wake_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
