/*
 * The demo's processes, and how they talk: a driver starts clients (this program again,
 * with other arguments) and exchanges lines with them through their stdin and stdout.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define DEMO_LINE_BYTES 512

struct demo_process {
	const char *name;
	pid_t pid; /* 0: not running */
	FILE *to, *from;
};

/* ---- the driver's */

/* Starts this program with @argv, which ends with NULL. It dies with us. */
int demo_process_start(struct demo_process *process, const char *name, const char *const *argv);

/* Reads the client's next line, which must start with @word; what follows goes to
 * @ret_rest (of DEMO_LINE_BYTES) if that is not NULL. */
int demo_process_expect(struct demo_process *process, const char *word, char *ret_rest);

void demo_process_tell(struct demo_process *process, const char *word);

/* Waits for its end, after SIGKILL if @unwanted; says if it did not end well, and returns -1.
 * One that was never started, or is no more, ended well. */
int demo_process_finish(struct demo_process *process, bool unwanted);

/* A line on stdout; demo_fail() begins it with FAILED, and returns -1. */
void demo_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int demo_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- a client's */

/* Says that it failed, and why; returns 1. */
int demo_client_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void demo_client_say(const char *word);

/* Reads a line, which must be @word; 0 or what demo_client_fail() returns. */
int demo_client_wait(const char *word);

/* ---- both */

double demo_now(void); /* seconds */
