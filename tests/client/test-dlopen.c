/*
 * The library is loaded and unloaded more often than a process may have pthread keys, as itself and
 * within a plugin that links it statically: nothing leaks.
 * usage: test-client-dlopen LIBRARY PLUGIN
 */
#include "tests/lib/check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define ROUNDS 1100 /* above PTHREAD_KEYS_MAX */
/* The dynamic loader itself may keep so many bytes. */
#define BYTES_MAX (64 << 10)

static const char *library, *plugin;

static void load_once(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int (*ping)(void *client);
	const char *(*error)(void);

	if (!handle)
		fa_test_fail(__FILE__, __LINE__, "%s", dlerror());
	ping = (int (*)(void *))dlsym(handle, "fa_ping");
	error = (const char *(*)(void))dlsym(handle, "fa_error");
	fa_check(ping && error);
	fa_check_eq(ping(NULL), -EINVAL);
	fa_check_contains(error(), "the client is NULL");
	fa_check(!dlclose(handle));
}

static int count_keys(void)
{
	static pthread_key_t keys[PTHREAD_KEYS_MAX];
	int n = 0;

	while (n < PTHREAD_KEYS_MAX && !pthread_key_create(&keys[n], NULL))
		++n;
	for (int i = 0; i < n; ++i)
		pthread_key_delete(keys[i]);
	return n;
}

static int count_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	int n = 0;

	fa_check(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

static void load_often(const char *path)
{
	int keys, fds, threads;
	size_t bytes;

	/* The first load may leave something behind, further ones may not. */
	load_once(path);
	keys = count_keys();
	fds = fa_test_count_fds(0);
	threads = count_threads();
	bytes = mallinfo2().uordblks;
	for (int i = 0; i < ROUNDS; ++i)
		load_once(path);
	fa_check_eq(count_keys(), keys);
	fa_check_eq(fa_test_count_fds(0), fds);
	fa_check_eq(count_threads(), threads);
	if (!fa_test_sanitized())
		fa_check(mallinfo2().uordblks < bytes + BYTES_MAX);
}

static void test_library(void **state)
{
	load_often(library);
}

static void test_plugin(void **state)
{
	load_often(plugin);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_library),
		                            cmocka_unit_test(test_plugin) };

	if (argc != 3) {
		fprintf(stderr, "usage: %s LIBRARY PLUGIN\n", argv[0]);
		return 2;
	}
	library = argv[1];
	plugin = argv[2];
	return cmocka_run_group_tests_name("dlopen", tests, NULL, NULL);
}
