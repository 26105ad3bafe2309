/*
 * Calls of the driver that wait until nothing of this process's runs on the GPU any more:
 * cuMemHostUnregister() and cuIpcCloseMemHandle(), and cuMemFree() and cuMemFreeHost(), which are
 * made at the end alone. On an H100 each waited for a kernel that ran, and with it all launches of
 * other threads, under MPS, too; pinning, opening handles, making memory, mapping and unmapping it
 * did not. So one client that goes while another's prefill of some seconds runs would hold up all
 * the others for as long.
 *
 * Hence they are made in lulls: while nothing runs, or stands in the GPU's streams, that is
 * expected to take long. Workers wait for one. Launches that can give way (device_cuda_yield.c)
 * are asked to, where nothing else is in the way, and go on behind it; others are waited for. What
 * is long and comes meanwhile waits for the workers, if it is to be soon: and always once they
 * have waited for PATIENCE_NS, as there may be no end of what comes. In between there is a gap,
 * so that who comes and goes all the time does not get most of the GPU's.
 *
 * Launches that take long are begun and ended by the engine thread, which never waits here.
 */
#include "daemon/device_cuda.h"

#include "common/clock.h"

/* A worker goes on for so long with its calls. */
#define LULL_NS (2 * FA_NS_PER_MS)
/* Between two of which one had to be waited for. */
#define GAP_NS (20 * FA_NS_PER_MS)
#define PATIENCE_NS FA_NS_PER_SEC

void fa_cuda_lull_init(struct fa_cuda_lull *lull)
{
	pthread_condattr_t attributes;

	pthread_mutex_init(&lull->mutex, NULL);
	pthread_condattr_init(&attributes);
	(void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&lull->changed, &attributes);
	pthread_condattr_destroy(&attributes);
}

void fa_cuda_lull_deinit(struct fa_cuda_lull *lull)
{
	pthread_cond_destroy(&lull->changed);
	pthread_mutex_destroy(&lull->mutex);
}

/* ---- workers */

/* Whether something long runs, or could not begin lately and is to have its turn. */
static bool is_taken(const struct fa_cuda_lull *lull)
{
	return lull->n_long > 0 || lull->held;
}

/* With the mutex. */
static void wait_for_lull(struct fa_cuda_lull *lull)
{
	const uint64_t ready_ns = lull->ended_ns + GAP_NS;
	const struct timespec ready = {
		.tv_sec = (time_t)(ready_ns / FA_NS_PER_SEC),
		.tv_nsec = (long)(ready_ns % FA_NS_PER_SEC),
	};

	while (is_taken(lull) && fa_now_ns() < ready_ns)
		(void)pthread_cond_timedwait(&lull->changed, &lull->mutex, &ready);
	if (!lull->n_waiting++) {
		lull->since_ns = fa_now_ns();
		atomic_store_explicit(&lull->wanted, true, memory_order_relaxed);
	}
	while (lull->n_long > 0)
		pthread_cond_wait(&lull->changed, &lull->mutex);
	if (!--lull->n_waiting)
		atomic_store_explicit(&lull->wanted, false, memory_order_relaxed);
}

void fa_cuda_lull_enter(struct fa_cuda_lull_visit *visit)
{
	struct fa_cuda_lull *lull = &visit->device->lull;

	if (visit->until_ns && fa_now_ns() < visit->until_ns)
		return;
	fa_cuda_lull_leave(visit);
	pthread_mutex_lock(&lull->mutex);
	visit->waited = is_taken(lull);
	if (visit->waited)
		wait_for_lull(lull);
	++lull->n_calls;
	pthread_mutex_unlock(&lull->mutex);
	visit->until_ns = fa_now_ns() + LULL_NS;
}

void fa_cuda_lull_leave(struct fa_cuda_lull_visit *visit)
{
	struct fa_cuda_lull *lull = &visit->device->lull;

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

bool fa_cuda_long_begin(struct fa_device *device)
{
	struct fa_cuda_lull *lull = &device->lull;
	bool may;

	pthread_mutex_lock(&lull->mutex);
	may = !lull->n_calls && !(lull->n_waiting > 0 &&
	                          (!lull->n_steady || fa_now_ns() - lull->since_ns >= PATIENCE_NS));
	lull->n_long += may;
	lull->held = !may;
	pthread_mutex_unlock(&lull->mutex);
	return may;
}

void fa_cuda_long_end(struct fa_device *device)
{
	struct fa_cuda_lull *lull = &device->lull;

	pthread_mutex_lock(&lull->mutex);
	if (!--lull->n_long)
		pthread_cond_broadcast(&lull->changed);
	pthread_mutex_unlock(&lull->mutex);
}

bool fa_cuda_lull_is_near(const struct fa_device *device)
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
	const struct fa_cuda_kernel *kernel = fa_cuda_attention_kernel(&device->chip, p);
	const bool ragged = p->cu_seqlens_q && p->cu_seqlens_k;
	const double batch = p->batch;
	const double rows = p->heads *
	                    (ragged ? p->cu_seqlens_q[p->batch] : batch * (double)p->seqlen_q);
	const double keys = p->kv_heads *
	                    (ragged ? p->cu_seqlens_k[p->batch] : batch * (double)p->seqlen_k);
	const double bytes = bytes_at_host(work, FA_DEVICE_Q, rows * p->head_dim) +
	                     bytes_at_host(work, FA_DEVICE_K, keys * p->head_dim) +
	                     bytes_at_host(work, FA_DEVICE_V, keys * p->head_dim_v) +
	                     bytes_at_host(work, FA_DEVICE_OUT, rows * p->head_dim_v);

	return fa_cuda_flops_ns(device, p->dtype, kernel && fa_cuda_kernel_is_special(kernel),
	                        fa_attention_flops(p)) +
	       bytes / HOST_BYTES_PER_NS;
}

bool fa_cuda_is_long(const struct fa_device *device, const struct fa_device_work *work)
{
	const double ns = work->op == FA_DEVICE_PAGED ? fa_cuda_paged_ns(device, work)
	                                              : attention_ns(device, work);

	return ns >= (double)device->lull.long_ns;
}
