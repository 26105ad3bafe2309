/*
 * The configuration: defaults, then the file, then the command line. Plain data
 * that is read once and replaced as a whole on reload. Any thread.
 */
#pragma once

#include "common/error.h"
#include "daemon/account/limits.h"
#include "daemon/base/log.h"

#include <stdbool.h>
#include <sys/types.h>

#define FA_CONFIG_PATH "/etc/fad/fad.conf"

/* The pool of a daemon that is somebody's own has at most so much, if nothing is configured. */
#define FA_CONFIG_POOL_OWN_MIB 256

struct fa_config {
	char *socket; /* NULL: the usual place */
	mode_t mode;
	char *group;      /* NULL: the process's */
	char *backend;    /* "auto", "cpu", "cuda" */
	char *device;     /* ordinal or GPU-... UUID; NULL: the backend's choice */
	unsigned threads; /* 0: one a processor */
	enum fa_log_target log;
	enum fa_log_level log_level;
	unsigned drain_timeout_ms;
	unsigned spin_us; /* a ring is polled so long after its last request */
	struct fa_limits limits;

	uint64_t pool_bytes;       /* FA_LIMIT_AUTO: pool_percent says */
	unsigned pool_percent;     /* of the memory that is free; 0: the default */
	uint64_t pool_chunk_bytes; /* 0: chosen */
	unsigned pool_grace_s;     /* sessions of a daemon before are waited for so long */
};

/* The defaults; what buffers may hold depends on the machine's memory. */
int fa_config_init(struct fa_config *ret_config);

/*
 * Puts numbers where limits are FA_LIMIT_AUTO: a tenant may have all of the device's own
 * memory, and so many timelines that one user has at most half of the @timelines_max that
 * are kept for the daemon's successor (0: nobody counts them). Of the @fds_max descriptors that
 * the process can have (0: nobody counts them) clients together have three quarters at most, so
 * that the rest is there for what comes with messages, and one tenant half of these.
 */
void fa_config_resolve(struct fa_config *config, uint64_t device_bytes, uint64_t timelines_max,
                       uint64_t fds_max);

/*
 * Bytes that the pool may have, which has @pool_bytes. Without a number in the configuration
 * a share of what is free or the pool's: half of the device's memory or, if that has none of
 * its own, an eighth of the machine's; less if the daemon is somebody's @own.
 */
uint64_t fa_config_pool_bytes(const struct fa_config *config, uint64_t device_bytes,
                              uint64_t device_free_bytes, uint64_t pool_bytes, bool own);

void fa_config_deinit(struct fa_config *config);

/*
 * Reads the file over what @config holds. -ENOENT if there is none; -EINVAL with
 * a sentence that names file, line, and what was expected.
 */
int fa_config_load(struct fa_config *config, const char *path, struct fa_error *error);

/* The same with the text of a file. */
int fa_config_parse(struct fa_config *config, const char *text, struct fa_error *error);

/* Sets one field, as "daemon", "mode", "0660". Used by the file and the options. */
int fa_config_set(struct fa_config *config, const char *section, const char *name,
                  const char *value, struct fa_error *error);
