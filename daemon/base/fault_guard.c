#include "daemon/base/fault_guard.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

static _Thread_local sigjmp_buf *current; /* NULL: code is not guarded */

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
	/* If positive, the kernel sent it for this thread's access. */
	if (current && info->si_code > 0)
		siglongjmp(*current, 1);
	/* The access is repeated with the default action, which ends the process. */
	(void)signal(signal_number, SIG_DFL);
	if (info->si_code <= 0)
		(void)raise(signal_number);
}

void fa_fault_guard_install(void)
{
	struct sigaction action = { .sa_sigaction = on_fault };

	/* siglongjmp() restores no mask, so the handler must not block the signal. */
	action.sa_flags = SA_SIGINFO | SA_NODEFER;
	(void)sigaction(SIGBUS, &action, NULL);
}

/* ThreadSanitizer runs handlers with all signals blocked, and a blocked SIGBUS ends the process. */
static void unblock(void)
{
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGBUS);
	(void)pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
}

bool fa_fault_guard_run(void (*function)(void *userdata), void *userdata)
{
	sigjmp_buf buffer;

	if (sigsetjmp(buffer, 0)) {
		current = NULL;
		unblock();
		return false;
	}
	current = &buffer;
	function(userdata);
	current = NULL;
	return true;
}

struct copy {
	void *to;
	const void *from;
	size_t bytes;
};

static void run_copy(void *userdata)
{
	const struct copy *copy = userdata;

	memcpy(copy->to, copy->from, copy->bytes);
}

bool fa_fault_guard_copy(void *to, const void *from, size_t bytes)
{
	struct copy copy = { to, from, bytes };

	return fa_fault_guard_run(run_copy, &copy);
}
