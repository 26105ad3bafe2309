/*
 * Windows without long launches, for driver calls that wait until nothing of this process runs on
 * the GPU: cuMemHostUnregister() and cuIpcCloseMemHandle() (cuMemFree() and cuMemFreeHost() are
 * called at close only). Such a call also blocks the launches of other threads, so a client that
 * leaves during another's prefill of some seconds would hold up everybody for as long.
 *
 * Workers wait for a window. Preemptible works are asked to stop (preempt.c), unless a fixed work
 * keeps the GPU busy anyway. Fixed works are waited for; as they may come without end, those that
 * would end after the running ones are held once the workers have waited for PATIENCE_NS. Short
 * works pass held ones. A cooldown between windows keeps frequent visitors from taking most of the
 * GPU's time. A gate that waits for its client is not long: it gives up sooner.
 */
#include "daemon/backend/cuda/quiesce.h"

/* How long a window stays open; and if fixed works were held for it, which leaves the GPU more and
 * more idle as they end. */
#define WINDOW_NS (2 * FA_NS_PER_MS)
#define FORCED_WINDOW_NS (20 * FA_NS_PER_MS)
/* Between two windows of which one had to be waited for. */
#define COOLDOWN_NS (20 * FA_NS_PER_MS)
/* Before fixed works are held: the first time, and for a worker whose forced window was too
 * short. */
#define PATIENCE_NS (500 * FA_NS_PER_MS)
#define PATIENCE_AGAIN_NS (50 * FA_NS_PER_MS)
/* Nearly all works end within so many times their estimate. */
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

/* Returns whether a long work runs, or was held lately and is to begin first. */
static bool is_busy(const struct fa_cuda_quiesce *quiesce)
{
	return quiesce->n_long > 0 || quiesce->held;
}

/* Under the mutex. */
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

/* Under the mutex, while workers wait: returns whether a long work may begin all the same. */
static bool may_pass(const struct fa_cuda_quiesce *quiesce, uint64_t fixed_ns)
{
	uint64_t now_ns;

	if (!quiesce->n_fixed)
		return false;
	if (!fixed_ns)
		return true;
	now_ns = fa_now_ns();
	return now_ns < quiesce->force_ns || now_ns + fixed_ns <= quiesce->fixed_until_ns;
}

bool fa_cuda_quiesce_long_begin(struct fa_cuda_quiesce *quiesce, uint64_t fixed_ns)
{
	bool may;

	pthread_mutex_lock(&quiesce->mutex);
	may = !quiesce->n_windows && (!quiesce->n_waiting || may_pass(quiesce, fixed_ns));
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

uint64_t fa_cuda_quiesce_fixed_begin(struct fa_cuda_quiesce *quiesce, uint64_t fixed_ns)
{
	const uint64_t until_ns = fa_now_ns() + OVERRUN_FACTOR * fixed_ns;

	if (!quiesce->n_fixed++ || quiesce->fixed_until_ns < until_ns)
		quiesce->fixed_until_ns = until_ns;
	return until_ns;
}

void fa_cuda_quiesce_fixed_end(struct fa_cuda_quiesce *quiesce, uint64_t until_ns)
{
	--quiesce->n_fixed;
	quiesce->fixed_until_ns = until_ns;
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
	return atomic_load_explicit(&quiesce->wanted, memory_order_relaxed) && !quiesce->n_fixed;
}
