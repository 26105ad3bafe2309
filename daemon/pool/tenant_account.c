#include "daemon/pool/tenant_account.h"

#include "daemon/pool/state_store.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SERIALS_MAX (UINT32_MAX / FA_STATE_TENANTS)

bool fa_tenant_known(const struct fa_pool *pool, uint32_t tag)
{
	const struct fa_state_tenant *record = fa_tenant_record(pool, tag);

	return tag % FA_STATE_TENANTS < pool->header->high_tenants &&
	       record->state == FA_STATE_USED && record->tag == tag;
}

static uint32_t find(const struct fa_pool *pool, uint32_t uid, const char *cgroup)
{
	for (uint32_t i = 0; i < pool->header->high_tenants; i++) {
		const struct fa_state_tenant *record = &pool->tenant_records[i];

		if (record->state == FA_STATE_USED && record->uid == uid &&
		    !strcmp(record->cgroup, cgroup))
			return record->tag;
	}
	return 0;
}

/* A user can make cgroups, so each has at most half of the tenants. Uid 0, which makes them for
 * others, has no limit. */
static int check_user(const struct fa_pool *pool, uint32_t uid, struct fa_error *error)
{
	const uint32_t max = pool->header->max_tenants / 2;
	uint32_t n = 0;

	for (uint32_t i = 0; uid && i < pool->header->high_tenants; i++)
		n += pool->tenant_records[i].state == FA_STATE_USED &&
		     pool->tenant_records[i].uid == uid;
	if (n < max)
		return 0;
	return fa_fail(error, -EDQUOT,
	               "the pool keeps account of %" PRIu32 " cgroups of uid %" PRIu32
	               " already; there is no room for another",
	               n, uid);
}

int fa_pool_tenant_get(struct fa_pool *pool, uint32_t uid, const char *cgroup,
                       struct fa_error *error, uint32_t *ret_tag)
{
	struct fa_state_tenant *record;
	uint32_t tag, i;
	int r;

	if (strlen(cgroup) >= FA_STATE_CGROUP_BYTES)
		return fa_fail(error, -ENAMETOOLONG,
		               "the name of the cgroup has %zu bytes; expected at most %d",
		               strlen(cgroup), FA_STATE_CGROUP_BYTES - 1);
	tag = find(pool, uid, cgroup);
	if (tag) {
		fa_tenant_account(pool, tag)->n_held++;
		*ret_tag = tag;
		return 0;
	}
	r = check_user(pool, uid, error);
	if (r < 0)
		return r;

	/* Pages may still have any of its tags. */
	for (i = 0; i < pool->header->high_tenants; i++)
		if (pool->tenant_records[i].state == FA_STATE_FREE &&
		    pool->tenant_records[i].tag / FA_STATE_TENANTS < SERIALS_MAX - 1)
			break;
	if (i == pool->header->max_tenants)
		return fa_fail(error, -ENOSPC,
		               "the pool keeps account of %" PRIu32
		               " tenants; there is no room for "
		               "another",
		               pool->header->max_tenants);
	record = &pool->tenant_records[i];
	if (i == pool->header->high_tenants)
		fa_state_store(&pool->header->high_tenants, i + 1);
	tag = (record->tag / FA_STATE_TENANTS + 1) * FA_STATE_TENANTS + i;
	record->tag = tag;
	record->uid = uid;
	strcpy(record->cgroup, cgroup);
	fa_state_store(&record->state, FA_STATE_USED);
	pool->tenants[i] = (struct fa_tenant_account){ .n_held = 1 };
	pool->n_tenants++;
	*ret_tag = tag;
	return 0;
}

void fa_tenant_try_free(struct fa_pool *pool, uint32_t tag)
{
	const struct fa_tenant_account *account = fa_tenant_account(pool, tag);

	if (account->n_held || account->n_sequences || account->n_caches || account->bytes)
		return;
	fa_state_store(&fa_tenant_record(pool, tag)->state, FA_STATE_FREE);
	pool->n_tenants--;
}

void fa_pool_tenant_put(struct fa_pool *pool, uint32_t tag)
{
	fa_tenant_account(pool, tag)->n_held--;
	fa_tenant_try_free(pool, tag);
}

static void describe(const struct fa_state_tenant *record, const struct fa_tenant_account *account,
                     struct fa_pool_tenant_info *info)
{
	*info = (struct fa_pool_tenant_info){
		.tag = record->tag,
		.uid = record->uid,
		.cgroup = record->cgroup,
		.bytes = account->bytes,
		.idle_bytes = account->idle_bytes,
		.n_sequences = account->n_sequences,
		.n_caches = account->n_caches,
	};
}

bool fa_pool_tenant_each(const struct fa_pool *pool, uint32_t *cursor,
                         struct fa_pool_tenant_info *ret_info)
{
	while (*cursor < pool->header->high_tenants) {
		const struct fa_tenant_account *account = &pool->tenants[*cursor];
		const struct fa_state_tenant *record = &pool->tenant_records[(*cursor)++];

		if (record->state != FA_STATE_USED)
			continue;
		describe(record, account, ret_info);
		return true;
	}
	return false;
}

void fa_pool_set_quota(struct fa_pool *pool, fa_pool_quota_fn *quota, void *userdata)
{
	pool->quota = quota;
	pool->quota_userdata = userdata;
}

/* Returns NULL if there are no more. Tenants of uid 0 are unrelated. */
static struct fa_tenant_account *next_of_user(const struct fa_pool *pool,
                                              const struct fa_tenant_account *own, uint32_t uid,
                                              uint32_t *cursor)
{
	while (uid && *cursor < pool->header->high_tenants) {
		const uint32_t i = (*cursor)++;

		if (pool->tenant_records[i].state == FA_STATE_USED &&
		    pool->tenant_records[i].uid == uid && &pool->tenants[i] != own)
			return &pool->tenants[i];
	}
	return NULL;
}

/* Used to check quotas. @idle: count idle pages. */
static void describe_held(const struct fa_pool *pool, uint32_t tag, bool idle,
                          struct fa_pool_tenant_info *ret_held)
{
	const struct fa_tenant_account *own = fa_tenant_account(pool, tag), *other;
	struct fa_pool_user_held *user = &ret_held->user;
	uint32_t cursor = 0;

	describe(fa_tenant_record(pool, tag), own, ret_held);
	if (!idle) {
		ret_held->bytes -= ret_held->idle_bytes;
		ret_held->idle_bytes = 0;
	}
	*user = (struct fa_pool_user_held){ ret_held->bytes, own->n_sequences, own->n_caches };
	while ((other = next_of_user(pool, own, ret_held->uid, &cursor))) {
		user->bytes += other->bytes + other->need_bytes - (idle ? 0 : other->idle_bytes);
		user->n_sequences += other->n_sequences;
		user->n_caches += other->n_caches;
	}
}

int fa_tenant_check_quota(const struct fa_pool *pool, uint32_t tag, const struct fa_pool_more *more,
                          struct fa_error *error)
{
	struct fa_pool_tenant_info held;

	if (!pool->quota)
		return 0;
	describe_held(pool, tag, !more->bytes, &held);
	return pool->quota(pool->quota_userdata, &held, more, error);
}

bool fa_tenant_quota_admits(const struct fa_pool *pool, uint32_t tag, uint64_t more_bytes)
{
	const struct fa_pool_more more = { .bytes = more_bytes };
	struct fa_pool_tenant_info held;

	if (!pool->quota)
		return true;
	describe_held(pool, tag, true, &held);
	return pool->quota(pool->quota_userdata, &held, &more, NULL) == 0;
}

uint32_t fa_tenant_find_idle(const struct fa_pool *pool, uint32_t tag)
{
	const struct fa_tenant_account *own = fa_tenant_account(pool, tag), *other = own;
	uint32_t cursor = 0;

	while (other && !other->idle_bytes)
		other = next_of_user(pool, own, fa_tenant_record(pool, tag)->uid, &cursor);
	return other ? fa_tenant_tag(pool, other) : 0;
}

static uint64_t count_cells(const struct fa_pool *pool, uint32_t tag)
{
	const struct fa_tenant_account *own = fa_tenant_account(pool, tag), *other;
	uint64_t n = own->n_cells;
	uint32_t cursor = 0;

	while ((other = next_of_user(pool, own, fa_tenant_record(pool, tag)->uid, &cursor)))
		n += other->n_cells + other->need_cells;
	return n;
}

/* Forks cost cells but no pages: a quarter of the cells is left to other users. */
int fa_tenant_check_cells(const struct fa_pool *pool, uint32_t tag, uint64_t n,
                          struct fa_error *error)
{
	uint64_t max = pool->header->max_cells - pool->header->max_cells / 4, have;

	if (!n)
		return 0;
	have = count_cells(pool, tag);
	if (have <= max && n <= max - have)
		return 0;
	return fa_fail(error, -EDQUOT,
	               "%" PRIu64 " cells more of the pool's lists are needed; of at most %" PRIu64
	               " that one user may have, %" PRIu64 " are in use",
	               n, max, have);
}
