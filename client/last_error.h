/* Each thread's last error, for fa_error(). */
#pragma once

#include "common/error.h"

/* Returns @code. */
int fa_error_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fa_error_copy(int code, const struct fa_error *error);
