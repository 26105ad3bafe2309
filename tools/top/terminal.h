/*
 * Keys arrive at once and unseen, on a screen of its own. fa_terminal_close(), or a signal that
 * ends the process, puts the terminal back. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <termios.h>

struct fa_terminal {
	struct termios saved;
	int signals; /* descriptor that reads SIGINT, SIGTERM, SIGHUP, SIGWINCH and SIGTSTP */
	bool open;
};

enum fa_terminal_event {
	FA_TERMINAL_TIMEOUT,
	FA_TERMINAL_KEY,
	FA_TERMINAL_RESIZED,
	FA_TERMINAL_QUIT, /* a signal, or the end of the input */
};

/* -ENOTTY: stdin or stdout is no terminal. */
int fa_terminal_open(struct fa_terminal *terminal);

/* Takes a zeroed struct. */
void fa_terminal_close(struct fa_terminal *terminal);

/* Returns the number of lines, at least 10. */
size_t fa_terminal_rows(void);

/* Waits for one event, at most @timeout_ms. */
enum fa_terminal_event fa_terminal_wait(struct fa_terminal *terminal, int timeout_ms,
                                        char *ret_key);

/* @text replaces the lines on the screen. */
void fa_terminal_show(const char *text);
