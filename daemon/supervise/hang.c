/* Detects a hanging daemon: it must ping within the watchdog timeout. */
#include "common/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/service_manager.h"
#include "daemon/supervise/supervisor.h"

#include <inttypes.h>
#include <limits.h>

/* WATCHDOG_USEC overrides it. */
#define WATCHDOG_NS (180 * FA_NS_PER_SEC)
/* Limits the start of a daemon that stores nothing, as TimeoutStartSec= of fad.service. */
#define START_NS (300 * FA_NS_PER_SEC)
/* Time for a core dump after SIGABRT. */
#define ABORT_NS (10 * FA_NS_PER_SEC)
/* Time between warnings that SIGKILL has no effect. */
#define UNKILLABLE_NS (60 * FA_NS_PER_SEC)
/* The child is checked this often, and the supervisor's own watchdog pinged. */
#define CHECKS_PER_TIMEOUT 4

void fa_supervisor_init_watchdog(struct fa_supervisor *s)
{
	uint64_t usec;
	int r = fa_manager_watchdog(&usec);

	s->watchdog_ns = r == 0 ? WATCHDOG_NS : FA_NS_NEVER;
	s->ping_interval_ns = FA_NS_NEVER;
	if (r > 0 && usec < FA_NS_NEVER / FA_NS_PER_US) {
		s->watchdog_ns = usec * FA_NS_PER_US;
		s->ping_interval_ns = s->watchdog_ns / CHECKS_PER_TIMEOUT;
		fa_watchdog_ping_open(&s->ping);
	}
	s->checked_ns = fa_now_ns();
}

static uint64_t timeout_ns(const struct fa_supervisor *s)
{
	if (s->watchdog_ns == FA_NS_NEVER || !s->child)
		return FA_NS_NEVER;
	if (s->killed)
		return UNKILLABLE_NS;
	if (s->aborted)
		return s->watchdog_ns < ABORT_NS ? s->watchdog_ns : ABORT_NS;
	return s->ready ? s->watchdog_ns : START_NS;
}

static void send_ping(struct fa_supervisor *s, uint64_t now_ns)
{
	if (s->ping_interval_ns == FA_NS_NEVER || now_ns - s->pinged_ns < s->ping_interval_ns)
		return;
	s->pinged_ns = now_ns;
	fa_watchdog_ping_send(&s->ping);
}

static void end_child(struct fa_supervisor *s, uint64_t silent_ns)
{
	if (!s->aborted) {
		s->aborted = true;
		fa_log(FA_LOG_ERROR,
		       "fad (%ld) hangs: nothing was heard of it for %" PRIu64 " s; it is ended",
		       (long)s->child, (uint64_t)(silent_ns / FA_NS_PER_SEC));
		kill(s->child, SIGABRT);
		return;
	}
	if (s->killed)
		fa_log(FA_LOG_ERROR,
		       "fad (%ld) was killed and does not end: it is blocked in the kernel",
		       (long)s->child);
	s->killed = true;
	kill(s->child, SIGKILL);
}

void fa_supervisor_check_hang(struct fa_supervisor *s)
{
	const uint64_t now_ns = fa_now_ns(), timeout = timeout_ns(s);

	send_ping(s, now_ns);
	/* If the supervisor did not run for a while, the child may not have, either. */
	if (now_ns - s->checked_ns > s->watchdog_ns / 2)
		s->heard_ns = now_ns;
	s->checked_ns = now_ns;
	if (timeout == FA_NS_NEVER || now_ns - s->heard_ns <= timeout)
		return;
	s->heard_ns = now_ns;
	end_child(s, timeout);
}

int fa_supervisor_check_timeout_ms(const struct fa_supervisor *s)
{
	const uint64_t timeout = timeout_ns(s);
	uint64_t ns = s->watchdog_ns / CHECKS_PER_TIMEOUT;

	if (s->watchdog_ns == FA_NS_NEVER)
		return -1;
	if (timeout < ns)
		ns = timeout;
	return ns / FA_NS_PER_MS < INT_MAX ? (int)(ns / FA_NS_PER_MS) + 1 : INT_MAX;
}
