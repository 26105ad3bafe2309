/* The daemon's status (its keys: fa_status() in faclient.h) as OpenMetrics. */
#pragma once

#include <stdio.h>

/*
 * Writes all metrics and "# EOF". Returns 0, or -EINVAL if @json is not a status, and then
 * writes nothing. Leaves out what the daemon does not tell this user or is too old to know.
 * The output is also valid in the older Prometheus text format.
 */
int fa_metrics_print(const char *json, FILE *file);
