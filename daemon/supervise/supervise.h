/*
 * `fad --supervise`: a parent that starts fad, keeps the descriptors that it stores,
 * and starts it again with them when it dies. It is to its child what systemd is to a
 * service (the same environment, the same notifications), so the child knows of one
 * protocol only. It maps hardly anything, opens no device, and uses no library but libc and
 * libsystemd, so that there is little that could end it. If something does, the child is
 * asked to end too, and nothing stays.
 *
 * But timelines, of which clients make as many as there are of them, are not handed over:
 * when the child has died their words are released here (engine/gate.h), before another one is
 * started.
 *
 * A child that hangs is ended, and the next one started: it has to be heard of (supervise/watchdog.h) within
 * three minutes, or WATCHDOG_USEC if that is set, which then is how often whoever watches the
 * supervisor hears of that, too. WATCHDOG_USEC=0: nobody is watched, as a debugger may want it.
 *
 * SIGTERM, SIGINT and SIGHUP are passed on. It ends when the child ends by itself
 * with status 0 or was asked to end; a child that never got ready takes it along. If later
 * ones crash again and again before they are ready, what was stored is let go, but for the
 * socket: rather a daemon without its pool than none.
 */
#pragma once

/*
 * Runs @argv (which names this program; "--supervise" and "--ready-fd N" are left
 * out) until all is over, and returns the exit status. @ready_fd: where to write READY
 * once, or -1.
 */
int fa_supervise(char **argv, int ready_fd);
