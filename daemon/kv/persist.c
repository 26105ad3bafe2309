#include "daemon/kv/persist.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/kv/store.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 32
/* This part of clients' descriptors may wait to be stored. */
#define PENDING_DIVISOR 8

static void name_of(uint32_t what, char ret_name[NAME_BYTES])
{
	if (what == FA_KV_PERSIST_STATE)
		snprintf(ret_name, NAME_BYTES, "fad-pool-state");
	else if (what == FA_KV_PERSIST_SESSIONS)
		snprintf(ret_name, NAME_BYTES, "fad-sessions");
	else
		snprintf(ret_name, NAME_BYTES, "fad-pool-%" PRIu32, what);
}

void fa_kv_persist_init(struct fa_kv *kv)
{
	for (uint32_t i = 0; i < FA_KV_PERSIST_N; ++i)
		kv->kept[i].fd = -1;
}

static bool is_pending(const struct fa_kv_persisted *kept)
{
	return kept->fd >= 0 || (kept->stored && !kept->wanted);
}

bool fa_kv_persist_is_stale(const struct fa_kv *kv, uint32_t what)
{
	return kv->kept[what].stored && !kv->kept[what].wanted;
}

static int store(struct fa_kv *kv, uint32_t what)
{
	const struct fa_fd_store_ops *fd_store = &kv->context->fd_store;
	struct fa_kv_persisted *kept = &kv->kept[what];
	char name[NAME_BYTES];
	int r;

	if (!fd_store->add)
		return 0;
	name_of(what, name);
	/* The old descriptor goes first: of two with one name the next daemon would take either. */
	if (kept->stored) {
		r = fd_store->remove(fd_store->userdata, name);
		if (r < 0)
			return r;
		kept->stored = false;
		--kv->n_stored;
	}
	if (kept->fd < 0)
		return 0;
	if (fd_store->pool_max && kv->n_stored >= fd_store->pool_max)
		return -ENOSPC;
	r = fd_store->add(fd_store->userdata, name, kept->fd);
	if (r < 0)
		return r;
	kept->stored = true;
	++kv->n_stored;
	return 0;
}

static int try_store(struct fa_kv *kv, uint32_t what)
{
	struct fa_kv_persisted *kept = &kv->kept[what];
	int r = store(kv, what);

	if (r == 0)
		fa_close_fdp(&kept->fd);
	kv->n_pending += is_pending(kept);
	return r;
}

/* Clients have one descriptor less for each that waits; unbounded, chunks could take all. */
static bool may_be_pending(const struct fa_kv *kv, uint32_t what)
{
	const uint64_t all_fds = kv->context->config.limits.all_fds;
	uint64_t n = 0;

	if (what >= FA_KV_CHUNKS_MAX || !all_fds)
		return true;
	for (uint32_t i = 0; i < FA_KV_CHUNKS_MAX; ++i)
		n += kv->kept[i].fd >= 0;
	return n <= all_fds / PENDING_DIVISOR;
}

void fa_kv_persist(struct fa_kv *kv, uint32_t what, int fd)
{
	struct fa_kv_persisted *kept = &kv->kept[what];
	char name[NAME_BYTES];
	int r;

	kv->n_pending -= is_pending(kept);
	fa_close_fdp(&kept->fd);
	kept->wanted = true;
	kept->fd = fd;
	r = try_store(kv, what);
	if (r == 0)
		return;
	name_of(what, name);
	if (!may_be_pending(kv, what)) {
		kv->n_pending -= is_pending(kept);
		fa_close_fdp(&kept->fd);
		fa_log(FA_LOG_WARNING,
		       "%s cannot be kept: %s, and too many wait for it; what is in it does not "
		       "outlive this process",
		       name, r == -ENOSPC ? "the fd store has no room for more" : strerror(-r));
		return;
	}
	fa_log(FA_LOG_WARNING,
	       "%s cannot be kept now: %s; until it is, %s does not outlive this process", name,
	       r == -ENOSPC ? "the fd store has no room for more" : strerror(-r),
	       what < FA_KV_CHUNKS_MAX ? "what is in it" : "the pool");
}

void fa_kv_persist_remove(struct fa_kv *kv, uint32_t what)
{
	struct fa_kv_persisted *kept = &kv->kept[what];

	kv->n_pending -= is_pending(kept);
	fa_close_fdp(&kept->fd);
	kept->wanted = false;
	(void)try_store(kv, what);
}

void fa_kv_persist_retry(struct fa_kv *kv)
{
	char name[NAME_BYTES];

	for (uint32_t i = 0; kv->n_pending && i < FA_KV_PERSIST_N; ++i) {
		if (!is_pending(&kv->kept[i]))
			continue;
		--kv->n_pending;
		if (try_store(kv, i) < 0 || !kv->kept[i].wanted)
			continue;
		name_of(i, name);
		fa_log(FA_LOG_INFO, "%s is kept now", name);
	}
}

uint32_t fa_kv_unpersisted_chunks(const struct fa_kv *kv, uint32_t chunks)
{
	uint32_t n = 0;

	if (!kv->context->fd_store.add)
		return 0;
	if (kv->kept[FA_KV_PERSIST_STATE].fd >= 0 || kv->kept[FA_KV_PERSIST_SESSIONS].fd >= 0)
		return chunks;
	for (uint32_t i = 0; i < FA_KV_CHUNKS_MAX; ++i)
		n += kv->kept[i].wanted && !kv->kept[i].stored;
	return n;
}

void fa_kv_persist_deinit(struct fa_kv *kv)
{
	fa_kv_persist_retry(kv);
	for (uint32_t i = 0; i < FA_KV_PERSIST_N; ++i)
		fa_close_fdp(&kv->kept[i].fd);
	kv->n_pending = 0;
}

struct taken {
	int fds[FA_KV_PERSIST_N];
};

static void take_all(struct fa_kv *kv, struct taken *taken)
{
	const struct fa_fd_store_ops *fd_store = &kv->context->fd_store;
	char name[NAME_BYTES];
	int fd;

	for (uint32_t i = 0; i < FA_KV_PERSIST_N; ++i) {
		taken->fds[i] = -1;
		if (!fd_store->take)
			continue;
		name_of(i, name);
		taken->fds[i] = fd_store->take(fd_store->userdata, name);
		if (taken->fds[i] < 0)
			continue;
		kv->kept[i].wanted = kv->kept[i].stored = true;
		++kv->n_stored;
		while ((fd = fd_store->take(fd_store->userdata, name)) >= 0)
			close(fd);
	}
}

static void close_all(struct taken *taken)
{
	for (uint32_t i = 0; i < FA_KV_PERSIST_N; ++i)
		fa_close_fdp(&taken->fds[i]);
}

static void drop_all(struct fa_kv *kv)
{
	for (uint32_t i = 0; i < FA_KV_PERSIST_N; ++i)
		if (kv->kept[i].stored)
			fa_kv_persist_remove(kv, i);
}

static void report(struct fa_pool_report *report)
{
	for (size_t i = 0; i < report->n_lines; ++i)
		fa_log(FA_LOG_WARNING, "the persisted KV pool: %s", report->lines[i]);
	if (report->n_found > report->n_lines)
		fa_log(FA_LOG_WARNING, "the persisted KV pool: %zu more of these",
		       report->n_found - report->n_lines);
	fa_pool_report_deinit(report);
}

static bool has_chunk(void *userdata, uint32_t chunk)
{
	const struct taken *taken = userdata;

	return chunk < FA_KV_CHUNKS_MAX && taken->fds[chunk] >= 0;
}

static int adopt_memory(struct fa_kv *kv, const struct taken *taken, struct fa_error *error)
{
	const struct fa_context *context = kv->context;
	int r;

	r = context->ops->pool_open(context->device, fa_pool_chunk_bytes(kv->pool),
	                            fa_pool_max_chunks(kv->pool), error, &kv->base);
	/* Nothing was read yet, so another process may succeed. */
	if (r < 0)
		return r == -ENOTSUP ? r : -EAGAIN;
	for (uint32_t i = 0; i < fa_pool_max_chunks(kv->pool) && r == 0; ++i)
		if (fa_pool_chunk_state(kv->pool, i) != FA_CHUNK_ABSENT)
			r = context->ops->pool_chunk_adopt(context->device, i, taken->fds[i],
			                                   error);
	if (r < 0) {
		context->ops->pool_close(context->device);
		return r;
	}
	/* The daemon died while it added or removed chunks unknown to the state. */
	for (uint32_t i = 0; i < FA_KV_CHUNKS_MAX; ++i)
		if (kv->kept[i].stored && fa_pool_chunk_state(kv->pool, i) == FA_CHUNK_ABSENT)
			fa_kv_persist_remove(kv, i);
	return 0;
}

static int recover_pool(struct fa_kv *kv, struct taken *taken, struct fa_error *error)
{
	struct fa_pool_report found = {};
	int r;

	if (!kv->context->ops->pool_open)
		return fa_fail(error, -ENOTSUP, "the backend %s has no pool",
		               kv->context->info.backend);
	r = fa_pool_open_partial(taken->fds[FA_KV_PERSIST_STATE], has_chunk, taken, &found, error,
	                         &kv->pool);
	report(&found);
	if (r < 0)
		return r;
	r = adopt_memory(kv, taken, error);
	if (r < 0) {
		kv->pool = fa_pool_free(kv->pool);
		return r;
	}
	/* The dead process's work may run on for a while. */
	kv->quarantine_ns = kv->context->started_ns + kv->context->info.linger_ns;
	return 0;
}

static int recover_all(struct fa_kv *kv, const struct fa_session_store_device *device,
                       struct taken *taken, struct fa_error *error)
{
	int r;

	if (taken->fds[FA_KV_PERSIST_SESSIONS] < 0)
		return fa_fail(error, -ENOENT, "the sessions were not kept");
	r = fa_session_store_open(taken->fds[FA_KV_PERSIST_SESSIONS], device, error,
	                          &kv->session_store);
	if (r < 0)
		return r;
	if (taken->fds[FA_KV_PERSIST_STATE] < 0)
		return fa_fail(error, -ENOENT, "its state was not kept");
	return recover_pool(kv, taken, error);
}

/* With backend `auto` the CPU may stand in for a lost GPU that has this pool. */
static bool gpu_may_return(const struct fa_context *context)
{
	const char *backend = context->config.backend;

	return (!backend || !strcmp(backend, "auto")) && !strcmp(context->info.backend, "cpu");
}

/* True if no daemon can use the pool after @r. Other errors may pass, and must not destroy data. */
static bool is_unusable(int r)
{
	return r == -EBADMSG || r == -EPROTONOSUPPORT || r == -ESTALE || r == -ENOENT ||
	       r == -EINVAL || r == -ENOTSUP;
}

int fa_kv_recover(struct fa_kv *kv, const struct fa_session_store_device *device,
                  struct fa_error *error)
{
	_fa_cleanup_(close_all) struct taken taken;
	struct fa_error why = {};
	bool device_may_return;
	int r;

	take_all(kv, &taken);
	if (taken.fds[FA_KV_PERSIST_STATE] < 0 && taken.fds[FA_KV_PERSIST_SESSIONS] < 0) {
		drop_all(kv);
		return -ENOENT;
	}
	r = recover_all(kv, device, &taken, &why);
	if (r == 0)
		return 0;
	fa_session_store_close(&kv->session_store);
	device_may_return = fa_context_device_lost(kv->context) ||
	                    (r == -ESTALE && gpu_may_return(kv->context));
	if (device_may_return)
		return fa_fail(error, -EAGAIN, "the persisted KV pool waits for its device: %.200s",
		               why.text);
	if (!is_unusable(r))
		return fa_fail(error, -EAGAIN,
		               "the persisted KV pool cannot be recovered now, and is kept for the "
		               "next start: %.160s",
		               why.text);
	drop_all(kv);
	*error = why;
	return r;
}
