/* The daemon's status (its keys: fa_status() in faclient.h) as OpenMetrics. */
#pragma once

#include <stdio.h>

/*
 * Writes it whole, with "# EOF", or nothing: 0, or -EINVAL if @json is no status. What the
 * daemon does not say to this user, or is too old to say, is left out. All of it can be read as
 * the older text format of Prometheus, too.
 */
int fa_metrics_print(const char *json, FILE *file);
