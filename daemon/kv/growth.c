#include "daemon/kv/growth.h"

#include "common/clock.h"
#include "daemon/kv/persist.h"
#include "daemon/kv/store.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#define TICK_MS 1000
/* Adding an empty chunk again blocks the loop thread, so it is kept for this time, or longer. */
#define CHUNK_IDLE_NS (10 * FA_NS_PER_SEC)
#define CHUNK_IDLE_IN_USE_NS (30 * FA_NS_PER_SEC)
#define GROW_RETRY_NS FA_NS_PER_SEC
#define CHUNKS_PER_TICK 8
#define EXPIRED_SESSIONS_PER_TICK 1024

uint64_t fa_kv_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * FA_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

static uint32_t find_absent(const struct fa_kv *kv)
{
	const uint32_t end = fa_pool_max_chunks(kv->pool);
	uint32_t chunk = 0;

	while (chunk < end && (fa_pool_chunk_state(kv->pool, chunk) != FA_CHUNK_ABSENT ||
	                       fa_kv_persist_is_stale(kv, chunk)))
		++chunk;
	return chunk;
}

bool fa_kv_grow(void *userdata)
{
	struct fa_kv *kv = userdata;
	const struct fa_context *context = kv->context;
	struct fa_pool_info info;
	struct fa_error error;
	uint32_t chunk;
	int r, fd = -1;
	bool zeroed;

	fa_pool_get_info(kv->pool, &info);
	if (info.chunks >= kv->chunks_max || fa_now_ns() < kv->grow_retry_ns)
		return false;
	chunk = find_absent(kv);
	if (chunk == fa_pool_max_chunks(kv->pool))
		return false;
	r = context->ops->pool_chunk_add(context->device, chunk, &error, &zeroed, &fd);
	if (r < 0) {
		kv->grow_device_lost = r == -ENODEV;
		kv->grow_retry_ns = fa_deadline_ns(GROW_RETRY_NS);
		if (kv->grow_failed_chunks != info.chunks)
			fa_log(FA_LOG_WARNING, "the pool stays at %" PRIu32 " chunks: %s",
			       info.chunks, error.text);
		kv->grow_failed_chunks = info.chunks;
		return false;
	}
	/* Stored before use, if possible; a failure is retried. */
	fa_kv_persist(kv, chunk, fd);
	if (fa_pool_chunk_add(kv->pool, chunk, zeroed, &error) < 0) {
		context->ops->pool_chunk_remove(context->device, chunk);
		fa_kv_persist_remove(kv, chunk);
		return false;
	}
	return true;
}

static void chunk_freed(struct fa_kv *kv, uint32_t chunk)
{
	const struct fa_context *context = kv->context;

	context->ops->pool_chunk_remove(context->device, chunk);
	fa_kv_persist_remove(kv, chunk);
	kv->grow_failed_chunks = UINT32_MAX;
}

static bool free_chunk(struct fa_kv *kv)
{
	uint32_t chunk;

	if (fa_pool_chunk_remove(kv->pool, NULL, &chunk) < 0)
		return false;
	chunk_freed(kv, chunk);
	return true;
}

static void free_excess_chunks(struct fa_kv *kv)
{
	struct fa_pool_info info;

	fa_pool_get_info(kv->pool, &info);
	for (uint32_t i = 0; i < CHUNKS_PER_TICK && info.chunks - i > kv->chunks_max; ++i)
		if (!free_chunk(kv))
			return;
}

static void shrink(struct fa_kv *kv)
{
	const uint64_t now = fa_kv_now_ns();
	struct fa_pool_info info;
	uint32_t chunk;
	uint64_t quiet;
	bool in_use;

	free_excess_chunks(kv);
	/* The previous daemon's clients may soon be back. */
	if (fa_now_ns() - kv->context->started_ns < CHUNK_IDLE_NS)
		return;
	fa_pool_get_info(kv->pool, &info);
	in_use = info.used_bytes || info.idle_bytes;
	quiet = in_use ? CHUNK_IDLE_IN_USE_NS : CHUNK_IDLE_NS;
	if (now < quiet)
		return;
	for (int i = 0; i < (in_use ? 1 : CHUNKS_PER_TICK); ++i) {
		if (!fa_pool_chunk_remove_empty(kv->pool, now - quiet, &chunk))
			return;
		chunk_freed(kv, chunk);
	}
}

/* A stopping daemon leaves them to its successor. */
static void expire_lost_sessions(struct fa_kv *kv)
{
	struct fa_context *context = kv->context;
	uint64_t number;
	uint32_t n;

	if (context->state != FA_DAEMON_RUNNING || fa_context_device_lost(context))
		return;
	for (n = 0; n < EXPIRED_SESSIONS_PER_TICK &&
	            fa_session_store_expire(&kv->session_store, fa_now_ns(), &number);
	     ++n)
		fa_pool_release_owner(kv->pool, number);
	if (!n)
		return;
	fa_log(FA_LOG_INFO, "%" PRIu32 " sessions of the daemon before did not come back", n);
	/* Sessions that may come back keep an idle daemon from exiting. */
	if (!kv->session_store.n_lost)
		context->hooks->idle(context);
}

static void stop_timer_if_idle(struct fa_kv *kv)
{
	struct fa_pool_info info;

	fa_pool_get_info(kv->pool, &info);
	if (!info.chunks && !info.caches && !kv->session_store.n_lost && !kv->quarantine_ns &&
	    !kv->n_pending)
		uv_timer_stop(&kv->timer);
}

void fa_kv_quarantine_end(struct fa_kv *kv)
{
	if (!kv->quarantine_ns || fa_now_ns() < kv->quarantine_ns)
		return;
	kv->quarantine_ns = 0;
	fa_pool_quarantine_end(kv->pool);
}

static void on_tick(uv_timer_t *timer)
{
	struct fa_kv *kv = timer->data;
	size_t n = fa_pool_expire(kv->pool, fa_kv_now_ns());

	if (n)
		fa_log(FA_LOG_DEBUG, "%zu named sequences and caches have expired", n);
	fa_kv_quarantine_end(kv);
	fa_kv_persist_retry(kv);
	shrink(kv);
	expire_lost_sessions(kv);
	stop_timer_if_idle(kv);
}

/* The timer stops while nothing needs it: a loop without timers is faster. */
void fa_kv_timer_start(struct fa_kv *kv)
{
	if (!uv_is_active((uv_handle_t *)&kv->timer))
		(void)uv_timer_start(&kv->timer, on_tick, TICK_MS, TICK_MS);
}
