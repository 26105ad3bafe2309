/* The notify socket: the daemon's notifications, and descriptors to store. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/service_manager.h"
#include "daemon/supervise/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS_PER_MESSAGE 16
#define MESSAGE_BYTES 4096

/*
 * Only the daemon must be able to send, as closing a received descriptor can block as long as its
 * sender likes. So the socket is bound in a private directory, opened as O_PATH and unlinked: only
 * that descriptor reaches it.
 */
int fa_supervisor_open_notify(struct fa_supervisor *s)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char directory[] = "/tmp/fad-supervise-XXXXXX";
	const int on = 1;
	int r = 0;

	if (!mkdtemp(directory))
		return -errno;
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", directory);
	s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->notify_fd < 0 ||
	    bind(s->notify_fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(s->notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		r = -errno;
	if (r == 0) {
		s->notify_path_fd = open(address.sun_path, O_PATH | O_CLOEXEC);
		r = s->notify_path_fd < 0 ? -errno : 0;
	}
	(void)unlink(address.sun_path);
	(void)rmdir(directory);
	return r;
}

static bool find(const char *message, const char *key, char *ret_value, size_t size)
{
	size_t length = strlen(key);

	for (const char *line = message;; ++line) {
		if (strncmp(line, key, length) == 0 && line[length] == '=') {
			line += length + 1;
			snprintf(ret_value, size, "%.*s", (int)strcspn(line, "\n"), line);
			return true;
		}
		line = strchr(line, '\n');
		if (!line)
			return false;
	}
}

static void set_ready(struct fa_supervisor *s)
{
	static const char ready[] = "READY\n";
	int fd = fa_steal_fd(&s->ready_fd);

	s->ready = s->ever_ready = true;
	if (fd >= 0) {
		(void)!write(fd, ready, sizeof(ready) - 1);
		close(fd);
	}
	if (s->reload_pending)
		kill(s->child, SIGHUP);
	s->reload_pending = false;
}

static void handle_message(struct fa_supervisor *s, const char *message, int *fds, size_t n_fds)
{
	char value[FA_SUPERVISOR_NAME_BYTES], name[FA_SUPERVISOR_NAME_BYTES] = "stored";
	const bool is_ping = find(message, "WATCHDOG", value, sizeof(value));

	/* Once a daemon is ready only pings prove that its engine works. */
	if (!s->aborted && (is_ping || !s->ready))
		s->heard_ns = fa_now_ns();
	(void)find(message, "FDNAME", name, sizeof(name));
	if (find(message, "FDSTOREREMOVE", value, sizeof(value)))
		fa_supervisor_store_remove(&s->store, name);
	else if (find(message, "FDSTORE", value, sizeof(value)))
		fa_supervisor_store_add(&s->store, name, fds, n_fds);
	if (find(message, "READY", value, sizeof(value)))
		set_ready(s);
	/* The rest is for the supervisor's own service manager. */
	if (!is_ping && !find(message, "FDNAME", value, sizeof(value)))
		(void)fa_manager_notify(message);
}

bool fa_supervisor_receive(struct fa_supervisor *s)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * FDS_PER_MESSAGE) +
		           CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	char message[MESSAGE_BYTES + 1];
	struct iovec iov = { .iov_base = message, .iov_len = MESSAGE_BYTES };
	struct msghdr header = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct ucred sender = { .pid = 0 };
	int fds[FDS_PER_MESSAGE];
	size_t n_fds = 0;
	ssize_t n;

	n = recvmsg(s->notify_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EINTR;
	message[n] = '\0';
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS) {
			memcpy(&sender, CMSG_DATA(c), sizeof(sender));
		} else if (c->cmsg_type == SCM_RIGHTS) {
			n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), n_fds * sizeof(int));
		}
	}
	if (header.msg_flags & MSG_CTRUNC)
		fa_log(FA_LOG_ERROR,
		       "a descriptor cannot be stored: the supervisor has too many open");
	/* Ignores other processes of this user. */
	if (sender.pid == s->child && s->child && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		handle_message(s, message, fds, n_fds);
	for (size_t i = 0; i < n_fds; ++i)
		fa_close_fdp(&fds[i]);
	return true;
}
