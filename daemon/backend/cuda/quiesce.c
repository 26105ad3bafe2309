/*
 * Calls of the driver that wait until nothing of this process's runs on the GPU any more:
 * cuMemHostUnregister() and cuIpcCloseMemHandle(), and cuMemFree() and cuMemFreeHost(), which are
 * made at the end alone. On an H100 each waited for a kernel that ran, and with it all launches of
 * other threads, under MPS, too; pinning, opening handles, making memory, mapping and unmapping it
 * did not. So one client that goes while another's prefill of some seconds runs would hold up all
 * the others for as long.
 *
 * Hence they are made in lulls: while nothing runs, or stands in the GPU's streams, that is
 * expected to take long. (A gate that waits there for its client does not count: it gives up
 * sooner.) Workers wait for one. Launches that can give way (backend/cuda/preempt.c) are asked to,
 * where nothing else is in the way, and go on behind it: what is long and comes meanwhile waits,
 * too. Others, the steady ones, are waited for. As there may be no end of them, those that come are
 * held once the workers have waited for PATIENCE_NS, if they would end after those that run; but
 * no others, which may go ahead of what is held. In between there is a gap, so that who comes and
 * goes all the time does not get most of the GPU's.
 *
 * Launches that take long are begun and ended by the engine thread, which never waits here.
 */
#include "daemon/backend/cuda/backend.h"

#include "common/clock.h"

#include <math.h>

/* A worker goes on for so long with its calls; and for so long if steady launches were held for it,
 * which leave more and more of the GPU idle as they end. */
#define LULL_NS (2 * FA_NS_PER_MS)
#define HARD_LULL_NS (20 * FA_NS_PER_MS)
/* Between two of which one had to be waited for. */
#define GAP_NS (20 * FA_NS_PER_MS)
/* The first time, and when a worker is not done then. */
#define PATIENCE_NS (500 * FA_NS_PER_MS)
#define PATIENCE_LEFT_NS (50 * FA_NS_PER_MS)
/* What is expected to take a time takes no longer than so many of it, nearly always. */
#define EXPECTED_MOST 4

void fa_cuda_quiesce_init(struct fa_cuda_quiesce *lull)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&lull->mutex, NULL);
	pthread_condattr_init(&attributes);
	(void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&lull->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

void fa_cuda_quiesce_deinit(struct fa_cuda_quiesce *lull)
{
	pthread_cond_destroy(&lull->changed);
	pthread_mutex_destroy(&lull->mutex);
}

/* ---- workers */

/* Whether something long runs, or could not begin lately and is to have its turn. */
static bool is_taken(const struct fa_cuda_quiesce *lull)
{
	return lull->n_long > 0 || lull->held;
}

/* With the mutex. */
static void wait_for_lull(struct fa_cuda_quiesce *lull, struct fa_cuda_quiesce_visit *visit)
{
	const uint64_t ready_ns = lull->ended_ns + GAP_NS;
	const struct timespec ready = {
		.tv_sec = (time_t)(ready_ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(ready_ns % FA_NS_PER_SEC),
	};

	while (is_taken(lull) && fa_now_ns() < ready_ns)
		(void)pthread_cond_timedwait(&lull->changed, &lull->mutex, &ready);
	if (!lull->n_waiting++) {
		lull->hard_ns = fa_now_ns() + (visit->hard ? PATIENCE_LEFT_NS : PATIENCE_NS);
		atomic_store_explicit(&lull->wanted, true, memory_order_relaxed);
	}
	while (lull->n_long > 0)
		pthread_cond_wait(&lull->changed, &lull->mutex);
	visit->hard = fa_now_ns() >= lull->hard_ns;
	if (!--lull->n_waiting)
		atomic_store_explicit(&lull->wanted, false, memory_order_relaxed);
}

void fa_cuda_quiesce_enter(struct fa_cuda_quiesce_visit *visit)
{
	struct fa_cuda_quiesce *lull = &visit->device->lull;

	if (visit->until_ns && fa_now_ns() < visit->until_ns)
		return;
	fa_cuda_quiesce_leave(visit);
	pthread_mutex_lock(&lull->mutex);
	visit->waited = is_taken(lull);
	if (visit->waited)
		wait_for_lull(lull, visit);
	++lull->n_calls;
	pthread_mutex_unlock(&lull->mutex);
	visit->until_ns = fa_now_ns() + (visit->waited && visit->hard ? HARD_LULL_NS : LULL_NS);
}

bool fa_cuda_quiesce_is_over(const struct fa_cuda_quiesce_visit *visit)
{
	return !visit->until_ns || fa_now_ns() >= visit->until_ns;
}

void fa_cuda_quiesce_leave(struct fa_cuda_quiesce_visit *visit)
{
	struct fa_cuda_quiesce *lull = &visit->device->lull;

	if (!visit->until_ns)
		return;
	visit->until_ns = 0;
	pthread_mutex_lock(&lull->mutex);
	--lull->n_calls;
	if (visit->waited || lull->held)
		lull->ended_ns = fa_now_ns();
	pthread_mutex_unlock(&lull->mutex);
}

/* ---- the engine thread */

/* With the mutex, where workers wait: whether what takes @steady_ns (0: it can give way) may begin
 * nevertheless. */
static bool may_begin(const struct fa_cuda_quiesce *lull, uint64_t steady_ns)
{
	uint64_t now_ns;

	if (!lull->n_steady)
		return false;
	if (!steady_ns)
		return true;
	now_ns = fa_now_ns();
	return now_ns < lull->hard_ns || now_ns + steady_ns <= lull->steady_until_ns;
}

bool fa_cuda_long_begin(struct fa_device *device, uint64_t steady_ns)
{
	struct fa_cuda_quiesce *lull = &device->lull;
	bool may;

	pthread_mutex_lock(&lull->mutex);
	may = !lull->n_calls && (!lull->n_waiting || may_begin(lull, steady_ns));
	lull->n_long += may;
	lull->held = !may;
	pthread_mutex_unlock(&lull->mutex);
	return may;
}

void fa_cuda_long_end(struct fa_device *device)
{
	struct fa_cuda_quiesce *lull = &device->lull;

	pthread_mutex_lock(&lull->mutex);
	if (!--lull->n_long)
		pthread_cond_broadcast(&lull->changed);
	pthread_mutex_unlock(&lull->mutex);
}

uint64_t fa_cuda_steady_begin(struct fa_device *device, uint64_t steady_ns)
{
	struct fa_cuda_quiesce *lull = &device->lull;
	const uint64_t until_ns = fa_now_ns() + EXPECTED_MOST * steady_ns;

	if (!lull->n_steady++ || lull->steady_until_ns < until_ns)
		lull->steady_until_ns = until_ns;
	return until_ns;
}

void fa_cuda_steady_end(struct fa_device *device, uint64_t until_ns)
{
	--device->lull.n_steady;
	device->lull.steady_until_ns = until_ns;
	fa_cuda_long_end(device);
}

void fa_cuda_long_forget(struct fa_device *device)
{
	pthread_mutex_lock(&device->lull.mutex);
	device->lull.held = false;
	pthread_mutex_unlock(&device->lull.mutex);
}

bool fa_cuda_quiesce_is_near(const struct fa_device *device)
{
	return atomic_load_explicit(&device->lull.wanted, memory_order_relaxed) &&
	       !device->lull.n_steady;
}

/* ---- what takes long */

/* Cautious: what is long and taken for short holds up everybody. */
#define SM_FLOPS_PER_NS 2000 /* with wgmma */
#define SM_FLOPS_PER_NS_PORTABLE 500
#define SM_FLOPS_PER_NS_F32 60
#define HOST_BYTES_PER_NS 20 /* over the bus */

double fa_cuda_flops_ns(const struct fa_device *device, enum fa_attention_dtype dtype, bool special,
                        double flops)
{
	const double speed = dtype == FA_ATTENTION_F32 ? SM_FLOPS_PER_NS_F32
	                     : special                 ? SM_FLOPS_PER_NS
	                                               : SM_FLOPS_PER_NS_PORTABLE;

	return flops / speed / (device->chip.sms > 0 ? device->chip.sms : 1);
}

/* Of tensors in the host's memory, as far as they are as long as that of @index. */
static double bytes_at_host(const struct fa_device_work *work, enum fa_device_tensor index,
                            double elements)
{
	const struct fa_device_memory *memory = work->memories[index];
	const struct fa_cuda_memory *cuda = memory ? memory->backend : NULL;

	return cuda && cuda->kind == FA_CUDA_MEMORY_HOST
	               ? elements * (work->params->dtype == FA_ATTENTION_F32 ? 4 : 2)
	               : 0;
}

static double attention_ns(const struct fa_device *device, const struct fa_device_work *work)
{
	const struct fa_attention_params *p = work->params;
	const bool ragged = p->cu_seqlens_q && p->cu_seqlens_k;
	const double batch = p->batch, dims = (double)p->head_dim + p->head_dim_v;
	const double rows = p->heads *
	                    (ragged ? p->cu_seqlens_q[p->batch] : batch * (double)p->seqlen_q);
	const double keys = p->kv_heads *
	                    (ragged ? p->cu_seqlens_k[p->batch] : batch * (double)p->seqlen_k);
	const double bytes = bytes_at_host(work, FA_DEVICE_Q, rows * p->head_dim) +
	                     bytes_at_host(work, FA_DEVICE_K, keys * p->head_dim) +
	                     bytes_at_host(work, FA_DEVICE_V, keys * p->head_dim_v) +
	                     bytes_at_host(work, FA_DEVICE_OUT, rows * p->head_dim_v);
	const double host_ns = bytes / HOST_BYTES_PER_NS;
	const double most_ns = host_ns + fa_cuda_flops_ns(device, p->dtype, false,
	                                                  2 * rows * (double)p->seqlen_k * dims);
	const struct fa_cuda_kernel *kernel;

	/* Most are short however one reckons: to look closely takes a microsecond, and more where
	 * there are many sequences. */
	if (most_ns < (double)device->lull.long_ns)
		return most_ns;
	kernel = fa_cuda_attention_kernel(&device->chip, p);
	return host_ns + fa_cuda_flops_ns(device, p->dtype,
	                                  kernel && fa_cuda_kernel_is_special(kernel),
	                                  fa_attention_flops(p));
}

uint64_t fa_cuda_long_ns(const struct fa_device *device, const struct fa_device_work *work)
{
	const double ns = work->op == FA_DEVICE_PAGED ? fa_cuda_paged_ns(work)
	                                              : attention_ns(device, work);

	/* A year is long. */
	return ns >= (double)device->lull.long_ns ? (uint64_t)fmin(ns, 3e16) : 0;
}

bool fa_cuda_may_give_way(const struct fa_device *device, const struct fa_device_work *work)
{
	const struct fa_cuda_kernel *kernel;

	if (work->op == FA_DEVICE_PAGED)
		return fa_cuda_paged_may_give_way(work);
	kernel = fa_cuda_attention_kernel(&device->chip, work->params);
	return kernel && kernel->state_bytes > 0;
}
