/* The service manager without libsystemd: datagrams to $NOTIFY_SOCKET, and variables. Instead of
 * the journal, systemd reads stderr. */
#include "common/cleanup.h"
#include "daemon/base/service_manager.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int send_message(const char *text, int fd)
{
	_fa_cleanup_(fa_close_fdp) int socket_fd = -1;
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *path = getenv("NOTIFY_SOCKET");
	struct iovec iov = { .iov_base = (void *)text, .iov_len = strlen(text) };
	struct msghdr message = { .msg_name = &address, .msg_iov = &iov, .msg_iovlen = 1 };
	size_t length;

	if (!path)
		return 0;
	length = strlen(path);
	if (length < 2 || (*path != '/' && *path != '@') || length >= sizeof(address.sun_path))
		return -EINVAL;
	memcpy(address.sun_path, path, length);
	if (*path == '@')
		address.sun_path[0] = '\0';
	message.msg_namelen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length +
	                                  (*path == '/'));
	if (fd >= 0) {
		struct cmsghdr *header;

		message.msg_control = control.bytes;
		message.msg_controllen = sizeof(control.bytes);
		header = CMSG_FIRSTHDR(&message);
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	}
	socket_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (socket_fd < 0)
		return -errno;
	while (sendmsg(socket_fd, &message, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

int fa_manager_notify(const char *text)
{
	return send_message(text, -1);
}

int fa_manager_notify_fd(const char *text, int fd)
{
	return send_message(text, fd);
}

static bool parse_number(const char *text, uint64_t max, uint64_t *ret_number)
{
	unsigned long long number;
	char *end;

	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end || number > max)
		return false;
	*ret_number = number;
	return true;
}

static void free_names(char **names, uint64_t n)
{
	for (uint64_t i = 0; i < n; ++i)
		free(names[i]);
	free(names);
}

static int name_unknown(uint64_t n, char **names)
{
	for (uint64_t i = 0; i < n; ++i) {
		names[i] = strdup("unknown");
		if (!names[i])
			return -ENOMEM;
	}
	return 0;
}

/* Splits "a:b:c". -EINVAL: there are not @n names. */
static int split_names(const char *list, uint64_t n, char **names)
{
	const char *name = list;

	for (uint64_t i = 0; i < n; ++i) {
		size_t length;

		if (!name)
			return -EINVAL;
		length = strcspn(name, ":");
		names[i] = strndup(name, length);
		if (!names[i])
			return -ENOMEM;
		name = name[length] ? name + length + 1 : NULL;
	}
	return name ? -EINVAL : 0;
}

static int take_fds(char ***ret_names)
{
	const char *list = getenv("LISTEN_FDNAMES");
	uint64_t pid, n;
	char **names;
	int r;

	if (!parse_number(getenv("LISTEN_PID"), INT_MAX, &pid) || (pid_t)pid != getpid() ||
	    !parse_number(getenv("LISTEN_FDS"), INT_MAX - FA_MANAGER_FDS_START, &n) || !n)
		return 0;
	for (uint64_t i = 0; i < n; ++i)
		if (fcntl(FA_MANAGER_FDS_START + (int)i, F_SETFD, FD_CLOEXEC) < 0)
			return -errno;
	names = calloc(n + 1, sizeof(*names));
	if (!names)
		return -ENOMEM;
	r = list ? split_names(list, n, names) : name_unknown(n, names);
	if (r < 0) {
		free_names(names, n);
		return r;
	}
	*ret_names = names;
	return (int)n;
}

int fa_manager_listen_fds(char ***ret_names)
{
	int r = take_fds(ret_names);

	(void)unsetenv("LISTEN_PID");
	(void)unsetenv("LISTEN_FDS");
	(void)unsetenv("LISTEN_FDNAMES");
	return r;
}

int fa_manager_watchdog(uint64_t *ret_timeout_us)
{
	const char *timeout = getenv("WATCHDOG_USEC"), *pid_text = getenv("WATCHDOG_PID");
	uint64_t timeout_us, pid;

	if (!timeout)
		return 0;
	if (!parse_number(timeout, UINT64_MAX - 1, &timeout_us) || !timeout_us)
		return -EINVAL;
	if (pid_text && !parse_number(pid_text, INT_MAX, &pid))
		return -EINVAL;
	if (pid_text && (pid_t)pid != getpid())
		return 0;
	*ret_timeout_us = timeout_us;
	return 1;
}

bool fa_manager_has_journal(void)
{
	return false;
}

int fa_manager_journal(const char *const *fields, size_t n)
{
	return -EOPNOTSUPP;
}
