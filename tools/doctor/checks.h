/* The parts of factl doctor. Each adds its lines to the report. */
#pragma once

#include "client/faclient.h"
#include "tools/doctor/report.h"
#include "tools/tool.h"

#include <jansson.h>

/* NULL: no memory. *ret_none: no daemon listens. */
json_t *fa_doctor_examine(const struct fa_tool *tool, bool *ret_none);

/* GPUs, driver, device files and this process's limits. */
void fa_doctor_machine(struct fa_report *report);

/* The socket and access to it. NULL: no client, and the report says why. *ret_none: no daemon
 * listens. */
struct fa_client *fa_doctor_connect(struct fa_report *report, const struct fa_tool *tool,
                                    bool *ret_none);

/* The running daemon, by its status and by its process in the kernel. */
void fa_doctor_daemon(struct fa_report *report, struct fa_client *client, const json_t *status);

/* Clock and health of the daemon's GPU, after the request before. */
void fa_doctor_gpu(struct fa_report *report, struct fa_client *client, const json_t *status);

/* Compares attention, and a step over a KV cache, with double precision. */
void fa_doctor_request(struct fa_report *report, struct fa_client *client, const json_t *status);
