/*
 * cuMemHostUnregister() and cuIpcCloseMemHandle() (and calls made only at close) wait until nothing
 * of this process runs on the GPU, and block launches meanwhile.
 *
 * While workers wait for a window, preemptible works are stopped (preempt.c), unless a
 * nonpreemptible one keeps the GPU busy. After PATIENCE_NS, nonpreemptible works that would end
 * after the running ones must wait; short works pass them. Gates are not long.
 */
#include "daemon/backend/cuda/quiesce.h"

/* A window lasts longer if nonpreemptible works were held for it. */
#define WINDOW_NS (2 * FA_NS_PER_MS)
#define FORCED_WINDOW_NS (20 * FA_NS_PER_MS)
/* Pause between windows that workers had to wait for: short-lived clients must not stop the GPU
 * often. */
#define COOLDOWN_NS (20 * FA_NS_PER_MS)
/* Workers wait so long before nonpreemptible works are held. */
#define PATIENCE_NS (500 * FA_NS_PER_MS)
#define PATIENCE_AGAIN_NS (50 * FA_NS_PER_MS)
/* Works nearly always end within this multiple of their estimate. */
#define OVERRUN_FACTOR 4

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *quiesce)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&quiesce->mutex, NULL);
	pthread_condattr_init(&attributes);
	(void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&quiesce->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *quiesce)
{
	pthread_cond_destroy(&quiesce->changed);
	pthread_mutex_destroy(&quiesce->mutex);
}

/* ---- workers */

/* A long work runs, or was held and begins first. */
static bool is_busy(const struct fa_cuda_quiesce *quiesce)
{
	return quiesce->n_long > 0 || quiesce->held;
}

/* With the mutex. */
static void wait_until_quiet(struct fa_cuda_quiesce *quiesce, struct fa_cuda_quiesce_window *window)
{
	const uint64_t ready_ns = quiesce->closed_ns + COOLDOWN_NS;
	const struct timespec ready = {
		.tv_sec = (time_t)(ready_ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(ready_ns % FA_NS_PER_SEC),
	};

	while (is_busy(quiesce) && fa_now_ns() < ready_ns)
		(void)pthread_cond_timedwait(&quiesce->changed, &quiesce->mutex, &ready);
	if (!quiesce->n_waiting++) {
		quiesce->force_ns = fa_now_ns() +
		                    (window->forced ? PATIENCE_AGAIN_NS : PATIENCE_NS);
		atomic_store_explicit(&quiesce->wanted, true, memory_order_relaxed);
	}
	while (quiesce->n_long > 0)
		pthread_cond_wait(&quiesce->changed, &quiesce->mutex);
	window->forced = fa_now_ns() >= quiesce->force_ns;
	if (!--quiesce->n_waiting)
		atomic_store_explicit(&quiesce->wanted, false, memory_order_relaxed);
}

void fa_cuda_quiesce_window_open(struct fa_cuda_quiesce_window *window)
{
	struct fa_cuda_quiesce *quiesce = window->quiesce;

	if (!fa_cuda_quiesce_window_expired(window))
		return;
	fa_cuda_quiesce_window_close(window);
	pthread_mutex_lock(&quiesce->mutex);
	window->waited = is_busy(quiesce);
	if (window->waited)
		wait_until_quiet(quiesce, window);
	++quiesce->n_windows;
	pthread_mutex_unlock(&quiesce->mutex);
	window->until_ns = fa_now_ns() +
	                   (window->waited && window->forced ? FORCED_WINDOW_NS : WINDOW_NS);
}

bool fa_cuda_quiesce_window_expired(const struct fa_cuda_quiesce_window *window)
{
	return !window->until_ns || fa_now_ns() >= window->until_ns;
}

void fa_cuda_quiesce_window_close(struct fa_cuda_quiesce_window *window)
{
	struct fa_cuda_quiesce *quiesce = window->quiesce;

	if (!window->until_ns)
		return;
	window->until_ns = 0;
	pthread_mutex_lock(&quiesce->mutex);
	--quiesce->n_windows;
	if (window->waited || quiesce->held)
		quiesce->closed_ns = fa_now_ns();
	pthread_mutex_unlock(&quiesce->mutex);
}

/* ---- the engine thread */

/* True: a long work may begin although workers wait. With the mutex. */
static bool may_pass(const struct fa_cuda_quiesce *quiesce, uint64_t nonpreemptible_ns)
{
	uint64_t now_ns;

	if (!quiesce->n_nonpreemptible)
		return false;
	if (!nonpreemptible_ns)
		return true;
	now_ns = fa_now_ns();
	return now_ns < quiesce->force_ns ||
	       now_ns + nonpreemptible_ns <= quiesce->nonpreemptible_until_ns;
}

bool fa_cuda_quiesce_long_begin(struct fa_cuda_quiesce *quiesce, uint64_t nonpreemptible_ns)
{
	bool may;

	pthread_mutex_lock(&quiesce->mutex);
	may = !quiesce->n_windows && (!quiesce->n_waiting || may_pass(quiesce, nonpreemptible_ns));
	quiesce->n_long += may;
	quiesce->held = !may;
	pthread_mutex_unlock(&quiesce->mutex);
	return may;
}

void fa_cuda_quiesce_long_end(struct fa_cuda_quiesce *quiesce)
{
	pthread_mutex_lock(&quiesce->mutex);
	if (!--quiesce->n_long)
		pthread_cond_broadcast(&quiesce->changed);
	pthread_mutex_unlock(&quiesce->mutex);
}

uint64_t fa_cuda_quiesce_nonpreemptible_begin(struct fa_cuda_quiesce *quiesce,
                                              uint64_t nonpreemptible_ns)
{
	const uint64_t until_ns = fa_now_ns() + OVERRUN_FACTOR * nonpreemptible_ns;

	if (!quiesce->n_nonpreemptible++ || quiesce->nonpreemptible_until_ns < until_ns)
		quiesce->nonpreemptible_until_ns = until_ns;
	return until_ns;
}

void fa_cuda_quiesce_nonpreemptible_end(struct fa_cuda_quiesce *quiesce, uint64_t until_ns)
{
	--quiesce->n_nonpreemptible;
	quiesce->nonpreemptible_until_ns = until_ns;
	fa_cuda_quiesce_long_end(quiesce);
}

void fa_cuda_quiesce_forget_held(struct fa_cuda_quiesce *quiesce)
{
	pthread_mutex_lock(&quiesce->mutex);
	quiesce->held = false;
	pthread_mutex_unlock(&quiesce->mutex);
}

bool fa_cuda_quiesce_wants_preemption(const struct fa_cuda_quiesce *quiesce)
{
	return atomic_load_explicit(&quiesce->wanted, memory_order_relaxed) &&
	       !quiesce->n_nonpreemptible;
}
