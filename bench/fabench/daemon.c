#include "bench/fabench/daemon.h"

#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 30000
#define SETTLE_NS (10 * FA_NS_PER_SEC)
#define STOP_NS (30 * FA_NS_PER_SEC)

/* Where an executable is installed or built, relative to this one; an environment variable
 * overrides it. */
struct place {
	const char *variable;
	const char *places[2];
};

static const struct place fad = { "FAD_DAEMON", { "fad", "../daemon/fad" } };
static const struct place tunable = { "FAD_TUNABLE_DAEMON",
	                              { "fad-tunable", "../tests/gpu/fad-tunable" } };

static int find_daemon(const struct place *place, char *ret_path, size_t size)
{
	const char *environment = getenv(place->variable);
	char self[2048], *slash;
	ssize_t n;

	if (environment && environment[0]) {
		snprintf(ret_path, size, "%s", environment);
		return 0;
	}
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return -errno;
	self[n] = '\0';
	slash = strrchr(self, '/');
	if (slash)
		*slash = '\0';
	for (size_t i = 0; i < sizeof(place->places) / sizeof(place->places[0]); i++) {
		snprintf(ret_path, size, "%s/%s", self, place->places[i]);
		if (access(ret_path, X_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

/* Asks the daemon for its status over a separate connection. */
static int ask_status(const char *socket, pid_t *ret_pid, size_t *ret_sessions)
{
	struct fa_options options = {
		.size = sizeof(options),
		.socket = socket,
		.name = "fabench",
	};
	struct fa_client *client;
	json_t *root;
	char *text = NULL;
	int r;

	r = fa_connect(&options, &client);
	if (r < 0)
		return r;
	r = fa_status(client, &text);
	fa_disconnect(client);
	if (r < 0)
		return r;
	root = json_loads(text, 0, NULL);
	free(text);
	*ret_pid = (pid_t)json_integer_value(json_object_get(root, "pid"));
	*ret_sessions = json_array_size(json_object_get(root, "sessions"));
	json_decref(root);
	return 0;
}

enum way {
	PLAIN,
	SUPERVISED,
	FOR_ALL
};

/* Writes a configuration that lets all users connect, and lets them reach the socket. */
static int open_to_all(const struct fa_bench_daemon *daemon, char *ret_config, size_t size)
{
	FILE *file;
	bool ok;

	snprintf(ret_config, size, "%s/fad.conf", daemon->directory);
	file = fopen(ret_config, "we");
	if (!file)
		return -errno;
	ok = fputs("[daemon]\nmode = 0666\n", file) >= 0;
	ok = fclose(file) == 0 && ok;
	return ok && chmod(daemon->directory, 0755) == 0 ? 0 : -EIO;
}

static int spawn(struct fa_bench_daemon *daemon, const char *path, enum way way)
{
	_fa_cleanup_(fa_close_fdp) int ready = -1;
	struct pollfd poll_fd;
	char number[16], word[6], config[80];
	int ends[2], r = 0;

	if (way == FOR_ALL)
		r = open_to_all(daemon, config, sizeof(config));
	if (r < 0)
		return r;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	ready = ends[0];
	daemon->pid = fork();
	if (daemon->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		fcntl(ends[1], F_SETFD, 0);
		snprintf(number, sizeof(number), "%d", ends[1]);
		/* The supervisor logs each restart as an error; hide all other messages. */
		execl(path, "fad", "--socket", daemon->socket, "--ready-fd", number, "--log-level",
		      "warning",
		      way == SUPERVISED ? "--supervise"
		      : way == FOR_ALL  ? "--config"
		                        : NULL,
		      way == FOR_ALL ? config : NULL, NULL);
		_exit(127);
	}
	r = -errno;
	close(ends[1]);
	if (daemon->pid < 0)
		return r;
	poll_fd = (struct pollfd){ .fd = ready, .events = POLLIN };
	if (poll(&poll_fd, 1, START_MS) == 1 && read(ready, word, sizeof(word)) == 6)
		return 0;
	return -EIO;
}

static int start_private(const struct fa_bench *bench, const struct place *place, enum way way,
                         struct fa_bench_daemon *ret_daemon)
{
	struct fa_bench_daemon daemon = { 0 };
	char path[4096];
	int r;

	r = find_daemon(place, path, sizeof(path));
	if (r < 0) {
		fa_bench_log(bench, "fabench: %s is not found; %s may name it", place->places[0],
		             place->variable);
		return r;
	}
	snprintf(daemon.directory, sizeof(daemon.directory), "/tmp/fabench.XXXXXX");
	if (!mkdtemp(daemon.directory)) {
		r = -errno;
		fa_bench_log(bench, "fabench: %s: %s", daemon.directory, strerror(errno));
		return r;
	}
	snprintf(daemon.socket, sizeof(daemon.socket), "%s/fad.sock", daemon.directory);
	r = spawn(&daemon, path, way);
	if (r < 0) {
		fa_bench_log(bench, "fabench: %s did not start", path);
		fa_bench_daemon_stop(&daemon);
		return r;
	}
	*ret_daemon = daemon;
	return 0;
}

static int start(const struct fa_bench *bench, enum way way, struct fa_bench_daemon *ret_daemon)
{
	struct fa_bench_daemon daemon = { 0 };
	size_t sessions;
	int r;

	if (!bench->socket)
		return start_private(bench, &fad, way, ret_daemon);
	snprintf(daemon.socket, sizeof(daemon.socket), "%s", bench->socket);
	r = ask_status(daemon.socket, &daemon.pid, &sessions);
	if (r < 0) {
		fa_bench_log(bench, "fabench: no daemon at %s: %s", bench->socket, fa_error());
		return r;
	}
	*ret_daemon = daemon;
	return 0;
}

int fa_bench_daemon_start(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon)
{
	return start(bench, PLAIN, ret_daemon);
}

int fa_bench_daemon_start_for_all(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon)
{
	return start(bench, FOR_ALL, ret_daemon);
}

int fa_bench_daemon_start_supervised(const struct fa_bench *bench,
                                     struct fa_bench_daemon *ret_daemon)
{
	return start_private(bench, &fad, SUPERVISED, ret_daemon);
}

bool fa_bench_daemon_is_tunable(void)
{
	char path[4096];

	return find_daemon(&tunable, path, sizeof(path)) == 0;
}

int fa_bench_daemon_start_tunable(const struct fa_bench *bench, struct fa_bench_daemon *ret_daemon)
{
	return start_private(bench, &tunable, PLAIN, ret_daemon);
}

int fa_bench_daemon_process(const struct fa_bench_daemon *daemon, pid_t *ret_pid)
{
	size_t sessions;

	return ask_status(daemon->socket, ret_pid, &sessions);
}

int fa_bench_daemon_stop(struct fa_bench_daemon *daemon)
{
	char config[80];
	int status = 0;

	if (!daemon->directory[0])
		return 0;
	if (daemon->pid > 0) {
		struct pollfd end = { .fd = (int)syscall(SYS_pidfd_open, daemon->pid, 0),
			              .events = POLLIN };

		kill(daemon->pid, SIGTERM);
		if (end.fd >= 0 && poll(&end, 1, STOP_NS / FA_NS_PER_MS) != 1)
			kill(daemon->pid, SIGKILL);
		close(end.fd);
		waitpid(daemon->pid, &status, 0);
	}
	unlink(daemon->socket);
	snprintf(config, sizeof(config), "%s/fad.conf", daemon->directory);
	unlink(config);
	rmdir(daemon->directory);
	*daemon = (struct fa_bench_daemon){ 0 };
	return status == 0 ? 0 : -EIO;
}

int fa_bench_daemon_settle(const struct fa_bench_daemon *daemon)
{
	uint64_t end = fa_deadline_ns(SETTLE_NS);
	size_t sessions = 0;
	pid_t pid;
	int r;

	do {
		r = ask_status(daemon->socket, &pid, &sessions);
		if (r < 0 || sessions == 1)
			return r;
		poll(NULL, 0, 10);
	} while (fa_now_ns() < end);
	return -ETIMEDOUT;
}

uint64_t fa_bench_daemon_rss_bytes(const struct fa_bench_daemon *daemon)
{
	char path[64];
	unsigned long long size = 0, resident = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)daemon->pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%llu %llu", &size, &resident) != 2)
		resident = 0;
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t fa_bench_daemon_cpu_ns(const struct fa_bench_daemon *daemon)
{
	char path[64], task_path[512];
	unsigned long long sum = 0, ns;
	struct dirent *entry;
	DIR *directory;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)daemon->pid);
	directory = opendir(path);
	if (!directory)
		return 0;
	while ((entry = readdir(directory))) {
		FILE *file;

		snprintf(task_path, sizeof(task_path), "%s/%s/schedstat", path, entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(task_path, "re");
		if (!file)
			continue;
		if (fscanf(file, "%llu", &ns) == 1)
			sum += ns;
		fclose(file);
	}
	closedir(directory);
	return sum;
}
