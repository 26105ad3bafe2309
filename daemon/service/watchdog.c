#include "daemon/service/watchdog.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/base/service_manager.h"
#include "daemon/engine/engine.h"

#include <errno.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* With two, an iteration longer than half the timeout would miss it. */
#define PINGS_PER_TIMEOUT 4

static void on_timer(uv_poll_t *poll, int status, int events)
{
	struct fa_watchdog *watchdog = poll->data;
	uint64_t times;

	(void)!read(watchdog->timer_fd, &times, sizeof(times));
	if (fa_engine_heartbeat(watchdog->engine))
		fa_watchdog_ping_send(&watchdog->ping);
}

int fa_watchdog_start(struct fa_watchdog *watchdog, uv_loop_t *loop, struct fa_engine *engine)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct itimerspec timer;
	uint64_t usec, interval_ns;
	int r;

	r = fa_manager_watchdog(&usec);
	if (r <= 0)
		return r;
	interval_ns = usec * FA_NS_PER_US / PINGS_PER_TIMEOUT;
	timer.it_interval.tv_sec = (time_t)(interval_ns / FA_NS_PER_SEC);
	timer.it_interval.tv_nsec = (long)(interval_ns % FA_NS_PER_SEC);
	timer.it_value = timer.it_interval;
	/* With uv_timer_t the loop would read the clock before each sleep. */
	fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (fd < 0 || timerfd_settime(fd, 0, &timer, NULL) < 0)
		return -errno;
	r = uv_poll_init(loop, &watchdog->poll, fd);
	if (r < 0)
		return r;
	watchdog->poll.data = watchdog;
	watchdog->engine = engine;
	fa_watchdog_ping_open(&watchdog->ping);
	watchdog->timer_fd = fa_steal_fd(&fd);
	uv_unref((uv_handle_t *)&watchdog->poll);
	r = uv_poll_start(&watchdog->poll, UV_READABLE, on_timer);
	if (r < 0)
		fa_watchdog_stop(watchdog);
	return r;
}

void fa_watchdog_stop(struct fa_watchdog *watchdog)
{
	if (!watchdog->engine)
		return;
	watchdog->engine = NULL;
	uv_close((uv_handle_t *)&watchdog->poll, NULL);
	fa_close_fdp(&watchdog->timer_fd);
	fa_watchdog_ping_close(&watchdog->ping);
}
