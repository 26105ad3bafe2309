/*
 * The second demo: processes share a KV cache that survives the daemon's death. One prefills a
 * text, one decodes from it, one forks it. The daemon is killed during a step of each; its
 * supervisor starts another, which takes over the cache. Exits with 0 only if every number was
 * right.
 *
 *   demo-kv      FAD_SOCKET: the socket of `fad --supervise`
 */
#include "client/faclient.h"
#include "demo/kv-client.h"
#include "demo/process.h"
#include "demo/text.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT_SECONDS 900
#define PAGE_TOKENS 64 /* a cache's default */

static struct demo_process processes[DEMO_ROLES];
static char results[DEMO_ROLES][DEMO_LINE_BYTES];

static int start(enum demo_role role)
{
	char number[8];
	const char *argv[] = { "demo-kv", "--role", number, NULL };

	snprintf(number, sizeof(number), "%d", (int)role);
	return demo_process_start(&processes[role], demo_role_name(role), argv);
}

static int daemon_pid(struct fa_client *client, pid_t *ret_pid)
{
	json_t *root;
	char *text;

	if (fa_status(client, &text) < 0)
		return demo_fail("the daemon's status cannot be read: %s", fa_error());
	root = json_loads(text, 0, NULL);
	free(text);
	*ret_pid = (pid_t)json_integer_value(json_object_get(root, "pid"));
	json_decref(root);
	return *ret_pid > 0 ? 0 : demo_fail("the daemon's status has no pid");
}

/* Says "go" to the clients in @roles (bits) once the next daemon answers. */
static int kill_daemon(struct fa_client *client, unsigned int roles)
{
	pid_t pid, next;
	double begin;

	if (daemon_pid(client, &pid) < 0)
		return -1;
	begin = demo_now();
	if (kill(pid, SIGKILL) < 0)
		return demo_fail("the daemon, process %d, cannot be killed: %s", pid,
		                 strerror(errno));
	while (fa_ping(client) < 0) {
		if (demo_now() - begin > 20)
			return demo_fail("no daemon answers: %s", fa_error());
	}
	begin = demo_now() - begin;
	if (daemon_pid(client, &next) < 0)
		return -1;
	if (next == pid)
		return demo_fail("process %d, the daemon, survived SIGKILL", pid);
	demo_say("The daemon (%d) was killed. After %.0f ms another one (%d) answered.", pid,
	         begin * 1e3, next);
	for (int i = 0; i < DEMO_ROLES; i++) {
		if (roles & 1u << i)
			demo_process_tell(&processes[i], "go");
	}
	return 0;
}

/* The sequences share pages. */
static int check_pages(struct fa_client *client)
{
	const uint64_t text = (DEMO_TEXT_TOKENS + PAGE_TOKENS - 1) / PAGE_TOKENS;
	/* The fork copies a partly filled page, and shares those before it. */
	const uint64_t decode = (DEMO_TEXT_TOKENS + DEMO_BRANCH_TOKENS - 1) / PAGE_TOKENS -
	                        DEMO_TEXT_TOKENS / PAGE_TOKENS + 1;
	const uint64_t fork = (DEMO_FORK_AT + DEMO_BRANCH_TOKENS - 1) / PAGE_TOKENS -
	                      DEMO_FORK_AT / PAGE_TOKENS + 1;
	struct fa_cache_info info = { .size = sizeof(info) };
	uint64_t cache;

	if (fa_cache_find(client, DEMO_CACHE, &cache) < 0 ||
	    fa_cache_info(client, cache, &info) < 0)
		return demo_fail("the cache is lost: %s", fa_error());
	demo_say("%u sequences have %llu pages of %u tokens, %llu KiB each: %llu of the text, and "
	         "%llu "
	         "and %llu\nof their own for the two that continue it.",
	         info.sequences, (unsigned long long)info.used_pages, info.page_tokens,
	         (unsigned long long)info.page_bytes / 1024, (unsigned long long)text,
	         (unsigned long long)decode, (unsigned long long)fork);
	if (info.sequences != 3 || info.used_pages != text + decode + fork)
		return demo_fail("expected 3 sequences with %llu pages",
		                 (unsigned long long)(text + decode + fork));
	return 0;
}

static int run(struct fa_client *client)
{
	demo_say("%s writes a text of %d tokens, %d layers, %d/%d heads, d%d, with rotary "
	         "embedding ...",
	         demo_role_name(DEMO_PREFILL), DEMO_TEXT_TOKENS, DEMO_LAYERS, DEMO_HEADS,
	         DEMO_KV_HEADS, DEMO_DIM);
	if (start(DEMO_PREFILL) < 0 ||
	    demo_process_expect(&processes[DEMO_PREFILL], "midway", NULL) < 0 ||
	    kill_daemon(client, 1u << DEMO_PREFILL) < 0 ||
	    demo_process_expect(&processes[DEMO_PREFILL], "result", results[DEMO_PREFILL]) < 0)
		return -1;
	/* A named sequence outlives its creator. */
	demo_process_tell(&processes[DEMO_PREFILL], "stop");

	demo_say("%s continues with %d tokens, %s with others from token %d on ...",
	         demo_role_name(DEMO_DECODE), DEMO_BRANCH_TOKENS, demo_role_name(DEMO_FORK),
	         DEMO_FORK_AT);
	if (start(DEMO_DECODE) < 0 || start(DEMO_FORK) < 0 ||
	    demo_process_expect(&processes[DEMO_DECODE], "midway", NULL) < 0 ||
	    demo_process_expect(&processes[DEMO_FORK], "midway", NULL) < 0 ||
	    kill_daemon(client, 1u << DEMO_DECODE | 1u << DEMO_FORK) < 0 ||
	    demo_process_expect(&processes[DEMO_DECODE], "result", results[DEMO_DECODE]) < 0 ||
	    demo_process_expect(&processes[DEMO_FORK], "result", results[DEMO_FORK]) < 0 ||
	    check_pages(client) < 0)
		return -1;
	demo_process_tell(&processes[DEMO_DECODE], "stop");
	demo_process_tell(&processes[DEMO_FORK], "stop");
	return 0;
}

static int finish(void)
{
	int r = 0;

	for (int i = 0; i < DEMO_ROLES; i++)
		if (demo_process_finish(&processes[i], !results[i][0]) < 0)
			r = -1;
	return r;
}

static int print_table(void)
{
	int r = 0;

	printf("\n%-8s %7s %12s %6s %7s %8s %9s %11s %8s\n", "process", "pid", "tokens", "steps",
	       "retries", "ms/step", "error", "of allowed", "resumed");
	for (int i = 0; i < DEMO_ROLES; i++) {
		char *fields[8], *rest = results[i];
		int n = 0;

		while (n < 8 && rest)
			fields[n++] = strsep(&rest, "\t");
		if (n != 8)
			return demo_fail("the result line of %s is incomplete", processes[i].name);
		printf("%-8s %7d %12s %6s %7s %8s %9s %11s %8s  %s\n", processes[i].name,
		       processes[i].pid, fields[0], fields[1], fields[2], fields[3], fields[4],
		       fields[5], fields[6], fields[7]);
		if (strcmp(fields[7], "right") != 0)
			r = -1;
	}
	printf("(tokens: written by this process : in its sequence at the end; retries: steps lost "
	       "with the daemon;\nerror: the largest difference from dense attention in double "
	       "precision, over all layers and tokens;\nof allowed: the same as a fraction of the "
	       "rounding error that fp16 permits)\n");
	return r;
}

static void on_alarm(int signal_number)
{
	static const char text[] = "FAILED: the demo took too long\n";

	(void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

int main(int argc, char **argv)
{
	struct fa_options options = { .size = sizeof(options), .name = "demo-kv" };
	struct fa_client *client;
	uint64_t cache;
	int r, ended;

	if (argc == 3 && strcmp(argv[1], "--role") == 0)
		return demo_role_run((enum demo_role)atoi(argv[2]));

	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, on_alarm);
	alarm(LIMIT_SECONDS);
	if (fa_connect(&options, &client) < 0) {
		demo_fail("no connection to fad: %s", fa_error());
		return 1;
	}
	r = run(client);
	ended = finish();
	if (r == 0)
		r = print_table();
	if (fa_cache_find(client, DEMO_CACHE, &cache) == 0)
		(void)fa_cache_remove(client, cache);
	fa_disconnect(client);
	return r < 0 || ended < 0 ? 1 : 0;
}
