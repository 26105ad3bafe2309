#include "tools/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Buckets of "took": entry 0 is up to 2^10 ns, the last has no bound. */
#define TOOK_LOG2 10
#define TOOK_N 25

enum type {
	GAUGE,
	COUNTER,
};

/* A number of the status. If the name ends in _seconds, the status has it in nanoseconds. */
struct metric {
	const char *name; /* without the suffix _total */
	enum type type;
	const char *key;
	const char *help;  /* NULL: one more sample of the metric above */
	const char *state; /* label of this sample; NULL: the only one */
};

static const struct metric daemon_metrics[] = {
	{ "fad_uptime_seconds", GAUGE, "uptime_ns", "How long the daemon has run." },
	{ "fad_start_time_seconds", GAUGE, "generation", "When the daemon started, in Unix time." },
	{ "fad_draining", GAUGE, "draining", "1 while the daemon finishes its requests to exit." },
	{ "fad_threads", GAUGE, "threads", "Compute threads of the backend." },
	{ "fad_memory_bytes", GAUGE, "memory_bytes",
	  "Memory of the machine or, if less, of the cgroup." },
	{ "fad_connections", GAUGE, "connections", "Connected clients." },
	{ "fad_connections_accepted", COUNTER, "connections_total", "Accepted connections." },
	{ "fad_connections_refused", COUNTER, "connections_refused", "Refused connections." },
	{ "fad_charges_refused", COUNTER, "charges_refused",
	  "Refusals because a limit would have been exceeded." },
	{ "fad_buffers", GAUGE, "buffers", "Buffers of all clients." },
	{ "fad_buffers_max", GAUGE, "buffers_max", "Limit for the buffers of all clients." },
	{ "fad_rings", GAUGE, "rings", "Clients that send requests by ring." },
	{ "fad_rings_polled", GAUGE, "rings_polled", "Rings that the daemon polls now." },
	{ "fad_ring_requests", COUNTER, "ring_requests", "Messages received by ring." },
	{ "fad_ring_doorbells", COUNTER, "ring_doorbells", "Wake-ups of the daemon by clients." },
	{ "fad_sessions_seen", GAUGE, "sessions_total", "Sessions that this user may see." },
	{ "fad_tenants_seen", GAUGE, "tenants_total",
	  "Tenants that this user may see; at most 128 are listed." },
};

static const struct metric request_metrics[] = {
	{ "fad_requests_submitted", COUNTER, "submitted",
	  "Requests received, and the daemon's own." },
	{ "fad_requests_launched", COUNTER, "launched", "Requests launched on the device." },
	{ "fad_requests_finished", COUNTER, "finished", "Requests that ended, with any result." },
	{ "fad_requests_failed", COUNTER, "failed", "Requests that ended with an error." },
	{ "fad_requests_cancelled", COUNTER, "cancelled", "Cancelled requests." },
	{ "fad_busy_seconds", COUNTER, "busy_ns",
	  "Device time of requests; concurrent requests add up." },
	{ "fad_prefix_lookups", COUNTER, "prefix_lookups", "Prefixes that clients looked for." },
	{ "fad_prefix_hits", COUNTER, "prefix_hits", "Of these, found at least in part." },
	{ "fad_prefix_tokens", COUNTER, "prefix_tokens", "Tokens of prefixes looked for." },
	{ "fad_prefix_tokens_matched", COUNTER, "prefix_matched", "Of these, found." },
};

/* Times of requests: lists of counts by powers of two. */
struct histogram {
	const char *name;        /* of all clients */
	const char *tenant_name; /* of each tenant */
	const char *key, *sum_key;
	const char *help;
};

static const struct histogram histograms[] = {
	{ "fad_request_seconds", "fad_tenant_request_seconds", "took", "took_ns",
	  "From when a request came until the device had done it." },
	{ "fad_request_wait_seconds", "fad_tenant_request_wait_seconds", "waited", "waited_ns",
	  "From when a request came until the device began with it." },
	{ "fad_request_run_seconds", "fad_tenant_request_run_seconds", "ran", "ran_ns",
	  "From when the device began with a request until it had done it." },
};

static const struct metric pool_metrics[] = {
	{ "fad_pool_chunk_bytes", GAUGE, "chunk_bytes", "Size of a chunk of the KV pool." },
	{ "fad_pool_chunks_max", GAUGE, "chunks_max", "Limit for the chunks of the pool." },
	{ "fad_pool_chunks", GAUGE, "chunks", "Chunks that have memory." },
	{ "fad_pool_chunks_free", GAUGE, "chunks_free",
	  "Chunks with memory that belong to no cache." },
	{ "fad_pool_chunks_unkept", GAUGE, "chunks_unkept",
	  "Chunks that do not survive the daemon." },
	{ "fad_pool_bytes", GAUGE, "used_bytes",
	  "Memory of pages: used by sequences and steps, or idle (only published).", "used" },
	{ "fad_pool_bytes", GAUGE, "idle_bytes", NULL, "idle" },
	{ "fad_pool_pages", GAUGE, "used_pages", "Pages of all caches.", "used" },
	{ "fad_pool_pages", GAUGE, "idle_pages", NULL, "idle" },
	{ "fad_pool_pages", GAUGE, "free_pages", NULL, "free" },
	{ "fad_pool_pages_shared", GAUGE, "shared_pages",
	  "Used pages that are in several sequences or steps." },
	{ "fad_pool_pages_quarantined", GAUGE, "quarantined_pages",
	  "Freed pages that a kernel may still write to." },
	{ "fad_pool_pages_evicted", COUNTER, "evicted_pages",
	  "Published pages evicted to make room." },
	{ "fad_pool_caches", GAUGE, "caches", "Caches." },
	{ "fad_pool_sequences", GAUGE, "sequences", "Sequences." },
	{ "fad_pool_steps", GAUGE, "steps", "Steps in flight." },
	{ "fad_pool_sessions_awaited", GAUGE, "sessions_awaited",
	  "Sessions of an earlier daemon that may still reconnect." },
};

/* A tenant's limits have the same keys. */
static const struct metric tenant_metrics[] = {
	{ "fad_tenant_sessions", GAUGE, "sessions", "Sessions of a tenant." },
	{ "fad_tenant_buffers", GAUGE, "buffers", "Buffers of a tenant." },
	{ "fad_tenant_buffer_bytes", GAUGE, "buffer_bytes", "Host memory of a tenant's buffers." },
	{ "fad_tenant_device_bytes", GAUGE, "device_bytes",
	  "Device memory of a tenant's buffers." },
	{ "fad_tenant_pieces", GAUGE, "pieces", "Allocations of buffers that consist of several." },
	{ "fad_tenant_fds", GAUGE, "fds", "File descriptors that the daemon holds for a tenant." },
	{ "fad_tenant_requests_in_flight", GAUGE, "requests", "Requests that have not ended." },
	{ "fad_tenant_step_bytes", GAUGE, "step_bytes", "Memory of a tenant's steps in flight." },
	{ "fad_tenant_gates", GAUGE, "gates", "Waits and signals of requests in flight." },
	{ "fad_tenant_timelines", GAUGE, "timelines", "Timelines of a tenant." },
};

static const struct metric done_metrics[] = {
	{ "fad_tenant_requests_finished", COUNTER, "finished",
	  "Requests of a tenant that ended, with any result." },
	{ "fad_tenant_requests_failed", COUNTER, "failed",
	  "Requests of a tenant that ended with an error." },
	{ "fad_tenant_requests_cancelled", COUNTER, "cancelled",
	  "Cancelled requests of a tenant." },
	{ "fad_tenant_busy_seconds", COUNTER, "busy_ns",
	  "Device time of a tenant's requests; concurrent requests add up." },
	{ "fad_tenant_prefix_lookups", COUNTER, "prefix_lookups",
	  "Prefixes that a tenant looked for." },
	{ "fad_tenant_prefix_hits", COUNTER, "prefix_hits", "Of these, found at least in part." },
	{ "fad_tenant_prefix_tokens", COUNTER, "prefix_tokens",
	  "Tokens of prefixes that a tenant looked for." },
	{ "fad_tenant_prefix_tokens_matched", COUNTER, "prefix_matched", "Of these, found." },
};

static const struct metric pool_tenant_metrics[] = {
	{ "fad_pool_tenant_bytes", GAUGE, "used_bytes", "Memory of a tenant's pages.", "used" },
	{ "fad_pool_tenant_bytes", GAUGE, "idle_bytes", NULL, "idle" },
	{ "fad_pool_tenant_caches", GAUGE, "caches", "Caches of a tenant." },
	{ "fad_pool_tenant_sequences", GAUGE, "sequences", "Sequences of a tenant." },
};

static const struct metric pool_limit_metrics[] = {
	{ "fad_limit_pool_tenant_bytes", GAUGE, "pool_bytes",
	  "Limit for the memory of a tenant's pages." },
	{ "fad_limit_pool_tenant_caches", GAUGE, "caches", "Limit for the caches of a tenant." },
	{ "fad_limit_pool_tenant_sequences", GAUGE, "sequences",
	  "Limit for the sequences of a tenant." },
	{ "fad_limit_connections", GAUGE, "connections", "Limit for connected clients." },
};

#define N(array) (sizeof(array) / sizeof((array)[0]))

/* ---- output */

struct output {
	FILE *file;
	bool prometheus; /* fa_metrics_format.prometheus */
};

static bool ends_in(const char *name, const char *end)
{
	return strlen(name) >= strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0;
}

static bool is_time(const char *name)
{
	return ends_in(name, "_seconds");
}

/* The older format has no units, and types belong to samples' names. */
static void print_head(const char *name, const char *type, const char *help,
                       const struct output *output)
{
	const char *suffix = output->prometheus && strcmp(type, "counter") == 0 ? "_total" : "";

	fprintf(output->file, "# TYPE %s%s %s\n", name, suffix, type);
	if (!output->prometheus && (is_time(name) || ends_in(name, "_bytes")))
		fprintf(output->file, "# UNIT %s %s\n", name, is_time(name) ? "seconds" : "bytes");
	fprintf(output->file, "# HELP %s%s %s\n", name, suffix, help);
}

static void print_escaped(const char *text, FILE *file)
{
	for (; *text; ++text) {
		if (*text == '\n')
			fputs("\\n", file);
		else if (*text == '\\' || *text == '"')
			fprintf(file, "\\%c", *text);
		else
			fputc(*text, file);
	}
}

static void print_label(const char *name, const char *value, char *separator, FILE *file)
{
	fprintf(file, "%c%s=\"", *separator, name);
	print_escaped(value, file);
	fputc('"', file);
	*separator = ',';
}

/* NULL: the whole daemon, which has none. */
static void print_tenant(const json_t *tenant, char *separator, FILE *file)
{
	const char *cgroup = json_string_value(json_object_get(tenant, "cgroup"));
	char uid[24] = "other";

	if (!tenant)
		return;
	if (json_object_get(tenant, "uid"))
		snprintf(uid, sizeof(uid), "%lld",
		         (long long)json_integer_value(json_object_get(tenant, "uid")));
	print_label("uid", uid, separator, file);
	print_label("cgroup", cgroup ? cgroup : "", separator, file);
}

static void print_name(const char *name, const char *suffix, const json_t *tenant,
                       const char *label, const char *value, FILE *file)
{
	char separator = '{';

	fprintf(file, "%s%s", name, suffix);
	print_tenant(tenant, &separator, file);
	if (label)
		print_label(label, value, &separator, file);
	if (separator == ',')
		fputc('}', file);
	fputc(' ', file);
}

static bool is_number(const json_t *value)
{
	return json_is_integer(value) || json_is_boolean(value);
}

static uint64_t number_of(const json_t *value)
{
	return json_is_boolean(value) ? json_is_true(value) : (uint64_t)json_integer_value(value);
}

static void print_count(uint64_t n, FILE *file)
{
	fprintf(file, "%llu\n", (unsigned long long)n);
}

static void print_seconds(uint64_t ns, FILE *file)
{
	fprintf(file, "%llu.%09llu\n", (unsigned long long)(ns / 1000000000),
	        (unsigned long long)(ns % 1000000000));
}

static void print_sample(const struct metric *metric, const json_t *object, const json_t *tenant,
                         FILE *file)
{
	const json_t *value = json_object_get(object, metric->key);

	if (!is_number(value))
		return;
	print_name(metric->name, metric->type == COUNTER ? "_total" : "", tenant,
	           metric->state ? "state" : NULL, metric->state, file);
	if (is_time(metric->name))
		print_seconds(number_of(value), file);
	else
		print_count(number_of(value), file);
}

static void print_metric_head(const struct metric *metric, const struct output *output)
{
	if (metric->help)
		print_head(metric->name, metric->type == COUNTER ? "counter" : "gauge",
		           metric->help, output);
}

/* A limit of INT64_MAX or more is none. */
static void print_metrics(const struct metric *metrics, size_t n, const json_t *object,
                          const struct output *output)
{
	for (size_t i = 0; i < n; ++i) {
		const json_t *value = json_object_get(object, metrics[i].key);

		if (!is_number(value) || number_of(value) >= INT64_MAX)
			continue;
		print_metric_head(&metrics[i], output);
		print_sample(&metrics[i], object, NULL, output->file);
	}
}

/* The format wants a metric's samples together. */
static void print_by_tenant(const struct metric *metrics, size_t n, const json_t *tenants,
                            const struct output *output)
{
	json_t *tenant;
	size_t at;

	for (size_t first = 0, end; first < n; first = end) {
		for (end = first + 1; end < n && !metrics[end].help;)
			++end;
		print_metric_head(&metrics[first], output);
		json_array_foreach(tenants, at, tenant)
		{
			for (size_t i = first; i < end; ++i)
				print_sample(&metrics[i], tenant, tenant, output->file);
		}
	}
}

/* All tenants have the same limits. */
static void print_limits(const json_t *tenants, const struct output *output)
{
	const json_t *limits = json_object_get(json_array_get(tenants, 0), "limits");
	char name[64];

	for (size_t i = 0; i < N(tenant_metrics); ++i) {
		const struct metric metric = { .name = name,
			                       .type = GAUGE,
			                       .key = tenant_metrics[i].key,
			                       .help = "What a tenant may have of that." };

		snprintf(name, sizeof(name), "fad_limit_%s",
		         tenant_metrics[i].name + strlen("fad_"));
		print_metrics(&metric, 1, limits, output);
	}
}

static void print_times(const struct histogram *histogram, const json_t *object,
                        const json_t *tenant, FILE *file)
{
	const char *name = tenant ? histogram->tenant_name : histogram->name;
	const json_t *counts = json_object_get(object, histogram->key);
	uint64_t n = 0;
	char le[32];

	if (!json_is_array(counts))
		return;
	for (size_t i = 0; i < TOOK_N; ++i) {
		n += number_of(json_array_get(counts, i));
		snprintf(le, sizeof(le), "%.12g", (double)(1ull << (TOOK_LOG2 + i)) / 1e9);
		print_name(name, "_bucket", tenant, "le", i + 1 < TOOK_N ? le : "+Inf", file);
		print_count(n, file);
	}
	print_name(name, "_count", tenant, NULL, NULL, file);
	print_count(n, file);
	print_name(name, "_sum", tenant, NULL, NULL, file);
	print_seconds(number_of(json_object_get(object, histogram->sum_key)), file);
}

static void print_histograms(const json_t *requests, const json_t *tenants,
                             const struct output *output)
{
	json_t *tenant;
	size_t at;

	for (size_t i = 0; i < N(histograms); ++i) {
		const struct histogram *histogram = &histograms[i];

		if (json_object_get(requests, histogram->key)) {
			print_head(histogram->name, "histogram", histogram->help, output);
			print_times(histogram, requests, NULL, output->file);
		}
		if (!tenants)
			continue;
		print_head(histogram->tenant_name, "histogram", histogram->help, output);
		json_array_foreach(tenants, at, tenant)
		{
			print_times(histogram, tenant, tenant, output->file);
		}
	}
}

/* The reason is a text, for factl status. */
static void print_gpu_unused(const json_t *root, const struct output *output)
{
	print_head("fad_gpu_unused", "gauge",
	           "1 if the CPU computes although there seems to be a GPU.", output);
	fprintf(output->file, "fad_gpu_unused %d\n", json_object_get(root, "gpu_unused") != NULL);
}

static void print_build(const json_t *root, const struct output *output)
{
	static const char *const labels[] = { "version", "backend", "device", "mps" };
	char separator = '{';

	/* A gauge: the older text format has no type info. */
	print_head("fad_build_info", "gauge", "Version, backend and device of the daemon.", output);
	fputs("fad_build_info", output->file);
	for (size_t i = 0; i < N(labels); ++i) {
		const char *value = json_string_value(json_object_get(root, labels[i]));

		if (value)
			print_label(labels[i], value, &separator, output->file);
	}
	fputs(separator == ',' ? "} 1\n" : " 1\n", output->file);
}

/* @tenants: NULL: only totals. */
static void print_all(const json_t *root, const json_t *tenants, const struct output *output)
{
	const json_t *requests = json_object_get(root, "requests");
	const json_t *pool = json_object_get(root, "pool");

	print_build(root, output);
	print_gpu_unused(root, output);
	print_metrics(daemon_metrics, N(daemon_metrics), root, output);
	print_metrics(request_metrics, N(request_metrics), requests, output);
	print_limits(json_object_get(root, "tenants"), output);
	print_metrics(pool_limit_metrics, N(pool_limit_metrics), json_object_get(root, "limits"),
	              output);
	if (tenants) {
		print_by_tenant(tenant_metrics, N(tenant_metrics), tenants, output);
		print_by_tenant(done_metrics, N(done_metrics), tenants, output);
	}
	print_histograms(requests, tenants, output);
	/* Only administrators see chunks. */
	if (json_object_get(pool, "chunks"))
		print_metrics(pool_metrics, N(pool_metrics), pool, output);
	if (tenants)
		print_by_tenant(pool_tenant_metrics, N(pool_tenant_metrics),
		                json_object_get(pool, "tenants"), output);
}

int fa_metrics_print_status(const json_t *status, const struct fa_metrics_format *format,
                            FILE *file)
{
	const struct output output = { .file = file, .prometheus = format->prometheus };
	const json_t *tenants = json_object_get(status, "tenants");

	if ((status || !format->tells_up) &&
	    (!json_is_object(json_object_get(status, "requests")) || !json_is_array(tenants)))
		return -EINVAL;
	if (format->tells_up) {
		print_head("fad_up", "gauge", "1 if the daemon answers.", &output);
		fprintf(file, "fad_up %d\n", status != NULL);
	}
	if (status)
		print_all(status, format->totals_only ? NULL : tenants, &output);
	if (!format->prometheus)
		fputs("# EOF\n", file);
	return 0;
}

int fa_metrics_print(const char *json, const struct fa_metrics_format *format, FILE *file)
{
	json_t *root = json_loads(json, 0, NULL);
	int r = root ? fa_metrics_print_status(root, format, file) : -EINVAL;

	json_decref(root);
	return r;
}
