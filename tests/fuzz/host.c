#include "tests/fuzz/host.h"

#include "common/clock.h"
#include "daemon/pool/cache.h"
#include "daemon/pool/objects.h"
#include "daemon/service/server.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_NS (10 * FA_NS_PER_SEC)
#define OTHER_UID 65534

static const char configuration[] = "[daemon]\n"
				    "threads = 2\n"
				    "[limits]\n"
				    "sessions = 6\n"
				    "buffers = 24\n"
				    "buffer_bytes = 4194304\n"
				    "device_bytes = 2097152\n"
				    "requests = 48\n"
				    "sequences = 24\n"
				    "caches = 6\n"
				    "pool_bytes = 1048576\n"
				    "session_buffers = 8\n"
				    "session_streams = 6\n"
				    "session_requests = 32\n"
				    "session_steps = 4\n"
				    "session_out_bytes = 16384\n"
				    "[pool]\n"
				    "bytes = 2097152\n"
				    "chunk_bytes = 131072\n";

static uv_loop_t loop;
static struct fa_server *server;
static struct sockaddr_un address = { .sun_family = AF_UNIX };
static socklen_t address_bytes;
static uv_timer_t tick; /* ends host_wait() */
static uint64_t n_connected;
static int n_fds_idle;

void host_demand(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static void on_event(void *userdata)
{
}

static int count_fds(void)
{
	struct dirent *entry;
	int n = 0;
	DIR *dir;

	dir = opendir("/proc/self/fd");
	host_demand(dir != NULL, "/proc/self/fd cannot be read");
	while ((entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

static void list_fds(void)
{
	fprintf(stderr, "%d descriptors are open, %d were\n", count_fds(), n_fds_idle);
	for (int fd = 0; fd < 1024; ++fd) {
		char path[32], target[256];
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target));
		if (n > 0)
			fprintf(stderr, "  %d: %.*s\n", fd, (int)n, target);
	}
}

static void start(void)
{
	struct fa_server_options options = { .loop = &loop,
		                             .draining = on_event,
		                             .stopped = on_event };
	struct fa_config config;
	struct fa_error error;

	fa_log_set(FA_LOG_STDERR, FA_LOG_ERROR);
	host_demand(uv_loop_init(&loop) == 0 && uv_timer_init(&loop, &tick) == 0, "no loop");
	uv_unref((uv_handle_t *)&tick);
	host_demand(fa_config_init(&config) == 0, "no configuration");
	host_demand(fa_config_parse(&config, "configuration", configuration, &error) == 0,
	            "bad configuration");

	options.config = &config;
	options.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	host_demand(options.listen_fd >= 0, "no socket");
	/* The socket gets an abstract name, which the kernel chooses. */
	host_demand(!bind(options.listen_fd, (struct sockaddr *)&address, sizeof(sa_family_t)) &&
	                    !listen(options.listen_fd, 16),
	            "no listener");
	address_bytes = sizeof(address);
	host_demand(!getsockname(options.listen_fd, (struct sockaddr *)&address, &address_bytes),
	            "no name");
	if (fa_server_new(&options, &error, &server) < 0)
		host_demand(false, error.text);
	host_demand(server->kv.pool != NULL, "no pool");
}

void host_begin(void)
{
	if (!server)
		start();
	/* Counted before each input, as libFuzzer itself opens files between inputs. */
	n_fds_idle = count_fds();
	n_connected = server->accept.n_connections + server->accept.n_rejected;
}

bool host_has_users(void)
{
	return geteuid() == 0;
}

int host_connect(bool other)
{
	const bool change = other && host_has_users();
	int fd, r;

	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	host_demand(fd >= 0, "no socket");
	/* Unlike seteuid(), the system call changes this thread alone. */
	if (change)
		host_demand(!syscall(SYS_setresuid, -1, OTHER_UID, -1), "no other user");
	r = connect(fd, (struct sockaddr *)&address, address_bytes);
	if (change) {
		host_demand(!syscall(SYS_setresuid, -1, 0, -1), "not this user again");
		/* LeakSanitizer and /proc/self need it. */
		(void)prctl(PR_SET_DUMPABLE, 1);
	}
	host_demand(!r, "no connection");
	++n_connected;
	return fd;
}

void host_turn(void)
{
	uv_run(&loop, UV_RUN_NOWAIT);
}

static void on_tick(uv_timer_t *timer)
{
}

void host_wait(void)
{
	host_demand(uv_timer_start(&tick, on_tick, 1, 0) == 0, "no timer");
	uv_run(&loop, UV_RUN_ONCE);
	uv_timer_stop(&tick);
}

/* ---- the end of an input */

static bool accounts_are_empty(void)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &server->context.tenants.tenants) {
		struct fa_tenant *tenant = fa_container_of(pos, struct fa_tenant, link);

		for (unsigned int i = 0; i < _FA_RESOURCE_N; ++i)
			if (tenant->used[i])
				return false;
	}
	return true;
}

static void remove_caches(void)
{
	const struct fa_actor actor = { .admin = true };
	struct fa_pool_cache_info info;
	uint32_t cursor = 0;

	while (fa_pool_cache_each(server->kv.pool, &cursor, &info)) {
		struct fa_error error = { 0 };

		if (fa_pool_cache_remove(server->kv.pool, &actor, info.id, &error) < 0)
			host_demand(false, error.text);
	}
}

/* Opens a copy of the pool's state, as the next daemon would. */
static void check_state(void)
{
	const struct fa_pool *pool = server->kv.pool;
	struct fa_pool_report report = { 0 };
	struct fa_pool *copy = NULL;
	struct fa_error error = { 0 };
	int fd;

	fd = memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	host_demand(fd >= 0 && !ftruncate(fd, (off_t)pool->header->bytes), "no memfd");
	for (uint64_t at = 0; at < pool->header->bytes; at += 4096) {
		static const unsigned char zeros[4096];

		if (memcmp(pool->map + at, zeros, sizeof(zeros)))
			host_demand(pwrite(fd, pool->map + at, 4096, (off_t)at) == 4096, "no copy");
	}
	host_demand(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), "no seal");
	if (fa_pool_open(fd, &report, &error, &copy) < 0)
		host_demand(false, error.text);
	for (size_t i = 0; i < report.n_lines; ++i)
		fprintf(stderr, "%s\n", report.lines[i]);
	host_demand(report.n_found == 0, "the pool's state is not consistent");
	fa_pool_report_deinit(&report);
	fa_pool_free(copy);
	close(fd);
}

static void check_pool_is_empty(void)
{
	struct fa_pool_info info;

	fa_pool_get_info(server->kv.pool, &info);
	host_demand(info.steps == 0, "a step stayed");
	host_demand(info.caches == 0 && info.sequences == 0, "a cache or sequence stayed");
	host_demand(info.used_bytes == 0 && info.idle_bytes == 0, "a page stayed");
}

void host_end(bool check_pool)
{
	uint64_t deadline = fa_deadline_ns(PATIENCE_NS);

	while (server->accept.n_connections + server->accept.n_rejected < n_connected ||
	       server->context.n_sessions || !fa_importer_is_idle(&server->context.importer)) {
		host_wait();
		host_demand(fa_now_ns() < deadline, "a session, or memory of one, stayed");
	}
	host_demand(server->context.n_requests == 0, "a request stayed");
	if (check_pool)
		check_state();
	remove_caches();
	check_pool_is_empty();
	/* Other threads release some resources. */
	while (!accounts_are_empty()) {
		host_wait();
		host_demand(fa_now_ns() < deadline, "something stayed charged");
	}
	/* The reaper thread closes clients' descriptors. */
	while (count_fds() != n_fds_idle) {
		host_wait();
		if (fa_now_ns() > deadline) {
			list_fds();
			host_demand(false, "a descriptor stayed open");
		}
	}
}

void host_stop(void)
{
	uint64_t deadline = fa_deadline_ns(PATIENCE_NS);

	uv_close((uv_handle_t *)&tick, NULL);
	while (uv_run(&loop, UV_RUN_NOWAIT))
		host_demand(fa_now_ns() < deadline, "the daemon does not stop");
	server = fa_server_free(server);
	host_demand(uv_loop_close(&loop) == 0, "a handle of the loop stayed");
}
