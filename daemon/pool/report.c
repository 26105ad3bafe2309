#include "daemon/pool/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void fa_pool_report_deinit(struct fa_pool_report *report)
{
	for (size_t i = 0; i < report->n_lines; i++)
		free(report->lines[i]);
	free(report->lines);
	*report = (struct fa_pool_report){};
}

void fa_pool_report_add(struct fa_pool_report *report, const char *format, ...)
{
	va_list args;
	char *line;
	int n;

	if (!report || report->n_found++ >= FA_POOL_REPORT_LINES)
		return;
	if (!report->lines)
		report->lines = calloc(FA_POOL_REPORT_LINES, sizeof(*report->lines));
	if (!report->lines)
		return;
	va_start(args, format);
	n = vasprintf(&line, format, args);
	va_end(args);
	if (n >= 0)
		report->lines[report->n_lines++] = line;
}
