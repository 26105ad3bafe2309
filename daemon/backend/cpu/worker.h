/* The threads that compute tiles ("fad-cpu"). */
#pragma once

#include "daemon/backend/cpu/device.h"

/* The thread blocks all signals but SIGBUS. */
int fa_cpu_worker_start(struct fa_cpu_worker *worker);
/* Call it after device.stop is set and all workers are woken. */
void fa_cpu_worker_join(struct fa_cpu_worker *worker);
