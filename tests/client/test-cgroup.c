/*
 * A daemon in a cgroup that limits its memory to 400 MiB, with clients outside it. Their memory is sparse,
 * so that the daemon pays for what it reads. Needs root and a memory controller, of version 1 or 2.
 */
#include "client/faclient.h"
#include "client/faclient_kv.h"
#include "common/cleanup.h"
#include "tests/client/spawn.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1 << 20)
#define LIMIT_BYTES (400ll * MIB)
#define BUFFER_BYTES (16ull * MIB)
#define KEYS (BUFFER_BYTES / 64 / 4 / 2 - 64)
#define TENANTS 3

static const char *const supervise[] = { "--supervise", NULL };

/* The memory controller that works here. */
static const struct controller {
	const char *mount, *limit, *line;
} controllers[] = {
	{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes", ":memory:" },
	{ "/sys/fs/cgroup", "memory.max", "0::" },
}, *controller;

static char cgroup[128], old_cgroup[512], dir[48];

static bool write_number(const char *directory, const char *name, long long number)
{
	char path[768];
	FILE *file;
	bool ok;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "we");
	if (!file)
		return false;
	ok = fprintf(file, "%lld\n", number) > 0;
	return fclose(file) == 0 && ok;
}

static bool find_old(void)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[256];
	bool found = false;

	fa_check(file);
	while (!found && fgets(line, sizeof(line), file)) {
		char *at = strstr(line, controller->line);

		if (!at)
			continue;
		line[strcspn(line, "\n")] = '\0';
		snprintf(old_cgroup, sizeof(old_cgroup), "%s%s", controller->mount,
		         at + strlen(controller->line));
		found = true;
	}
	fclose(file);
	return found;
}

static int make_cgroup(void **state)
{
	for (size_t i = 0; i < 2; ++i) {
		controller = &controllers[i];
		snprintf(cgroup, sizeof(cgroup), "%s/fad-test-%d", controller->mount, getpid());
		if (mkdir(cgroup, 0755) < 0)
			continue;
		if (find_old() && write_number(cgroup, controller->limit, LIMIT_BYTES))
			return 0;
		rmdir(cgroup);
	}
	fprintf(stderr, "skipped: no cgroup with a memory limit can be made here\n");
	exit(77);
}

static int remove_cgroup(void **state)
{
	fa_check_eventually(rmdir(cgroup) == 0 || errno == ENOENT);
	return 0;
}

static void start(struct fa_test_daemon *daemon, const char *config)
{
	struct fa_test_daemon_options options = {
		.args = supervise, .everyone = true, .config = config, .dir = dir
	};

	/* A process that removes the directory outlives the test: not in the cgroup. */
	fa_test_dir_make(dir, sizeof(dir));
	fa_check(write_number(cgroup, "cgroup.procs", getpid()));
	fa_test_daemon_start(daemon, &options);
	fa_check(write_number(old_cgroup, "cgroup.procs", getpid()));
}

static void stop(struct fa_test_daemon *daemon)
{
	fa_test_daemon_stop(daemon);
	fa_test_dir_remove(dir);
}

/* Attention that reads all of the buffer. */
static int read_all(struct fa_client *client, struct fa_buffer *buffer)
{
	const int64_t q_shape[] = { 1, 1, 1, 64 }, k_shape[] = { 1, KEYS, 1, 64 };
	struct fa_attention attention = { .size = sizeof(attention) };

	fa_tensor_init(&attention.q, buffer, 0, FA_F32, 4, q_shape);
	fa_tensor_init(&attention.out, buffer, 4096, FA_F32, 4, q_shape);
	fa_tensor_init(&attention.k, buffer, 8192, FA_F32, 4, k_shape);
	fa_tensor_init(&attention.v, buffer, 8192 + BUFFER_BYTES / 2 - 8192, FA_F32, 4, k_shape);
	return fa_attention(client, &attention, NULL);
}

/* Uses as many buffers as it gets; returns how many. */
static int use_buffers(struct fa_client *client)
{
	struct fa_buffer *buffer;
	int n = 0, r;

	while ((r = fa_buffer_new(client, BUFFER_BYTES, 0, &buffer)) == 0) {
		r = read_all(client, buffer);
		if (r < 0)
			fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
		++n;
	}
	fa_check_eq(r, -EDQUOT);
	fa_check_contains(fa_error(), "buffer_bytes, which is ");
	return n;
}

struct tenant {
	const char *socket;
	uid_t uid;
	int done[2], end[2]; /* pipes: the tenant has its buffers; it may end */
};

static int run_tenant(void *userdata)
{
	struct tenant *tenant = userdata;
	struct fa_options options = { .size = sizeof(options), .socket = tenant->socket };
	struct fa_client *client;
	unsigned char n;
	char byte;

	close(tenant->end[1]);
	fa_check(!setgid(tenant->uid) && !setuid(tenant->uid));
	fa_check_eq(fa_connect(&options, &client), 0);
	n = (unsigned char)use_buffers(client);
	fa_check_eq(write(tenant->done[1], &n, 1), 1);
	return read(tenant->end[0], &byte, 1) != 0;
}

/* Three users at their limits do not get the daemon killed. */
static void test_tenants(void **state)
{
	struct fa_options options = { .size = sizeof(options) };
	struct tenant tenant = { .uid = 12345 };
	pid_t tenants[TENANTS], child;
	struct fa_test_daemon daemon;
	struct fa_client *client;
	unsigned char n;
	int sum = 0;

	start(&daemon, NULL);
	child = fa_test_daemon_child(&daemon);
	options.socket = tenant.socket = daemon.socket;
	fa_check(!pipe(tenant.done) && !pipe(tenant.end));
	for (int i = 0; i < TENANTS; ++i) {
		++tenant.uid;
		tenants[i] = fa_test_fork(run_tenant, &tenant);
		fa_check_eq(read(tenant.done[0], &n, 1), 1);
		sum += n;
	}
	/* Most of the memory can be used. */
	fa_check(sum > LIMIT_BYTES / 2 / (long long)BUFFER_BYTES);
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(spawn_number(client, NULL, "memory_bytes"), LIMIT_BYTES);
	fa_disconnect(client);
	fa_check_eq(fa_test_daemon_child(&daemon), child);
	close(tenant.end[1]);
	for (int i = 0; i < TENANTS; ++i)
		fa_check_eq(fa_test_reap(tenants[i]), 0);
	stop(&daemon);
}

static int run_glutton(void *userdata)
{
	struct fa_options options = { .size = sizeof(options), .socket = userdata };
	struct fa_client *client;
	struct fa_buffer *buffer;

	fa_check_eq(fa_connect(&options, &client), 0);
	for (;;)
		if (fa_buffer_new(client, BUFFER_BYTES, 0, &buffer) < 0 ||
		    read_all(client, buffer) < 0)
			return 0;
}

/* With limits that are too high the kernel ends the daemon, and the pool outlives it. */
static void test_killed(void **state)
{
	struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                  .name = "kept",
		                                  .dtype = FA_F32,
		                                  .layers = 1,
		                                  .kv_heads = 1,
		                                  .head_dim = 64 };
	struct fa_options options = { .size = sizeof(options) };
	struct fa_test_daemon daemon;
	struct fa_client *client;
	uint64_t cache;
	pid_t child;

	start(&daemon, "[daemon]\nmode = 0666\n"
	               "[limits]\nbuffer_bytes = 4G\nall_buffer_bytes = 8G\n");
	child = fa_test_daemon_child(&daemon);
	options.socket = daemon.socket;
	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	fa_check_eq(fa_cache_create(client, &cache_options, &cache), 0);
	fa_check_eq(fa_test_reap(fa_test_fork(run_glutton, daemon.socket)), 0);
	(void)fa_test_daemon_next_child(&daemon, child);
	fa_check_eq(fa_cache_find(client, "kept", &cache), 0);
	fa_disconnect(client);
	stop(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tenants),
		cmocka_unit_test(test_killed),
	};

	return cmocka_run_group_tests_name("cgroup", tests, make_cgroup, remove_cgroup);
}
