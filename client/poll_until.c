#include "client/poll_until.h"

#include "common/clock.h"

#include <errno.h>
#include <time.h>

int fa_poll(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd pollfd = { .fd = fd, .events = events };

	return fa_poll_all(&pollfd, 1, deadline_ns);
}

int fa_poll_all(struct pollfd *fds, unsigned int n, uint64_t deadline_ns)
{
	struct timespec timeout, *timeout_ptr = NULL;

	if (deadline_ns != FA_NS_NEVER) {
		uint64_t now = fa_now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;

		timeout = (struct timespec){ .tv_sec = (time_t)(left / FA_NS_PER_SEC),
			                     .tv_nsec = (long)(left % FA_NS_PER_SEC) };
		timeout_ptr = &timeout;
	}
	return ppoll(fds, n, timeout_ptr, NULL) ? 0 : -EAGAIN;
}
