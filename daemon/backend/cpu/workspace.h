/* A work's memory besides its tensors: rotated q, and the workspace of its paged requests, which
 * run one at a time. A queue's works may share it: only the active one writes. Loop thread. */
#pragma once

#include "daemon/backend/device.h"

/* Also checks the paged requests. */
int fa_cpu_workspace_new_paged(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                               struct fa_error *error);
/* No other work shares this workspace. */
int fa_cpu_workspace_new_attention(const struct fa_cpu_isa *isa, struct fa_device_work *work,
                                   struct fa_error *error);
void fa_cpu_workspace_free(struct fa_device_work *work);
