#include "daemon/service/status.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/text.h"
#include "daemon/service/server.h"
#include "daemon/service/status_kv.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void json_freep(json_t **json)
{
	json_decref(*json);
}

/* Constant keys need no check of UTF-8, which takes time. */
static int set(json_t *object, const char *key, uint64_t number)
{
	return json_object_set_new_nocheck(object, key, json_integer((json_int_t)number));
}

static int set_text(json_t *object, const char *key, const char *text)
{
	char clean[1024];

	fa_text_clean(text, strlen(text), clean, sizeof(clean));
	return json_object_set_new(object, key, json_string(clean));
}

int fa_status_set_cgroup(json_t *object, const char *cgroup)
{
	char escaped[3 * FA_CGROUP_BYTES];

	fa_text_escape(cgroup, strlen(cgroup), escaped, sizeof(escaped));
	return json_object_set_new(object, "cgroup", json_string(escaped));
}

/* Like jansson's, these functions return -1 without memory. */

static int add_times(json_t *object, const char *key, const char *sum_key,
                     const struct fa_usage_times *times)
{
	json_t *list = json_array();
	unsigned int n = FA_USAGE_LATENCY_BUCKETS;
	int r = 0;

	/* Omits trailing zeros. */
	while (n && !times->n[n - 1])
		--n;
	for (unsigned int i = 0; i < n; ++i)
		r |= json_array_append_new(list, json_integer((json_int_t)times->n[i]));
	r |= set(object, sum_key, times->sum_ns);
	return r | json_object_set_new_nocheck(object, key, list);
}

static int add_sums(json_t *object, const struct fa_usage *usage)
{
	int r = 0;

	r |= set(object, "finished", usage->finished);
	r |= set(object, "failed", usage->failed);
	r |= set(object, "cancelled", usage->cancelled);
	return r | set(object, "busy_ns", usage->busy_ns);
}

static int add_waits(json_t *object, const struct fa_usage *usage)
{
	return add_times(object, "took", "took_ns", &usage->took) |
	       add_times(object, "waited", "waited_ns", &usage->waited);
}

/* Adds counters of which the engine has no totals. */
static int add_times_and_prefixes(json_t *object, const struct fa_usage *usage)
{
	int r = 0;

	r |= add_waits(object, usage);
	r |= add_times(object, "ran", "ran_ns", &usage->ran);
	r |= set(object, "prefix_lookups", usage->prefix_lookups);
	r |= set(object, "prefix_hits", usage->prefix_hits);
	r |= set(object, "prefix_tokens", usage->prefix_tokens);
	return r | set(object, "prefix_matched", usage->prefix_matched);
}

static int add_usage(json_t *object, const struct fa_usage *usage)
{
	return add_sums(object, usage) | add_times_and_prefixes(object, usage);
}

static void row_take(struct fa_status_row *row, struct fa_session *session)
{
	fa_session_release_received(session);
	row->id = session->id;
	memcpy(row->name, session->name, sizeof(row->name));
	row->pid = session->peer.pid;
	row->uid = session->peer.uid;
	/* The text fits, as a peer's cgroup is no longer. */
	(void)snprintf(row->cgroup, sizeof(row->cgroup), "%s", session->tenant->cgroup);
	row->state = session->state;
	row->buffers = session->buffers.n_used;
	row->buffer_bytes = session->buffer_bytes;
	row->device_buffers = session->n_device_buffers;
	row->timeline = session->timeline != NULL;
	row->streams = session->n_streams;
	row->requests = session->n_requests;
	row->steps = session->kv.n_steps;
	row->prefixes = session->n_prefixes;
	row->has_ring = fa_ring_status(session, &row->ring);
	row->out_messages = session->outbox.n_messages;
	row->out_bytes = session->outbox.bytes;
	row->messages = session->n_messages;
	row->errors = session->n_errors;
	row->usage = session->usage;
}

static int add_row(json_t *sessions, const struct fa_status_row *row)
{
	static const char *const states[] = { "connected", "ready", "closing" };
	json_t *object = json_object();
	int r = 0;

	r |= set(object, "session", row->id);
	r |= set_text(object, "name", row->name);
	r |= set(object, "pid", (uint64_t)row->pid);
	r |= set(object, "uid", row->uid);
	r |= fa_status_set_cgroup(object, row->cgroup);
	r |= set_text(object, "state", states[row->state]);
	r |= set(object, "buffers", row->buffers);
	r |= set(object, "buffer_bytes", row->buffer_bytes);
	r |= set(object, "gpu_buffers", row->device_buffers);
	r |= json_object_set_new(object, "timeline", json_boolean(row->timeline));
	r |= set(object, "streams", row->streams);
	r |= set(object, "requests", row->requests);
	r |= set(object, "steps", row->steps);
	r |= set(object, "shared_prefixes", row->prefixes);
	if (row->has_ring) {
		r |= set(object, "ring_bytes", row->ring.bytes);
		r |= set(object, "ring_requests", row->ring.requests);
		r |= set(object, "ring_doorbells", row->ring.doorbells);
		r |= json_object_set_new(object, "ring_asleep", json_boolean(!row->ring.polled));
	}
	r |= set(object, "out_messages", row->out_messages);
	r |= set(object, "out_bytes", row->out_bytes);
	r |= set(object, "messages", row->messages);
	r |= set(object, "errors", row->errors);
	/* Sessions may be many; tenants have the rest. */
	r |= add_sums(object, &row->usage);
	r |= add_waits(object, &row->usage);
	return r | json_array_append_new(sessions, object);
}

static int add_tenant(json_t *tenants, const struct fa_tenant *tenant)
{
	const struct fa_limits *limits = tenant->tenants->limits;
	json_t *object = json_object(), *bounds = json_object();
	int r = 0;

	r |= set(object, "uid", tenant->uid);
	r |= fa_status_set_cgroup(object, tenant->cgroup);
	for (unsigned int i = 0; i < _FA_RESOURCE_N; ++i) {
		r |= set(object, fa_resource_name(i), tenant->used[i]);
		r |= set(bounds, fa_resource_name(i), limits->tenant[i]);
	}
	r |= json_object_set_new(object, "limits", bounds);
	r |= add_usage(object, &tenant->usage);
	return r | json_array_append_new(tenants, object);
}

/* Adds all but the viewer's tenant. Those without sessions are last. */
static int add_tenants(json_t *tenants, const struct fa_session *viewer, unsigned int *n)
{
	const struct fa_tenants *all = &viewer->context->tenants;
	const struct fa_list *lists[] = { &all->tenants, &all->gone };
	struct fa_list *pos;
	int r = 0;

	for (size_t i = 0; i < 2; ++i)
		fa_list_for_each(pos, lists[i]) {
			struct fa_tenant *tenant = fa_container_of(pos, struct fa_tenant, link);

			if (tenant == viewer->tenant)
				continue;
			if (*n < FA_STATUS_LISTED_MAX)
				r |= add_tenant(tenants, tenant);
			++*n;
		}
	return r;
}

static int add_limits(json_t *object, const struct fa_limits *limits)
{
	json_t *bounds = json_object();
	int r = 0;

	r |= set(bounds, "connections", limits->connections);
	r |= set(bounds, "all_buffer_bytes", limits->all_buffer_bytes);
	r |= set(bounds, "uid_factor", limits->uid_factor);
	r |= set(bounds, "session_buffers", limits->session_buffers);
	r |= set(bounds, "session_streams", limits->session_streams);
	r |= set(bounds, "session_requests", limits->session_requests);
	r |= set(bounds, "session_out_bytes", limits->session_out_bytes);
	r |= set(bounds, "session_steps", limits->session_steps);
	r |= set(bounds, "pool_bytes", limits->pool_bytes);
	r |= set(bounds, "sequences", limits->sequences);
	r |= set(bounds, "caches", limits->caches);
	return r | json_object_set_new(object, "limits", bounds);
}

static int add_requests(json_t *object, struct fa_engine *engine, const struct fa_session *viewer)
{
	const struct fa_tenant *own = viewer->tenant;
	json_t *requests = json_object();
	struct fa_engine_stats stats;
	struct fa_usage usage;
	int r = 0;

	if (!viewer->observer) {
		r |= set(requests, "submitted",
		         own->usage.finished + own->used[FA_RESOURCE_REQUESTS]);
		r |= add_usage(requests, &own->usage);
		return r | json_object_set_new(object, "requests", requests);
	}
	fa_engine_stats(engine, &stats);
	r |= set(requests, "submitted", stats.submitted);
	r |= set(requests, "launched", stats.launched);
	r |= set(requests, "finished", stats.finished);
	r |= set(requests, "failed", stats.failed);
	r |= set(requests, "cancelled", stats.cancelled);
	r |= set(requests, "busy_ns", stats.busy_ns);
	fa_tenants_usage(&viewer->context->tenants, &usage);
	r |= set(requests, "client_finished", usage.finished);
	r |= set(requests, "client_failed", usage.failed);
	r |= set(requests, "client_cancelled", usage.cancelled);
	r |= set(requests, "client_busy_ns", usage.busy_ns);
	r |= add_times_and_prefixes(requests, &usage);
	return r | json_object_set_new(object, "requests", requests);
}

static int add_daemon(json_t *object, struct fa_server *server)
{
	static const char *const mps[] = {
		[FA_DEVICE_MPS_OFF] = "off",
		[FA_DEVICE_MPS_ON] = "on",
		[FA_DEVICE_MPS_UNKNOWN] = "unknown",
	};
	int r = 0;

	r |= set_text(object, "version", FAD_VERSION);
	r |= set(object, "pid", (uint64_t)getpid());
	r |= set(object, "uid", server->context.uid);
	r |= set(object, "generation", server->context.generation);
	r |= set(object, "uptime_ns", fa_now_ns() - server->context.started_ns);
	r |= json_object_set_new(object, "draining",
	                         json_boolean(server->context.state != FA_DAEMON_RUNNING));
	r |= set_text(object, "backend", server->context.info.backend);
	r |= set_text(object, "device", server->context.info.name);
	r |= set_text(object, "details", server->context.info.details);
	r |= set(object, "gpu_modules", fa_device_cuda_modules());
	if (server->gpu_unused.text[0])
		r |= set_text(object, "gpu_unused", server->gpu_unused.text);
	if (server->context.info.mps != FA_DEVICE_MPS_NONE)
		r |= set_text(object, "mps", mps[server->context.info.mps]);
	r |= set(object, "memory_bytes", server->context.config.limits.memory_bytes);
	r |= set(object, "threads", server->context.info.threads);
	return r;
}

/* Only observers see totals. */
static int add_totals(json_t *object, struct fa_server *server)
{
	int r = 0;

	r |= set(object, "connections_total", server->accept.n_connections);
	r |= set(object, "connections_refused", server->accept.n_rejected);
	r |= set(object, "charges_refused", server->context.tenants.n_refused);
	r |= set(object, "buffers", server->context.importer.n_buffers);
	r |= set(object, "buffers_max", server->context.importer.buffers_max);
	r |= set(object, "rings", server->context.rings.n_rings);
	r |= set(object, "rings_polled", server->context.rings.n_polled);
	r |= set(object, "ring_requests", server->context.rings.n_requests);
	r |= set(object, "ring_doorbells", server->context.rings.n_doorbells);
	return r;
}

/* Takes rows of the viewer and the oldest others. Returns how many it may see. */
static unsigned int take_rows(struct fa_status *status, struct fa_session *viewer)
{
	struct fa_list *pos;
	unsigned int n = 1;

	row_take(&status->rows[status->n_rows++], viewer);
	fa_list_for_each(pos, &viewer->context->sessions) {
		struct fa_session *session = fa_container_of(pos, struct fa_session, link);

		if (session == viewer || (!viewer->observer && session->tenant != viewer->tenant))
			continue;
		if (status->n_rows < status->max_rows)
			row_take(&status->rows[status->n_rows++], session);
		++n;
	}
	return n;
}

static json_t *describe(struct fa_status *status, struct fa_session *viewer)
{
	_fa_cleanup_(json_freep) json_t *object = json_object();
	struct fa_server *server = fa_server_of(viewer->context);
	const unsigned int n_sessions = take_rows(status, viewer);
	unsigned int n_tenants = 1; /* the viewer's is listed */
	json_t *tenants = json_array();
	int r = 0;

	r |= add_daemon(object, server);
	if (viewer->observer)
		r |= add_totals(object, server);
	r |= add_requests(object, server->context.engine, viewer);
	r |= add_limits(object, &server->context.config.limits);
	r |= add_tenant(tenants, viewer->tenant);
	if (viewer->observer)
		r |= add_tenants(tenants, viewer, &n_tenants);
	r |= fa_kv_status(object, viewer);
	r |= set(object, "connections", viewer->observer ? server->context.n_sessions : n_sessions);
	r |= set(object, "sessions_total", n_sessions);
	r |= set(object, "tenants_total", n_tenants);
	r |= json_object_set_new(object, "tenants", tenants);
	return r ? NULL : fa_steal_ptr(object);
}

static void status_freep(struct fa_status **status)
{
	*status = fa_status_free(*status);
}

int fa_status_new(struct fa_session *viewer, struct fa_status **ret_status)
{
	_fa_cleanup_(status_freep) struct fa_status *status = NULL;
	const unsigned int n = viewer->context->n_sessions;
	const unsigned int max = n < FA_STATUS_LISTED_MAX ? n : FA_STATUS_LISTED_MAX;

	status = calloc(1, sizeof(*status) + max * sizeof(status->rows[0]));
	if (!status)
		return -ENOMEM;
	status->max_rows = max;
	status->object = describe(status, viewer);
	if (!status->object)
		return -ENOMEM;
	*ret_status = fa_steal_ptr(status);
	return 0;
}

struct fa_status *fa_status_free(struct fa_status *status)
{
	if (!status)
		return NULL;
	json_decref(status->object);
	free(status);
	return NULL;
}

static char *text_of(struct fa_status *status)
{
	json_t *sessions = json_array();
	int r = 0;

	for (unsigned int i = 0; i < status->n_rows; ++i)
		r |= add_row(sessions, &status->rows[i]);
	r |= json_object_set_new(status->object, "sessions", sessions);
	return r ? NULL : json_dumps(status->object, JSON_COMPACT);
}

int fa_status_write(struct fa_status *status, int *ret_fd, size_t *ret_bytes)
{
	_fa_cleanup_(fa_freep) char *text = text_of(status);
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	size_t length, done = 0;
	ssize_t n;

	if (!text)
		return -ENOMEM;
	length = strlen(text);

	fd = memfd_create("fad-status", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	while (done < length) {
		n = pwrite(fd, text + done, length - done, (off_t)done);
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	*ret_fd = fa_steal_fd(&fd);
	*ret_bytes = length;
	return 0;
}
