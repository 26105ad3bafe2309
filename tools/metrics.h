/* The daemon's status (its keys: fa_status() in faclient.h) as metrics. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

struct fa_metrics_format {
	bool prometheus; /* Prometheus' text format 0.0.4, without units and "# EOF"; else OpenMetrics */
	bool totals_only; /* nothing about single tenants */
	bool tells_up;    /* with fad_up, which is 0 if there is no status */
};

/*
 * Returns 0, or -EINVAL, with nothing written, if @json is not a status. Leaves out what the daemon
 * does not tell this user or is too old to know. A tenant without "uid" stands for all that are not
 * listed.
 */
int fa_metrics_print(const char *json, const struct fa_metrics_format *format, FILE *file);

/* @status may be NULL if the format tells fad_up. */
int fa_metrics_print_status(const json_t *status, const struct fa_metrics_format *format,
                            FILE *file);
