/* What factl doctor finds: lines for people, or JSON. One thread. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

enum fa_report_level {
	FA_REPORT_OK,
	FA_REPORT_WARNING, /* it works, but not as well as it could */
	FA_REPORT_FAULT,   /* something does not work */
};

struct fa_report {
	bool json;
	json_t *checks; /* with json */
	unsigned int n_warnings, n_faults;
};

void fa_report_init(struct fa_report *report, bool json);

/* @check: a word or two for what was looked at, always the same; @advice: what to do, NULL for
 * FA_REPORT_OK. Prints the line at once, unless the report is JSON. */
void fa_report_add(struct fa_report *report, enum fa_report_level level, const char *check,
                   const char *advice, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

#define fa_report_ok(report, check, ...)                                                           \
	fa_report_add(report, FA_REPORT_OK, check, NULL, __VA_ARGS__)

/* The number of warnings and faults, or the JSON. */
void fa_report_finish(struct fa_report *report);

/* The caller owns it; NULL: no memory. */
json_t *fa_report_take(struct fa_report *report);
