#include "daemon/account/config.h"

#include "common/cleanup.h"
#include "daemon/base/memory_limit.h"
#include "daemon/base/service_manager.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>

#define THREADS_MAX 1024
/* Default of a pool in host memory: 1/POOL_SHARE of the machine's memory. Pool and buffers together
 * leave 1/OWN_SHARE. */
#define POOL_SHARE 8
#define OWN_SHARE 8
#define TENANT_FDS 8192
#define OWN_FDS_MIN 32
#define CHUNK_BYTES_MIN ((uint64_t)64 << 10)
#define CHUNK_BYTES_MAX ((uint64_t)4 << 30)
/* A user's KV caches; a private daemon's only user has as many as a pool can have. */
#define CACHES 32
#define CACHES_PRIVATE 256
#define GRACE_S_MAX (24 * 60 * 60)
#define POOL_BYTES_PRIVATE ((uint64_t)FA_CONFIG_POOL_PRIVATE_MIB << 20)

struct limit_field {
	const char *name;
	size_t offset;
	uint64_t min, max;
};

#define LIMIT(field, min, max)                                                                     \
	{                                                                                          \
#field, offsetof(struct fa_limits, field), min, max                                \
	}
#define TENANT_LIMIT(name, resource, max)                                                          \
	{                                                                                          \
		name, offsetof(struct fa_limits, tenant) + (resource) * sizeof(uint64_t), 0, max   \
	}

static const struct limit_field limit_fields[] = {
	TENANT_LIMIT("sessions", FA_RESOURCE_SESSIONS, 1u << 20),
	TENANT_LIMIT("buffers", FA_RESOURCE_BUFFERS, 1u << 30),
	TENANT_LIMIT("buffer_bytes", FA_RESOURCE_BUFFER_BYTES, INT64_MAX),
	TENANT_LIMIT("device_bytes", FA_RESOURCE_DEVICE_BYTES, INT64_MAX),
	TENANT_LIMIT("pieces", FA_RESOURCE_PIECES, 1u << 30),
	TENANT_LIMIT("fds", FA_RESOURCE_FDS, 1u << 30),
	TENANT_LIMIT("requests", FA_RESOURCE_REQUESTS, 1u << 30),
	TENANT_LIMIT("step_bytes", FA_RESOURCE_STEP_BYTES, INT64_MAX),
	TENANT_LIMIT("gates", FA_RESOURCE_GATES, 1u << 30),
	TENANT_LIMIT("timelines", FA_RESOURCE_TIMELINES, 1u << 20),
	LIMIT(uid_factor, 1, 1u << 20),
	LIMIT(pool_bytes, 0, INT64_MAX),
	LIMIT(sequences, 0, 1u << 24),
	LIMIT(caches, 0, 1u << 10),
	LIMIT(session_buffers, 0, 1u << 20),
	LIMIT(session_streams, 1, 64),
	LIMIT(session_requests, 1, 1u << 20),
	LIMIT(session_steps, 0, 4096),
	LIMIT(session_out_bytes, 4096, 1u << 30),
	LIMIT(connections, 1, 1u << 20),
	LIMIT(all_buffer_bytes, 1, INT64_MAX),
};

int fa_config_init(struct fa_config *ret_config)
{
	char *backend = strdup("auto"), *observer = strdup(FA_CONFIG_OBSERVER);

	if (!backend || !observer) {
		free(backend);
		free(observer);
		return -ENOMEM;
	}
	*ret_config = (struct fa_config){
		.mode = 0660,
		.observer = observer,
		.backend = backend,
		.log = FA_LOG_AUTO,
		.log_level = FA_LOG_INFO,
		.drain_timeout_ms = 10000,
		.spin_us = 50,
		.spin_step_us = 500,
		.pool_bytes = FA_LIMIT_AUTO,
		.pool_grace_s = 30,
		.limits = {
			.tenant = {
				[FA_RESOURCE_SESSIONS] = 1024,
				[FA_RESOURCE_BUFFERS] = 65536,
				[FA_RESOURCE_BUFFER_BYTES] = FA_LIMIT_AUTO,
				[FA_RESOURCE_DEVICE_BYTES] = FA_LIMIT_AUTO,
				[FA_RESOURCE_PIECES] = 65536,
				[FA_RESOURCE_FDS] = FA_LIMIT_AUTO,
				[FA_RESOURCE_REQUESTS] = 16384,
				/* A GPU's metadata heap has 64 MiB. */
				[FA_RESOURCE_STEP_BYTES] = 32 << 20,
				[FA_RESOURCE_GATES] = 65536,
				[FA_RESOURCE_TIMELINES] = FA_LIMIT_AUTO,
			},
			.uid_factor = 4,
			.pool_bytes = INT64_MAX,
			.sequences = 32768,
			.caches = FA_LIMIT_AUTO,
			.session_buffers = 4096,
			.session_streams = 64,
			.session_requests = 1024,
			.session_steps = 64,
			.session_out_bytes = 1 << 20,
			.connections = 4096,
			.all_buffer_bytes = FA_LIMIT_AUTO,
		},
	};
	return 0;
}

uint64_t fa_config_pool_bytes(const struct fa_config *config, uint64_t device_bytes,
                              uint64_t device_free_bytes, uint64_t pool_bytes, bool private)
{
	uint64_t free_bytes, bytes;

	if (config->pool_bytes != FA_LIMIT_AUTO)
		return config->pool_bytes;
	device_free_bytes += pool_bytes;
	free_bytes = device_bytes ? device_free_bytes : fa_memory_limit_free() + pool_bytes;
	if (config->pool_percent)
		return free_bytes / 100 * config->pool_percent;
	bytes = device_bytes ? device_free_bytes / 2 : fa_memory_limit() / POOL_SHARE;
	return private && bytes > POOL_BYTES_PRIVATE ? POOL_BYTES_PRIVATE : bytes;
}

static uint64_t timelines_of_tenant(const struct fa_limits *limits, uint64_t timelines_max)
{
	if (!timelines_max)
		return limits->tenant[FA_RESOURCE_SESSIONS];
	return timelines_max > 1 ? timelines_max / 2 : 1;
}

static uint64_t fds_of_all(uint64_t fds_max)
{
	uint64_t own = fds_max / 4 > OWN_FDS_MIN ? fds_max / 4 : OWN_FDS_MIN;

	return fds_max > own ? fds_max - own : fds_max / 2;
}

static uint64_t fds_of_tenant(uint64_t all_fds)
{
	return !all_fds || all_fds / 2 > TENANT_FDS ? TENANT_FDS : all_fds / 2;
}

/*
 * Touching holes in shared memory costs the daemon memory: an eighth is left over.
 */
static uint64_t buffer_bytes_of_all(const struct fa_config *config, uint64_t memory,
                                    uint64_t device_bytes)
{
	const uint64_t most = memory - memory / OWN_SHARE;
	uint64_t pool = 0;

	if (!device_bytes)
		pool = fa_config_pool_bytes(config, 0, 0, 0, false);
	return pool < most - memory / OWN_SHARE ? most - pool : memory / OWN_SHARE;
}

void fa_config_resolve(struct fa_config *config, uint64_t device_bytes, uint64_t timelines_max,
                       uint64_t fds_max, bool private)
{
	struct fa_limits *limits = &config->limits;
	const uint64_t memory = fa_memory_limit();

	if (limits->all_buffer_bytes == FA_LIMIT_AUTO)
		limits->all_buffer_bytes = buffer_bytes_of_all(config, memory, device_bytes);
	if (limits->tenant[FA_RESOURCE_BUFFER_BYTES] == FA_LIMIT_AUTO)
		limits->tenant[FA_RESOURCE_BUFFER_BYTES] = memory / 2;
	if (limits->caches == FA_LIMIT_AUTO)
		limits->caches = private ? CACHES_PRIVATE : CACHES;
	limits->memory_bytes = memory;
	limits->all_fds = fds_of_all(fds_max);
	if (limits->tenant[FA_RESOURCE_FDS] == FA_LIMIT_AUTO)
		limits->tenant[FA_RESOURCE_FDS] = fds_of_tenant(limits->all_fds);
	if (limits->tenant[FA_RESOURCE_DEVICE_BYTES] == FA_LIMIT_AUTO)
		limits->tenant[FA_RESOURCE_DEVICE_BYTES] = device_bytes;
	if (limits->tenant[FA_RESOURCE_TIMELINES] == FA_LIMIT_AUTO)
		limits->tenant[FA_RESOURCE_TIMELINES] = timelines_of_tenant(limits, timelines_max);
}

void fa_config_deinit(struct fa_config *config)
{
	free(config->socket);
	free(config->group);
	free(config->observer);
	free(config->backend);
	free(config->device);
	*config = (struct fa_config){};
}

/* Takes a suffix K, M, G or T (powers of 1024). Nothing may follow. */
static int parse_number(const char *text, uint64_t *ret_number)
{
	static const char units[] = "KMGT";
	uint64_t number;
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end) {
		const char *unit = strchr(units, toupper((unsigned char)*end));

		if (!unit || end[1] ||
		    __builtin_mul_overflow(number, 1ull << (10 * (unit - units + 1)), &number))
			return -EINVAL;
	}
	*ret_number = number;
	return 0;
}

static int set_number(const char *name, const char *value, uint64_t min, uint64_t max,
                      uint64_t *ret_number, struct fa_error *error)
{
	uint64_t number;

	if (parse_number(value, &number) < 0 || number < min || number > max)
		return fa_fail(error, -EINVAL,
		               "%s is \"%.40s\"; expected a number from %" PRIu64 " to %" PRIu64
		               ", K, M, G or T may follow",
		               name, value, min, max);
	*ret_number = number;
	return 0;
}

static int set_string(const char *value, char **string)
{
	char *copy = NULL;

	if (*value) {
		copy = strdup(value);
		if (!copy)
			return -ENOMEM;
	}
	free(*string);
	*string = copy;
	return 0;
}

static int set_mode(struct fa_config *config, const char *value, struct fa_error *error)
{
	unsigned long mode;
	char *end;

	mode = strtoul(value, &end, 8);
	if (!isdigit((unsigned char)*value) || *end || mode > 0777)
		return fa_fail(error, -EINVAL,
		               "mode is \"%.40s\"; expected an octal number up to 0777", value);
	config->mode = (mode_t)mode;
	return 0;
}

static int set_backend(struct fa_config *config, const char *value, struct fa_error *error)
{
	static const char *const names[] = { "auto", "cpu", "cuda", "vulkan" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i)
		if (!*value || !strcmp(value, names[i]))
			return set_string(names[i], &config->backend);
	return fa_fail(error, -EINVAL, "backend is \"%.40s\"; expected auto, cpu, cuda or vulkan",
	               value);
}

static int set_log(struct fa_config *config, const char *value, struct fa_error *error)
{
	if (!strcmp(value, "stderr"))
		config->log = FA_LOG_STDERR;
	else if (!strcmp(value, "journal") && fa_manager_has_journal())
		config->log = FA_LOG_JOURNAL;
	else if (!strcmp(value, "journal"))
		return fa_fail(error, -EINVAL,
		               "log is \"journal\"; expected stderr, as this fad was built without "
		               "libsystemd");
	else
		return fa_fail(error, -EINVAL, "log is \"%.40s\"; expected stderr or journal",
		               value);
	return 0;
}

static int set_log_level(struct fa_config *config, const char *value, struct fa_error *error)
{
	static const struct {
		const char *name;
		enum fa_log_level level;
	} levels[] = { { "error", FA_LOG_ERROR },
		       { "warning", FA_LOG_WARNING },
		       { "info", FA_LOG_INFO },
		       { "debug", FA_LOG_DEBUG } };

	for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); ++i)
		if (!strcmp(value, levels[i].name)) {
			config->log_level = levels[i].level;
			return 0;
		}
	return fa_fail(error, -EINVAL,
	               "log_level is \"%.40s\"; expected error, warning, info or debug", value);
}

static int set_daemon(struct fa_config *config, const char *name, const char *value,
                      struct fa_error *error)
{
	uint64_t number;
	int r;

	if (!strcmp(name, "socket")) {
		if (strlen(value) >= sizeof(((struct sockaddr_un *)0)->sun_path))
			return fa_fail(
				error, -EINVAL,
				"socket is longer than %zu bytes, which is the most a path of a "
				"socket can have",
				sizeof(((struct sockaddr_un *)0)->sun_path) - 1);
		return set_string(value, &config->socket);
	}
	if (!strcmp(name, "mode"))
		return set_mode(config, value, error);
	if (!strcmp(name, "group"))
		return set_string(value, &config->group);
	if (!strcmp(name, "observer"))
		return set_string(value, &config->observer);
	if (!strcmp(name, "backend"))
		return set_backend(config, value, error);
	if (!strcmp(name, "device"))
		return set_string(value, &config->device);
	if (!strcmp(name, "threads")) {
		r = set_number(name, value, 0, THREADS_MAX, &number, error);
		if (!r)
			config->threads = (unsigned int)number;
		return r;
	}
	if (!strcmp(name, "log"))
		return set_log(config, value, error);
	if (!strcmp(name, "log_level"))
		return set_log_level(config, value, error);
	if (!strcmp(name, "drain_timeout_ms")) {
		r = set_number(name, value, 0, INT_MAX, &number, error);
		if (!r)
			config->drain_timeout_ms = (unsigned int)number;
		return r;
	}
	if (!strcmp(name, "spin_us")) {
		r = set_number(name, value, 0, 1000000, &number, error);
		if (!r)
			config->spin_us = (unsigned int)number;
		return r;
	}
	if (!strcmp(name, "spin_step_us")) {
		r = set_number(name, value, 0, 1000000, &number, error);
		if (!r)
			config->spin_step_us = (unsigned int)number;
		return r;
	}
	return fa_fail(error, -EINVAL, "[daemon] has no \"%.40s\"", name);
}

static int set_pool_bytes(struct fa_config *config, const char *value, struct fa_error *error)
{
	unsigned long percent;
	char *end;
	int r;

	percent = strtoul(value, &end, 10);
	if (isdigit((unsigned char)*value) && !strcmp(end, "%") && percent >= 1 && percent <= 100) {
		config->pool_bytes = FA_LIMIT_AUTO;
		config->pool_percent = (unsigned int)percent;
		return 0;
	}
	r = set_number("bytes", value, 0, INT64_MAX, &config->pool_bytes, NULL);
	return r ? fa_fail(error, r,
	                   "bytes is \"%.40s\"; expected a number of bytes, K, M, G or T may "
	                   "follow, or a share of the free memory, from 1%% to 100%%",
	                   value)
	         : 0;
}

static int set_pool(struct fa_config *config, const char *name, const char *value,
                    struct fa_error *error)
{
	uint64_t number;
	int r;

	if (!strcmp(name, "bytes"))
		return set_pool_bytes(config, value, error);
	if (!strcmp(name, "grace_s")) {
		r = set_number(name, value, 1, GRACE_S_MAX, &number, error);
		if (!r)
			config->pool_grace_s = (unsigned int)number;
		return r;
	}
	if (strcmp(name, "chunk_bytes") != 0)
		return fa_fail(error, -EINVAL, "[pool] has no \"%.40s\"", name);
	r = set_number(name, value, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX, &number, error);
	if (r < 0)
		return r;
	if (number & (number - 1))
		return fa_fail(error, -EINVAL, "chunk_bytes is \"%.40s\"; expected a power of two",
		               value);
	config->pool_chunk_bytes = number;
	return 0;
}

int fa_config_set(struct fa_config *config, const char *section, const char *name,
                  const char *value, struct fa_error *error)
{
	if (!strcmp(section, "daemon"))
		return set_daemon(config, name, value, error);
	if (!strcmp(section, "limits")) {
		for (size_t i = 0; i < sizeof(limit_fields) / sizeof(*limit_fields); ++i) {
			const struct limit_field *field = &limit_fields[i];

			if (!strcmp(name, field->name))
				return set_number(
					name, value, field->min, field->max,
					(uint64_t *)((char *)&config->limits + field->offset),
					error);
		}
		return fa_fail(error, -EINVAL, "[limits] has no \"%.40s\"", name);
	}
	if (!strcmp(section, "pool"))
		return set_pool(config, name, value, error);
	if (!*section)
		return fa_fail(error, -EINVAL, "\"%.40s\" stands before the first [section]", name);
	return fa_fail(error, -EINVAL,
	               "there is no section [%.40s]; expected [daemon], [limits] or [pool]",
	               section);
}
