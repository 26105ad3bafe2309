#include "tools/doctor/report.h"

#include "tools/layout.h"

#include "client/faclient.h"

#include <stdarg.h>
#include <stdio.h>

#define TEXT_BYTES 1024

static const char *const level_names[] = { "ok", "warning", "fault" };

void fa_report_init(struct fa_report *report, bool json)
{
	*report = (struct fa_report){ .json = json, .checks = json ? json_array() : NULL };
}

void fa_report_add(struct fa_report *report, enum fa_report_level level, const char *check,
                   const char *advice, const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	report->n_warnings += level == FA_REPORT_WARNING;
	report->n_faults += level == FA_REPORT_FAULT;
	if (report->json) {
		json_t *line = json_pack("{ss, ss, ss}", "check", check, "level",
		                         level_names[level], "text", text);

		if (line && advice)
			(void)json_object_set_new(line, "advice", json_string(advice));
		(void)json_array_append_new(report->checks, line);
		return;
	}
	fa_layout_paragraph(stdout, level_names[level], "%s: %s", check, text);
	if (advice)
		fa_layout_paragraph(stdout, "", "%s", advice);
	(void)fflush(stdout);
}

json_t *fa_report_take(struct fa_report *report)
{
	json_t *checks = report->checks;

	report->checks = NULL;
	return json_pack("{ss, so, si, si}", "version", fa_version(), "checks", checks, "faults",
	                 (int)report->n_faults, "warnings", (int)report->n_warnings);
}

void fa_report_finish(struct fa_report *report)
{
	char *text = NULL;
	json_t *root;

	if (!report->json) {
		printf("\n%u fault%s, %u warning%s\n", report->n_faults,
		       report->n_faults == 1 ? "" : "s", report->n_warnings,
		       report->n_warnings == 1 ? "" : "s");
		return;
	}
	root = fa_report_take(report);
	if (root)
		text = json_dumps(root, JSON_INDENT(1));
	if (text)
		puts(text);
	fa_free(text);
	json_decref(root);
}
