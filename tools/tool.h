/*
 * The parsed command line and one connection to the daemon. One thread. A command returns an exit
 * status, after a message on stderr if it is not 0.
 */
#pragma once

#include "client/faclient.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define FA_TOOL_USAGE 2
#define FA_TOOL_NO_DAEMON 3

#define FA_TOOL_LISTEN_MAX 8

/* Options of some commands only. */
enum fa_tool_option {
	FA_TOOL_COUNT,
	FA_TOOL_JSON,
	FA_TOOL_NO_WAIT,
	FA_TOOL_PROMETHEUS,
	FA_TOOL_LISTEN,
	FA_TOOL_TENANTS,
	FA_TOOL_ONCE,
	FA_TOOL_INTERVAL,
	FA_TOOL_SORT,
	FA_TOOL_FILTER,
	FA_TOOL_BY,
	_FA_TOOL_OPTION_N,
};

struct fa_tool {
	const char *socket;
	const char *instance; /* FAD_INSTANCE is set to it, and FAD_SOCKET unset; NULL: neither */
	struct fa_client *client;
	uint32_t given;                           /* bit i: enum fa_tool_option i is given */
	const char *values[_FA_TOOL_OPTION_N];    /* the last one; NULL: none */
	unsigned long numbers[_FA_TOOL_OPTION_N]; /* of options with a number */
	char **arguments;                         /* of the command */
	const char *listen[FA_TOOL_LISTEN_MAX];   /* values of --listen */
	size_t n_listen;
};

static inline bool fa_tool_given(const struct fa_tool *tool, enum fa_tool_option option)
{
	return tool->given & 1u << option;
}

/* @which names the word. */
int fa_tool_wrong_usage(const char *what, const char *which);

/* Reports the library's last error. */
int fa_tool_fail(const char *what);

/* Connects once. Returns an exit status. */
int fa_tool_connect(struct fa_tool *tool);

/* Returns an exit status, with which scripts replace their last complete output. */
int fa_tool_flush(const char *command);

int fa_tool_status(struct fa_tool *tool);
int fa_tool_metrics(struct fa_tool *tool);
int fa_tool_doctor(struct fa_tool *tool);
int fa_tool_top(struct fa_tool *tool);
int fa_tool_dump(struct fa_tool *tool);
int fa_tool_ping(struct fa_tool *tool);
int fa_tool_version(struct fa_tool *tool);
int fa_tool_drain(struct fa_tool *tool);
int fa_tool_rm(struct fa_tool *tool);
