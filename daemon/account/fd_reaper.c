#include "daemon/account/fd_reaper.h"

#include "common/cleanup.h"
#include "common/packet.h"
#include "daemon/account/tenant.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#define PATIENCE_S 1
/* One for each tenant of which something hangs, and one for all others. */
#define THREADS_MAX 64
#define STACK_BYTES (256 * 1024)
/* Unread packets thrown away before a connection is closed. */
#define DISCARD_MAX 512

struct entry {
	struct fa_list link;      /* its lane's, then closer.closed */
	struct fa_tenant *tenant; /* may be NULL */
	struct fa_charge charge;
	bool connection;
	bool rejected, stranger; /* counted as such */
	size_t n_fds;
	int fds[];
};

struct fa_fd_reaper {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	pthread_attr_t attr;
	void (*notify)(void *userdata); /* NULL: nobody is there any more */
	void *userdata;
	struct fa_fd_reaper_lane strangers; /* of those without a tenant */
	unsigned int n_strangers;           /* the loop thread's */
	struct fa_list ready;               /* lanes with entries and without a thread */
	struct fa_list closed;
	unsigned int n_ready, n_threads, n_idle;
	bool stop;
};

static void close_one(int fd)
{
	struct linger none = {};

	/* A connection to elsewhere shall end in its own time. */
	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(fd);
}

/*
 * Whether nothing is unread in a connection that was shut down, so that nothing ever
 * will be. An empty packet looks like the end, but that it comes with its sender's
 * credentials, as every packet does if asked to. What is only looked at stays, and
 * of its descriptors, for which there is no room here, none becomes ours.
 */
static bool is_read_out(int fd)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	char byte;
	struct iovec iov = { .iov_base = &byte, .iov_len = sizeof(byte) };
	struct msghdr msg = { .msg_iov = &iov,
		              .msg_iovlen = 1,
		              .msg_control = control.space,
		              .msg_controllen = sizeof(control.space) };
	int on = 1;

	return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
	       recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT) == 0 && msg.msg_controllen == 0;
}

static void discard_unread(int fd)
{
	for (unsigned int i = 0; i < DISCARD_MAX && !is_read_out(fd); ++i) {
		int fds[FA_PACKET_KEEP_MAX];
		size_t n_fds = 0;
		bool lost;
		char byte;

		(void)fa_packet_receive_keep(fd, &byte, sizeof(byte), fds, &n_fds, &lost,
		                             MSG_DONTWAIT);
		for (size_t j = 0; j < n_fds; ++j)
			close_one(fds[j]);
	}
}

static void close_entry(struct entry *entry)
{
	for (size_t i = 0; i < entry->n_fds; ++i) {
		if (entry->connection)
			discard_unread(entry->fds[i]);
		close_one(entry->fds[i]);
	}
}

static void make_ready(struct fa_fd_reaper *closer, struct fa_fd_reaper_lane *lane)
{
	fa_list_append(&closer->ready, &lane->link);
	++closer->n_ready;
	lane->busy = true;
}

static void work_once(struct fa_fd_reaper *closer)
{
	struct fa_fd_reaper_lane *lane = fa_container_of(closer->ready.next,
	                                                 struct fa_fd_reaper_lane, link);
	struct entry *entry = fa_container_of(lane->entries.next, struct entry, link);

	fa_list_remove(&lane->link);
	--closer->n_ready;
	fa_list_remove(&entry->link);
	pthread_mutex_unlock(&closer->mutex);
	close_entry(entry);
	pthread_mutex_lock(&closer->mutex);
	lane->busy = false;
	if (!fa_list_empty(&lane->entries))
		make_ready(closer, lane);
	/* From here on the lane may be gone with its tenant. */
	fa_list_append(&closer->closed, &entry->link);
	if (closer->notify)
		closer->notify(closer->userdata);
}

static void *run(void *userdata)
{
	struct fa_fd_reaper *closer = userdata;

	pthread_mutex_lock(&closer->mutex);
	for (;;) {
		if (closer->n_ready) {
			work_once(closer);
			continue;
		}
		/* One is enough to wait. */
		if (closer->stop || closer->n_idle)
			break;
		++closer->n_idle;
		pthread_cond_wait(&closer->changed, &closer->mutex);
		--closer->n_idle;
	}
	--closer->n_threads;
	if (closer->stop)
		pthread_cond_broadcast(&closer->changed);
	pthread_mutex_unlock(&closer->mutex);
	return NULL;
}

static int start_thread(struct fa_fd_reaper *closer)
{
	sigset_t all, old;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, &closer->attr, run, closer);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		++closer->n_threads;
	return -r;
}

static void destroy(struct fa_fd_reaper *closer)
{
	pthread_attr_destroy(&closer->attr);
	pthread_cond_destroy(&closer->changed);
	pthread_mutex_destroy(&closer->mutex);
	free(closer);
}

int fa_fd_reaper_new(void (*notify)(void *userdata), void *userdata,
                     struct fa_fd_reaper **ret_closer)
{
	struct fa_fd_reaper *closer;
	int r;

	closer = fa_new(struct fa_fd_reaper);
	if (!closer)
		return -ENOMEM;
	closer->notify = notify;
	closer->userdata = userdata;
	fa_list_init(&closer->ready);
	fa_list_init(&closer->closed);
	pthread_mutex_init(&closer->mutex, NULL);
	pthread_cond_init(&closer->changed, NULL);
	pthread_attr_init(&closer->attr);
	pthread_attr_setdetachstate(&closer->attr, PTHREAD_CREATE_DETACHED);
	(void)pthread_attr_setstacksize(&closer->attr, STACK_BYTES);
	pthread_mutex_lock(&closer->mutex);
	r = start_thread(closer);
	pthread_mutex_unlock(&closer->mutex);
	if (r < 0) {
		destroy(closer);
		return r;
	}
	*ret_closer = closer;
	return 0;
}

struct fa_fd_reaper *fa_fd_reaper_free(struct fa_fd_reaper *closer)
{
	struct timespec until;
	bool gone;

	if (!closer)
		return NULL;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;

	pthread_mutex_lock(&closer->mutex);
	closer->stop = true;
	closer->notify = NULL;
	pthread_cond_broadcast(&closer->changed);
	while (closer->n_threads &&
	       pthread_cond_timedwait(&closer->changed, &closer->mutex, &until) != ETIMEDOUT)
		;
	gone = !closer->n_threads;
	pthread_mutex_unlock(&closer->mutex);
	(void)fa_fd_reaper_settle(closer);
	if (gone)
		destroy(closer);
	return NULL;
}

static void enqueue(struct fa_fd_reaper *closer, struct entry *entry)
{
	struct fa_fd_reaper_lane *lane = entry->tenant ? fa_tenant_lane(entry->tenant)
	                                               : &closer->strangers;

	pthread_mutex_lock(&closer->mutex);
	if (!lane->started) {
		fa_list_init(&lane->link);
		fa_list_init(&lane->entries);
		lane->started = true;
	}
	fa_list_append(&lane->entries, &entry->link);
	if (!lane->busy)
		make_ready(closer, lane);
	/* If none can be started, one that works comes to it later. */
	if (closer->n_ready > closer->n_idle && closer->n_threads < THREADS_MAX)
		(void)start_thread(closer);
	pthread_cond_signal(&closer->changed);
	pthread_mutex_unlock(&closer->mutex);
}

static struct entry *entry_new(struct fa_tenant *tenant, const int *fds, size_t n_fds,
                               struct fa_charge *charge)
{
	struct entry *entry;

	entry = calloc(1, sizeof(*entry) + n_fds * sizeof(int));
	if (!entry)
		return NULL;
	if (tenant)
		entry->tenant = fa_tenant_ref(tenant);
	if (charge)
		fa_charge_move(&entry->charge, charge);
	for (size_t i = 0; i < n_fds; ++i)
		if (fds[i] >= 0)
			entry->fds[entry->n_fds++] = fds[i];
	return entry;
}

void fa_fd_reaper_take(struct fa_fd_reaper *closer, struct fa_tenant *tenant, int *fds,
                       size_t n_fds)
{
	struct entry *entry = NULL;
	bool any = false;

	for (size_t i = 0; i < n_fds; ++i)
		any = any || fds[i] >= 0;
	if (!any)
		return;
	entry = entry_new(tenant, fds, n_fds, NULL);
	if (entry) {
		entry->rejected = true;
		fa_tenant_lane(tenant)->n_rejected += entry->n_fds;
		enqueue(closer, entry);
		for (size_t i = 0; i < n_fds; ++i)
			fds[i] = -1;
	} else {
		/* Better to wait than to lose them. */
		fa_packet_close_fds(fds, n_fds);
	}
}

static void take_one(struct fa_fd_reaper *closer, struct fa_tenant *tenant, int fd,
                     struct fa_charge *charge, bool connection)
{
	struct entry *entry = entry_new(tenant, &fd, 1, charge);

	if (entry) {
		entry->connection = connection;
		entry->stranger = !entry->charge.tenant;
		closer->n_strangers += entry->stranger;
		enqueue(closer, entry);
	} else {
		close(fd);
		if (charge)
			fa_charge_release(charge);
	}
}

void fa_fd_reaper_take_charged(struct fa_fd_reaper *closer, struct fa_tenant *tenant, int fd,
                               struct fa_charge *charge)
{
	take_one(closer, tenant, fd, charge, false);
}

void fa_fd_reaper_hang_up(struct fa_fd_reaper *closer, struct fa_tenant *tenant, int fd,
                          struct fa_charge *charge)
{
	(void)shutdown(fd, SHUT_RDWR);
	if (!is_read_out(fd)) {
		take_one(closer, tenant, fd, charge, true);
		return;
	}
	/* Nothing goes with it, so this waits for nobody. */
	close(fd);
	if (charge)
		fa_charge_release(charge);
}

bool fa_fd_reaper_is_full(const struct fa_fd_reaper *closer)
{
	return closer->n_strangers >= FA_FD_REAPER_STRANGERS_MAX;
}

bool fa_fd_reaper_settle(struct fa_fd_reaper *closer)
{
	struct fa_list closed = FA_LIST_INIT(closed);
	struct fa_list *pos, *tmp;
	bool again = false;

	pthread_mutex_lock(&closer->mutex);
	fa_list_splice(&closed, &closer->closed);
	pthread_mutex_unlock(&closer->mutex);
	fa_list_for_each_safe(pos, tmp, &closed) {
		struct entry *entry = fa_container_of(pos, struct entry, link);

		if (entry->rejected) {
			struct fa_fd_reaper_lane *lane = fa_tenant_lane(entry->tenant);
			bool over = lane->n_rejected > FA_FD_REAPER_REJECTED_MAX;

			lane->n_rejected -= entry->n_fds;
			again |= over && lane->n_rejected <= FA_FD_REAPER_REJECTED_MAX;
		}
		closer->n_strangers -= entry->stranger;
		fa_charge_release(&entry->charge);
		fa_tenant_unref(entry->tenant);
		free(entry);
	}
	return again;
}
