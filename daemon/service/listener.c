#include "daemon/service/listener.h"

#include "common/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define SYSTEM_SOCKET "/run/fad/fad.sock"
#define BACKLOG 4096

static int default_path(char *ret_path, size_t size, struct fa_error *error)
{
	const char *path = getenv("FAD_SOCKET"), *dir = getenv("XDG_RUNTIME_DIR");
	int n;

	if (path && *path)
		n = snprintf(ret_path, size, "%s", path);
	else if (geteuid() != 0 && dir && *dir)
		n = snprintf(ret_path, size, "%s/fad/fad.sock", dir);
	else
		n = snprintf(ret_path, size, SYSTEM_SOCKET);
	if (n >= (int)size)
		return fa_fail(error, -ENAMETOOLONG,
		               "the path of the socket is longer than %zu bytes", size - 1);
	return 0;
}

static void directory_of(const char *path, char *ret_dir, size_t size)
{
	const char *slash = strrchr(path, '/');

	snprintf(ret_dir, size, "%.*s", slash ? (int)(slash - path) : 0, path);
}

/* The lock file may be removed between open() and flock(). */
static int lock_path(const char *path, struct fa_error *error, int *ret_fd)
{
	char lock[PATH_MAX];

	snprintf(lock, sizeof(lock), "%s.lock", path);
	for (;;) {
		_fa_cleanup_(fa_close_fdp) int fd = -1;
		struct stat opened, named;

		fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return fa_fail(error, -errno, "%s cannot be opened: %m", lock);
		if (flock(fd, LOCK_EX | LOCK_NB) < 0)
			return errno == EWOULDBLOCK
			               ? fa_fail(error, -EADDRINUSE,
			                         "another daemon uses %s, as it holds the lock %s",
			                         path, lock)
			               : fa_fail(error, -errno, "%s cannot be locked: %m", lock);
		if (fstat(fd, &opened) == 0 && stat(lock, &named) == 0 &&
		    opened.st_dev == named.st_dev && opened.st_ino == named.st_ino) {
			*ret_fd = fa_steal_fd(&fd);
			return 0;
		}
	}
}

/* Removes only a dead daemon's socket. */
static int clear_path(const struct sockaddr_un *address, struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	const char *path = address->sun_path;
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : fa_fail(error, -errno, "%s: %m", path);
	if (!S_ISSOCK(st.st_mode))
		return fa_fail(error, -EEXIST, "%s exists and is no socket", path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fa_fail(error, -errno, "no socket can be made: %m");
	/* EAGAIN: a daemon listens, and its backlog is full. */
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno == EAGAIN)
		return fa_fail(error, -EADDRINUSE, "another daemon answers at %s", path);
	if (errno != ECONNREFUSED)
		return fa_fail(error, -errno, "%s is in use: %m", path);
	if (unlink(path) < 0 && errno != ENOENT)
		return fa_fail(error, -errno,
		               "%s was left by a dead daemon and cannot be removed: %m", path);
	return 0;
}

static int set_group(const char *path, const char *name, struct fa_error *error)
{
	struct group *group;

	errno = 0;
	group = getgrnam(name);
	if (!group)
		return fa_fail(error, errno ? -errno : -EINVAL, "there is no group called \"%s\"",
		               name);
	if (chown(path, (uid_t)-1, group->gr_gid) < 0)
		return fa_fail(error, -errno, "%s cannot be given to the group %s: %m", path, name);
	return 0;
}

int fa_listener_open(const struct fa_config *config, struct fa_error *error,
                     struct fa_listener *ret_listener)
{
	_fa_cleanup_(fa_listener_close) struct fa_listener listener = FA_LISTENER_NULL;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char dir[PATH_MAX];
	struct stat st;
	mode_t mask;
	int r;

	if (config->socket)
		snprintf(address.sun_path, sizeof(address.sun_path), "%s", config->socket);
	else if ((r = default_path(address.sun_path, sizeof(address.sun_path), error)) < 0)
		return r;
	strcpy(listener.path, address.sun_path);

	directory_of(listener.path, dir, sizeof(dir));
	if (*dir && mkdir(dir, geteuid() == 0 ? 0755 : 0700) < 0 && errno != EEXIST)
		return fa_fail(error, -errno, "the directory %s cannot be made: %m", dir);

	r = lock_path(listener.path, error, &listener.lock_fd);
	if (r == 0)
		r = clear_path(&address, error);
	if (r < 0)
		return r;

	listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener.fd < 0)
		return fa_fail(error, -errno, "no socket can be made: %m");
	/* Without a mode, clients are kept out until mode and group are set. */
	mask = umask(0777);
	r = bind(listener.fd, (const struct sockaddr *)&address, sizeof(address));
	umask(mask);
	if (r < 0)
		return fa_fail(error, -errno, "%s cannot be made: %m", listener.path);
	if (stat(listener.path, &st) < 0)
		return fa_fail(error, -errno, "%s: %m", listener.path);
	listener.owns_path = true;
	listener.dev = st.st_dev;
	listener.ino = st.st_ino;
	if (config->group) {
		r = set_group(listener.path, config->group, error);
		if (r < 0)
			return r;
	}
	if (chmod(listener.path, config->mode) < 0)
		return fa_fail(error, -errno, "the mode of %s cannot be set: %m", listener.path);
	if (listen(listener.fd, BACKLOG) < 0)
		return fa_fail(error, -errno, "%s cannot be listened at: %m", listener.path);

	*ret_listener = listener;
	listener = FA_LISTENER_NULL; /* consumed */
	return 0;
}

static bool has_option(int fd, int option, int expected)
{
	socklen_t length = sizeof(int);
	int value;

	return getsockopt(fd, SOL_SOCKET, option, &value, &length) == 0 && value == expected;
}

int fa_listener_take(int fd, bool unlink_path, struct fa_error *error,
                     struct fa_listener *ret_listener)
{
	struct fa_listener listener = FA_LISTENER_NULL;
	struct sockaddr_un address;
	socklen_t length = sizeof(address);
	int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (flags < 0 || !has_option(fd, SO_DOMAIN, AF_UNIX) ||
	    !has_option(fd, SO_TYPE, SOCK_SEQPACKET) || !has_option(fd, SO_ACCEPTCONN, 1))
		return fa_fail(error, -EINVAL,
		               "descriptor %d is no listening Unix socket of type SOCK_SEQPACKET",
		               fd);
	if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return fa_fail(error, -errno, "descriptor %d: %m", fd);

	memset(&address, 0, sizeof(address));
	if (getsockname(fd, (struct sockaddr *)&address, &length) == 0 &&
	    length > offsetof(struct sockaddr_un, sun_path) && address.sun_path[0])
		snprintf(listener.path, sizeof(listener.path), "%.*s",
		         (int)sizeof(address.sun_path), address.sun_path);
	if (unlink_path && *listener.path && lstat(listener.path, &st) == 0 &&
	    S_ISSOCK(st.st_mode)) {
		listener.owns_path = listener.owns_dir = true;
		listener.dev = st.st_dev;
		listener.ino = st.st_ino;
	}
	listener.fd = fd; /* consumed */
	*ret_listener = listener;
	return 0;
}

int fa_listener_retake(int fd, struct fa_error *error, struct fa_listener *ret_listener)
{
	struct fa_listener listener;
	int r;

	r = fa_listener_take(fd, true, error, &listener);
	if (r < 0)
		return r;
	listener.owns_dir = false;
	if (!listener.owns_path)
		return fa_fail(error, -ESTALE, "the path %s of the socket has gone", listener.path);
	r = lock_path(listener.path, error, &listener.lock_fd);
	if (r < 0)
		return r;
	*ret_listener = listener;
	return 0;
}

void fa_listener_close(struct fa_listener *listener)
{
	char name[PATH_MAX], dir[PATH_MAX];
	const char *base;
	struct stat st;

	fa_close_fdp(&listener->fd);
	if (listener->owns_path && lstat(listener->path, &st) == 0 && st.st_dev == listener->dev &&
	    st.st_ino == listener->ino)
		(void)unlink(listener->path);
	if (listener->owns_dir) {
		directory_of(listener->path, dir, sizeof(dir));
		base = strrchr(dir, '/');
		base = base ? base + 1 : dir;
		if (!strncmp(base, "fad-", 4))
			(void)rmdir(dir);
	}
	if (listener->lock_fd >= 0) {
		/* With the lock held, the file cannot be another daemon's. */
		snprintf(name, sizeof(name), "%s.lock", listener->path);
		(void)unlink(name);
		fa_close_fdp(&listener->lock_fd);
	}
	listener->owns_path = listener->owns_dir = false;
}
