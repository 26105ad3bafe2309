#include "client/trusted.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_DIR "/run/fad"

int fa_trusted_runtime_dir(struct fa_error *error, const char **ret_dir)
{
	const char *dir = secure_getenv("XDG_RUNTIME_DIR");
	struct stat st;

	*ret_dir = NULL;
	if (!dir || *dir != '/' || stat(dir, &st) < 0)
		return 0;
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return fa_fail(error, -EACCES,
		               "XDG_RUNTIME_DIR is %.150s, which is user %u's, and this process is "
		               "user %u's: unset it, or name the daemon's socket in FAD_SOCKET",
		               dir, (unsigned int)st.st_uid, (unsigned int)geteuid());
	if (st.st_mode & 022 && !(st.st_mode & S_ISVTX))
		return fa_fail(error, -EACCES,
		               "XDG_RUNTIME_DIR is %.150s, which other users can write (mode %o): "
		               "chmod it to 700, or name the daemon's socket in FAD_SOCKET",
		               dir, (unsigned int)st.st_mode & 07777);
	*ret_dir = dir;
	return 0;
}

int fa_trusted_peer(int socket, const char *path, struct fa_error *error)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);
	struct stat st;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0)
		return fa_fail(error, -errno, "the peer of %s is unknown: %m", path);
	if (peer.uid == geteuid() || peer.uid == 0)
		return 0;
	if (!strcmp(path, FA_SYSTEM_SOCKET) && !lstat(SYSTEM_DIR, &st) && S_ISDIR(st.st_mode) &&
	    st.st_uid == peer.uid)
		return 0;
	return fa_fail(error, -EACCES,
	               "the daemon at %s is user %u's; expected this user's (%u) or root's: name "
	               "the socket in FAD_SOCKET if you trust it",
	               path, (unsigned int)peer.uid, (unsigned int)geteuid());
}
