#include "daemon/base/memory_limit.h"

#include "common/cleanup.h"
#include "common/text.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIELDS_MAX 64

static FILE *open_file(const char *root, const char *path, const char *name)
{
	char full[2 * PATH_MAX];

	if (snprintf(full, sizeof(full), "%s%s%s", root, path, name) >= (int)sizeof(full))
		return NULL;
	return fopen(full, "re");
}

/* UINT64_MAX: "max", or no file. */
static uint64_t read_limit(const char *root, const char *directory, const char *name)
{
	FILE *file = open_file(root, directory, name);
	uint64_t limit = UINT64_MAX;
	char text[32] = "", *end;

	if (!file)
		return UINT64_MAX;
	if (fgets(text, sizeof(text), file) && *text >= '0' && *text <= '9') {
		errno = 0;
		limit = strtoull(text, &end, 10);
		if (errno || (*end && *end != '\n'))
			limit = UINT64_MAX;
	}
	(void)fclose(file);
	return limit;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Also looks at all directories above up to @mount. Changes @path. */
static uint64_t least_limit(const char *root, const char *mount, char *path, bool unified)
{
	uint64_t least = UINT64_MAX;
	char directory[PATH_MAX];

	for (;;) {
		char *slash = strrchr(path, '/');

		if (snprintf(directory, sizeof(directory), "%s%s", mount, path) <
		    (int)sizeof(directory)) {
			if (unified) {
				least = smaller(least, read_limit(root, directory, "/memory.max"));
				least = smaller(least, read_limit(root, directory, "/memory.high"));
			} else {
				least = smaller(least, read_limit(root, directory,
				                                  "/memory.limit_in_bytes"));
			}
		}
		if (!*path)
			return least;
		*(slash ? slash : path) = '\0';
	}
}

/* Looks in the unified hierarchy, or the memory controller's. */
static bool find_path(const char *root, bool unified, char *ret_path, size_t size)
{
	FILE *file = open_file(root, "/proc/self/cgroup", "");
	_fa_cleanup_(fa_freep) char *line = NULL;
	bool found = false;
	size_t room = 0;

	if (!file)
		return false;
	/* Lines are ID:CONTROLLERS:PATH; PATH may contain colons. */
	while (!found && getline(&line, &room, file) >= 0) {
		char *list = strchr(line, ':');
		char *path = list ? strchr(list + 1, ':') : NULL;

		if (!path || path[1] != '/')
			continue;
		path[strcspn(path, "\n")] = '\0';
		found = unified ? !strncmp(line, "0::", 3)
		                : fa_text_list_has(list + 1, (size_t)(path - list - 1), "memory");
		if (found)
			found = (size_t)snprintf(ret_path, size, "%s", path + 1) < size;
	}
	(void)fclose(file);
	return found;
}

/* @path, of /proc/self/cgroup, becomes relative to the mount, which shows the tree below @top; a
 * path outside of it becomes the mount's top. */
static void make_relative(char *path, const char *top)
{
	size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);

	if (strncmp(path, top, length) != 0 || (path[length] && path[length] != '/') ||
	    (!strncmp(path, "/..", 3) && (!path[3] || path[3] == '/')))
		*path = '\0';
	else
		memmove(path, path + length, strlen(path + length) + 1);
	if (strcmp(path, "/") == 0)
		*path = '\0';
}

/* @line, of mountinfo: ID PARENT DEVICE ROOT MOUNT OPTIONS [TAG...] - TYPE SOURCE OPTIONS. */
static uint64_t limit_of_mount(const char *root, char *line)
{
	char *fields[FIELDS_MAX], *rest = NULL, path[PATH_MAX];
	size_t n = 0, dash;
	bool unified;

	for (char *at = strtok_r(line, " \n", &rest); at && n < FIELDS_MAX;
	     at = strtok_r(NULL, " \n", &rest))
		fields[n++] = at;
	for (dash = 6; dash < n && strcmp(fields[dash], "-") != 0; ++dash)
		;
	if (dash + 3 >= n)
		return UINT64_MAX;
	unified = strcmp(fields[dash + 1], "cgroup2") == 0;
	if (!unified && (strcmp(fields[dash + 1], "cgroup") != 0 ||
	                 !fa_text_list_has(fields[dash + 3], strlen(fields[dash + 3]), "memory")))
		return UINT64_MAX;
	if (!find_path(root, unified, path, sizeof(path)))
		return UINT64_MAX;
	make_relative(path, fields[3]);
	return least_limit(root, fields[4], path, unified);
}

uint64_t fa_memory_limit_of_cgroup(const char *root)
{
	FILE *file = open_file(root, "/proc/self/mountinfo", "");
	_fa_cleanup_(fa_freep) char *line = NULL;
	uint64_t least = UINT64_MAX;
	size_t room = 0;

	if (!file)
		return UINT64_MAX;
	while (getline(&line, &room, file) >= 0)
		least = smaller(least, limit_of_mount(root, line));
	(void)fclose(file);
	return least;
}

static uint64_t pages(int name)
{
	return (uint64_t)sysconf(name) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t fa_memory_limit(void)
{
	return smaller(pages(_SC_PHYS_PAGES), fa_memory_limit_of_cgroup(""));
}

uint64_t fa_memory_limit_free(void)
{
	return smaller(pages(_SC_AVPHYS_PAGES), fa_memory_limit_of_cgroup(""));
}
