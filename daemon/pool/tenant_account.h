/*
 * Tenants: records, holdings, quotas. A tag is record index + FA_STATE_TENANTS * serial; each use
 * of a record has another serial.
 */
#pragma once

#include "daemon/pool/objects.h"

static inline struct fa_tenant_account *fa_tenant_account(const struct fa_pool *pool, uint32_t tag)
{
	return &pool->tenants[tag % FA_STATE_TENANTS];
}

static inline struct fa_state_tenant *fa_tenant_record(const struct fa_pool *pool, uint32_t tag)
{
	return &pool->tenant_records[tag % FA_STATE_TENANTS];
}

static inline uint32_t fa_tenant_tag(const struct fa_pool *pool,
                                     const struct fa_tenant_account *account)
{
	return pool->tenant_records[account - pool->tenants].tag;
}

bool fa_tenant_known(const struct fa_pool *pool, uint32_t tag);
/* Frees the tenant only if it holds nothing. */
void fa_tenant_try_free(struct fa_pool *pool, uint32_t tag);

/* Idle pages count only if @more has no bytes, as fa_reclaim_quota() can evict them. -EDQUOT. */
int fa_tenant_check_quota(const struct fa_pool *pool, uint32_t tag, const struct fa_pool_more *more,
                          struct fa_error *error);
/* Idle pages count here. */
bool fa_tenant_quota_admits(const struct fa_pool *pool, uint32_t tag, uint64_t more_bytes);
/* @tag if it has idle pages, else another of its uid that has; 0: none. */
uint32_t fa_tenant_find_idle(const struct fa_pool *pool, uint32_t tag);
int fa_tenant_check_cells(const struct fa_pool *pool, uint32_t tag, uint64_t n,
                          struct fa_error *error);
