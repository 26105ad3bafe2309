#include "daemon/account/fd_filter.h"

#include "common/cleanup.h"
#include "common/packet.h"
#include "daemon/account/fd_filter_private.h"
#include "daemon/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_S 2
/* Bounds the wait for the filter's end, when the daemon ends and before a new filter starts. */
#define END_MS 100
#define FAILED_MS 5

extern char **environ;

struct fa_fd_filter {
	pthread_mutex_t mutex; /* guards control */
	int control;
	int stop;  /* eventfd */
	pid_t pid; /* 0: none */
	uint64_t last_batch;
	struct {
		struct fa_fd_filter_reply reply;
		char packet[FA_FD_FILTER_BYTES_MAX];
	} in;
};

static int spawn(int control, pid_t *ret_pid)
{
	static char name[] = FA_FD_FILTER_NAME;
	char *argv[] = { name, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	int r;

	sigemptyset(&none);
	posix_spawnattr_init(&attr);
	(void)posix_spawnattr_setsigmask(&attr, &none);
	(void)posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	posix_spawn_file_actions_init(&actions);
	/* The filter may outlive the daemon, and must not keep the log open. */
	r = posix_spawn_file_actions_adddup2(&actions, control, FA_FD_FILTER_CONTROL);
	for (int i = 0; i < 3 && r == 0; ++i)
		r = posix_spawn_file_actions_addopen(&actions, i, "/dev/null", O_RDWR, 0);
	if (r == 0)
		r = posix_spawn_file_actions_addclosefrom_np(&actions, FA_FD_FILTER_CONTROL + 1);
	if (r == 0)
		r = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attr, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	return -r;
}

static int start(struct fa_fd_filter *filter)
{
	const struct timeval timeout = { .tv_sec = ANSWER_S };
	int pair[2], r;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	(void)setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
	(void)setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	r = spawn(pair[1], &pid);
	close(pair[1]);
	if (r < 0) {
		close(pair[0]);
		return r;
	}
	filter->pid = pid;
	pthread_mutex_lock(&filter->mutex);
	filter->control = pair[0];
	pthread_mutex_unlock(&filter->mutex);
	return 0;
}

/* A filter that hangs in close() is left behind. */
static void end(struct fa_fd_filter *filter, int ms)
{
	const struct timespec moment = { .tv_nsec = 1000000 };

	pthread_mutex_lock(&filter->mutex);
	fa_close_fdp(&filter->control);
	pthread_mutex_unlock(&filter->mutex);
	if (!filter->pid)
		return;
	(void)kill(filter->pid, SIGKILL);
	for (int i = 0; i < ms && waitpid(filter->pid, NULL, WNOHANG) == 0; ++i)
		(void)nanosleep(&moment, NULL);
	filter->pid = 0;
}

int fa_fd_filter_new(struct fa_fd_filter **ret_filter)
{
	struct fa_fd_filter *filter = fa_new(struct fa_fd_filter);
	int r;

	if (!filter)
		return -ENOMEM;
	pthread_mutex_init(&filter->mutex, NULL);
	filter->control = -1;
	filter->pid = 0;
	filter->last_batch = 0;
	filter->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = filter->stop < 0 ? -errno : start(filter);
	if (r < 0) {
		(void)fa_fd_filter_free(filter);
		return r;
	}
	*ret_filter = filter;
	return 0;
}

void fa_fd_filter_stop(struct fa_fd_filter *filter)
{
	(void)eventfd_write(filter->stop, 1);
}

struct fa_fd_filter *fa_fd_filter_free(struct fa_fd_filter *filter)
{
	if (!filter)
		return NULL;
	end(filter, END_MS);
	fa_close_fdp(&filter->stop);
	pthread_mutex_destroy(&filter->mutex);
	free(filter);
	return NULL;
}

static int send_request(struct fa_fd_filter *filter, const struct fa_fd_filter_request *request,
                        const int *fds, size_t n_fds)
{
	int r = -EIO;

	pthread_mutex_lock(&filter->mutex);
	if (filter->control >= 0)
		r = fa_packet_send(filter->control, request, sizeof(*request), fds, n_fds, 0);
	pthread_mutex_unlock(&filter->mutex);
	return r;
}

static ssize_t receive_reply(struct fa_fd_filter *filter, void *buffer, size_t size, int *ret_fds,
                             size_t *ret_n_fds, bool *ret_lost)
{
	ssize_t n;

	do
		n = fa_packet_receive_all(filter->control, buffer, size, ret_fds, ret_n_fds,
		                          ret_lost, 0);
	while (n == -EINTR);
	return n;
}

/* Without a descriptor for the announced batch's pipe, has the filter close the batch, without
 * waiting. */
static int receive_batch(struct fa_fd_filter *filter, struct fa_fd_filter_batch *batch)
{
	const struct fa_fd_filter_request request = { .command = FA_FD_FILTER_CLOSE,
		                                      .batch = batch->id };
	int fds[FA_PACKET_FDS_KERNEL_MAX];
	size_t n_fds;
	char byte;
	bool lost;

	if (receive_reply(filter, &byte, 1, fds, &n_fds, &lost) != 1)
		return -EIO;
	if (n_fds == 1) {
		batch->end = fds[0];
		return 0;
	}
	batch->n = 0;
	return send_request(filter, &request, NULL, 0);
}

static int ask(struct fa_fd_filter *filter, int socket, size_t size, int *ret_fds,
               size_t *ret_n_fds, bool *ret_lost, struct fa_fd_filter_batch *batch)
{
	const struct fa_fd_filter_request request = { .command = FA_FD_FILTER_RECEIVE,
		                                      .size = (uint32_t)size,
		                                      .batch = ++filter->last_batch };
	const struct fa_fd_filter_reply *reply = &filter->in.reply;
	ssize_t n;
	int r;

	r = send_request(filter, &request, &socket, 1);
	if (r < 0)
		return r;
	n = receive_reply(filter, &filter->in, sizeof(filter->in), ret_fds, ret_n_fds, ret_lost);
	if (n < (ssize_t)sizeof(*reply))
		return n < 0 ? (int)n : -EIO;
	*ret_lost = *ret_lost || reply->lost;
	batch->id = filter->last_batch;
	batch->n = reply->n_batch;
	batch->placeholders = reply->placeholders;
	return batch->n ? receive_batch(filter, batch) : 0;
}

static void restart(struct fa_fd_filter *filter, int why)
{
	int r;

	fa_log(FA_LOG_WARNING,
	       "the process that receives clients' descriptors failed, another is started: %s",
	       strerror(-why));
	end(filter, FAILED_MS);
	r = start(filter);
	if (r < 0)
		fa_log(FA_LOG_ERROR, "it cannot be started: %s", strerror(-r));
}

ssize_t fa_fd_filter_receive(struct fa_fd_filter *filter, int socket, void *buffer, size_t size,
                             int *ret_fds, size_t *ret_n_fds, bool *ret_lost,
                             struct fa_fd_filter_batch *ret_batch)
{
	int r;

	*ret_n_fds = 0;
	*ret_lost = false;
	*ret_batch = (struct fa_fd_filter_batch){ .end = -1 };
	r = ask(filter, socket, size, ret_fds, ret_n_fds, ret_lost, ret_batch);
	if (r == -EPIPE) {
		/* The filter had died before, and the packet is still in its socket. */
		restart(filter, r);
		r = ask(filter, socket, size, ret_fds, ret_n_fds, ret_lost, ret_batch);
	}
	if (r < 0) {
		fa_packet_close_fds(ret_fds, *ret_n_fds);
		*ret_n_fds = 0;
		fa_close_fdp(&ret_batch->end);
		*ret_batch = (struct fa_fd_filter_batch){ .end = -1 };
		restart(filter, r);
		return -EIO;
	}
	if (filter->in.reply.length > 0)
		memcpy(buffer, filter->in.packet, (size_t)filter->in.reply.length);
	return filter->in.reply.length;
}

void fa_fd_filter_close_batch(struct fa_fd_filter *filter, struct fa_fd_filter_batch *batch)
{
	const struct fa_fd_filter_request request = { .command = FA_FD_FILTER_CLOSE,
		                                      .batch = batch->id };
	struct pollfd polled[] = { { .fd = batch->end, .events = POLLIN },
		                   { .fd = filter->stop, .events = POLLIN } };

	if (send_request(filter, &request, NULL, 0) == 0)
		while (poll(polled, 2, -1) < 0 && errno == EINTR)
			;
	fa_close_fdp(&batch->end);
}
