/* The list of what recovery found wrong. */
#pragma once

#include "daemon/pool/pool.h"

/* @report may be NULL. */
void fa_pool_report_add(struct fa_pool_report *report, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
