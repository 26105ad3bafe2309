/* The daemon's status (its keys: fa_status() in faclient.h) as tables for people. */
#pragma once

#include <stdio.h>

/* Returns 0, or -EINVAL if @json is not a JSON object or lacks its lists; -ENOMEM. */
int fa_status_print(const char *json, FILE *file);
