/*
 * The daemon is asked at most once in FA_SOURCE_FRESH_NS, however often the exporter is; the
 * connection is made again when it comes back.
 */
#pragma once

#include "client/faclient.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define FA_SOURCE_FRESH_NS 500000000ull

struct fa_source {
	const char *socket; /* NULL: the default */
	struct fa_client *client;
	json_t *status;
	uint64_t asked_ns;
	bool was_asked, was_lost;
};

/* Takes a zeroed struct. */
void fa_source_deinit(struct fa_source *source);

/*
 * True: source->status is another than after the last call. It is NULL if the daemon does not
 * answer; stderr says why, once.
 */
bool fa_source_refresh(struct fa_source *source);
