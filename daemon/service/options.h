/* fad's command line, and the configuration that it selects and overrides. Loop thread. */
#pragma once

#include "common/error.h"

#include <stdbool.h>

struct fa_config;

#define FA_SERVICE_OVERRIDES_MAX 8

struct fa_service_options {
	const char *config; /* NULL: FA_CONFIG_PATH, if it exists */
	struct {
		const char *name, *value; /* of section [daemon] */
	} overrides[FA_SERVICE_OVERRIDES_MAX];
	unsigned int n_overrides;
	const char *trace;       /* file; NULL: no trace */
	int listen_fd, ready_fd; /* -1: not given */
	bool exit_when_idle, check_config, supervise;
};

/* @ret_child_argv, [argc + 1] zeroes, gets a supervised daemon's arguments. Returns 1 to go on, 0
 * after --help or --version, or a negative errno that was logged. Strings point into @argv. */
int fa_service_options_parse(int argc, char **argv, struct fa_service_options *ret_options,
                             char **ret_child_argv);

/* The options override the file. */
int fa_service_options_load_config(const struct fa_service_options *options,
                                   struct fa_config *ret_config, struct fa_error *error);

/* Logs every fault of the file. 0: there is none. */
int fa_service_options_check_config(const struct fa_service_options *options);
