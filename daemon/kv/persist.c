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
/* Of the descriptors that clients may have, as many more may wait for the fd store. */
#define WAITING_PART 8

static void name_of(uint32_t what, char ret_name[NAME_BYTES])
{
	if (what == FA_KV_KEEP_STATE)
		snprintf(ret_name, NAME_BYTES, "fad-pool-state");
	else if (what == FA_KV_KEEP_SESSIONS)
		snprintf(ret_name, NAME_BYTES, "fad-sessions");
	else
		snprintf(ret_name, NAME_BYTES, "fad-pool-%" PRIu32, what);
}

/* ---- storing */

void fa_kv_keep_init(struct fa_kv *kv)
{
	for (uint32_t i = 0; i < FA_KV_KEEP_N; ++i)
		kv->kept[i].fd = -1;
}

/* The fd store is to be told of it. */
static bool is_late(const struct fa_kv_kept *kept)
{
	return kept->fd >= 0 || (kept->stored && !kept->wanted);
}

bool fa_kv_is_stale(const struct fa_kv *kv, uint32_t what)
{
	return kv->kept[what].stored && !kv->kept[what].wanted;
}

static int tell(struct fa_kv *kv, uint32_t what)
{
	const struct fa_fd_store_ops *fd_store = &kv->context->fd_store;
	struct fa_kv_kept *kept = &kv->kept[what];
	char name[NAME_BYTES];
	int r;

	if (!fd_store->add)
		return 0;
	name_of(what, name);
	/* What was of that name before goes first: of two, the next daemon would take either. */
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

/* Tells it now, or is late. */
static int attempt(struct fa_kv *kv, uint32_t what)
{
	struct fa_kv_kept *kept = &kv->kept[what];
	int r = tell(kv, what);

	/* Nobody waits for what was told. */
	if (r == 0)
		fa_close_fdp(&kept->fd);
	kv->n_late += is_late(kept);
	return r;
}

/* Descriptors that wait are there for nobody else; all that there are could be chunks'. */
static bool may_wait(const struct fa_kv *kv, uint32_t what)
{
	const uint64_t all_fds = kv->context->config.limits.all_fds;
	uint64_t n = 0;

	if (what >= FA_KV_CHUNKS_MAX || !all_fds)
		return true;
	for (uint32_t i = 0; i < FA_KV_CHUNKS_MAX; ++i)
		n += kv->kept[i].fd >= 0;
	return n <= all_fds / WAITING_PART;
}

void fa_kv_keep(struct fa_kv *kv, uint32_t what, int fd)
{
	struct fa_kv_kept *kept = &kv->kept[what];
	char name[NAME_BYTES];
	int r;

	kv->n_late -= is_late(kept);
	fa_close_fdp(&kept->fd);
	kept->wanted = true;
	kept->fd = fd;
	r = attempt(kv, what);
	if (r == 0)
		return;
	name_of(what, name);
	if (!may_wait(kv, what)) {
		kv->n_late -= is_late(kept);
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

void fa_kv_forget(struct fa_kv *kv, uint32_t what)
{
	struct fa_kv_kept *kept = &kv->kept[what];

	kv->n_late -= is_late(kept);
	fa_close_fdp(&kept->fd);
	kept->wanted = false;
	(void)attempt(kv, what);
}

void fa_kv_keep_again(struct fa_kv *kv)
{
	char name[NAME_BYTES];

	for (uint32_t i = 0; kv->n_late && i < FA_KV_KEEP_N; ++i) {
		if (!is_late(&kv->kept[i]))
			continue;
		--kv->n_late;
		if (attempt(kv, i) < 0 || !kv->kept[i].wanted)
			continue;
		name_of(i, name);
		fa_log(FA_LOG_INFO, "%s is kept now", name);
	}
}

uint32_t fa_kv_unkept_chunks(const struct fa_kv *kv, uint32_t chunks)
{
	uint32_t n = 0;

	if (!kv->context->fd_store.add)
		return 0;
	if (kv->kept[FA_KV_KEEP_STATE].fd >= 0 || kv->kept[FA_KV_KEEP_SESSIONS].fd >= 0)
		return chunks;
	for (uint32_t i = 0; i < FA_KV_CHUNKS_MAX; ++i)
		n += kv->kept[i].wanted && !kv->kept[i].stored;
	return n;
}

void fa_kv_keep_deinit(struct fa_kv *kv)
{
	fa_kv_keep_again(kv);
	for (uint32_t i = 0; i < FA_KV_KEEP_N; ++i)
		fa_close_fdp(&kv->kept[i].fd);
	kv->n_late = 0;
}

/* ---- taking back */

/* What was handed over of an earlier pool. */
struct taken {
	int fds[FA_KV_KEEP_N];
};

/* Each name is taken, whatever is there. */
static void take_all(struct fa_kv *kv, struct taken *taken)
{
	const struct fa_fd_store_ops *fd_store = &kv->context->fd_store;
	char name[NAME_BYTES];
	int fd;

	for (uint32_t i = 0; i < FA_KV_KEEP_N; ++i) {
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
	for (uint32_t i = 0; i < FA_KV_KEEP_N; ++i)
		fa_close_fdp(&taken->fds[i]);
}

/* So that no memory stays, nor is taken for that of the next pool. */
static void drop_all(struct fa_kv *kv)
{
	for (uint32_t i = 0; i < FA_KV_KEEP_N; ++i)
		if (kv->kept[i].stored)
			fa_kv_forget(kv, i);
}

static void report(struct fa_pool_report *report)
{
	for (size_t i = 0; i < report->n_lines; ++i)
		fa_log(FA_LOG_WARNING, "the pool that was kept: %s", report->lines[i]);
	if (report->n_found > report->n_lines)
		fa_log(FA_LOG_WARNING, "the pool that was kept: %zu more of that",
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
	/* It has not seen anything of what is kept. */
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
	/* Those that the state does not know were on their way in, or out, when the daemon died. */
	for (uint32_t i = 0; i < FA_KV_CHUNKS_MAX; ++i)
		if (kv->kept[i].stored && fa_pool_chunk_state(kv->pool, i) == FA_CHUNK_ABSENT)
			fa_kv_forget(kv, i);
	return 0;
}

static int take_state(struct fa_kv *kv, struct taken *taken, struct fa_error *error)
{
	struct fa_pool_report found = {};
	int r;

	if (!kv->context->ops->pool_open)
		return fa_fail(error, -ENOTSUP, "the backend %s has no pool",
		               kv->context->info.backend);
	r = fa_pool_open_partial(taken->fds[FA_KV_KEEP_STATE], has_chunk, taken, &found, error,
	                         &kv->pool);
	report(&found);
	if (r < 0)
		return r;
	r = adopt_memory(kv, taken, error);
	if (r < 0) {
		kv->pool = fa_pool_free(kv->pool);
		return r;
	}
	/* The process that wrote to it was dead before this one was started; what computed for
	 * it may not be. */
	kv->quarantine_ns = kv->context->started_ns + kv->context->info.linger_ns;
	fa_kv_quarantine_end(kv);
	return 0;
}

static int take_back(struct fa_kv *kv, struct taken *taken, struct fa_error *error)
{
	struct fa_session_store_device device;
	int r;

	fa_kv_device(kv->context, &device);
	if (taken->fds[FA_KV_KEEP_SESSIONS] < 0)
		return fa_fail(error, -ENOENT, "the sessions were not kept");
	r = fa_session_store_open(taken->fds[FA_KV_KEEP_SESSIONS], &device, error,
	                          &kv->session_store);
	if (r < 0)
		return r;
	if (taken->fds[FA_KV_KEEP_STATE] < 0)
		return fa_fail(error, -ENOENT, "its state was not kept");
	return take_state(kv, taken, error);
}

/* What was kept is a GPU's, and the daemon would take any: it was there, and may be again. */
static bool may_be_back(const struct fa_context *context)
{
	const char *backend = context->config.backend;

	return (!backend || !strcmp(backend, "auto")) && !strcmp(context->info.backend, "cpu");
}

/* Whether @r says of what was kept that nobody can use it: damaged, another version or device,
 * no state. All other errors may pass, and it is not theirs to destroy. */
static bool is_unusable(int r)
{
	return r == -EBADMSG || r == -EPROTONOSUPPORT || r == -ESTALE || r == -ENOENT ||
	       r == -EINVAL || r == -ENOTSUP;
}

int fa_kv_recover(struct fa_kv *kv, struct fa_error *error)
{
	_fa_cleanup_(close_all) struct taken taken;
	struct fa_error why = {};
	bool waits;
	int r;

	take_all(kv, &taken);
	if (taken.fds[FA_KV_KEEP_STATE] < 0 && taken.fds[FA_KV_KEEP_SESSIONS] < 0) {
		drop_all(kv);
		return -ENOENT;
	}
	r = take_back(kv, &taken, &why);
	if (r == 0)
		return 0;
	fa_session_store_close(&kv->session_store);
	waits = fa_context_device_lost(kv->context) || (r == -ESTALE && may_be_back(kv->context));
	if (waits)
		return fa_fail(error, -EAGAIN,
		               "the pool that was kept waits for its device: %.200s", why.text);
	if (!is_unusable(r))
		return fa_fail(
			error, -EAGAIN,
			"the pool that was kept cannot be taken back now, and stays kept for "
			"the next start: %.160s",
			why.text);
	drop_all(kv);
	*error = why;
	return r;
}
