/* Clock and health of the GPU that the daemon uses. */
#include "tools/doctor/checks.h"
#include "tools/doctor/nvml.h"

#include <string.h>

static const char *slowdown_text(uint64_t reasons)
{
	if (reasons & (FA_NVML_HEAT_HARDWARE | FA_NVML_HEAT_SOFTWARE))
		return "heat";
	return reasons & FA_NVML_POWER_BRAKE ? "the machine's power supply" : "the hardware";
}

void fa_doctor_gpu(struct fa_report *report, struct fa_client *client, const json_t *status)
{
	const char *backend = json_string_value(json_object_get(status, "backend"));
	struct fa_info info = { .size = sizeof(info) };
	struct fa_nvml_health health = {};
	const char *text = "";

	if (!backend || strcmp(backend, "cuda") != 0 || fa_info(client, &info) < 0)
		return;
	if (fa_nvml_ask(info.device_uuid, &health, &text) < 0) {
		fa_report_add(
			report, FA_REPORT_WARNING, "clock of the GPU",
			"NVIDIA's management library comes with its driver; nvidia-smi uses it, "
			"too.",
			"unknown: %s", text);
		return;
	}
	if (health.slowdown)
		fa_report_add(report, FA_REPORT_WARNING, "clock of the GPU",
		              "Cool it, or see nvidia-smi -q -d PERFORMANCE.",
		              "held down by %s: %u of %u MHz at %u C",
		              slowdown_text(health.slowdown), health.clock_mhz,
		              health.clock_max_mhz, health.temperature_c);
	else
		fa_report_ok(report, "clock of the GPU", "%u of %u MHz at %u C; driver %s",
		             health.clock_mhz, health.clock_max_mhz, health.temperature_c,
		             health.driver);
	if (health.ecc_errors)
		fa_report_add(
			report, FA_REPORT_FAULT, "memory of the GPU",
			"Results may be wrong: reset the GPU, and replace it if that comes back.",
			"%llu errors that could not be corrected",
			(unsigned long long)health.ecc_errors);
}
