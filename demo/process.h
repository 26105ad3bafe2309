/*
 * A driver starts clients, the same program with other arguments, and exchanges lines with them
 * through stdin and stdout.
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

/* ---- driver */

/* @argv ends with NULL. The client dies with the driver. */
int demo_process_start(struct demo_process *process, const char *name, const char *const *argv);

/* The client's next line must start with @word; @ret_rest (DEMO_LINE_BYTES, or NULL) is what
 * follows. */
int demo_process_expect(struct demo_process *process, const char *word, char *ret_rest);

void demo_process_tell(struct demo_process *process, const char *word);

/* Waits for the client, killing it first if @unwanted. 0: it exited with 0 or does not run; else -1
 * after a message. */
int demo_process_finish(struct demo_process *process, bool unwanted);

/* demo_fail() prints "FAILED: " first and returns -1. */
void demo_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
int demo_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- client */

/* Reports to the driver; returns 1. */
int demo_client_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

void demo_client_say(const char *word);

/* Returns 0, or 1 after demo_client_fail(). */
int demo_client_wait(const char *word);

/* ---- both */

double demo_now(void); /* seconds */
