#include "tools/status.h"

#include <errno.h>
#include <jansson.h>
#include <stdint.h>

static long long number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	return value ? value : "-";
}

/* "12.5 MiB" into @text, which is also returned. */
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

static void print_sessions(const json_t *sessions, FILE *file)
{
	char size[16];
	json_t *session;
	size_t i;

	fprintf(file, "\n%8s %8s %6s %8s %10s %8s %9s  %s\n", "session", "pid", "uid", "buffers",
	        "memory", "streams", "in flight", "name");
	json_array_foreach(sessions, i, session)
	{
		fprintf(file, "%8lld %8lld %6lld %8lld %10s %8lld %9lld  %s\n",
		        number(session, "session"), number(session, "pid"), number(session, "uid"),
		        number(session, "buffers"), bytes(number(session, "buffer_bytes"), size),
		        number(session, "streams"), number(session, "requests"),
		        string(session, "name"));
	}
}

static void print_tenants(const json_t *tenants, FILE *file)
{
	char size[16];
	json_t *tenant;
	size_t i;

	fprintf(file, "\n%8s %8s %8s %10s %6s %9s  %s\n", "uid", "sessions", "buffers", "memory",
	        "fds", "in flight", "cgroup");
	json_array_foreach(tenants, i, tenant)
	{
		fprintf(file, "%8lld %8lld %8lld %10s %6lld %9lld  %s\n", number(tenant, "uid"),
		        number(tenant, "sessions"), number(tenant, "buffers"),
		        bytes(number(tenant, "buffer_bytes"), size), number(tenant, "fds"),
		        number(tenant, "requests"), string(tenant, "cgroup"));
	}
}

/* A daemon with very many lists some of them. */
static void print_rest(const json_t *root, const char *what, const json_t *listed, FILE *file)
{
	char key[32];
	long long rest;

	snprintf(key, sizeof(key), "%s_total", what);
	rest = number(root, key) - (long long)json_array_size(listed);
	if (rest > 0)
		fprintf(file, "and %lld more %s\n", rest, what);
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
	fprintf(file, "requests  %lld finished of %lld, %lld failed, %lld cancelled; busy for %s\n",
	        number(requests, "finished"), number(requests, "submitted"),
	        number(requests, "failed"), number(requests, "cancelled"),
	        duration(number(requests, "busy_ns"), text));
	fprintf(file, "clients   %lld connections\n", number(root, "connections"));
	if (json_array_size(sessions) > 0)
		print_sessions(sessions, file);
	print_rest(root, "sessions", sessions, file);
	if (json_array_size(tenants) > 0)
		print_tenants(tenants, file);
	print_rest(root, "tenants", tenants, file);
	json_decref(root);
	return 0;
}
