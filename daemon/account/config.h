/*
 * The configuration: defaults, then the file, then the command line. Replaced as a whole on reload.
 * Any thread.
 */
#pragma once

#include "common/error.h"
#include "daemon/account/limits.h"
#include "daemon/base/log.h"

#include <stdbool.h>
#include <sys/types.h>

#define FA_CONFIG_PATH "/etc/fad/fad.conf"

#define FA_CONFIG_OBSERVER "fad-metrics"

/* Largest default pool of a private daemon. */
#define FA_CONFIG_POOL_PRIVATE_MIB 256

struct fa_config {
	char *socket; /* NULL: the default path */
	mode_t mode;
	char *group;      /* NULL: that of the process */
	char *observer;   /* user who may see all of the status */
	char *backend;    /* "auto", "cpu", "cuda", "vulkan" */
	char *device;     /* ordinal or GPU-... UUID; NULL: any */
	unsigned threads; /* 0: one per processor */
	enum fa_log_target log;
	enum fa_log_level log_level;
	unsigned drain_timeout_ms;
	unsigned spin_us; /* a ring is polled so long after a request */
	/* While the session has a step in flight, if the device is a GPU. */
	unsigned spin_step_us;
	struct fa_limits limits;

	uint64_t pool_bytes;       /* FA_LIMIT_AUTO: see pool_percent */
	unsigned pool_percent;     /* of free memory; 0: default */
	uint64_t pool_chunk_bytes; /* 0: the pool chooses */
	unsigned pool_grace_s;
};

/* -ENOMEM. */
int fa_config_init(struct fa_config *ret_config);

/*
 * Replaces FA_LIMIT_AUTO. A tenant may use all device memory and half of @timelines_max, the fd
 * store's size. All clients together may use three quarters of @fds_max, the process's limit, and a
 * tenant half of that. 0: unlimited. @private: a program started the daemon for itself.
 */
void fa_config_resolve(struct fa_config *config, uint64_t device_bytes, uint64_t timelines_max,
                       uint64_t fds_max, bool private);

/*
 * Returns the largest size of the pool, which has @pool_bytes now. Default: half of the device
 * memory that is free or the pool's, else an eighth of the machine's.
 */
uint64_t fa_config_pool_bytes(const struct fa_config *config, uint64_t device_bytes,
                              uint64_t device_free_bytes, uint64_t pool_bytes, bool private);

void fa_config_deinit(struct fa_config *config);

/* More faults of a file are not reported. */
#define FA_CONFIG_FAULTS_MAX 100

typedef void fa_config_fault_fn(void *userdata, const struct fa_error *fault);

/* Reads the file over @config, and reports its faults in the order of lines. -EINVAL: there are some.
 * Other errors set @error. */
int fa_config_check(struct fa_config *config, const char *path, fa_config_fault_fn *report,
                    void *userdata, struct fa_error *error);

/* The same, but the first fault is the error. */
int fa_config_load(struct fa_config *config, const char *path, struct fa_error *error);

/* The same for a text; faults call it @name. */
int fa_config_parse(struct fa_config *config, const char *name, const char *text,
                    struct fa_error *error);

/* Sets one value, such as "daemon", "mode", "0660". */
int fa_config_set(struct fa_config *config, const char *section, const char *name,
                  const char *value, struct fa_error *error);
