#include "tools/top/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SCREEN_ENTER "\033[?1049h\033[?25l" /* the other screen, without a cursor */
#define SCREEN_LEAVE "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define CLEAR_LINE "\033[K"
#define CLEAR_BELOW "\033[J"

static void put(const char *text, size_t length)
{
	while (length > 0) {
		const ssize_t n = write(STDOUT_FILENO, text, length);

		if (n < 0 && errno != EINTR)
			return;
		if (n > 0) {
			text += n;
			length -= (size_t)n;
		}
	}
}

int fa_terminal_open(struct fa_terminal *terminal)
{
	struct termios raw;
	sigset_t signals;

	if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &terminal->saved) < 0)
		return -ENOTTY;
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGQUIT);
	sigaddset(&signals, SIGWINCH);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) < 0)
		return -errno;
	terminal->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (terminal->signals < 0)
		return -errno;
	raw = terminal->saved;
	/* Not SIGTSTP, which would leave the screen to the shell. */
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_cc[VSUSP] = _POSIX_VDISABLE;
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0) {
		close(terminal->signals);
		return -errno;
	}
	terminal->open = true;
	put(SCREEN_ENTER, strlen(SCREEN_ENTER));
	return 0;
}

void fa_terminal_close(struct fa_terminal *terminal)
{
	if (!terminal->open)
		return;
	put(SCREEN_LEAVE, strlen(SCREEN_LEAVE));
	(void)tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal->saved);
	close(terminal->signals);
	terminal->open = false;
}

size_t fa_terminal_rows(void)
{
	struct winsize size = {};

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row == 0)
		return 24;
	return size.ws_row < 10 ? 10 : size.ws_row;
}

enum fa_terminal_event fa_terminal_wait(struct fa_terminal *terminal, int timeout_ms, char *ret_key)
{
	struct pollfd polled[] = {
		{ .fd = STDIN_FILENO, .events = POLLIN },
		{ .fd = terminal->signals, .events = POLLIN },
	};
	struct signalfd_siginfo info;

	if (poll(polled, 2, timeout_ms) <= 0)
		return FA_TERMINAL_TIMEOUT;
	if (polled[1].revents) {
		if (read(terminal->signals, &info, sizeof(info)) != sizeof(info))
			return FA_TERMINAL_TIMEOUT;
		return info.ssi_signo == SIGWINCH ? FA_TERMINAL_RESIZED : FA_TERMINAL_QUIT;
	}
	return read(STDIN_FILENO, ret_key, 1) == 1 ? FA_TERMINAL_KEY : FA_TERMINAL_QUIT;
}

void fa_terminal_show(const char *text)
{
	put(HOME, strlen(HOME));
	while (*text) {
		const size_t n = strcspn(text, "\n");

		put(text, n);
		put(CLEAR_LINE, strlen(CLEAR_LINE));
		text += n;
		/* A line feed after the last line would scroll. */
		if (*text == '\n' && *++text)
			put("\r\n", 2);
	}
	put(CLEAR_BELOW, strlen(CLEAR_BELOW));
}
