/*
 * What factl top shows: two statuses of the daemon become rates and shares. Pure functions over
 * JSON; lines have at most FA_FRAME_COLUMNS columns.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define FA_FRAME_COLUMNS 80

enum fa_frame_sort {
	FA_FRAME_BY_RATE,   /* requests per second */
	FA_FRAME_BY_WAIT,   /* 99th percentile of the times that requests waited */
	FA_FRAME_BY_SHARE,  /* of the device's time */
	FA_FRAME_BY_MEMORY, /* buffers of clients; pages of tenants */
	FA_FRAME_BY_NAME,
	_FA_FRAME_SORT_N,
};

/* "rate", "wait", "share", "memory", "name" */
extern const char *const fa_frame_sort_names[_FA_FRAME_SORT_N];

struct fa_frame_options {
	bool by_tenant; /* else by client */
	enum fa_frame_sort sort;
	const char *filter; /* only rows with this text; NULL or "": all */
	size_t rows_max;    /* more are counted in a last line */
};

/*
 * What happened from @before (NULL, or of an earlier daemon: since the start) to @after, statuses
 * of a daemon. Returns 0, -ENOMEM, or -EINVAL, with nothing printed, if @after is no status.
 */
int fa_frame_print(const json_t *before, const json_t *after,
                   const struct fa_frame_options *options, FILE *file);
