/*
 * Four processes request attention from one daemon at once and check every number; a fifth is
 * killed during its request. This driver starts the clients, reads the daemon's status, prints a
 * table, and exits with 0 only if every result was right and the killed client's memory was freed.
 *
 *   demo [--data DIRECTORY]      FAD_SOCKET: the daemon's socket
 */
#include "demo/client.h"

#include "client/faclient.h"
#include "demo/process.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES (DEMO_CLIENTS + 1)
#define LIMIT_SECONDS 900

static struct demo_process processes[PROCESSES];
static char results[PROCESSES][DEMO_LINE_BYTES];

static int start(int index, const char *data)
{
	char number[8];
	const char *argv[] = { "demo", "--data", data, "--client", number, NULL };

	snprintf(number, sizeof(number), "%d", index);
	return demo_process_start(&processes[index], demo_client_name(index), argv);
}

/* A session in the daemon's status. */
struct session_status {
	bool exists;
	json_int_t requests;    /* in flight */
	json_int_t bytes;       /* of its buffers */
	json_int_t total_bytes; /* all sessions' */
};

static json_int_t integer(json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static int read_status(struct fa_client *client, pid_t pid, struct session_status *ret_status)
{
	struct session_status status = { 0 };
	json_t *root, *session;
	size_t i;
	char *text;

	if (fa_status(client, &text) < 0)
		return demo_fail("the daemon's status cannot be read: %s", fa_error());
	root = json_loads(text, 0, NULL);
	free(text);
	if (!root)
		return demo_fail("the daemon's status is no JSON");
	json_array_foreach(json_object_get(root, "sessions"), i, session)
	{
		status.total_bytes += integer(session, "buffer_bytes");
		if (integer(session, "pid") != pid)
			continue;
		status.exists = true;
		status.requests = integer(session, "requests");
		status.bytes = integer(session, "buffer_bytes");
	}
	json_decref(root);
	*ret_status = status;
	return 0;
}

enum state {
	RUNNING,
	GONE
};

/* Waits until the session has a request in flight, or is gone; 30 s at most. */
static int await_session(struct fa_client *client, pid_t pid, enum state state,
                         struct session_status *ret_status)
{
	double end = demo_now() + 30;

	while (demo_now() < end) {
		if (read_status(client, pid, ret_status) < 0)
			return -1;
		if (state == RUNNING ? ret_status->exists && ret_status->requests > 0
		                     : !ret_status->exists)
			return 0;
		usleep(5000);
	}
	return demo_fail(state == RUNNING ? "the daemon never reported the request"
	                                  : "the daemon still keeps the session after 30 s");
}

static int kill_victim(struct fa_client *client)
{
	struct demo_process *victim = &processes[DEMO_VICTIM];
	struct session_status before, after;
	double start;

	if (read_status(client, victim->pid, &before) < 0)
		return -1;
	if (before.requests == 0)
		return demo_fail("the request of %s had ended before the kill", victim->name);
	start = demo_now();
	kill(victim->pid, SIGKILL);
	waitpid(victim->pid, NULL, 0);
	if (await_session(client, victim->pid, GONE, &after) < 0)
		return -1;
	demo_say("%s (%d) was killed during its request. After %.0f ms the daemon had ended its\n"
	         "session and freed its %.0f MiB.",
	         victim->name, victim->pid, (demo_now() - start) * 1e3,
	         (double)(before.total_bytes - after.total_bytes) / (1 << 20));
	victim->pid = 0;
	if (before.bytes == 0 || after.total_bytes != before.total_bytes - before.bytes)
		return demo_fail("%lld bytes of buffers were left, not %lld",
		                 (long long)after.total_bytes,
		                 (long long)(before.total_bytes - before.bytes));
	return 0;
}

static int run(struct fa_client *client, const char *data)
{
	struct demo_process *victim = &processes[DEMO_VICTIM];
	struct session_status status;

	demo_say("Five processes connect. Four generate their tensors (delta reads them from\n"
	         "%s/*.npy) and compute attention in double precision ...",
	         data);
	for (int i = 0; i < PROCESSES; i++) {
		if (start(i, data) < 0)
			return -1;
	}
	for (int i = 0; i < PROCESSES; i++) {
		if (demo_process_expect(&processes[i], "ready", NULL) < 0)
			return -1;
	}

	demo_say("The fifth, %s, submits a very long request ...", victim->name);
	demo_process_tell(victim, "go");
	if (demo_process_expect(victim, "running", NULL) < 0 ||
	    await_session(client, victim->pid, RUNNING, &status) < 0)
		return -1;
	demo_say("... while the four repeat theirs and check every number.");
	for (int i = 0; i < DEMO_CLIENTS; i++)
		demo_process_tell(&processes[i], "go");
	for (int i = 0; i < DEMO_CLIENTS; i++) {
		if (demo_process_expect(&processes[i], "running", NULL) < 0)
			return -1;
	}
	if (kill_victim(client) < 0)
		return -1;
	demo_say("The others continue, and stop after one more request each.");
	for (int i = 0; i < DEMO_CLIENTS; i++)
		demo_process_tell(&processes[i], "stop");
	for (int i = 0; i < DEMO_CLIENTS; i++) {
		if (demo_process_expect(&processes[i], "result", results[i]) < 0)
			return -1;
	}
	return 0;
}

/* Fails if a client with a result exits with an error. */
static int finish(void)
{
	int r = 0;

	for (int i = 0; i < PROCESSES; i++)
		if (demo_process_finish(&processes[i], !results[i][0]) < 0)
			r = -1;
	return r;
}

static int print_table(void)
{
	int r = 0;

	printf("\n%-8s %7s  %-37s %-8s %-5s %-6s %6s %9s %8s %9s %9s\n", "process", "pid", "shape",
	       "memory", "dtype", "mask", "rounds", "median ms", "GFLOP/s", "error", "of allowed");
	for (int i = 0; i < DEMO_CLIENTS; i++) {
		struct demo_process *process = &processes[i];
		char *fields[10], *rest = results[i];
		double seconds, flops;
		int n = 0;

		while (n < 10 && rest)
			fields[n++] = strsep(&rest, "\t");
		if (n != 10)
			return demo_fail("the result line of %s is incomplete", process->name);
		seconds = atof(fields[5]);
		flops = atof(fields[6]);
		printf("%-8s %7d  %-37s %-8s %-5s %-6s %6s %9.2f %8.1f %9s %9s  %s\n",
		       process->name, process->pid, fields[0], fields[1], fields[2], fields[3],
		       fields[4], seconds * 1e3, flops / seconds * 1e-9, fields[7], fields[8],
		       fields[9]);
		if (strcmp(fields[9], "right") != 0)
			r = -1;
	}
	printf("(shape: query/key-value heads, query:key tokens; all at once on one device;\n"
	       "error: the largest difference from double precision in any round; of allowed: the "
	       "same as\n"
	       "a fraction of the rounding error that the dtype permits)\n");
	return r;
}

static void on_alarm(int signal_number)
{
	static const char text[] = "FAILED: the demo took too long\n";

	(void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
	_exit(1); /* the clients die with us */
}

int main(int argc, char **argv)
{
	struct fa_options options = { .size = sizeof(options), .name = "demo" };
	struct fa_client *client;
	const char *data = "demo";
	int r, ended;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--data") == 0)
			data = argv[i + 1];
		else if (strcmp(argv[i], "--client") == 0)
			return demo_client_run(atoi(argv[i + 1]), data);
	}

	signal(SIGPIPE, SIG_IGN);
	signal(SIGALRM, on_alarm);
	alarm(LIMIT_SECONDS);
	if (fa_connect(&options, &client) < 0) {
		demo_fail("no connection to fad: %s", fa_error());
		return 1;
	}
	r = run(client, data);
	ended = finish();
	if (r == 0)
		r = print_table();
	fa_disconnect(client);
	return r < 0 || ended < 0 ? 1 : 0;
}
