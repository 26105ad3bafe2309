#include "daemon/supervise/watchdog.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/engine/engine.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* In the time in which whoever watches is to hear once: with two, a round of the engine's that takes
 * more than half of it could be held against us. */
#define LOOKS 4

void fa_feed_open(struct fa_feed *ret_feed)
{
	const char *path = getenv("NOTIFY_SOCKET");
	const size_t length = path ? strlen(path) : 0;
	struct fa_feed feed = { .fd = -1, .address.sun_family = AF_UNIX };

	if ((length > 1 && (*path == '/' || *path == '@')) &&
	    length < sizeof(feed.address.sun_path)) {
		memcpy(feed.address.sun_path, path, length);
		if (*path == '@')
			feed.address.sun_path[0] = '\0';
		feed.address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length +
		                                 (*path == '/'));
		feed.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	}
	*ret_feed = feed;
}

void fa_feed_close(struct fa_feed *feed)
{
	fa_close_fdp(&feed->fd);
}

void fa_feed(const struct fa_feed *feed)
{
	static const char text[] = "WATCHDOG=1";
	int unread = 0;

	if (feed->fd < 0)
		(void)sd_notify(0, text);
	else if (ioctl(feed->fd, SIOCOUTQ, &unread) < 0 || !unread)
		(void)sendto(feed->fd, text, sizeof(text) - 1, MSG_DONTWAIT | MSG_NOSIGNAL,
		             (const struct sockaddr *)&feed->address, feed->address_bytes);
}

static void on_time(uv_poll_t *poll, int status, int events)
{
	struct fa_watchdog *watchdog = poll->data;
	uint64_t times;

	(void)!read(watchdog->timer_fd, &times, sizeof(times));
	if (fa_engine_heartbeat(watchdog->engine))
		fa_feed(&watchdog->feed);
}

int fa_watchdog_start(struct fa_watchdog *watchdog, uv_loop_t *loop, struct fa_engine *engine)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct itimerspec timer;
	uint64_t usec, look_ns;
	int r;

	r = sd_watchdog_enabled(0, &usec);
	if (r <= 0)
		return r;
	look_ns = usec * FA_NS_PER_US / LOOKS;
	timer.it_interval.tv_sec = (time_t)(look_ns / FA_NS_PER_SEC);
	timer.it_interval.tv_nsec = (long)(look_ns % FA_NS_PER_SEC);
	timer.it_value = timer.it_interval;
	/* Not one of the loop's timers: for those it looks at the clock each time that it sleeps. */
	fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (fd < 0 || timerfd_settime(fd, 0, &timer, NULL) < 0)
		return -errno;
	r = uv_poll_init(loop, &watchdog->poll, fd);
	if (r < 0)
		return r;
	watchdog->poll.data = watchdog;
	watchdog->engine = engine;
	fa_feed_open(&watchdog->feed);
	watchdog->timer_fd = fa_steal_fd(&fd);
	/* The loop runs for the server. */
	uv_unref((uv_handle_t *)&watchdog->poll);
	r = uv_poll_start(&watchdog->poll, UV_READABLE, on_time);
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
	fa_feed_close(&watchdog->feed);
}
