#include "daemon/base/service_manager.h"

#include <assert.h>
#include <string.h>
#include <sys/uio.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-daemon.h>
#include <systemd/sd-journal.h>

#define FIELDS_MAX 8

static_assert(FA_MANAGER_FDS_START == SD_LISTEN_FDS_START, "libsystemd's value");

int fa_manager_notify(const char *text)
{
	int r = sd_notify(0, text);

	return r < 0 ? r : 0;
}

int fa_manager_notify_fd(const char *text, int fd)
{
	int r = sd_pid_notify_with_fds(0, 0, text, &fd, 1);

	return r < 0 ? r : 0;
}

int fa_manager_listen_fds(char ***ret_names)
{
	return sd_listen_fds_with_names(1, ret_names);
}

int fa_manager_watchdog(uint64_t *ret_timeout_us)
{
	return sd_watchdog_enabled(0, ret_timeout_us);
}

bool fa_manager_has_journal(void)
{
	return true;
}

int fa_manager_journal(const char *const *fields, size_t n)
{
	struct iovec iov[FIELDS_MAX];

	assert(n <= FIELDS_MAX);
	for (size_t i = 0; i < n; ++i)
		iov[i] = (struct iovec){ (void *)fields[i], strlen(fields[i]) };
	return sd_journal_sendv(iov, (int)n);
}
