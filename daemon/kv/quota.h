/* Configured limits on what a tenant holds in the pool. Loop thread. */
#pragma once

#include "common/error.h"
#include "daemon/pool/pool.h"

/* For fa_pool_set_quota(); @userdata: struct fa_kv. -EDQUOT. */
int fa_kv_check_quota(void *userdata, const struct fa_pool_tenant_info *held,
                      const struct fa_pool_more *more, struct fa_error *error);
