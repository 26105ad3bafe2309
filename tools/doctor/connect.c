/* Is there a daemon that this user may use, and if not, why? */
#include "tools/doctor/checks.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_SOCKET "/run/fad/fad.sock"
#define GROUPS_MAX 1024
#define PATH_BYTES 256

/* The library's first candidate, to explain a failure. */
static void find_path(const struct fa_tool *tool, char ret_path[PATH_BYTES])
{
	const char *named = tool->socket ? tool->socket : getenv("FAD_SOCKET");
	const char *instance = getenv("FAD_INSTANCE");

	if (named && *named)
		snprintf(ret_path, PATH_BYTES, "%s", named);
	else if (instance && *instance)
		snprintf(ret_path, PATH_BYTES, "/run/fad-%s/fad.sock", instance);
	else
		snprintf(ret_path, PATH_BYTES, "%s", SYSTEM_SOCKET);
}

static bool has_group(gid_t gid)
{
	gid_t groups[GROUPS_MAX];
	const int n = getgroups(GROUPS_MAX, groups);

	if (getegid() == gid)
		return true;
	for (int i = 0; i < n; ++i)
		if (groups[i] == gid)
			return true;
	return false;
}

static bool lists_user(const struct group *group, const char *user)
{
	for (char **member = group->gr_mem; user && *member; ++member)
		if (strcmp(*member, user) == 0)
			return true;
	return false;
}

/* The socket's mode denies access, or its folder does. */
static void explain_access(struct fa_report *report, const char *path)
{
	const struct passwd *user = getpwuid(geteuid());
	const struct group *group;
	char advice[256];
	struct stat st;

	if (stat(path, &st) < 0) {
		fa_report_add(report, FA_REPORT_FAULT, "access",
		              "A folder above it denies access to this user.", "%s: %s", path,
		              strerror(errno));
		return;
	}
	group = getgrgid(st.st_gid);
	if (group && !has_group(st.st_gid) && lists_user(group, user ? user->pw_name : NULL))
		snprintf(advice, sizeof(advice),
		         "This user is a member since the last login: log in anew, or run newgrp "
		         "%s.",
		         group->gr_name);
	else if (group && !has_group(st.st_gid))
		snprintf(advice, sizeof(advice), "As root: usermod -aG %s %s; then log in anew.",
		         group->gr_name, user ? user->pw_name : "USER");
	else
		snprintf(advice, sizeof(advice),
		         "See mode and group in [daemon] of /etc/fad/fad.conf.");
	fa_report_add(report, FA_REPORT_FAULT, "access", advice,
	              "%s has mode %04o and group %s (%u), and this process is user %s (%u)", path,
	              (unsigned int)st.st_mode & 07777, group ? group->gr_name : "without a name",
	              (unsigned int)st.st_gid, user ? user->pw_name : "without a name",
	              (unsigned int)geteuid());
}

/* Who may connect. The mode of a folder above it may deny more. */
static void describe_access(struct fa_report *report, const char *path)
{
	const struct group *group;
	struct stat st;

	if (stat(path, &st) < 0)
		return;
	group = getgrgid(st.st_gid);
	fa_report_ok(report, "access", "mode %04o, group %s; %s", (unsigned int)st.st_mode & 07777,
	             group ? group->gr_name : "without a name",
	             st.st_mode & 0002 ? "every user may connect"
	                               : "its members and the owner may connect");
}

static const char *advice_for(int r)
{
	switch (r) {
	case -ENOENT:
	case -ECONNREFUSED:
		return "Start it: systemctl enable --now fad. If it does not stay: journalctl -u "
		       "fad. If it listens elsewhere, name the socket in FAD_SOCKET.";
	case -ETIMEDOUT:
		return "It hangs or is stopped; its watchdog restarts it after 3 minutes. See "
		       "journalctl -u fad.";
	case -EPROTONOSUPPORT:
		return "Client and daemon are too far apart: upgrade the older one.";
	case -EDQUOT:
		return "This user has too many connections: see sessions and connections in "
		       "/etc/fad/fad.conf.";
	default:
		return "See journalctl -u fad.";
	}
}

struct fa_client *fa_doctor_connect(struct fa_report *report, const struct fa_tool *tool,
                                    bool *ret_none)
{
	const struct fa_options options = {
		.size = sizeof(options),
		.socket = tool->socket,
		.name = "factl doctor",
		.reconnect_ns = UINT64_MAX,
	};
	struct fa_info info = { .size = sizeof(info) };
	char path[PATH_BYTES];
	struct fa_client *client;
	int r;

	r = fa_connect(&options, &client);
	*ret_none = r == -ENOENT || r == -ECONNREFUSED;
	if (r == -EACCES) {
		fa_report_add(report, FA_REPORT_FAULT, "socket", "The next line says what to do.",
		              "%s", fa_error());
		find_path(tool, path);
		explain_access(report, path);
		return NULL;
	}
	if (r < 0) {
		fa_report_add(report, FA_REPORT_FAULT, "socket", advice_for(r), "%s", fa_error());
		return NULL;
	}
	fa_report_ok(report, "socket", "%s", fa_socket_path(client));
	describe_access(report, fa_socket_path(client));
	if (fa_info(client, &info) < 0)
		return client;
	if (strcmp(info.daemon_version, fa_version()) == 0)
		fa_report_ok(report, "daemon", "version %s, protocol %u", info.daemon_version,
		             info.protocol);
	else
		fa_report_add(report, FA_REPORT_WARNING, "daemon",
		              "They work together. If both were upgraded: systemctl restart fad, "
		              "which keeps its caches.",
		              "version %s, and factl has %s (protocol %u)", info.daemon_version,
		              fa_version(), info.protocol);
	return client;
}
