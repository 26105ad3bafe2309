/*
 * Pings systemd (WatchdogSec=) or the supervisor, which restart a silent daemon, if event loop and
 * engine thread have both iterated since the last ping. Long kernels do not count. Loop thread.
 */
#pragma once

#include "daemon/base/watchdog_ping.h"

#include <uv.h>

struct fa_engine;

struct fa_watchdog {
	uv_poll_t poll;
	struct fa_engine *engine; /* NULL: no watchdog */
	struct fa_watchdog_ping ping;
	int timer_fd;
};

/* Does nothing without WATCHDOG_USEC. @engine must outlive fa_watchdog_stop(). */
int fa_watchdog_start(struct fa_watchdog *watchdog, uv_loop_t *loop, struct fa_engine *engine);

/* @watchdog may be zeroed or stopped, and must outlive the loop. */
void fa_watchdog_stop(struct fa_watchdog *watchdog);
