/*
 * Memory that a work needs besides its tensors: the kernels' workspace, shared by the work's paged
 * requests as one of them runs at a time, and behind it rotated q. Works of one queue may share it,
 * too: it is written from the activation of a work on. The loop thread's.
 */
#pragma once

#include "daemon/backend/device.h"

/* Checks the work's paged requests, and sets work->prepared if they need memory. */
int fa_cpu_workspace_new_paged(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                               struct fa_error *error);
/* For attention over tensors; never shared. */
int fa_cpu_workspace_new_attention(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                                   struct fa_error *error);
void fa_cpu_workspace_free(struct fa_device_work *work);
