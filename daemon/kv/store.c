#include "daemon/kv/store.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/base/memory_limit.h"
#include "daemon/kv/growth.h"
#include "daemon/kv/persist.h"
#include "daemon/kv/quota.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A GPU's chunk holds whole pages of all layers. */
#define CHUNK_BYTES_MIN ((uint64_t)4 << 20)
/* In a small pool in host memory every cache can have a chunk; large pages get runs. */
#define SMALL_POOL_BYTES ((uint64_t)1 << 30)
#define SMALL_POOL_CHUNKS 256
#define SMALL_POOL_CHUNK_BYTES_MIN ((uint64_t)256 << 10)
#define SMALL_POOL_RUN_BYTES ((uint64_t)16 << 20)
#define CHUNK_BYTES_LARGE ((uint64_t)1 << 30)
#define POOL_BYTES_LARGE ((uint64_t)64 << 30)
#define CHUNKS_WANTED 16
/* A reload can enlarge a pool by this factor. */
#define GROWTH_MAX 4

static uint64_t floor_power(uint64_t value)
{
	return value ? (uint64_t)1 << (63 - __builtin_clzll(value)) : 0;
}

static uint64_t choose_chunk_bytes(uint64_t bytes)
{
	uint64_t chunk = floor_power(bytes / CHUNKS_WANTED);

	if (bytes >= POOL_BYTES_LARGE)
		return CHUNK_BYTES_LARGE;
	if (chunk > FA_POOL_CHUNK_BYTES_DEFAULT)
		return FA_POOL_CHUNK_BYTES_DEFAULT;
	return chunk < CHUNK_BYTES_MIN ? CHUNK_BYTES_MIN : chunk;
}

static uint64_t wanted_bytes(const struct fa_kv *kv, bool own)
{
	const struct fa_context *context = kv->context;
	struct fa_pool_info info = {};
	struct fa_device_info device;

	if (kv->pool)
		fa_pool_get_info(kv->pool, &info);
	context->ops->describe(context->device, &device);
	return fa_config_pool_bytes(&context->config, device.memory_bytes, device.memory_free_bytes,
	                            kv->pool ? info.chunks * fa_pool_chunk_bytes(kv->pool) : 0,
	                            own);
}

static uint32_t growth_limit(const struct fa_kv *kv, uint64_t chunks, uint64_t chunk_bytes)
{
	const struct fa_device_info *device = &kv->context->info;
	uint64_t memory = device->memory_bytes, most = chunks * GROWTH_MAX;

	if (!memory)
		memory = fa_memory_limit();
	if (most > memory / chunk_bytes)
		most = memory / chunk_bytes;
	if (most < chunks)
		most = chunks;
	if (most > FA_KV_CHUNKS_MAX)
		most = FA_KV_CHUNKS_MAX;
	if (most > FA_POOL_BYTES_MAX / chunk_bytes)
		most = FA_POOL_BYTES_MAX / chunk_bytes;
	return (uint32_t)most;
}

static void choose_chunks(const struct fa_kv *kv, uint64_t bytes, struct fa_pool_config *config)
{
	uint64_t chunk = floor_power(bytes / SMALL_POOL_CHUNKS);

	if (kv->context->info.memory_bytes || bytes > SMALL_POOL_BYTES) {
		config->chunk_bytes = choose_chunk_bytes(bytes);
		return;
	}
	config->chunk_bytes = chunk < SMALL_POOL_CHUNK_BYTES_MIN ? SMALL_POOL_CHUNK_BYTES_MIN
	                                                         : chunk;
	config->run_bytes_max = SMALL_POOL_RUN_BYTES;
}

static int make_pool(struct fa_kv *kv, struct fa_error *error)
{
	const struct fa_context *context = kv->context;
	const struct fa_config *config = &context->config;
	struct fa_pool_config pool = { .chunk_bytes = config->pool_chunk_bytes };
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	const uint64_t bytes = wanted_bytes(kv, context->exit_when_idle);
	uint64_t chunks;
	int r;

	if (!context->ops->pool_open)
		return fa_fail(error, -ENOTSUP, "the backend %s has none", context->info.backend);
	if (!bytes)
		return fa_fail(error, -ENOTSUP, "the configuration wants none");
	if (!pool.chunk_bytes)
		choose_chunks(kv, bytes, &pool);
	chunks = bytes / pool.chunk_bytes;
	if (!chunks)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " bytes are not enough for a chunk of %" PRIu64, bytes,
		               pool.chunk_bytes);
	if (chunks > FA_KV_CHUNKS_MAX)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " bytes are %" PRIu64 " chunks of %" PRIu64
		               "; expected at most %d, each has a descriptor",
		               bytes, chunks, pool.chunk_bytes, FA_KV_CHUNKS_MAX);
	pool.max_chunks = growth_limit(kv, chunks, pool.chunk_bytes);
	r = fa_pool_format(&pool, error, &fd);
	if (r < 0)
		return r;
	r = context->ops->pool_open(context->device, pool.chunk_bytes, pool.max_chunks, error,
	                            &kv->base);
	if (r < 0)
		return r;
	r = fa_pool_open(fd, NULL, error, &kv->pool);
	if (r < 0) {
		context->ops->pool_close(context->device);
		return r;
	}
	fa_kv_persist(kv, FA_KV_PERSIST_STATE, fa_steal_fd(&fd));
	return 0;
}

static void describe_device(const struct fa_context *context,
                            struct fa_session_store_device *ret_device)
{
	*ret_device = (struct fa_session_store_device){
		.uuid = { context->info.uuid[0], context->info.uuid[1] },
	};
	memcpy(ret_device->backend, context->info.backend, sizeof(ret_device->backend));
}

static int make(struct fa_kv *kv, const struct fa_session_store_device *device,
                struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	int r;

	r = fa_session_store_new(device, error, &kv->session_store, &fd);
	if (r < 0)
		return r;
	r = make_pool(kv, error);
	if (r < 0)
		fa_session_store_close(&kv->session_store);
	else
		fa_kv_persist(kv, FA_KV_PERSIST_SESSIONS, fa_steal_fd(&fd));
	return r;
}

/* Goes on numbering sessions; releases objects of owners who cannot resume. */
static void finish_recovery(struct fa_kv *kv)
{
	struct fa_context *context = kv->context;
	struct fa_pool_info info;
	uint64_t owner, last = 0, grace_ns;
	uint32_t cursor = 0;

	fa_kv_quarantine_end(kv);
	fa_pool_set_time(kv->pool, fa_kv_now_ns());
	fa_pool_get_info(kv->pool, &info);
	fa_log(FA_LOG_INFO,
	       "KV pool recovered (recovery #%" PRIu64 "): %" PRIu32 " chunks, %" PRIu32
	       " caches, %" PRIu32 " sequences; %" PRIu32 " sessions may resume",
	       info.generation - 1, info.chunks, info.caches, info.sequences,
	       kv->session_store.n_lost);
	context->last_session = fa_session_store_last_number(&kv->session_store);
	while (fa_pool_owner_each(kv->pool, &cursor, &owner)) {
		if (owner == last)
			continue;
		last = owner;
		if (owner > context->last_session)
			context->last_session = owner;
		if (!fa_session_store_is_lost(&kv->session_store, owner))
			fa_pool_release_owner(kv->pool, owner);
	}
	grace_ns = context->config.pool_grace_s * FA_NS_PER_SEC;
	fa_session_store_start_grace(&kv->session_store, fa_now_ns(), grace_ns,
	                             FA_KV_GRACE_FACTOR_MAX * grace_ns);
}

static void set_size(struct fa_kv *kv)
{
	const bool own = kv->context->exit_when_idle;
	const uint64_t bytes = wanted_bytes(kv, own);
	const uint64_t wanted = bytes / fa_pool_chunk_bytes(kv->pool);
	struct fa_pool_info info;
	char more[128] = "";

	fa_pool_get_info(kv->pool, &info);
	kv->chunks_max = fa_pool_max_chunks(kv->pool);
	if (wanted > kv->chunks_max)
		snprintf(more, sizeof(more),
		         ", not the %" PRIu64 " that are wanted: that takes a new pool", wanted);
	else
		kv->chunks_max = (uint32_t)wanted;
	/* The error explains itself, as nobody configured this limit. */
	snprintf(kv->exhausted_hint, sizeof(kv->exhausted_hint),
	         "; a daemon that a program starts for itself has at most %d MiB, unless [pool] "
	         "bytes in its configuration (FAD_CONFIG) says more",
	         FA_CONFIG_POOL_PRIVATE_MIB);
	fa_pool_set_exhausted_hint(kv->pool, kv->chunks_max,
	                           own && wanted_bytes(kv, false) > bytes ? kv->exhausted_hint
	                                                                  : NULL);
	if (info.chunks > kv->chunks_max)
		snprintf(more, sizeof(more), "; it has %" PRIu32 ", of which empty ones go",
		         info.chunks);
	kv->grow_failed_chunks = UINT32_MAX;
	kv->grow_retry_ns = 0;
	fa_log(FA_LOG_INFO, "the KV pool may have %" PRIu32 " chunks of %" PRIu64 " KiB%s",
	       kv->chunks_max, fa_pool_chunk_bytes(kv->pool) >> 10, more);
}

void fa_kv_resize(struct fa_context *context, uint64_t chunk_bytes)
{
	struct fa_kv *kv = context->kv;

	if (!kv->pool) {
		fa_log(FA_LOG_WARNING, "a KV pool is made with the next start only");
		return;
	}
	if (chunk_bytes && chunk_bytes != fa_pool_chunk_bytes(kv->pool))
		fa_log(FA_LOG_WARNING, "the KV pool's chunks change only when a new one is made");
	set_size(kv);
	fa_kv_timer_start(kv);
}

static void start(struct fa_kv *kv)
{
	const struct fa_context *context = kv->context;

	set_size(kv);
	fa_pool_set_quota(kv->pool, fa_kv_check_quota, kv);
	fa_pool_set_grow(kv->pool, fa_kv_grow, kv);
	(void)uv_timer_init(context->loop, &kv->timer);
	kv->timer.data = kv;
	fa_kv_timer_start(kv);
	uv_unref((uv_handle_t *)&kv->timer);
}

int fa_kv_open(struct fa_context *context, struct fa_error *error)
{
	struct fa_session_store_device device;
	struct fa_kv *kv = context->kv;
	int r;

	describe_device(context, &device);
	kv->context = context;
	fa_kv_persist_init(kv);
	kv->grow_failed_chunks = UINT32_MAX;
	/* Step numbers are times, and so tell nothing about others' steps. They grow across
	 * restarts. */
	kv->last_step_number = context->generation;
	kv->step_number_offset = context->generation - fa_kv_now_ns();
	r = fa_kv_recover(kv, &device, &kv->reason);
	if (r == -EAGAIN) {
		*error = kv->reason;
		return r;
	}
	if (r == 0) {
		finish_recovery(kv);
	} else {
		if (r != -ENOENT || kv->reason.text[0])
			fa_log(FA_LOG_ERROR, "the persisted KV pool is dropped: %s",
			       kv->reason.text);
		r = make(kv, &device, &kv->reason);
	}
	if (r < 0)
		fa_log(FA_LOG_INFO, "there is no KV pool: %s", kv->reason.text);
	else
		start(kv);
	return 0;
}

void fa_kv_close(struct fa_context *context)
{
	struct fa_kv *kv = context->kv;

	if (!kv->pool)
		return;
	fa_kv_persist_deinit(kv);
	kv->pool = fa_pool_free(kv->pool);
	fa_session_store_close(&kv->session_store);
	uv_close((uv_handle_t *)&kv->timer, NULL);
}
