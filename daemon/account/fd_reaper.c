#include "daemon/account/fd_reaper.h"

#include "common/cleanup.h"
#include "common/packet.h"
#include "daemon/account/fd_filter.h"
#include "daemon/account/tenant.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FREE_TIMEOUT_S 1
/* Limits blocked queues, as each holds a thread. */
#define THREADS_MAX 64
#define STACK_BYTES (256 * 1024)
/* Limits the unread packets to discard before a close. */
#define DISCARD_MAX 512
/* Interrupts close() of refused connections: a lingering socket waits no longer. */
#define INTERRUPT_SIGNAL SIGURG
#define INTERRUPT_AFTER_NS 1000000
#define INTERRUPT_EVERY_NS 100000

struct entry {
	struct fa_list link;      /* in its queue's entries, later in reaper.closed */
	struct fa_tenant *tenant; /* may be NULL */
	struct fa_charge charge;
	bool connection;
	bool rejected, uncharged;        /* n_rejected, n_uncharged count the entry */
	struct fa_fd_filter_batch batch; /* that the filter holds */
	size_t n_fds;
	int fds[];
};

struct fa_fd_reaper {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	pthread_attr_t attr;
	void (*notify)(void *userdata); /* NULL: being freed */
	void *userdata;
	struct fa_fd_filter *filter; /* NULL: none */
	struct fa_fd_reaper_queue no_tenant;
	unsigned int n_uncharged; /* loop thread only */
	struct fa_list ready;
	struct fa_list closed;
	unsigned int n_ready, n_threads, n_idle;
	bool stop;
};

static void close_one(int fd)
{
	struct linger none = {};

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(fd);
}

/*
 * True if a connection that was shut down has no unread input. Credentials tell an empty packet
 * from the end.
 */
static bool is_drained(int fd)
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
	for (unsigned int i = 0; i < DISCARD_MAX && !is_drained(fd); ++i) {
		char byte;

		/* Without a control buffer no descriptor comes. */
		(void)recv(fd, &byte, sizeof(byte), MSG_DONTWAIT);
	}
}

/*
 * Repeats the signal, as one may come between two waits. Returns false if there is no timer.
 */
static bool interrupt_start(timer_t *ret_timer)
{
	const struct itimerspec repeat = { { 0, INTERRUPT_EVERY_NS }, { 0, INTERRUPT_AFTER_NS } };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID,
		                  .sigev_signo = INTERRUPT_SIGNAL };

	event._sigev_un._tid = gettid();
	if (timer_create(CLOCK_MONOTONIC, &event, ret_timer) < 0)
		return false;
	(void)timer_settime(*ret_timer, 0, &repeat, NULL);
	return true;
}

static void close_entry(struct fa_fd_reaper *reaper, struct entry *entry)
{
	bool interrupted = false;
	timer_t timer;

	if (entry->batch.n)
		fa_fd_filter_close_batch(reaper->filter, &entry->batch);
	if (entry->connection && entry->uncharged)
		interrupted = interrupt_start(&timer);
	for (size_t i = 0; i < entry->n_fds; ++i) {
		if (entry->connection)
			discard_unread(entry->fds[i]);
		close_one(entry->fds[i]);
	}
	if (interrupted)
		(void)timer_delete(timer);
}

static void make_ready(struct fa_fd_reaper *reaper, struct fa_fd_reaper_queue *queue)
{
	fa_list_append(&reaper->ready, &queue->link);
	++reaper->n_ready;
	queue->busy = true;
}

static void work_once(struct fa_fd_reaper *reaper)
{
	struct fa_fd_reaper_queue *queue = fa_container_of(reaper->ready.next,
	                                                   struct fa_fd_reaper_queue, link);
	struct entry *entry = fa_container_of(queue->entries.next, struct entry, link);

	fa_list_remove(&queue->link);
	--reaper->n_ready;
	fa_list_remove(&entry->link);
	pthread_mutex_unlock(&reaper->mutex);
	close_entry(reaper, entry);
	pthread_mutex_lock(&reaper->mutex);
	queue->busy = false;
	if (!fa_list_empty(&queue->entries))
		make_ready(reaper, queue);
	/* Now the queue may be freed with its tenant. */
	fa_list_append(&reaper->closed, &entry->link);
	if (reaper->notify)
		reaper->notify(reaper->userdata);
}

static void *run(void *userdata)
{
	struct fa_fd_reaper *reaper = userdata;
	sigset_t interrupts;

	sigemptyset(&interrupts);
	sigaddset(&interrupts, INTERRUPT_SIGNAL);
	pthread_sigmask(SIG_UNBLOCK, &interrupts, NULL);
	pthread_mutex_lock(&reaper->mutex);
	for (;;) {
		if (reaper->n_ready) {
			work_once(reaper);
			continue;
		}
		if (reaper->stop || reaper->n_idle)
			break;
		++reaper->n_idle;
		pthread_cond_wait(&reaper->changed, &reaper->mutex);
		--reaper->n_idle;
	}
	--reaper->n_threads;
	if (reaper->stop)
		pthread_cond_broadcast(&reaper->changed);
	pthread_mutex_unlock(&reaper->mutex);
	return NULL;
}

static int start_thread(struct fa_fd_reaper *reaper)
{
	sigset_t all, old;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, &reaper->attr, run, reaper);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		++reaper->n_threads;
	return -r;
}

static void on_interrupt(int number)
{
}

static void destroy(struct fa_fd_reaper *reaper)
{
	pthread_attr_destroy(&reaper->attr);
	pthread_cond_destroy(&reaper->changed);
	pthread_mutex_destroy(&reaper->mutex);
	free(reaper);
}

int fa_fd_reaper_new(void (*notify)(void *userdata), void *userdata,
                     struct fa_fd_reaper **ret_reaper)
{
	const struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = SA_RESTART };
	struct fa_fd_reaper *reaper;
	int r;

	if (sigaction(INTERRUPT_SIGNAL, &action, NULL) < 0)
		return -errno;
	reaper = fa_new(struct fa_fd_reaper);
	if (!reaper)
		return -ENOMEM;
	reaper->notify = notify;
	reaper->userdata = userdata;
	fa_list_init(&reaper->ready);
	fa_list_init(&reaper->closed);
	pthread_mutex_init(&reaper->mutex, NULL);
	pthread_cond_init(&reaper->changed, NULL);
	pthread_attr_init(&reaper->attr);
	pthread_attr_setdetachstate(&reaper->attr, PTHREAD_CREATE_DETACHED);
	(void)pthread_attr_setstacksize(&reaper->attr, STACK_BYTES);
	pthread_mutex_lock(&reaper->mutex);
	r = start_thread(reaper);
	pthread_mutex_unlock(&reaper->mutex);
	if (r < 0) {
		destroy(reaper);
		return r;
	}
	*ret_reaper = reaper;
	return 0;
}

int fa_fd_reaper_start_filter(struct fa_fd_reaper *reaper)
{
	return fa_fd_filter_new(&reaper->filter);
}

bool fa_fd_reaper_has_filter(const struct fa_fd_reaper *reaper)
{
	return reaper->filter;
}

struct fa_fd_reaper *fa_fd_reaper_free(struct fa_fd_reaper *reaper)
{
	struct timespec until;
	bool gone;

	if (!reaper)
		return NULL;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += FREE_TIMEOUT_S;

	if (reaper->filter)
		fa_fd_filter_stop(reaper->filter);
	pthread_mutex_lock(&reaper->mutex);
	reaper->stop = true;
	reaper->notify = NULL;
	pthread_cond_broadcast(&reaper->changed);
	while (reaper->n_threads &&
	       pthread_cond_timedwait(&reaper->changed, &reaper->mutex, &until) != ETIMEDOUT)
		;
	gone = !reaper->n_threads;
	pthread_mutex_unlock(&reaper->mutex);
	(void)fa_fd_reaper_collect(reaper);
	if (gone) {
		reaper->filter = fa_fd_filter_free(reaper->filter);
		destroy(reaper);
	}
	return NULL;
}

static struct fa_fd_reaper_queue *queue_of(struct fa_fd_reaper *reaper, const struct entry *entry)
{
	if (!entry->tenant)
		return &reaper->no_tenant;
	return entry->uncharged ? fa_tenant_refused_queue(entry->tenant)
	                        : fa_tenant_reaper_queue(entry->tenant);
}

static void enqueue(struct fa_fd_reaper *reaper, struct entry *entry)
{
	struct fa_fd_reaper_queue *queue = queue_of(reaper, entry);

	pthread_mutex_lock(&reaper->mutex);
	if (!queue->initialized) {
		fa_list_init(&queue->link);
		fa_list_init(&queue->entries);
		queue->initialized = true;
	}
	fa_list_append(&queue->entries, &entry->link);
	if (!queue->busy)
		make_ready(reaper, queue);
	/* Otherwise a busy thread serves the queue later. */
	if (reaper->n_ready > reaper->n_idle && reaper->n_threads < THREADS_MAX)
		(void)start_thread(reaper);
	pthread_cond_signal(&reaper->changed);
	pthread_mutex_unlock(&reaper->mutex);
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

void fa_fd_reaper_add_rejected(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int *fds,
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
		fa_tenant_reaper_queue(tenant)->n_rejected += entry->n_fds;
		enqueue(reaper, entry);
		for (size_t i = 0; i < n_fds; ++i)
			fds[i] = -1;
	} else {
		/* Without memory for an entry, rather block than leak descriptors. */
		fa_packet_close_fds(fds, n_fds);
	}
}

ssize_t fa_fd_reaper_receive(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int socket,
                             void *buffer, size_t size, int *ret_fds, size_t *ret_n_fds,
                             bool *ret_lost, unsigned int *ret_placeholders)
{
	struct fa_fd_filter_batch batch;
	struct entry *entry;
	ssize_t n;

	*ret_placeholders = 0;
	if (!reaper->filter)
		return fa_packet_receive_all(socket, buffer, size, ret_fds, ret_n_fds, ret_lost,
		                             MSG_DONTWAIT);
	n = fa_fd_filter_receive(reaper->filter, socket, buffer, size, ret_fds, ret_n_fds, ret_lost,
	                         &batch);
	*ret_placeholders = batch.placeholders;
	if (!batch.n)
		return n;
	entry = entry_new(tenant, NULL, 0, NULL);
	if (!entry) {
		/* The batch stays in the filter. */
		fa_close_fdp(&batch.end);
		return n;
	}
	entry->rejected = true;
	entry->batch = batch;
	fa_tenant_reaper_queue(tenant)->n_rejected += batch.n;
	enqueue(reaper, entry);
	return n;
}

static void add_one(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                    struct fa_charge *charge, bool connection)
{
	struct entry *entry = entry_new(tenant, &fd, 1, charge);

	if (entry) {
		entry->connection = connection;
		entry->uncharged = !entry->charge.tenant;
		reaper->n_uncharged += entry->uncharged;
		if (entry->charge.tenant)
			fa_tenant_ending(entry->charge.tenant);
		enqueue(reaper, entry);
	} else {
		close(fd);
		if (charge)
			fa_charge_release(charge);
	}
}

void fa_fd_reaper_add_charged(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                              struct fa_charge *charge)
{
	add_one(reaper, tenant, fd, charge, false);
}

void fa_fd_reaper_add_connection(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                                 struct fa_charge *charge)
{
	(void)shutdown(fd, SHUT_RDWR);
	if (!is_drained(fd)) {
		add_one(reaper, tenant, fd, charge, true);
		return;
	}
	/* Without unread input close() does not block. */
	close(fd);
	if (charge)
		fa_charge_release(charge);
}

bool fa_fd_reaper_is_full(const struct fa_fd_reaper *reaper)
{
	return reaper->n_uncharged >= FA_FD_REAPER_UNCHARGED_MAX;
}

static void end_charge(struct fa_charge *charge)
{
	struct fa_tenant *tenant = charge->tenant;

	fa_charge_release(charge);
	/* fa_tenant_ending() keeps it alive. */
	if (tenant)
		fa_tenant_ended(tenant);
}

bool fa_fd_reaper_collect(struct fa_fd_reaper *reaper)
{
	struct fa_list closed = FA_LIST_INIT(closed);
	struct fa_list *pos, *tmp;
	bool again = false;

	pthread_mutex_lock(&reaper->mutex);
	fa_list_splice(&closed, &reaper->closed);
	pthread_mutex_unlock(&reaper->mutex);
	fa_list_for_each_safe(pos, tmp, &closed) {
		struct entry *entry = fa_container_of(pos, struct entry, link);

		if (entry->rejected) {
			struct fa_fd_reaper_queue *queue = fa_tenant_reaper_queue(entry->tenant);
			bool over = queue->n_rejected > FA_FD_REAPER_REJECTED_SOFT_MAX;

			queue->n_rejected -= entry->n_fds + entry->batch.n;
			again |= over && queue->n_rejected <= FA_FD_REAPER_REJECTED_SOFT_MAX;
		}
		reaper->n_uncharged -= entry->uncharged;
		end_charge(&entry->charge);
		fa_tenant_unref(entry->tenant);
		free(entry);
	}
	return again;
}
