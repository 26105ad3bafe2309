/*
 * The filter's process. Its main thread closes only files that it knows; each batch of others has a
 * thread. It ends with its socket or its parent, once its threads can.
 */
#include "common/cleanup.h"
#include "common/list.h"
#include "common/packet.h"
#include "daemon/account/fd_filter.h"
#include "daemon/account/fd_filter_private.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define STACK_BYTES (64 * 1024)
/* A client can export files of NVIDIA's driver. */
#define NVIDIA_MAJOR 195

struct batch {
	struct fa_list link;
	uint64_t id;
	int pipe; /* its end is closed after the files */
	size_t n;
	int fds[FA_PACKET_FDS_KERNEL_MAX];
};

static struct {
	struct fa_list batches;
	int placeholder;
	struct {
		struct fa_fd_filter_reply reply;
		char packet[FA_FD_FILTER_BYTES_MAX];
	} out;
} filter = { .batches = FA_LIST_INIT(filter.batches) };

/* True if close() cannot block. With an empty mask statx() asks the kernel only, not the file's
 * server. */
static bool is_harmless(int fd)
{
	struct statx st;

	if (fcntl(fd, F_GET_SEALS) >= 0)
		return true;
	return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &st) == 0 &&
	       S_ISCHR(st.stx_mode) && st.stx_rdev_major == NVIDIA_MAJOR;
}

static void *close_files(void *userdata)
{
	struct linger none = {};
	struct batch *batch = userdata;

	for (size_t i = 0; i < batch->n; ++i) {
		/* close() then discards unsent data. */
		(void)setsockopt(batch->fds[i], SOL_SOCKET, SO_LINGER, &none, sizeof(none));
		close(batch->fds[i]);
	}
	fa_close_fdp(&batch->pipe);
	free(batch);
	return NULL;
}

/* A thread closes @batch; without a thread the files stay open. */
static void start_closing(struct batch *batch)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)pthread_attr_setstacksize(&attr, STACK_BYTES);
	if (pthread_create(&thread, &attr, close_files, batch) != 0)
		fa_close_fdp(&batch->pipe);
	pthread_attr_destroy(&attr);
}

static void close_batch(uint64_t id)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &filter.batches) {
		struct batch *batch = fa_container_of(pos, struct batch, link);

		if (batch->id == id) {
			fa_list_remove(&batch->link);
			start_closing(batch);
			return;
		}
	}
}

/* Moves files that may block from @fds to a batch, and puts placeholders there, unless the packet
 * is refused. NULL: there are none. */
static struct batch *take_files(int *fds, size_t *n_fds, bool refused)
{
	struct fa_fd_filter_reply *reply = &filter.out.reply;
	struct batch *batch = NULL;

	for (size_t i = 0; i < *n_fds; ++i) {
		if (is_harmless(fds[i]))
			continue;
		if (!batch)
			batch = calloc(1, sizeof(*batch));
		if (!batch)
			_exit(EXIT_FAILURE);
		batch->pipe = -1;
		batch->fds[batch->n++] = fds[i];
		fds[i] = filter.placeholder;
		reply->placeholders |= i < FA_PACKET_FDS_MAX ? 1u << i : 0;
	}
	if (refused) {
		for (size_t i = 0; i < *n_fds; ++i)
			if (fds[i] != filter.placeholder)
				close(fds[i]);
		*n_fds = 0;
		reply->placeholders = 0;
	}
	return batch;
}

/* Makes the pipe whose end the daemon gets. NULL: no descriptors are left, and the batch is closed
 * at once, uncounted. */
static struct batch *keep(struct batch *batch, uint64_t id, int *ret_end)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0) {
		start_closing(batch);
		return NULL;
	}
	batch->id = id;
	batch->pipe = fds[1];
	fa_list_append(&filter.batches, &batch->link);
	*ret_end = fds[0];
	return batch;
}

static int receive(const struct fa_fd_filter_request *request, int connection)
{
	_fa_cleanup_(fa_close_fdp) int end = -1;
	struct fa_fd_filter_reply *reply = &filter.out.reply;
	int fds[FA_PACKET_FDS_KERNEL_MAX], r;
	struct batch *batch;
	size_t n_fds = 0;
	bool lost = false;
	ssize_t n;

	*reply = (struct fa_fd_filter_reply){};
	n = fa_packet_receive_all(connection, filter.out.packet,
	                          request->size < FA_FD_FILTER_BYTES_MAX ? request->size
	                                                                 : FA_FD_FILTER_BYTES_MAX,
	                          fds, &n_fds, &lost, MSG_DONTWAIT);
	/* The daemon still has the connection, so its queue stays. */
	close(connection);
	batch = take_files(fds, &n_fds, n < 0);
	if (batch)
		batch = keep(batch, request->batch, &end);
	reply->length = n;
	reply->lost = lost;
	reply->n_batch = batch ? (uint32_t)batch->n : 0;
	r = fa_packet_send(FA_FD_FILTER_CONTROL, &filter.out,
	                   sizeof(*reply) + (n > 0 ? (size_t)n : 0), fds, n_fds, 0);
	for (size_t i = 0; i < n_fds; ++i)
		if (fds[i] != filter.placeholder)
			close(fds[i]);
	if (r == 0 && batch)
		r = fa_packet_send(FA_FD_FILTER_CONTROL, "b", 1, &end, 1, 0);
	return r;
}

static void ignore_signals(void)
{
	static const int signals[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE };

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); ++i)
		(void)signal(signals[i], SIG_IGN);
}

int fa_fd_filter_main(void)
{
	(void)prctl(PR_SET_NAME, FA_FD_FILTER_NAME);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	ignore_signals();
	filter.placeholder = eventfd(0, EFD_CLOEXEC);
	if (filter.placeholder < 0)
		return EXIT_FAILURE;
	for (;;) {
		struct fa_fd_filter_request request;
		int fds[FA_PACKET_FDS_MAX];
		size_t n_fds = 0;
		ssize_t n;

		n = fa_packet_receive(FA_FD_FILTER_CONTROL, &request, sizeof(request), fds, &n_fds,
		                      0);
		if (n == -EINTR)
			continue;
		if (n != sizeof(request))
			_exit(n == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
		if (request.command == FA_FD_FILTER_CLOSE)
			close_batch(request.batch);
		else if (n_fds != 1 || receive(&request, fds[0]) < 0)
			_exit(EXIT_FAILURE);
	}
}
