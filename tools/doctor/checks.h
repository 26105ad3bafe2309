/* The parts of factl doctor. Each adds its lines to the report. */
#pragma once

#include "client/faclient.h"
#include "tools/doctor/report.h"
#include "tools/tool.h"

#include <jansson.h>

/* Makes all checks, and returns them as JSON; NULL: no memory. *ret_none: no daemon listens. */
json_t *fa_doctor_examine(const struct fa_tool *tool, bool *ret_none);

/* This machine: GPUs, the driver, device files, and limits of this process. */
void fa_doctor_machine(struct fa_report *report);

/* The socket and access to it. Returns a client; NULL: there is none, and the report says why.
 * *ret_none: no daemon listens. */
struct fa_client *fa_doctor_connect(struct fa_report *report, const struct fa_tool *tool,
                                    bool *ret_none);

/* The running daemon, by its status and by what the kernel tells about its process. */
void fa_doctor_daemon(struct fa_report *report, struct fa_client *client, const json_t *status);

/* Clock and health of the daemon's GPU, under what the request before has left. */
void fa_doctor_gpu(struct fa_report *report, struct fa_client *client, const json_t *status);

/* One request of attention and one step over a KV cache, whose numbers are compared. */
void fa_doctor_request(struct fa_report *report, struct fa_client *client, const json_t *status);
