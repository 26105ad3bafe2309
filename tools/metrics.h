/* The daemon's status (its keys: fa_status() in faclient.h) as metrics. */
#pragma once

#include <stdio.h>

/*
 * Writes all metrics and "# EOF". Returns 0, or -EINVAL if @json is not a status, and then
 * writes nothing. Leaves out what the daemon does not tell this user or is too old to know.
 */
int fa_metrics_print(const char *json, FILE *file);

/* The same in Prometheus' text format 0.0.4, which is what node_exporter reads from files. It lacks
 * units and "# EOF", and names counters with their "_total". */
int fa_metrics_print_prometheus(const char *json, FILE *file);
