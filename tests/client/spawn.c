#include "tests/client/spawn.h"

#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

char spawn_runtime[64];

int spawn_setup(void **state)
{
	if (!getenv("FAD_DAEMON"))
		exit(77);
	fa_test_dir_make(spawn_runtime, sizeof(spawn_runtime));
	setenv("XDG_RUNTIME_DIR", spawn_runtime, 1);
	unsetenv("FAD_SOCKET");
	unsetenv("FAD_CONFIG");
	return 0;
}

int spawn_teardown(void **state)
{
	return rmdir(spawn_runtime);
}

void spawn_adopt_orphans(bool adopt)
{
	fa_check(!prctl(PR_SET_CHILD_SUBREAPER, adopt, 0, 0, 0));
}

int own_count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	fa_check(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

struct fa_client *spawn_client(const char *daemon, const char *config)
{
	struct fa_options options = { .size = sizeof(options),
		                      .flags = FA_CONNECT_PRIVATE,
		                      .daemon = daemon,
		                      .config = config };
	struct fa_client *client;
	int r;

	options.connect_ns = fa_test_patience_ns();
	options.reconnect_ns = fa_test_patience_ns();
	r = fa_connect(&options, &client);
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%d: %s", r, fa_error());
	return client;
}

void spawn_expect_failure(const char *daemon, const char *config, int code, const char *part)
{
	struct fa_options options = { .size = sizeof(options),
		                      .flags = FA_CONNECT_PRIVATE,
		                      .daemon = daemon,
		                      .config = config };
	struct fa_client *client;
	int r, before;

	fa_disconnect(NULL); /* forgets adopted daemons, as fa_connect() will */
	before = fa_test_count_fds(0);
	options.connect_ns = fa_test_patience_ns();
	r = fa_connect(&options, &client);
	if (r != code)
		fa_test_fail(__FILE__, __LINE__, "%s: %d instead of %d: %s", daemon, r, code,
		             fa_error());
	fa_check_contains(fa_error(), part);
	fa_check_eq(own_count_entries(spawn_runtime), 0);
	fa_check_eq(fa_test_count_fds(0), before);
	fa_check_eq(waitpid(-1, NULL, WNOHANG), -1);
}

long long spawn_number(struct fa_client *client, const char *object, const char *name)
{
	json_int_t number;
	json_t *status;
	char *json;

	fa_check_eq(fa_status(client, &json), 0);
	status = json_loads(json, 0, NULL);
	fa_check(status);
	number = json_integer_value(
		json_object_get(object ? json_object_get(status, object) : status, name));
	json_decref(status);
	free(json);
	return number;
}

pid_t spawn_pid(struct fa_client *client)
{
	pid_t pid = (pid_t)spawn_number(client, NULL, "pid");

	fa_check(pid > 0);
	return pid;
}

char *spawn_proc_status(pid_t pid, const char *name)
{
	static char line[256];
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	fa_check(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name))) {
			fclose(file);
			return line + strlen(name) + 1;
		}
	fclose(file);
	fa_test_fail(__FILE__, __LINE__, "no %s in %s", name, path);
	return NULL;
}

int spawn_count_open(pid_t pid, const char *part)
{
	char path[64], target[256];
	int n_found = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	fa_check(dir);
	for (struct dirent *entry; (entry = readdir(dir));) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		if (n < 0)
			continue;
		target[n] = '\0';
		n_found += strstr(target, part) != NULL;
	}
	closedir(dir);
	return n_found;
}

void spawn_check_end(pid_t pid)
{
	int status = -1;

	fa_check_eventually(waitpid(pid, &status, WNOHANG) == pid);
	fa_disconnect(NULL); /* forgets it */
	fa_check_eq(status, 0);
	fa_check_eq(own_count_entries(spawn_runtime), 0);
}
