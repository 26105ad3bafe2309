/* The threads that compute tiles ("fad-cpu"). */
#pragma once

#include "daemon/backend/cpu/device.h"

/* The thread has default scheduling and all signals blocked but SIGBUS. */
int fa_cpu_worker_start(struct fa_cpu_worker *worker);
/* The caller has set device.stop and woken all workers. */
void fa_cpu_worker_join(struct fa_cpu_worker *worker);
