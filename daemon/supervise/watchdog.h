/*
 * The watchdog: tells whoever watches this process, systemd with WatchdogSec= or fad --supervise,
 * again and again that it gets on; who hears nothing for as long as WATCHDOG_USEC says kills it and
 * starts another one, which finds the KV cache as it was. Loop thread only.
 *
 * It is told by the event loop itself, so not while a call holds that up; and only if the engine
 * thread has gone round since it was told last, which it is woken for if it sleeps
 * (fa_engine_heartbeat). So neither has to look at a clock, or to leave a trace of each round.
 *
 * What the device has been given, and how long ago, does not count. A kernel may run for hours
 * with every right: the work of one request grows with the product of its lengths, and a bound
 * that suits the others would have any client end the daemon by one long request. How long it
 * should take cannot be told well enough either: under MPS other processes' kernels may have all
 * SMs for as long as they like, and what waits behind a gate for a client looks like what runs. But
 * where nothing has ended for some milliseconds the engine thread asks the driver whether it lives
 * (backend/device.h, health). One that answers with an error has lost the device, and this process ends by
 * itself; one that does not answer any more keeps the engine thread from going round.
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>

struct fa_engine;

/*
 * Where WATCHDOG=1 goes. A watcher that does not read must not hold up whom it watches, nor have
 * the queue filled that descriptors to be kept go through: so never more than one of these is
 * unread, and none is waited for.
 */
struct fa_feed {
	int fd; /* -1: sd_notify() knows how, which may wait */
	struct sockaddr_un address;
	socklen_t address_bytes;
};

void fa_feed_open(struct fa_feed *ret_feed);
/* Takes one that was opened. */
void fa_feed_close(struct fa_feed *feed);
void fa_feed(const struct fa_feed *feed);

struct fa_watchdog {
	uv_poll_t poll;
	struct fa_engine *engine; /* NULL: nobody watches */
	struct fa_feed feed;
	int timer_fd;
};

/* Begins, if anybody watches. @engine is there as long as the loop turns before
 * fa_watchdog_stop(). */
int fa_watchdog_start(struct fa_watchdog *watchdog, uv_loop_t *loop, struct fa_engine *engine);

/* Takes a zeroed one, and one that was stopped. It is there until the loop has ended. */
void fa_watchdog_stop(struct fa_watchdog *watchdog);
