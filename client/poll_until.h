/* ppoll() with a deadline. */
#pragma once

#include <poll.h>
#include <stdint.h>

/* 0, or -EAGAIN at the deadline. */
int fa_poll(int fd, short events, uint64_t deadline_ns);
int fa_poll_all(struct pollfd *fds, unsigned int n, uint64_t deadline_ns);
