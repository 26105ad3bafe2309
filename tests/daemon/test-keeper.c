/*
 * What the daemon has kept, and takes back: here the test keeps it, and hands over all of
 * it, or not all, or something else. A pool that cannot be taken back is dropped as a
 * whole, and the keeper is left with nothing but what is of the next.
 */
#include "common/cleanup.h"
#include "kv-client.h"
#include "tests/lib/check.h"
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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define KEPT_MAX 32
#define TOKENS 400

static struct kept {
	char name[64];
	int fd;
} kept[KEPT_MAX];
static int n_kept;

static char directory[64], socket_path[96], config_path[96], log_path[96], notify_name[64];
static int notify_fd = -1;
static pid_t pid;
static struct kv_client client;
static uint32_t numbers[TOKENS];

/* ---- keeping */

static void forget(const char *name)
{
	for (int i = 0; i < n_kept;)
		if (strcmp(kept[i].name, name) != 0) {
			++i;
		} else {
			close(kept[i].fd);
			kept[i] = kept[--n_kept];
		}
}

static int count(const char *prefix)
{
	int n = 0;

	for (int i = 0; i < n_kept; ++i)
		n += !strncmp(kept[i].name, prefix, strlen(prefix));
	return n;
}

/* Takes every message that was sent. */
static void listen_to_daemon(void)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char text[512];
	struct iovec iov = { .iov_base = text, .iov_len = sizeof(text) - 1 };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control };
	ssize_t n;

	while (header.msg_controllen = sizeof(control),
	       (n = recvmsg(notify_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) >= 0) {
		struct cmsghdr *c = CMSG_FIRSTHDR(&header);
		char name[64] = "";

		text[n] = '\0';
		if (strstr(text, "FDNAME="))
			fa_check_eq(sscanf(strstr(text, "FDNAME="), "FDNAME=%63[^\n]", name), 1);
		if (!strncmp(text, "FDSTOREREMOVE=1", 15)) {
			forget(name);
		} else if (!strncmp(text, "FDSTORE=1", 9)) {
			fa_check(c && n_kept < KEPT_MAX);
			memcpy(&kept[n_kept].fd, CMSG_DATA(c), sizeof(int));
			strcpy(kept[n_kept++].name, name);
		}
	}
	fa_check_eq(errno, EAGAIN);
}

/* ---- the daemon */

static void run(int ready)
{
	char number[16], names[KEPT_MAX * 64] = "";
	int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600), at = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(log, STDERR_FILENO);
	/* Out of the way, and then where they belong. */
	ready = fcntl(ready, F_DUPFD, 300);
	for (int i = 0; i < n_kept; ++i)
		kept[i].fd = fcntl(kept[i].fd, F_DUPFD, 200);
	for (int i = 0; i < n_kept; ++i) {
		dup2(kept[i].fd, 3 + i);
		close(kept[i].fd);
		at += snprintf(names + at, sizeof(names) - (size_t)at, "%s%s", i ? ":" : "",
		               kept[i].name);
	}
	setenv("NOTIFY_SOCKET", notify_name, 1);
	snprintf(number, sizeof(number), "%d", n_kept);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof(number), "%ld", (long)getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof(number), "%d", ready);
	execl(getenv("FAD_DAEMON"), "fad", "--socket", socket_path, "--config", config_path,
	      "--ready-fd", number, (char *)NULL);
	_exit(127);
}

static void start_daemon(void)
{
	char text[16] = "";
	int ends[2];

	fa_check_eq(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	fa_check(pid >= 0);
	if (pid == 0)
		run(ends[1]);
	close(ends[1]);
	fa_check(read(ends[0], text, sizeof(text) - 1) > 0);
	close(ends[0]);
	fa_check(!strcmp(text, "READY\n"));
	listen_to_daemon();
	kv_open(&client, socket_path);
}

static void kill_daemon(void)
{
	kv_close(&client);
	kill(pid, SIGKILL);
	fa_check_eq(fa_test_reap(pid), SIGKILL);
	listen_to_daemon();
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	fa_check(file != NULL);
	fa_check(fputs(text, file) >= 0);
	fa_check_eq(fclose(file), 0);
}

static bool log_has(const char *part)
{
	_fa_cleanup_(fa_freep) char *text = calloc(1, 1 << 20);
	FILE *file = fopen(log_path, "re");

	fa_check(text && file);
	(void)!fread(text, 1, (1 << 20) - 1, file);
	(void)fclose(file);
	return strstr(text, part) != NULL;
}

static int start(void **state)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int n;

	if (!getenv("FAD_DAEMON"))
		exit(77);
	fa_test_dir_make(directory, sizeof(directory));
	snprintf(socket_path, sizeof(socket_path), "%s/fad.sock", directory);
	snprintf(config_path, sizeof(config_path), "%s/fad.conf", directory);
	snprintf(log_path, sizeof(log_path), "%s/log", directory);
	write_file(config_path, "[pool]\nbytes = 1M\nchunk_bytes = 256K\n");
	write_file(log_path, "");
	n = snprintf(notify_name, sizeof(notify_name), "@fad-test-keeper-%ld", (long)getpid());
	memcpy(address.sun_path + 1, notify_name + 1, (size_t)n - 1);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fa_check_eq(bind(notify_fd, (struct sockaddr *)&address,
	                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)),
	            0);
	kv_count(numbers, 1, TOKENS);
	start_daemon();
	return 0;
}

static int stop(void **state)
{
	kv_close(&client);
	kill(pid, SIGTERM);
	fa_check_eq(fa_test_reap(pid), 0);
	while (n_kept)
		forget(kept[0].name);
	close(notify_fd);
	fa_test_dir_remove(directory);
	return 0;
}

/* ---- what there is in the pool */

/* Enough for two chunks, of 40 pages each. */
static void fill(void)
{
	uint64_t cache = kv_cache(&client, "c", 0), sequence = kv_sequence(&client, cache);

	kv_append(&client, sequence, numbers, 0, TOKENS);
	kv_set_name(&client, sequence, "s", 0);
	for (int i = 0; i < 2; ++i) {
		sequence = kv_sequence(&client, cache);
		kv_append(&client, sequence, numbers, 0, TOKENS);
	}
	listen_to_daemon();
	fa_check_eq(count("fad-pool-state"), 1);
	fa_check_eq(count("fad-sessions"), 1);
	fa_check_eq(count("fad-pool-"), 1 + 2);
}

static void check_there(void)
{
	kv_check(&client, kv_sequence_find(&client, "s"), numbers, 0, TOKENS);
}

/* Nothing is left of what was, and the next pool is kept as the first was. */
static void check_dropped(const char *why)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_FIND);

	fa_check(log_has("the pool that was kept is dropped"));
	fa_check(log_has(why));
	fa_check_eq(count("fad-pool-state"), 1);
	fa_check_eq(count("fad-sessions"), 1);
	fa_check_eq(count("fad-pool-"), 1);
	message.cache_find.name = (struct fa_wire_string){ "c", 1 };
	kv_call_expect(&client, &message, -ENOENT, NULL);
	fill();
	kill_daemon();
	start_daemon();
	check_there();
}

/* In its place, something else. */
static void replace(const char *name, size_t bytes)
{
	struct kept *entry = NULL;

	for (int i = 0; i < n_kept; ++i)
		if (!strcmp(kept[i].name, name))
			entry = &kept[i];
	fa_check(entry != NULL);
	close(entry->fd);
	entry->fd = memfd_create("else", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	fa_check(entry->fd >= 0);
	fa_check_eq(ftruncate(entry->fd, (off_t)bytes), 0);
	fa_check_eq(fcntl(entry->fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
}

/* ---- */

static void test_all(void **state)
{
	fill();
	for (int i = 0; i < 3; ++i) {
		kill_daemon();
		start_daemon();
		check_there();
	}
	fa_check(!log_has("dropped"));
}

/* The first, the last: what was taken before, and what was not, go alike. */
static void test_chunk_missing(void **state)
{
	fill();
	kill_daemon();
	forget("fad-pool-0");
	start_daemon();
	check_dropped("the memory of chunk 0 was not kept");
	kill_daemon();
	forget("fad-pool-1");
	start_daemon();
	check_dropped("the memory of chunk 1 was not kept");
}

static void test_chunk_too_small(void **state)
{
	fill();
	kill_daemon();
	replace("fad-pool-1", 4096);
	start_daemon();
	check_dropped("which has 4096 bytes");
}

static void test_state_missing(void **state)
{
	fill();
	kill_daemon();
	forget("fad-pool-state");
	start_daemon();
	check_dropped("its state was not kept");
}

static void test_state_damaged(void **state)
{
	fill();
	kill_daemon();
	replace("fad-pool-state", 1 << 20);
	start_daemon();
	check_dropped("this is no state of a pool");
}

static void test_sessions_missing(void **state)
{
	fill();
	kill_daemon();
	forget("fad-sessions");
	start_daemon();
	check_dropped("the sessions were not kept");
}

static void test_sessions_damaged(void **state)
{
	fill();
	kill_daemon();
	replace("fad-sessions", 4096);
	start_daemon();
	check_dropped("of the sessions is damaged");
}

/* Chunks alone: their memory is not held for ever. */
static void test_chunks_alone(void **state)
{
	fill();
	kill_daemon();
	forget("fad-pool-state");
	forget("fad-sessions");
	start_daemon();
	fa_check_eq(count("fad-pool-"), 1);
	fill();
	kill_daemon();
	start_daemon();
	check_there();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_##name, start, stop)
	const struct CMUnitTest tests[] = {
		TEST(all),
		TEST(chunk_missing),
		TEST(chunk_too_small),
		TEST(state_missing),
		TEST(state_damaged),
		TEST(sessions_missing),
		TEST(sessions_damaged),
		TEST(chunks_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
