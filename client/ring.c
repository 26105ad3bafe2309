#include "client/ring.h"

#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Most wake-ups that one call consumes. */
#define WAKES_MAX 16

void fa_client_ring_close(struct fa_client_ring *ring)
{
	if (ring->memory) {
		(void)munmap(ring->memory, FA_RING_HEAD_BYTES + ring->end.bytes);
		(void)munmap((void *)ring->records, fa_results_bytes(ring->n_records));
		fa_close_fdp(&ring->doorbell);
		fa_close_fdp(&ring->wake);
	}
	*ring = (struct fa_client_ring){ 0 };
}

static int map(int fd, uint64_t bytes, int protection, struct fa_error *error, void **ret_memory)
{
	uint64_t size;
	int r, seals;

	r = fa_memfd_check(fd, 0, bytes, error, &size, &seals);
	if (r < 0)
		return r;
	*ret_memory = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	if (*ret_memory == MAP_FAILED)
		return fa_fail(error, -errno, "it cannot be mapped: %m");
	return 0;
}

/* A pipe without a reader would raise SIGPIPE, and only a socket can be read without blocking. */
static bool are_of_kind(int doorbell, int wake)
{
	struct stat st;

	if (fstat(doorbell, &st) < 0 || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) ||
	    S_ISCHR(st.st_mode) || S_ISREG(st.st_mode))
		return false;
	return !fstat(wake, &st) && S_ISSOCK(st.st_mode);
}

int fa_client_ring_open(const struct fa_wire_ring_reply *reply, int *fds, struct fa_error *error,
                        struct fa_client_ring *ret_ring)
{
	void *memory, *records;
	int r;

	if (!fa_ring_is_valid_size(reply->bytes) || reply->bytes < FA_RING_BYTES_DEFAULT ||
	    !reply->records || reply->records & (reply->records - 1) ||
	    reply->results_bytes != fa_results_bytes(reply->records))
		return fa_fail(error, -EPROTO, "its sizes are invalid");
	if (!are_of_kind(fds[2], fds[3]))
		return fa_fail(error, -EPROTO, "its descriptors are not an eventfd and a socket");
	if (fcntl(fds[2], F_SETFL, O_NONBLOCK) < 0)
		return fa_fail(error, -errno, "its eventfd cannot be set up: %m");
	r = map(fds[0], FA_RING_HEAD_BYTES + reply->bytes, PROT_READ | PROT_WRITE, error, &memory);
	if (r < 0)
		return r;
	r = map(fds[1], reply->results_bytes, PROT_READ, error, &records);
	if (r < 0) {
		(void)munmap(memory, FA_RING_HEAD_BYTES + reply->bytes);
		return r;
	}
	*ret_ring = (struct fa_client_ring){
		.memory = memory,
		.records = records,
		.n_records = reply->records,
		.doorbell = fa_steal_fd(&fds[2]),
		.wake = fa_steal_fd(&fds[3]),
	};
	fa_ring_producer_init(&ret_ring->end, memory, reply->bytes);
	return 0;
}

/* ---- wake-ups */

bool fa_client_ring_is_woken(const struct fa_client_ring *ring)
{
	char byte;

	return recv(ring->wake, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void fa_client_ring_drain(const struct fa_client_ring *ring)
{
	char byte;

	/* A wake-up is one packet. Those left over wake once more. */
	for (int i = 0; i < WAKES_MAX && recv(ring->wake, &byte, 1, MSG_DONTWAIT) > 0; ++i)
		;
}

void fa_client_ring_arm(struct fa_client_ring *ring)
{
	if (ring->memory && !fa_ring_is_armed(&ring->end))
		fa_ring_arm(&ring->end);
}
