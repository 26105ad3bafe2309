#pragma once

#include "daemon/backend/cpu/device.h"

/* With default scheduling and all signals blocked. */
int fa_cpu_worker_start(struct fa_cpu_worker *worker);
/* device.stop is set, and all workers are woken. */
void fa_cpu_worker_join(struct fa_cpu_worker *worker);
