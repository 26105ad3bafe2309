#include "daemon/service/server.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/kv/sessions.h"
#include "daemon/requests/buffer.h"
#include "daemon/service/dispatch.h"
#include "daemon/service/drain.h"
#include "daemon/session/completions.h"
#include "daemon/session/session.h"
#include "daemon/session/timeline.h"

#include <assert.h>
#include <errno.h>
#include <pwd.h>
#include <string.h>
#include <sys/resource.h>

/* With exit_when_idle the daemon waits so long for its first client. */
#define FIRST_CLIENT_MS 30000

/* ---- hooks of sessions (session/context.h) */

static void on_session_ready(struct fa_session *session)
{
	struct fa_server *server = fa_server_of(session->context);

	server->had_client = true;
	fa_list_remove(&session->hello_link);
	if (fa_list_empty(&server->context.hello_pending))
		fa_accept_update_hello_timer(server);
}

static void on_session_closing(struct fa_session *session)
{
	fa_hold_forget(session);
	fa_kv_session_close(session);
	fa_registration_abort(session, -ECANCELED, "the session is over");
}

static void exit_if_idle(struct fa_server *server)
{
	if (!server->context.exit_when_idle || !server->had_client || server->context.n_sessions ||
	    server->context.state != FA_DAEMON_RUNNING || server->kv.session_store.n_lost)
		return;
	/* A connection may be waiting. */
	fa_accept_poll(server);
	if (server->context.n_sessions)
		return;
	fa_log(FA_LOG_INFO, "the last client has gone");
	fa_drain_start(server);
}

static void on_session_freed(struct fa_context *context)
{
	struct fa_server *server = fa_server_of(context);

	fa_accept_refill_reserve(server);
	exit_if_idle(server);
	fa_drain_advance(server);
}

static void on_drain_progress(struct fa_context *context)
{
	fa_drain_advance(fa_server_of(context));
}

static void on_idle(struct fa_context *context)
{
	exit_if_idle(fa_server_of(context));
}

static void on_device_lost(struct fa_context *context)
{
	struct fa_server *server = fa_server_of(context);

	fa_outbox_flush_all(context);
	if (server->lost)
		server->lost(server->userdata);
	fa_drain_lost(server);
}

static const struct fa_context_hooks hooks = {
	.packet = fa_dispatch,
	.ring_entry = fa_dispatch_ring,
	.session_ready = on_session_ready,
	.session_closing = on_session_closing,
	.session_ended = fa_kv_session_end,
	.session_freed = on_session_freed,
	.drain_progress = on_drain_progress,
	.idle = on_idle,
	.device_lost = on_device_lost,
};

static void on_idle_timeout(uv_timer_t *timer)
{
	struct fa_server *server = timer->data;

	if (server->had_client || server->context.state != FA_DAEMON_RUNNING)
		return;
	if (server->context.n_sessions) {
		uv_timer_start(timer, on_idle_timeout, FIRST_CLIENT_MS, 0);
		return;
	}
	fa_log(FA_LOG_INFO, "no client came");
	fa_drain_start(server);
}

static void on_engine(uv_async_t *async)
{
	struct fa_server *server = async->data;

	(void)fa_completions_poll(&server->context);
	fa_completions_arm(&server->context);
}

static void on_released(struct fa_importer *importer)
{
	fa_drain_advance(fa_container_of(importer, struct fa_server, context.importer));
}

/* Sessions are freed later, so the list stays valid. */
static void on_reaper(uv_async_t *async)
{
	struct fa_server *server = async->data;
	struct fa_list *pos;
	bool again;

	if (!server->context.reaper)
		return;
	again = fa_fd_reaper_collect(server->context.reaper);
	fa_accept_refill_reserve(server);
	if (!again)
		return;
	fa_list_for_each(pos, &server->context.sessions) {
		struct fa_session *session = fa_container_of(pos, struct fa_session, link);

		if ((session->paused & FA_PAUSE_REJECTED) &&
		    fa_tenant_reaper_queue(session->tenant)->n_rejected <=
		            FA_FD_REAPER_REJECTED_SOFT_MAX)
			fa_session_resume(session, FA_PAUSE_REJECTED);
	}
}

/* Any thread. */
static void wake_reaper(void *userdata)
{
	struct fa_server *server = userdata;

	uv_async_send(&server->reaper_async);
}

/* The device's threads call it, once the engine exists. */
static void wake_engine(void *userdata)
{
	struct fa_server *server = userdata;

	fa_engine_wake(server->context.engine);
}

/* 0: no limit. */
static uint64_t fds_max(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY
	               ? 0
	               : limit.rlim_cur;
}

static int open_device(struct fa_server *server, uint64_t timelines_max, struct fa_error *error)
{
	struct fa_device_config config = {
		.threads = server->context.config.threads,
		.device = server->context.config.device,
		.notify = wake_engine,
		.userdata = server,
	};
	int r;

	r = fa_device_open(server->context.config.backend, &config, error, &server->context.ops,
	                   &server->context.device);
	if (r < 0)
		return r;
	if (r > 0) {
		server->gpu_unused = *error;
		fa_log(FA_LOG_WARNING,
		       "the CPU computes, though there seems to be a GPU: %s (with backend = cuda "
		       "fad would not start)",
		       error->text);
	} else if (error->text[0]) {
		fa_log(FA_LOG_INFO, "no GPU is used: %s", error->text);
	}
	server->context.ops->describe(server->context.device, &server->context.info);
	fa_config_resolve(&server->context.config, server->context.info.memory_bytes, timelines_max,
	                  fds_max(), server->context.exit_when_idle);

	r = fa_engine_new(server->context.ops, fa_completions_notify, &server->context,
	                  &server->context.engine);
	if (r == 0)
		r = fa_engine_start(server->context.engine, server->context.device);
	if (r == 0)
		fa_engine_watch_fd(server->context.engine, server->context.rings.doorbell_epoll);
	return r < 0 ? fa_fail(error, r, "the engine cannot be started: %s", strerror(-r)) : 0;
}

static void teardown(struct fa_server *server)
{
	server->context.engine = fa_engine_free(server->context.engine);
	fa_timelines_close(&server->context);
	fa_kv_close(&server->context);
	if (server->context.device)
		server->context.device = server->context.ops->close(server->context.device);
	server->context.reaper = fa_fd_reaper_free(server->context.reaper);
	fa_listener_close(&server->listener);
	fa_close_fdp(&server->accept.reserve_fd);
}

static void init_timer(struct fa_server *server, uv_timer_t *timer)
{
	(void)uv_timer_init(server->context.loop, timer);
	timer->data = server;
}

/* Makes the handles that live as long as the server. After a failure call close_handles(). */
static int init_handles(struct fa_server *server)
{
	int r;

	fa_accept_init(server);
	fa_hold_init(server);
	init_timer(server, &server->drain_timer);
	init_timer(server, &server->idle_timer);
	r = uv_async_init(server->context.loop, &server->context.engine_async, on_engine);
	server->context.engine_async.data = server;
	if (r == 0)
		r = uv_async_init(server->context.loop, &server->reaper_async, on_reaper);
	if (r == 0)
		r = fa_rings_init(&server->context.rings, &server->context);
	fa_loop_spin_init(&server->context.spin, server->context.loop);
	fa_turns_init(&server->context.turns, &server->context);
	server->reaper_async.data = server;
	return r;
}

static void close_handles(struct fa_server *server)
{
	uv_handle_t *handles[] = {
		(uv_handle_t *)&server->accept.timer,
		(uv_handle_t *)&server->accept.hello_timer,
		(uv_handle_t *)&server->hold.timer,
		(uv_handle_t *)&server->drain_timer,
		(uv_handle_t *)&server->idle_timer,
		(uv_handle_t *)&server->context.engine_async,
		(uv_handle_t *)&server->reaper_async,
		(uv_handle_t *)&server->context.spin.idle,
		(uv_handle_t *)&server->context.turns.prepare,
		(uv_handle_t *)&server->context.turns.idle,
		(uv_handle_t *)&server->context.turns.timer,
		(uv_handle_t *)&server->context.rings.idle,
		(uv_handle_t *)&server->context.rings.poll,
	};

	for (size_t i = 0; i < sizeof(handles) / sizeof(*handles); ++i)
		if (handles[i]->type != UV_UNKNOWN_HANDLE && !uv_is_closing(handles[i]))
			uv_close(handles[i], NULL);
	fa_rings_deinit(&server->context.rings);
}

static struct fa_server *server_new(const struct fa_server_options *options)
{
	struct fa_server *server;
	struct timespec now;

	server = fa_new(struct fa_server);
	if (!server)
		return NULL;
	clock_gettime(CLOCK_REALTIME, &now);
	server->context.hooks = &hooks;
	server->context.loop = options->loop;
	server->context.kv = &server->kv;
	server->context.fd_store = options->fd_store;
	server->context.exit_when_idle = options->exit_when_idle;
	server->draining = options->draining;
	server->stopped = options->stopped;
	server->lost = options->lost;
	server->userdata = options->userdata;
	server->context.uid = geteuid();
	server->context.generation = (uint64_t)now.tv_sec * FA_NS_PER_SEC + (uint64_t)now.tv_nsec;
	server->context.started_ns = fa_now_ns();
	server->listener = FA_LISTENER_NULL;
	server->accept.reserve_fd = -1;
	server->context.rings.doorbell_epoll = -1;
	atomic_init(&server->context.asleep, 1);
	fa_list_init(&server->context.sessions);
	fa_list_init(&server->context.device_sessions);
	fa_list_init(&server->context.hello_pending);
	fa_list_init(&server->context.reapable);
	fa_list_init(&server->context.timelines_ended);
	fa_tenants_init(&server->context.tenants, &server->context.config.limits);
	fa_block_cache_init(&server->context.request_cache, FA_REQUEST_CACHED_BYTES);
	return server;
}

/* The default observer need not exist. A private daemon has none. */
static int find_observer(const struct fa_config *config, bool private, struct fa_error *error,
                         uid_t *ret_uid)
{
	const struct passwd *user;

	*ret_uid = (uid_t)-1;
	if (!config->observer || private)
		return 0;
	errno = 0;
	user = getpwnam(config->observer);
	if (user)
		*ret_uid = user->pw_uid;
	else if (strcmp(config->observer, FA_CONFIG_OBSERVER) != 0)
		return fa_fail(error, errno ? -errno : -EINVAL, "there is no user called \"%s\"",
		               config->observer);
	return 0;
}

int fa_server_new(const struct fa_server_options *options, struct fa_error *error,
                  struct fa_server **ret_server)
{
	struct fa_server *server;
	int r;

	server = server_new(options);
	if (!server)
		return fa_fail(error, -ENOMEM, "no memory for the server");
	/* The daemon that would have signalled these is dead, even if this start fails. */
	fa_timeline_recover(&options->fd_store);
	/* The caller owns the configuration until the server is complete. */
	server->context.config = *options->config;
	r = find_observer(&server->context.config, options->exit_when_idle, error,
	                  &server->context.observer_uid);
	if (r < 0)
		goto fail;

	if (options->listen_fd >= 0 && options->listen_fd_kept)
		r = fa_listener_retake(options->listen_fd, error, &server->listener);
	else if (options->listen_fd >= 0)
		r = fa_listener_take(options->listen_fd, options->unlink_listen_fd, error,
		                     &server->listener);
	else
		r = fa_listener_open(&server->context.config, error, &server->listener);
	if (r < 0)
		goto fail;
	r = fa_fd_reaper_new(wake_reaper, server, &server->context.reaper);
	if (r < 0) {
		fa_fail(error, r, "no thread can be started: %s", strerror(-r));
		goto fail;
	}
	r = options->filter_fds ? fa_fd_reaper_start_filter(server->context.reaper) : 0;
	if (r < 0)
		fa_log(FA_LOG_WARNING,
		       "no process receives clients' descriptors (%s): a file that cannot be "
		       "closed "
		       "will delay a restart",
		       strerror(-r));
	fa_accept_refill_reserve(server);
	r = init_handles(server);
	if (r < 0) {
		fa_fail(error, r, "the event loop cannot be used: %s", uv_strerror(r));
		goto fail;
	}
	r = open_device(server, options->fd_store.timelines_max, error);
	if (r < 0)
		goto fail;
	fa_importer_init(&server->context.importer, server->context.loop, server->context.ops,
	                 server->context.device, server->context.reaper, fa_registration_imported,
	                 on_released);
	server->context.config.limits.all_buffers = server->context.importer.buffers_max;
	r = fa_kv_open(&server->context, error);
	if (r < 0) {
		/* Keeps the path, where clients wait for the next process. */
		if (options->listen_fd_kept)
			server->listener.owns_path = false;
		goto fail;
	}
	r = fa_accept_start(server, error);
	if (r < 0)
		goto fail;
	if (server->context.exit_when_idle)
		uv_timer_start(&server->idle_timer, on_idle_timeout, FIRST_CLIENT_MS, 0);

	*options->config = (struct fa_config){}; /* consumed */
	*ret_server = server;
	return 0;
fail:
	teardown(server);
	close_handles(server);
	(void)uv_run(server->context.loop, UV_RUN_DEFAULT);
	fa_block_cache_deinit(&server->context.request_cache);
	fa_tenants_deinit(&server->context.tenants);
	free(server);
	return r;
}

void fa_server_finish(struct fa_server *server)
{
	teardown(server);
	close_handles(server);
	server->stopped(server->userdata);
}

struct fa_server *fa_server_free(struct fa_server *server)
{
	if (!server)
		return NULL;
	assert(server->context.state == FA_DAEMON_STOPPED);
	fa_block_cache_deinit(&server->context.request_cache);
	fa_tenants_deinit(&server->context.tenants);
	fa_config_deinit(&server->context.config);
	free(server);
	return NULL;
}

static bool same_text(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") == 0;
}

void fa_server_reload(struct fa_server *server, struct fa_config *config)
{
	struct fa_config *old = &server->context.config;

	if (!same_text(old->socket, config->socket) || old->mode != config->mode ||
	    !same_text(old->group, config->group) || !same_text(old->observer, config->observer) ||
	    !same_text(old->backend, config->backend) || !same_text(old->device, config->device) ||
	    old->threads != config->threads || old->pool_grace_s != config->pool_grace_s)
		fa_log(FA_LOG_WARNING, "socket, mode, group, observer, backend, device, threads "
		                       "and grace_s change with the next start only");
	fa_config_resolve(config, server->context.info.memory_bytes,
	                  server->context.fd_store.timelines_max, fds_max(),
	                  server->context.exit_when_idle);
	old->limits = config->limits;
	old->limits.all_buffers = server->context.importer.buffers_max;
	if (old->pool_bytes != config->pool_bytes || old->pool_percent != config->pool_percent ||
	    old->pool_chunk_bytes != config->pool_chunk_bytes) {
		old->pool_bytes = config->pool_bytes;
		old->pool_percent = config->pool_percent;
		fa_kv_resize(&server->context, config->pool_chunk_bytes);
		old->pool_chunk_bytes = config->pool_chunk_bytes;
	}
	old->drain_timeout_ms = config->drain_timeout_ms;
	old->spin_us = config->spin_us;
	old->spin_step_us = config->spin_step_us;
	old->log = config->log;
	old->log_level = config->log_level;
	fa_log_set(old->log, old->log_level);
	fa_config_deinit(config);
}
