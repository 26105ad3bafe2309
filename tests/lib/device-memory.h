/* Memory of devices, for tests that have no importer (daemon/memory/importer.h). */
#pragma once

#include "daemon/backend/device.h"

static inline void fa_test_memory_release(const struct fa_device_ops *ops, struct fa_device *device,
                                          struct fa_device_memory *memory)
{
	ops->memory_release(device, &memory, 1);
}
