/*
 * The fd store and recovery from it. The test plays systemd: it stores what the daemon sends and
 * hands over all of it, a part, or something else. A pool that cannot be recovered is dropped as a
 * whole; one that only this daemon cannot recover stays stored; without some chunks the rest is
 * recovered. Messages that could not be sent are sent later.
 */
#include "common/cleanup.h"
#include "kv-client.h"
#include "tests/lib/at_once.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"
#include "tests/lib/scene.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sysexits.h>
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

/* Settings of the next daemon. */
static uint64_t address_space;
static bool names_wrong; /* hand over one name too few */
static const char *room;
static rlim_t fds_max;

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

/* Without the notify socket nothing can be stored until hear(). */
static void deafen(void)
{
	close(notify_fd);
	notify_fd = -1;
}

static void hear(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const size_t n = strlen(notify_name);

	memcpy(address.sun_path + 1, notify_name + 1, n - 1);
	notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	fa_check_eq(bind(notify_fd, (struct sockaddr *)&address,
	                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
	            0);
}

static bool keeps(const char *prefix, int n)
{
	listen_to_daemon();
	return count(prefix) == n;
}

static void run(int ready)
{
	char number[16], names[KEPT_MAX * 64] = "";
	int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600), at = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(log, STDERR_FILENO);
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
	if (room)
		setenv("FDSTORE", room, 1);
	snprintf(number, sizeof(number), "%d", n_kept);
	if (n_kept)
		setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names_wrong ? strchr(names, ':') + 1 : names, 1);
	snprintf(number, sizeof(number), "%ld", (long)getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof(number), "%d", ready);
	if (address_space)
		setrlimit(RLIMIT_AS, &(struct rlimit){ address_space, address_space });
	if (fds_max)
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){ fds_max, fds_max });
	execl(getenv("FAD_DAEMON"), "fad", "--socket", socket_path, "--config", config_path,
	      "--ready-fd", number, (char *)NULL);
	_exit(127);
}

/* True: the daemon is ready; false: it has exited. */
static bool try_daemon(void)
{
	char text[16] = "";
	int ends[2];

	fa_check_eq(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	fa_check(pid >= 0);
	if (pid == 0)
		run(ends[1]);
	close(ends[1]);
	(void)!read(ends[0], text, sizeof(text) - 1);
	close(ends[0]);
	return !strcmp(text, "READY\n");
}

static void start_daemon(void)
{
	fa_check(try_daemon());
	listen_to_daemon();
	kv_open(&client, socket_path);
}

/* It exits with EX_TEMPFAIL, and everything stays stored. */
static void start_in_vain(void)
{
	const int n = n_kept;
	int status;

	fa_check(!try_daemon());
	status = fa_test_reap(pid);
	listen_to_daemon();
	fa_check(WIFEXITED(status));
	fa_check_eq(WEXITSTATUS(status), EX_TEMPFAIL);
	fa_check_eq(n_kept, n);
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

static void start_with(const char *config)
{
	if (!getenv("FAD_DAEMON"))
		exit(77);
	fa_test_dir_make(directory, sizeof(directory));
	snprintf(socket_path, sizeof(socket_path), "%s/fad.sock", directory);
	snprintf(config_path, sizeof(config_path), "%s/fad.conf", directory);
	snprintf(log_path, sizeof(log_path), "%s/log", directory);
	write_file(config_path, config);
	write_file(log_path, "");
	snprintf(notify_name, sizeof(notify_name), "@fad-test-fd-store-%ld", (long)getpid());
	hear();
	kv_count(numbers, 1, TOKENS);
	address_space = 0;
	names_wrong = false;
	room = NULL;
	fds_max = 0;
	start_daemon();
}

static int start(void **state)
{
	start_with("[pool]\nbytes = 1M\nchunk_bytes = 256K\n");
	return 0;
}

/* With one malloc arena the pool takes most of the address space. */
static int start_large(void **state)
{
	setenv("MALLOC_ARENA_MAX", "1", 1);
	start_with("[pool]\nbytes = 1G\nchunk_bytes = 1M\n");
	return 0;
}

static int stop(void **state)
{
	unsetenv("MALLOC_ARENA_MAX");
	kv_close(&client);
	kill(pid, SIGTERM);
	fa_check_eq(fa_test_reap(pid), 0);
	while (n_kept)
		forget(kept[0].name);
	close(notify_fd);
	fa_test_dir_remove(directory);
	return 0;
}

/* Two chunks of 40 pages: the first has sequence "s", the second "u". */
static void append_all(uint64_t cache)
{
	static const char *const names[] = { "s", "t", "u" };
	uint64_t sequence;

	for (int i = 0; i < 3; ++i) {
		sequence = kv_sequence(&client, cache);
		kv_append(&client, sequence, numbers, 0, TOKENS);
		kv_set_name(&client, sequence, names[i], 0);
	}
}

static void fill(void)
{
	append_all(kv_cache(&client, "c", 0));
	listen_to_daemon();
	fa_check_eq(count("fad-pool-state"), 1);
	fa_check_eq(count("fad-sessions"), 1);
	fa_check_eq(count("fad-pool-"), 1 + 2);
}

static void check_one(const char *name)
{
	kv_check(&client, kv_sequence_find(&client, name), numbers, 0, TOKENS);
}

static void check_gone(const char *name)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_FIND);

	message.sequence_find.name = (struct fa_wire_string){ name, strlen(name) };
	kv_call_expect(&client, &message, -ENOENT, NULL);
}

static void check_there(void)
{
	check_one("s");
	check_one("t");
	check_one("u");
}

static long long status_number(const char *key)
{
	_fa_cleanup_(fa_freep) char *text = fa_raw_status(&client.raw);
	json_t *json = json_loads(text, 0, NULL);
	const json_t *value = json_object_get(json_object_get(json, "pool"), key);
	long long number;

	fa_check(json_is_integer(value));
	number = json_integer_value(value);
	json_decref(json);
	return number;
}

static void check_dropped(const char *why)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CACHE_FIND);

	fa_check(log_has("the persisted KV pool is dropped"));
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

/* Only a missing chunk's contents are lost, be it the first or the last. */
static void test_chunk_missing(void **state)
{
	for (int i = 0; i < 2; ++i) {
		fill();
		kill_daemon();
		forget(i ? "fad-pool-1" : "fad-pool-0");
		start_daemon();
		fa_check(log_has(i ? "chunk 1 has no memory" : "chunk 0 has no memory"));
		fa_check(!log_has("the persisted KV pool is dropped"));
		check_gone("t");
		check_gone(i ? "u" : "s");
		check_one(i ? "s" : "u");
		fa_check_eq(status_number("chunks"), 1);
		kv_append(&client, kv_sequence(&client, kv_cache_find(&client, "c")), numbers, 0,
		          TOKENS);
		fa_check_eq(status_number("chunks"), 2);
		listen_to_daemon();
		kill_daemon();
		start_daemon();
		check_gone("t");
		check_gone(i ? "u" : "s");
		check_one(i ? "s" : "u");
		stop(state);
		start(state);
	}
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
	check_dropped("the stored sessions are damaged");
}

/* Chunks without state are dropped. */
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

static void test_no_memory(void **state)
{
	const uint64_t mib = 1 << 20;
	uint64_t sequence, most;

	/* Sanitizers reserve terabytes of address space. */
	if (fa_test_sanitized())
		skip();
	sequence = kv_sequence(&client, kv_cache(&client, "c", 0));
	kv_append(&client, sequence, numbers, 0, TOKENS);
	kv_set_name(&client, sequence, "s", 0);
	most = fa_test_peak_bytes(pid);
	kill_daemon();
	for (uint64_t less = 1024 * mib; less >= 256 * mib; less /= 2) {
		address_space = most - less;
		start_in_vain();
	}
	fa_check(log_has("the persisted KV pool cannot be recovered now"));
	fa_check(log_has("Cannot allocate memory"));
	address_space = 0;
	start_daemon();
	check_one("s");
	fa_check(!log_has("dropped"));
}

static void test_not_handed_over(void **state)
{
	fill();
	kill_daemon();
	fa_check_eq(unlink(socket_path), 0);
	names_wrong = true;
	start_in_vain();
	fa_check(log_has("the stored descriptors cannot be taken"));
	names_wrong = false;
	start_daemon();
	check_there();
	fa_check(!log_has("dropped"));
}

static void test_kept_later(void **state)
{
	deafen();
	append_all(kv_cache(&client, "c", 0));
	fa_check(log_has("fad-pool-0 cannot be kept now"));
	fa_check(log_has("fad-pool-1 cannot be kept now"));
	fa_check_eq(status_number("chunks_unkept"), 2);
	hear();
	fa_check_eventually(keeps("fad-pool-", 1 + 2));
	fa_check_eq(status_number("chunks_unkept"), 0);
	fa_check(log_has("fad-pool-1 is kept now"));
	kill_daemon();
	start_daemon();
	check_there();
}

static void test_state_kept_later(void **state)
{
	kill_daemon();
	while (n_kept)
		forget(kept[0].name);
	deafen();
	fa_check(try_daemon());
	kv_open(&client, socket_path);
	fa_check(log_has("fad-pool-state cannot be kept now"));
	fa_check(log_has("fad-sessions cannot be kept now"));
	hear();
	fa_check_eventually(keeps("fad-pool-state", 1) && keeps("fad-sessions", 1));
	fill();
	kill_daemon();
	start_daemon();
	check_there();
}

static void test_kept_at_the_end(void **state)
{
	deafen();
	append_all(kv_cache(&client, "c", 0));
	kv_close(&client);
	hear();
	kill(pid, SIGTERM);
	fa_check_eq(fa_test_reap(pid), 0);
	fa_check(keeps("fad-pool-", 1 + 2));
	start_daemon();
	check_there();
}

/* The store has room for the first chunk only. */
static void test_no_room(void **state)
{
	kill_daemon();
	/* Half of the store is for timelines, one for the socket. */
	room = "8";
	start_daemon();
	append_all(kv_cache(&client, "c", 0));
	listen_to_daemon();
	fa_check_eq(count("fad-pool-"), 1 + 1);
	fa_check(log_has("fad-pool-1 cannot be kept now: the fd store has no room"));
	fa_check_eq(status_number("chunks"), 2);
	fa_check_eq(status_number("chunks_unkept"), 1);
	kill_daemon();
	start_daemon();
	check_one("s");
	check_gone("t");
	check_gone("u");
}

/* Unstored chunks must not use up the daemon's descriptors. */
static void test_many_unkept(void **state)
{
	struct kv_client other;
	uint64_t cache;

	kill_daemon();
	while (n_kept)
		forget(kept[0].name);
	room = "4";
	fds_max = 128;
	write_file(config_path, "[pool]\nbytes = 16M\nchunk_bytes = 64K\n");
	start_daemon();
	cache = kv_cache(&client, "c", 0);
	for (int i = 0; i < 64; ++i)
		kv_append(&client, kv_sequence(&client, cache), numbers, 0, TOKENS);
	fa_check(status_number("chunks") > 128);
	kv_open(&other, socket_path);
	kv_close(&other);
	fa_check_eq(status_number("chunks_unkept"), status_number("chunks"));
}

static void free_all(void)
{
	kv_free(&client, kv_sequence_find(&client, "s"));
	kv_free(&client, kv_sequence_find(&client, "t"));
	kv_free(&client, kv_sequence_find(&client, "u"));
}

static void test_let_go_later(void **state)
{
	fill();
	free_all();
	deafen();
	fa_check_eventually(status_number("chunks") == 0);
	fa_check_eq(count("fad-pool-"), 1 + 2);
	append_all(kv_cache_find(&client, "c"));
	fa_check_eq(status_number("chunks_unkept"), 2);
	free_all();
	hear();
	fa_check_eventually(status_number("chunks_unkept") == 0);
	listen_to_daemon();
	fa_check_eq(count("fad-pool-"), 1 + 2);
	fa_check_eventually(keeps("fad-pool-", 1));
	fa_check_eq(status_number("chunks"), 0);
}

static void make_timeline(struct kv_client *owner)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	kv_open(owner, socket_path);
	fa_raw_call(&owner->raw, &message, NULL, 0);
	fa_check_eq(owner->raw.message.type, FA_WIRE_TIMELINE_REPLY);
	listen_to_daemon();
}

static int64_t count_connections(void)
{
	struct fa_test_accounts accounts;

	fa_test_accounts(&client.raw, &accounts);
	return accounts.connections;
}

static void test_timelines_let_go_later(void **state)
{
	static struct kv_client owners[3];

	for (int i = 0; i < 2; ++i)
		make_timeline(&owners[i]);
	fa_check_eq(count("fad-timeline-"), 2);
	deafen();
	for (int i = 0; i < 2; ++i)
		kv_close(&owners[i]);
	fa_check_eventually(count_connections() == 1);
	hear();
	make_timeline(&owners[2]);
	fa_check_eq(count("fad-timeline-"), 1);
	kv_close(&owners[2]);
	fa_check_eventually(keeps("fad-timeline-", 0));
}

/*
 * A chunk whose removal from the store could not be sent is not taken for a newer one of that
 * number.
 */
static void test_stale(void **state)
{
	uint32_t others[TOKENS];
	uint64_t sequence;

	fill();
	free_all();
	deafen();
	fa_check_eventually(status_number("chunks") == 0);
	kv_count(others, 1000, TOKENS);
	sequence = kv_sequence(&client, kv_cache_find(&client, "c"));
	kv_append(&client, sequence, others, 0, TOKENS);
	kv_set_name(&client, sequence, "s", 0);
	kv_check(&client, sequence, others, 0, TOKENS);
	kv_close(&client);
	kill(pid, SIGKILL);
	fa_check_eq(fa_test_reap(pid), SIGKILL);
	hear();
	start_daemon();
	check_gone("s");
	listen_to_daemon();
	fa_check_eq(count("fad-pool-"), 1);
	append_all(kv_cache_find(&client, "c"));
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
		cmocka_unit_test_setup_teardown(test_no_memory, start_large, stop),
		TEST(not_handed_over),
		TEST(kept_later),
		TEST(state_kept_later),
		TEST(kept_at_the_end),
		TEST(no_room),
		TEST(many_unkept),
		TEST(let_go_later),
		TEST(timelines_let_go_later),
		TEST(stale),
	};

	return fa_test_run_at_once("fd-store", tests, NULL, NULL);
}
