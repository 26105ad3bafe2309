#include "daemon/kv_keep.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/kv.h"
#include "daemon/server.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_NAME "fad-pool-%" PRIu32
#define NAME_BYTES 32

/* ---- storing */

void fa_kv_keep(struct fa_kv *kv, const char *name, int fd)
{
	int r;

	if (!kv->keeper.store)
		return;
	r = kv->keeper.store(kv->keeper.userdata, name, fd);
	if (r < 0)
		fa_log(FA_LOG_WARNING,
		       "%s cannot be kept, and the pool is lost with this process: %s", name,
		       strerror(-r));
}

static void forget(struct fa_kv *kv, const char *name)
{
	if (kv->keeper.forget)
		kv->keeper.forget(kv->keeper.userdata, name);
}

void fa_kv_keep_chunk(struct fa_kv *kv, uint32_t chunk, int fd)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), CHUNK_NAME, chunk);
	fa_kv_keep(kv, name, fd);
}

void fa_kv_forget_chunk(struct fa_kv *kv, uint32_t chunk)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), CHUNK_NAME, chunk);
	forget(kv, name);
}

/* ---- taking back */

static int take(struct fa_kv *kv, const char *name)
{
	return kv->keeper.take ? kv->keeper.take(kv->keeper.userdata, name) : -1;
}

static int take_chunk(struct fa_kv *kv, uint32_t chunk)
{
	char name[NAME_BYTES];

	snprintf(name, sizeof(name), CHUNK_NAME, chunk);
	return take(kv, name);
}

/* Each name is taken, whatever is there, so that no memory stays. */
static void drop_all(struct fa_kv *kv)
{
	int fd;

	for (uint32_t i = 0; i < FA_POOL_BYTES_MAX / FA_POOL_CHUNK_BYTES_DEFAULT; ++i) {
		bool found = false;

		while ((fd = take_chunk(kv, i)) >= 0) {
			close(fd);
			found = true;
		}
		if (found)
			fa_kv_forget_chunk(kv, i);
	}
	forget(kv, FA_KV_KEEP_STATE);
	forget(kv, FA_KV_KEEP_SESSIONS);
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

/* One that the state does not know was on its way in, or out, when the daemon died. */
static int adopt_chunk(struct fa_kv *kv, uint32_t chunk, struct fa_error *error)
{
	const struct fa_server *server = kv->server;
	_fa_cleanup_(fa_close_fdp) int fd = take_chunk(kv, chunk);

	if (fa_pool_chunk_state(kv->pool, chunk) == FA_CHUNK_ABSENT) {
		if (fd >= 0)
			fa_kv_forget_chunk(kv, chunk);
		return 0;
	}
	if (fd < 0)
		return fa_fail(error, -ENOENT, "the memory of chunk %" PRIu32 " was not kept",
		               chunk);
	return server->ops->pool_chunk_adopt(server->device, chunk, fd, error);
}

static int adopt_memory(struct fa_kv *kv, struct fa_error *error)
{
	const struct fa_server *server = kv->server;
	int r;

	r = server->ops->pool_open(server->device, fa_pool_chunk_bytes(kv->pool),
	                           fa_pool_max_chunks(kv->pool), error, &kv->base);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < fa_pool_max_chunks(kv->pool) && r == 0; ++i)
		r = adopt_chunk(kv, i, error);
	if (r == 0)
		return 0;
	server->ops->pool_close(server->device);
	/* It says nothing of what is kept. */
	if (fa_kv_device_lost(server))
		return -EAGAIN;
	/* Those that were taken, drop_all() does not find; and what stayed would be taken for
	 * the memory of the next pool. */
	for (uint32_t i = 0; i < fa_pool_max_chunks(kv->pool); ++i)
		if (fa_pool_chunk_state(kv->pool, i) != FA_CHUNK_ABSENT)
			fa_kv_forget_chunk(kv, i);
	return r;
}

static int take_state(struct fa_kv *kv, int fd, struct fa_error *error)
{
	struct fa_pool_report found = {};
	int r;

	if (!kv->server->ops->pool_open)
		return fa_fail(error, -ENOTSUP, "the backend %s has no pool",
		               kv->server->info.backend);
	r = fa_pool_open(fd, &found, error, &kv->pool);
	report(&found);
	if (r < 0)
		return r;
	r = adopt_memory(kv, error);
	if (r < 0) {
		kv->pool = fa_pool_free(kv->pool);
		return r;
	}
	/* The process that wrote to it was dead before this one was started; what computed for
	 * it may not be. */
	kv->quarantine_ns = kv->server->started_ns + kv->server->info.linger_ns;
	fa_kv_quarantine_end(kv);
	return 0;
}

/* What was kept is a GPU's, and the daemon would take any: it was there, and may be again. */
static bool may_be_back(const struct fa_server *server)
{
	const char *backend = server->config.backend;

	return (!backend || !strcmp(backend, "auto")) && !strcmp(server->info.backend, "cpu");
}

int fa_kv_recover(struct fa_kv *kv, struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int state = take(kv, FA_KV_KEEP_STATE);
	_fa_cleanup_(fa_close_fdp) int sessions = take(kv, FA_KV_KEEP_SESSIONS);
	struct fa_resume_device device;
	int r;

	if (state < 0 && sessions < 0) {
		drop_all(kv);
		return -ENOENT;
	}
	fa_kv_device(kv->server, &device);
	r = sessions >= 0 ? fa_resume_open(sessions, &device, error, &kv->resume)
	                  : fa_fail(error, -ENOENT, "the sessions were not kept");
	if (r == -ESTALE && may_be_back(kv->server))
		r = -EAGAIN;
	if (r == 0 && state < 0)
		r = fa_fail(error, -ENOENT, "its state was not kept");
	if (r == 0)
		r = take_state(kv, state, error);
	if (r < 0) {
		fa_resume_close(&kv->resume);
		if (r != -EAGAIN)
			drop_all(kv);
	}
	return r;
}
