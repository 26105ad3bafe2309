#include "daemon/closer.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#define PATIENCE_S 1

struct fa_closer {
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	int *fds;
	size_t n_fds, n_max;
	bool stop;
	bool gone; /* the thread touches nothing any more */
};

static void *run(void *userdata)
{
	struct fa_closer *closer = userdata;

	pthread_mutex_lock(&closer->mutex);
	for (;;) {
		int fd;

		while (!closer->n_fds && !closer->stop)
			pthread_cond_wait(&closer->changed, &closer->mutex);
		if (!closer->n_fds)
			break;
		fd = closer->fds[--closer->n_fds];
		pthread_mutex_unlock(&closer->mutex);
		close(fd);
		pthread_mutex_lock(&closer->mutex);
	}
	closer->gone = true;
	pthread_cond_signal(&closer->changed);
	pthread_mutex_unlock(&closer->mutex);
	return NULL;
}

int fa_closer_new(struct fa_closer **ret_closer)
{
	struct fa_closer *closer;
	sigset_t all, old;
	int r;

	closer = fa_new(struct fa_closer);
	if (!closer)
		return -ENOMEM;
	pthread_mutex_init(&closer->mutex, NULL);
	pthread_cond_init(&closer->changed, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&closer->thread, NULL, run, closer);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r) {
		pthread_cond_destroy(&closer->changed);
		pthread_mutex_destroy(&closer->mutex);
		free(closer);
		return -r;
	}
	*ret_closer = closer;
	return 0;
}

struct fa_closer *fa_closer_free(struct fa_closer *closer)
{
	struct timespec until;
	bool gone;

	if (!closer)
		return NULL;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_S;

	pthread_mutex_lock(&closer->mutex);
	closer->stop = true;
	pthread_cond_signal(&closer->changed);
	while (!closer->gone &&
	       pthread_cond_timedwait(&closer->changed, &closer->mutex, &until) != ETIMEDOUT)
		;
	gone = closer->gone;
	pthread_mutex_unlock(&closer->mutex);
	if (!gone) {
		pthread_detach(closer->thread);
		return NULL;
	}
	pthread_join(closer->thread, NULL);
	pthread_cond_destroy(&closer->changed);
	pthread_mutex_destroy(&closer->mutex);
	free(closer->fds);
	free(closer);
	return NULL;
}

void fa_closer_take(struct fa_closer *closer, int *fds, size_t n_fds)
{
	pthread_mutex_lock(&closer->mutex);
	for (size_t i = 0; i < n_fds; ++i) {
		if (fds[i] < 0)
			continue;
		if (closer->n_fds == closer->n_max) {
			size_t n = closer->n_max ? 2 * closer->n_max : 64;
			int *larger = realloc(closer->fds, n * sizeof(int));

			if (!larger) {
				/* Better to wait than to lose it. */
				close(fa_steal_fd(&fds[i]));
				continue;
			}
			closer->fds = larger;
			closer->n_max = n;
		}
		closer->fds[closer->n_fds++] = fa_steal_fd(&fds[i]);
	}
	pthread_cond_signal(&closer->changed);
	pthread_mutex_unlock(&closer->mutex);
}
