#include "demo/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- driver */

void demo_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

int demo_fail(const char *format, ...)
{
	va_list args;

	printf("FAILED: ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	return -1;
}

int demo_process_start(struct demo_process *process, const char *name, const char *const *argv)
{
	int to[2], from[2];

	process->name = name;
	if (pipe2(to, O_CLOEXEC) < 0)
		return demo_fail("pipe: %s", strerror(errno));
	if (pipe2(from, O_CLOEXEC) < 0) {
		close(to[0]);
		close(to[1]);
		return demo_fail("pipe: %s", strerror(errno));
	}
	process->pid = fork();
	if (process->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to[0], STDIN_FILENO);
		dup2(from[1], STDOUT_FILENO);
		execv("/proc/self/exe", (char *const *)argv);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	process->to = fdopen(to[1], "w");
	process->from = fdopen(from[0], "r");
	if (process->pid < 0)
		return demo_fail("fork: %s", strerror(errno));
	return 0;
}

int demo_process_expect(struct demo_process *process, const char *word, char *ret_rest)
{
	char line[DEMO_LINE_BYTES];
	size_t length = strlen(word);

	if (!fgets(line, sizeof(line), process->from))
		return demo_fail("%s ended unexpectedly", process->name);
	line[strcspn(line, "\n")] = '\0';
	if (strncmp(line, word, length) != 0 || (line[length] && line[length] != ' '))
		return demo_fail("%s says: %s", process->name, line);
	if (ret_rest)
		strcpy(ret_rest, line[length] ? line + length + 1 : "");
	return 0;
}

void demo_process_tell(struct demo_process *process, const char *word)
{
	/* demo_process_expect() notices a dead client. */
	fprintf(process->to, "%s\n", word);
	fflush(process->to);
}

int demo_process_finish(struct demo_process *process, bool unwanted)
{
	int status;

	if (process->pid <= 0)
		return 0;
	if (unwanted)
		kill(process->pid, SIGKILL);
	if (waitpid(process->pid, &status, 0) < 0 || status != 0)
		return demo_fail("%s exited with an error", process->name);
	return 0;
}

/* ---- client */

int demo_client_fail(const char *format, ...)
{
	va_list args;

	printf("failed ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	return 1;
}

void demo_client_say(const char *word)
{
	puts(word);
	fflush(stdout);
}

int demo_client_wait(const char *word)
{
	char line[16];
	size_t length = strlen(word);

	/* poll() would not see what is in stdio's buffer. */
	if (read(STDIN_FILENO, line, length + 1) != (ssize_t)length + 1 ||
	    strncmp(line, word, length) != 0)
		return demo_client_fail("the driver did not say %s", word);
	return 0;
}

/* ---- both */

double demo_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}
