#include "tools/status.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static long long number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	return value ? value : "-";
}

/* As "12.5 MiB", into @text. */
static const char *bytes(long long n, char text[16])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)n;
	unsigned int unit = 0;

	while (value >= 1024 && unit < 6) {
		value /= 1024;
		unit++;
	}
	snprintf(text, 16, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return text;
}

static const char *duration(long long ns, char text[32])
{
	long long s = ns / 1000000000;

	if (s < 60)
		snprintf(text, 32, "%.1f s", (double)ns / 1e9);
	else if (s < 86400)
		snprintf(text, 32, "%lld h %lld min", s / 3600, s / 60 % 60);
	else
		snprintf(text, 32, "%lld d %lld h", s / 86400, s / 3600 % 24);
	return text;
}

/* Columns: whether the daemon polls the ring, requests by ring, doorbells. */
static void print_ring(const json_t *session, FILE *file)
{
	const json_t *asleep = json_object_get(session, "ring_asleep");

	/* Older daemons do not report this. */
	if (!json_object_get(session, "ring_bytes"))
		fprintf(file, " %6s %10s %9s", "-", "-", "-");
	else
		fprintf(file, " %6s %10lld %9lld",
		        !asleep                ? "yes"
		        : json_is_true(asleep) ? "asleep"
		                               : "polled",
		        number(session, "ring_requests"), number(session, "ring_doorbells"));
}

/* Finished, failed, share of device time; "-" for an older daemon. */
static void print_done(const json_t *root, const json_t *object, FILE *file)
{
	const long long all_ns = number(json_object_get(root, "requests"), "busy_ns");
	char share[16] = "-";

	if (!json_object_get(object, "finished")) {
		fprintf(file, " %10s %7s %6s", "-", "-", "-");
		return;
	}
	if (all_ns > 0)
		snprintf(share, sizeof(share), "%.1f%%",
		         100 * (double)number(object, "busy_ns") / (double)all_ns);
	fprintf(file, " %10lld %7lld %6s", number(object, "finished"), number(object, "failed"),
	        share);
}

static void print_sessions(const json_t *root, FILE *file)
{
	const json_t *sessions = json_object_get(root, "sessions");
	char size[16];
	json_t *session;
	size_t i;

	fprintf(file, "\n%8s %8s %6s %8s %10s %8s %9s %6s %10s %9s %10s %7s %6s  %s\n", "session",
	        "pid", "uid", "buffers", "memory", "streams", "in flight", "ring", "by ring",
	        "doorbells", "finished", "failed", "busy", "name");
	json_array_foreach(sessions, i, session)
	{
		fprintf(file, "%8lld %8lld %6lld %8lld %10s %8lld %9lld",
		        number(session, "session"), number(session, "pid"), number(session, "uid"),
		        number(session, "buffers"), bytes(number(session, "buffer_bytes"), size),
		        number(session, "streams"), number(session, "requests"));
		print_ring(session, file);
		print_done(root, session, file);
		fprintf(file, "  %s\n", string(session, "name"));
	}
}

/* "3/1024": usage and limit, if there is one. */
static void print_use(const json_t *object, const char *key, const json_t *limits,
                      const char *limit_key, int width, FILE *file)
{
	const json_t *limit = json_object_get(limits, limit_key);
	const long long most = json_integer_value(limit), used = number(object, key);
	const bool sizes = strstr(key, "bytes"), bound = limit && most >= 0 && most < INT64_MAX;
	char use[48], texts[2][16];

	if (sizes)
		snprintf(use, sizeof(use), "%s%s%s", bytes(used, texts[0]), bound ? "/" : "",
		         bound ? bytes(most, texts[1]) : "");
	else if (bound)
		snprintf(use, sizeof(use), "%lld/%lld", used, most);
	else
		snprintf(use, sizeof(use), "%lld", used);
	fprintf(file, " %*s", width, use);
}

static void print_tenants(const json_t *root, FILE *file)
{
	static const struct {
		const char *key, *title;
		int width;
	} columns[] = {
		{ "sessions", "sessions", 10 },
		{ "buffers", "buffers", 12 },
		{ "buffer_bytes", "memory", 20 },
		{ "device_bytes", "GPU memory", 20 },
		{ "fds", "fds", 10 },
		{ "requests", "in flight", 12 },
		{ "step_bytes", "steps' memory", 18 },
		{ "gates", "gates", 8 },
	};
	const json_t *tenants = json_object_get(root, "tenants");
	json_t *tenant;
	size_t i;

	fprintf(file, "\n%8s", "uid");
	for (i = 0; i < sizeof(columns) / sizeof(columns[0]); ++i)
		fprintf(file, " %*s", columns[i].width, columns[i].title);
	fprintf(file, " %10s %7s %6s  %s\n", "finished", "failed", "busy", "cgroup");
	json_array_foreach(tenants, i, tenant)
	{
		const json_t *limits = json_object_get(tenant, "limits");

		fprintf(file, "%8lld", number(tenant, "uid"));
		for (size_t j = 0; j < sizeof(columns) / sizeof(columns[0]); ++j)
			print_use(tenant, columns[j].key, limits, columns[j].key, columns[j].width,
			          file);
		print_done(root, tenant, file);
		fprintf(file, "  %s\n", string(tenant, "cgroup"));
	}
}

/* Connected or not. */
static void print_pool_tenants(const json_t *root, FILE *file)
{
	const json_t *tenants = json_object_get(json_object_get(root, "pool"), "tenants");
	const json_t *limits = json_object_get(root, "limits");
	json_t *tenant;
	char idle[16];
	size_t i;

	fprintf(file, "\n%8s %20s %12s %8s %14s  %s\n", "uid", "in use", "idle", "caches",
	        "sequences", "cgroup, of the pool");
	json_array_foreach(tenants, i, tenant)
	{
		fprintf(file, "%8lld", number(tenant, "uid"));
		print_use(tenant, "used_bytes", limits, "pool_bytes", 20, file);
		fprintf(file, " %12s", bytes(number(tenant, "idle_bytes"), idle));
		print_use(tenant, "caches", limits, "caches", 8, file);
		print_use(tenant, "sequences", limits, "sequences", 14, file);
		fprintf(file, "  %s\n", string(tenant, "cgroup"));
	}
}

static void print_pool(const json_t *pool, FILE *file)
{
	char size[16], used[16], idle[16];

	bytes(number(pool, "chunk_bytes"), size);
	bytes(number(pool, "used_bytes"), used);
	bytes(number(pool, "idle_bytes"), idle);
	/* Only administrators see the whole pool; others see their own part. */
	if (!json_object_get(pool, "chunks")) {
		fprintf(file, "pool      at most %lld chunks of %s\n", number(pool, "chunks_max"),
		        size);
		fprintf(file,
		        "          yours: %lld caches, %lld sequences; %s in use, %s published "
		        "alone\n",
		        number(pool, "caches"), number(pool, "sequences"), used, idle);
		return;
	}
	fprintf(file,
	        "pool      %lld of %lld chunks of %s, %lld free; %s in use, %s published alone\n",
	        number(pool, "chunks"), number(pool, "chunks_max"), size,
	        number(pool, "chunks_free"), used, idle);
	fprintf(file, "          %lld caches, %lld sequences, %lld steps in flight\n",
	        number(pool, "caches"), number(pool, "sequences"), number(pool, "steps"));
	if (number(pool, "chunks_unkept") > 0)
		fprintf(file,
		        "          warning: %lld chunks cannot be kept; what is in them does not "
		        "outlive\n          the daemon (its log says why)\n",
		        number(pool, "chunks_unkept"));
}

static void print_caches(const json_t *caches, FILE *file)
{
	json_t *cache;
	char size[16];
	size_t i;

	fprintf(file, "\n%12s %6s %8s %6s %9s %10s %9s %9s  %s\n", "cache", "uid", "session",
	        "layers", "sequences", "page", "in use", "idle", "name");
	json_array_foreach(caches, i, cache)
	{
		fprintf(file, "%12llx %6lld %8lld %6lld %9lld %10s %9lld %9lld  %s\n",
		        number(cache, "cache"), number(cache, "uid"), number(cache, "session"),
		        number(cache, "layers"), number(cache, "sequences"),
		        bytes(number(cache, "page_bytes"), size), number(cache, "used_pages"),
		        number(cache, "idle_pages"), string(cache, "name"));
	}
}

static void print_sequences(const json_t *sequences, FILE *file)
{
	json_t *sequence;
	size_t i;

	fprintf(file, "\n%12s %12s %6s %8s %9s %9s %6s  %s\n", "sequence", "cache", "uid",
	        "session", "tokens", "planned", "steps", "name");
	json_array_foreach(sequences, i, sequence)
	{
		fprintf(file, "%12llx %12llx %6lld %8lld %9lld %9lld %6lld  %s\n",
		        number(sequence, "sequence"), number(sequence, "cache"),
		        number(sequence, "uid"), number(sequence, "session"),
		        number(sequence, "length"), number(sequence, "planned"),
		        number(sequence, "steps"), string(sequence, "name"));
	}
}

/* Some daemons have no pool, or an empty one. */
static void print_kv(const json_t *root, FILE *file)
{
	const json_t *caches = json_object_get(root, "caches");
	const json_t *sequences = json_object_get(root, "sequences");

	if (json_array_size(json_object_get(json_object_get(root, "pool"), "tenants")) > 0)
		print_pool_tenants(root, file);
	if (json_array_size(caches) > 0)
		print_caches(caches, file);
	if (json_array_size(sequences) > 0)
		print_sequences(sequences, file);
}

/* Without MPS kernels of the daemon and of other processes wait for each other. */
static void print_mps(const json_t *root, FILE *file)
{
	const char *mps = json_string_value(json_object_get(root, "mps"));
	unsigned int n_clients = 0;
	json_t *session;
	size_t i;

	if (!mps)
		return;
	json_array_foreach(json_object_get(root, "sessions"), i, session)
	{
		n_clients += number(session, "gpu_buffers") > 0 ||
		             json_is_true(json_object_get(session, "timeline"));
	}
	fprintf(file, "MPS       %s\n", mps);
	if (n_clients > 0 && strcmp(mps, "on") != 0)
		fprintf(file,
		        "          warning: %u %s memory of the GPU or a timeline; without MPS\n"
		        "          kernels of one process wait for those of others, for "
		        "milliseconds\n"
		        "          (README.md, MPS)\n",
		        n_clients, n_clients == 1 ? "client uses" : "clients use");
}

/* A daemon lists only some of very many. */
static void print_rest(const json_t *root, const char *what, const json_t *listed, FILE *file)
{
	char key[32];
	long long rest;

	snprintf(key, sizeof(key), "%s_total", what);
	rest = number(root, key) - (long long)json_array_size(listed);
	if (rest > 0)
		fprintf(file, "and %lld more %s\n", rest, what);
}

static void print_memory(const json_t *root, FILE *file)
{
	const json_t *limits = json_object_get(root, "limits");
	char memory[16], all[16];

	if (json_object_get(root, "memory_bytes"))
		fprintf(file, "memory    %s, at most %s of it for clients' buffers\n",
		        bytes(number(root, "memory_bytes"), memory),
		        bytes(number(limits, "all_buffer_bytes"), all));
}

int fa_status_print(const char *json, FILE *file)
{
	json_t *root, *requests, *sessions, *tenants;
	char text[32];

	root = json_loads(json, 0, NULL);
	requests = json_object_get(root, "requests");
	sessions = json_object_get(root, "sessions");
	tenants = json_object_get(root, "tenants");
	if (!json_is_object(requests) || !json_is_array(sessions) || !json_is_array(tenants)) {
		json_decref(root);
		return -EINVAL;
	}

	fprintf(file, "fad %s, process %lld, up %s%s\n", string(root, "version"),
	        number(root, "pid"), duration(number(root, "uptime_ns"), text),
	        json_is_true(json_object_get(root, "draining")) ? ", draining" : "");
	fprintf(file, "backend   %s: %s, %lld threads\n", string(root, "backend"),
	        string(root, "device"), number(root, "threads"));
	if (json_object_get(root, "gpu_unused"))
		fprintf(file, "          warning: there seems to be a GPU, which is not used: %s\n",
		        string(root, "gpu_unused"));
	print_mps(root, file);
	print_memory(root, file);
	fprintf(file, "requests  %lld finished of %lld, %lld failed, %lld cancelled; busy for %s\n",
	        number(requests, "finished"), number(requests, "submitted"),
	        number(requests, "failed"), number(requests, "cancelled"),
	        duration(number(requests, "busy_ns"), text));
	if (json_is_object(json_object_get(root, "pool")))
		print_pool(json_object_get(root, "pool"), file);
	fprintf(file, "clients   %lld connections\n", number(root, "connections"));
	if (json_array_size(sessions) > 0)
		print_sessions(root, file);
	print_rest(root, "sessions", sessions, file);
	if (json_array_size(tenants) > 0)
		print_tenants(root, file);
	print_rest(root, "tenants", tenants, file);
	print_kv(root, file);
	json_decref(root);
	return 0;
}
