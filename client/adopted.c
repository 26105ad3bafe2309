/*
 * This process may be the nearest subreaper or PID 1, and its host does not know such a child: a
 * later call reaps it. The list is taken and put back as a whole: a fork() finds no lock held.
 */
#include "client/adopted.h"

#include "common/cleanup.h"

#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

struct adopted {
	struct adopted *next;
	int pidfd;
};

static _Atomic(struct adopted *) list;

static void push(struct adopted *adopted)
{
	adopted->next = atomic_load(&list);
	while (!atomic_compare_exchange_weak(&list, &adopted->next, adopted))
		;
}

static struct adopted *adopted_free(struct adopted *adopted)
{
	fa_close_fdp(&adopted->pidfd);
	free(adopted);
	return NULL;
}

void fa_adopted_add(pid_t pid)
{
	struct adopted *adopted = fa_new(struct adopted);
	siginfo_t info;

	if (!adopted)
		return;
	adopted->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	/* -ECHILD: init has it, or the host has reaped it. */
	if (adopted->pidfd < 0 ||
	    waitid((idtype_t)P_PIDFD, (id_t)adopted->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
		adopted_free(adopted);
	else
		push(adopted);
}

void fa_adopted_reap(void)
{
	struct adopted *adopted, *next;

	if (!atomic_load_explicit(&list, memory_order_relaxed))
		return;
	for (adopted = atomic_exchange(&list, NULL); adopted; adopted = next) {
		siginfo_t info = {};

		next = adopted->next;
		if (waitid((idtype_t)P_PIDFD, (id_t)adopted->pidfd, &info, WEXITED | WNOHANG) < 0 ||
		    info.si_pid)
			adopted_free(adopted);
		else
			push(adopted);
	}
}
