/* factl doctor: what works, what does not, and what to do about it. */
#include "tools/doctor/checks.h"

static void run(struct fa_report *report, const struct fa_tool *tool, bool *ret_none)
{
	struct fa_client *client;
	json_t *status = NULL;
	char *text;

	fa_doctor_machine(report);
	client = fa_doctor_connect(report, tool, ret_none);
	if (!client)
		return;
	if (fa_status(client, &text) == 0) {
		status = json_loads(text, 0, NULL);
		fa_free(text);
	}
	if (status) {
		fa_doctor_daemon(report, client, status);
		fa_doctor_request(report, client, status);
		fa_doctor_gpu(report, client, status);
	} else {
		fa_report_add(report, FA_REPORT_FAULT, "status", "See its log: journalctl -u fad.",
		              "the daemon gives none: %s", fa_error());
	}
	json_decref(status);
	fa_disconnect(client);
}

json_t *fa_doctor_examine(const struct fa_tool *tool, bool *ret_none)
{
	struct fa_report report;

	fa_report_init(&report, true);
	run(&report, tool, ret_none);
	return fa_report_take(&report);
}

int fa_tool_doctor(struct fa_tool *tool)
{
	struct fa_report report;
	bool none = false;

	fa_report_init(&report, fa_tool_given(tool, FA_TOOL_JSON));
	run(&report, tool, &none);
	fa_report_finish(&report);
	if (fa_tool_flush("doctor") != 0)
		return 1;
	return none ? FA_TOOL_NO_DAEMON : report.n_faults > 0;
}
