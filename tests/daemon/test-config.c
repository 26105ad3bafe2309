/* The configuration: values, and errors. */
#include "common/cleanup.h"
#include "daemon/account/config.h"
#include "daemon/base/memory_limit.h"
#include "daemon/base/service_manager.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_defaults(void **state)
{
	struct fa_config config;

	assert_int_equal(fa_config_init(&config), 0);
	assert_null(config.socket);
	assert_null(config.group);
	assert_int_equal(config.mode, 0660);
	assert_string_equal(config.backend, "auto");
	assert_int_equal(config.threads, 0);
	assert_null(config.device);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_SESSIONS], 1024);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_BUFFERS], 65536);
	assert_true(config.limits.tenant[FA_RESOURCE_BUFFER_BYTES] > 1 << 20);
	assert_true(config.limits.tenant[FA_RESOURCE_DEVICE_BYTES] == FA_LIMIT_AUTO);
	assert_true(config.limits.tenant[FA_RESOURCE_TIMELINES] == FA_LIMIT_AUTO);
	fa_config_resolve(&config, 1ull << 50, 2048, 0, false);
	assert_int_equal(config.limits.caches, 32);
	assert_true(config.limits.tenant[FA_RESOURCE_DEVICE_BYTES] == 1ull << 50);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_TIMELINES], 1024);
	fa_config_resolve(&config, 1ull << 51, 4096, 0, true);
	assert_true(config.limits.tenant[FA_RESOURCE_DEVICE_BYTES] == 1ull << 50);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_TIMELINES], 1024);
	assert_true(fa_config_pool_bytes(&config, 1ull << 40, 1ull << 38, 0, false) == 1ull << 37);
	assert_true(fa_config_pool_bytes(&config, 1ull << 40, 1ull << 38, 1ull << 38, false) ==
	            1ull << 38);
	assert_true(fa_config_pool_bytes(&config, 1ull << 40, 1ull << 38, 0, true) == 256 << 20);
	config.pool_percent = 25;
	assert_true(fa_config_pool_bytes(&config, 1ull << 40, 300, 100, false) == 100);
	config.pool_bytes = 12345;
	assert_true(fa_config_pool_bytes(&config, 1ull << 40, 300, 100, false) == 12345);
	assert_int_equal(config.limits.session_streams, 64);
	assert_int_equal(config.limits.uid_factor, 4);
	assert_int_equal(config.limits.connections, 4096);
	fa_config_deinit(&config);
	fa_config_deinit(&config);
}

static void test_journal(void **state)
{
	struct fa_error error = {};
	struct fa_config config;

	if (!fa_manager_has_journal())
		skip();
	assert_int_equal(fa_config_init(&config), 0);
	assert_int_equal(
		fa_config_parse(&config, "configuration", "[daemon]\nlog = journal\n", &error), 0);
	assert_int_equal(config.log, FA_LOG_JOURNAL);
	fa_config_deinit(&config);
}

static void test_timelines(void **state)
{
	static const struct {
		const char *text;
		uint64_t kept, share;
	} cases[] = {
		{ "uid_factor = 8\n", 2048, 1024 },   { "uid_factor = 1\n", 2048, 1024 },
		{ "uid_factor = 100\n", 1, 1 },       { "sessions = 77\n", 0, 77 },
		{ "timelines = 2000\n", 2048, 2000 }, { "timelines = 0\n", 2048, 0 },
	};
	struct fa_error error = {};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
		struct fa_config config;
		char text[128];

		snprintf(text, sizeof(text), "[limits]\n%s", cases[i].text);
		assert_int_equal(fa_config_init(&config), 0);
		assert_int_equal(fa_config_parse(&config, "configuration", text, &error), 0);
		fa_config_resolve(&config, 0, cases[i].kept, 0, false);
		assert_int_equal(config.limits.tenant[FA_RESOURCE_TIMELINES], cases[i].share);
		fa_config_deinit(&config);
	}
}

static void test_fds(void **state)
{
	static const struct {
		const char *text;
		uint64_t max, all, share;
	} cases[] = {
		{ "", 0, 0, 8192 },
		{ "", 1 << 20, 786432, 8192 },
		{ "", 20000, 15000, 7500 },
		{ "", 1024, 768, 384 },
		{ "", 100, 68, 34 },
		{ "", 32, 16, 8 },
		{ "", 1, 0, 8192 },
		{ "fds = 500\n", 1024, 768, 500 },
		{ "fds = 9k\n", 1024, 768, 9216 },
	};
	struct fa_error error = {};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
		struct fa_config config;
		char text[128];

		snprintf(text, sizeof(text), "[limits]\n%s", cases[i].text);
		assert_int_equal(fa_config_init(&config), 0);
		assert_int_equal(fa_config_parse(&config, "configuration", text, &error), 0);
		fa_config_resolve(&config, 0, 0, cases[i].max, false);
		assert_int_equal(config.limits.all_fds, cases[i].all);
		assert_int_equal(config.limits.tenant[FA_RESOURCE_FDS], cases[i].share);
		fa_config_deinit(&config);
	}
}

/* The pool, if it is in host memory, and all buffers together leave an eighth of the memory. */
static void test_memory(void **state)
{
	static const struct {
		const char *text;
		uint64_t device_bytes;
		unsigned int eighths;
	} cases[] = {
		{ "", 0, 6 },
		{ "", 1, 7 },
		{ "[pool]\nbytes = 0\n", 0, 7 },
		{ "[pool]\nbytes = 1000000T\n", 0, 1 },
	};
	const uint64_t memory = fa_memory_limit();
	struct fa_error error = {};
	struct fa_config config;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
		uint64_t expected = memory / 8 * cases[i].eighths, got;

		assert_int_equal(fa_config_init(&config), 0);
		assert_int_equal(fa_config_parse(&config, "configuration", cases[i].text, &error),
		                 0);
		fa_config_resolve(&config, cases[i].device_bytes, 0, 0, false);
		got = config.limits.all_buffer_bytes;
		assert_true(got >= expected && got < expected + 64);
		assert_true(config.limits.tenant[FA_RESOURCE_BUFFER_BYTES] == memory / 2);
		assert_true(config.limits.memory_bytes == memory);
		fa_config_deinit(&config);
	}
	assert_int_equal(fa_config_init(&config), 0);
	assert_int_equal(fa_config_parse(&config, "configuration",
	                                 "[limits]\nall_buffer_bytes = 3M\nbuffer_bytes = 2M\n",
	                                 &error),
	                 0);
	fa_config_resolve(&config, 0, 0, 0, true);
	assert_int_equal(config.limits.caches, 256);
	assert_int_equal(config.limits.all_buffer_bytes, 3 << 20);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_BUFFER_BYTES], 2 << 20);
	fa_config_deinit(&config);
}

static void test_all(void **state)
{
	static const char text[] = "# comment\n"
				   "[daemon]\n"
				   "socket = /tmp/x.sock\n"
				   "mode = 0600   ; comment\n"
				   "group = wheel\n"
				   "backend = cpu\n"
				   "threads = 7\n"
				   "device = GPU-5\n"
				   "log = stderr\n"
				   "log_level = debug\n"
				   "drain_timeout_ms = 0\n"
				   "spin_us = 7\n"
				   "spin_step_us = 8\n"
				   "\n"
				   "[limits]\n"
				   "sessions = 1\n"
				   "buffers = 2\n"
				   "buffer_bytes = 3G\n"
				   "fds = 4k\n"
				   "requests = 5\n"
				   "uid_factor = 11\n"
				   "session_buffers = 6\n"
				   "session_streams = 7\n"
				   "session_requests = 8\n"
				   "session_out_bytes = 1M\n"
				   "connections = 10\n"
				   "[pool]\n"
				   "grace_s = 600\n";
	struct fa_error error = {};
	struct fa_config config;

	assert_int_equal(fa_config_init(&config), 0);
	assert_int_equal(fa_config_parse(&config, "configuration", text, &error), 0);
	assert_string_equal(config.socket, "/tmp/x.sock");
	assert_int_equal(config.mode, 0600);
	assert_string_equal(config.group, "wheel");
	assert_string_equal(config.backend, "cpu");
	assert_int_equal(config.threads, 7);
	assert_string_equal(config.device, "GPU-5");
	assert_int_equal(config.log, FA_LOG_STDERR);
	assert_int_equal(config.log_level, FA_LOG_DEBUG);
	assert_int_equal(config.drain_timeout_ms, 0);
	assert_int_equal(config.spin_us, 7);
	assert_int_equal(config.spin_step_us, 8);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_SESSIONS], 1);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_BUFFERS], 2);
	assert_true(config.limits.tenant[FA_RESOURCE_BUFFER_BYTES] == 3ull << 30);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_FDS], 4096);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_REQUESTS], 5);
	assert_int_equal(config.limits.uid_factor, 11);
	assert_int_equal(config.limits.session_buffers, 6);
	assert_int_equal(config.limits.session_streams, 7);
	assert_int_equal(config.limits.session_requests, 8);
	assert_int_equal(config.limits.session_out_bytes, 1 << 20);
	assert_int_equal(config.limits.connections, 10);
	assert_int_equal(config.pool_grace_s, 600);

	assert_int_equal(fa_config_parse(&config, "configuration",
	                                 "[daemon]\nsocket =\nsocket = /a\nsocket =\n", &error),
	                 0);
	assert_null(config.socket);
	fa_config_deinit(&config);
}

/* The error must name the line and @part. */
static void refuse(const char *text, int line, const char *part)
{
	struct fa_error error = {};
	struct fa_config config;
	char where[32];

	snprintf(where, sizeof(where), "line %d:", line);
	assert_int_equal(fa_config_init(&config), 0);
	assert_int_equal(fa_config_parse(&config, "configuration", text, &error), -EINVAL);
	if (!strstr(error.text, where) || !strstr(error.text, part))
		fail_msg("\"%s\" lacks \"%s\" or \"%s\"", error.text, where, part);
	fa_config_deinit(&config);
}

static void test_wrong(void **state)
{
	char text[256], path[160];

	refuse("[daemon]\nfoo = 1\n", 2, "[daemon] has no \"foo\"");
	refuse("[limits]\n\nfoo = 1\n", 3, "[limits] has no \"foo\"");
	refuse("[other]\nfoo = 1\n", 2, "no section [other]");
	refuse("socket = /x\n", 1, "before the first [section]");
	refuse("[daemon]\nmode = 888\n", 2, "octal");
	refuse("[daemon]\nmode = 01000\n", 2, "octal");
	refuse("[daemon]\nmode = -1\n", 2, "octal");
	refuse("[daemon]\nmode =\n", 2, "octal");
	refuse("[daemon]\nthreads = many\n", 2, "threads is \"many\"");
	refuse("[daemon]\nthreads = 1025\n", 2, "from 0 to 1024");
	refuse("[daemon]\nlog = syslog\n", 2, "stderr or journal");
	if (!fa_manager_has_journal())
		refuse("[daemon]\nlog = journal\n", 2, "built without libsystemd");
	refuse("[daemon]\nbackend = abacus\n", 2,
	       "backend is \"abacus\"; expected auto, cpu, cuda or vulkan");
	refuse("[daemon]\nlog_level = loud\n", 2, "log_level");
	refuse("[daemon]\ndrain_timeout_ms = -1\n", 2, "drain_timeout_ms");
	refuse("[daemon]\nspin_us = 1000001\n", 2, "spin_us");
	refuse("[daemon]\nspin_step_us = 1000001\n", 2, "spin_step_us");
	refuse("[pool]\ngrace_s = 0\n", 2, "grace_s");
	refuse("[pool]\ngrace_s = 86401\n", 2, "to 86400");
	refuse("[daemon]\njust words\n", 2, "expected [section] or name = value");
	refuse("[limits]\nsessions = 1x\n", 2, "sessions is \"1x\"");
	refuse("[limits]\nsessions = 1KB\n", 2, "sessions");
	refuse("[limits]\nsessions =\n", 2, "sessions");
	refuse("[limits]\nuid_factor = 0\n", 2, "expected a number from 1 ");
	refuse("[limits]\nsessions = 0x10\n", 2, "sessions");
	refuse("[limits]\nbuffer_bytes = 99999999999999999999\n", 2, "buffer_bytes");
	refuse("[limits]\nbuffer_bytes = 99999999999T\n", 2, "buffer_bytes");
	refuse("[limits]\nsession_streams = 65\n", 2, "from 1 to 64");
	refuse("[limits]\nsession_streams = 0\n", 2, "from 1 to 64");
	refuse("[limits]\nsession_requests = 0\n", 2, "session_requests");
	refuse("[daemon]\nthreads = x\nmode = 9\n", 2, "threads");

	memset(path, 'a', sizeof(path));
	path[0] = '/';
	path[120] = 0;
	snprintf(text, sizeof(text), "[daemon]\nsocket = %s\n", path);
	refuse(text, 2, "longer than");
}

static void test_file(void **state)
{
	struct fa_error error = {};
	struct fa_config config;
	char path[] = "/tmp/fad-test-config-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(fa_config_init(&config), 0);
	assert_true(write(fd, "[limits]\nfds = 17\n", 18) == 18);
	assert_int_equal(fa_config_load(&config, path, &error), 0);
	assert_int_equal(config.limits.tenant[FA_RESOURCE_FDS], 17);
	assert_true(write(fd, "oops\n", 5) == 5);
	assert_int_equal(fa_config_load(&config, path, &error), -EINVAL);
	assert_non_null(strstr(error.text, path));
	assert_non_null(strstr(error.text, "line 3"));
	unlink(path);
	close(fd);
	assert_int_equal(fa_config_load(&config, path, &error), -ENOENT);
	assert_non_null(strstr(error.text, path));
	assert_int_equal(fa_config_load(&config, "/", &error), -EIO);
	fa_config_deinit(&config);
}

struct faults {
	char text[FA_CONFIG_FAULTS_MAX + 2][FA_ERROR_TEXT_BYTES];
	unsigned int n;
};

static void count_fault(void *userdata, const struct fa_error *fault)
{
	struct faults *faults = userdata;

	assert_true(faults->n < FA_CONFIG_FAULTS_MAX + 2);
	strcpy(faults->text[faults->n++], fault->text);
}

/* Returns what fa_config_check() does with a file of this text. */
static int check_text(const char *text, struct faults *ret_faults)
{
	char path[] = "/tmp/fad-test-config-XXXXXX";
	struct fa_error error = {};
	struct fa_config config;
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_true(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	*ret_faults = (struct faults){};
	assert_int_equal(fa_config_init(&config), 0);
	r = fa_config_check(&config, path, count_fault, ret_faults, &error);
	fa_config_deinit(&config);
	unlink(path);
	return r;
}

/* All faults have their lines, also behind lines that inih does not understand or cannot hold. */
static void test_check(void **state)
{
	static struct faults faults;
	static char text[70000];
	size_t used;

	assert_int_equal(check_text("", &faults), 0);
	assert_int_equal(check_text("[daemon]\nthreads = 3", &faults), 0);
	assert_int_equal(faults.n, 0);
	assert_int_equal(
		check_text("words\n[daemon\n\nthreads = x\nmore words\r\nmode = 9", &faults),
		-EINVAL);
	assert_int_equal(faults.n, 5);
	assert_non_null(strstr(faults.text[0], ", line 1: expected [section]"));
	assert_non_null(strstr(faults.text[1], ", line 2: expected [section]"));
	assert_non_null(strstr(faults.text[2], ", line 4: \"threads\" stands before"));
	assert_non_null(strstr(faults.text[3], ", line 5: expected [section]"));
	assert_non_null(strstr(faults.text[4], ", line 6: \"mode\" stands before"));

	/* Long comments are comments. Other long lines are faults, and do not shift the count. */
	(void)sprintf(text, "[daemon]\n  # %01000d = 1\ngroup = %01000d\nmode = 9\n", 1, 2);
	assert_int_equal(check_text(text, &faults), -EINVAL);
	assert_int_equal(faults.n, 2);
	assert_non_null(strstr(faults.text[0], ", line 3: the line is too long"));
	assert_non_null(strstr(faults.text[1], ", line 4: mode is"));

	for (int kind = 0; kind < 2; ++kind) {
		used = 0;
		for (int i = 0; i < 3000; ++i)
			used += (size_t)sprintf(text + used, kind ? "words\n" : "mode = 9\n");
		assert_int_equal(check_text(text, &faults), -EINVAL);
		assert_int_equal(faults.n, FA_CONFIG_FAULTS_MAX + 1);
		assert_non_null(strstr(faults.text[99], ", line 100: "));
		assert_non_null(strstr(faults.text[100], "has more faults"));
	}
}

static void test_set(void **state)
{
	struct fa_error error = {};
	struct fa_config config;

	assert_int_equal(fa_config_init(&config), 0);
	assert_int_equal(fa_config_set(&config, "daemon", "threads", "3", &error), 0);
	assert_int_equal(config.threads, 3);
	assert_int_equal(fa_config_set(&config, "daemon", "threads", "", &error), -EINVAL);
	assert_int_equal(config.threads, 3);
	assert_int_equal(fa_config_set(&config, "daemon", "backend", "", &error), 0);
	assert_string_equal(config.backend, "auto");
	fa_config_deinit(&config);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults), cmocka_unit_test(test_all),
		cmocka_unit_test(test_journal),  cmocka_unit_test(test_wrong),
		cmocka_unit_test(test_file),     cmocka_unit_test(test_check),
		cmocka_unit_test(test_set),      cmocka_unit_test(test_timelines),
		cmocka_unit_test(test_fds),      cmocka_unit_test(test_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
