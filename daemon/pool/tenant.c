/* Tenants: who they are, what they pay, and to what names admit them. */
#include "daemon/pool/private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SERIALS_MAX (UINT32_MAX / FA_STATE_TENANTS)

static struct fa_state_tenant *record_of(const struct fa_pool *pool, uint32_t tag)
{
	return &pool->tenant_records[tag % FA_STATE_TENANTS];
}

bool fa_tenant_known(const struct fa_pool *pool, uint32_t tag)
{
	const struct fa_state_tenant *record = record_of(pool, tag);

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

/* As a user may be able to make cgroups, one has no more than half of what there is, but for
 * uid 0, who makes them for others. */
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

	/* A record that has used up its serials is never used again, since pages may still
	 * remember any of them. */
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
	fa_state_store(&record_of(pool, tag)->state, FA_STATE_FREE);
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

/* The next tenant of the uid that is not @own, from *cursor on; NULL: there is none. Nobody else is
 * of uid 0. */
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

/* What a quota is asked about. @idle: with idle pages, which else are taken to go. */
static void describe_held(const struct fa_pool *pool, uint32_t tag, bool idle,
                          struct fa_pool_tenant_info *ret_held)
{
	const struct fa_tenant_account *own = fa_tenant_account(pool, tag), *other;
	struct fa_pool_user_held *user = &ret_held->user;
	uint32_t cursor = 0;

	describe(record_of(pool, tag), own, ret_held);
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

/* Whose idle pages go for @tag: its own first. NULL: there are none. */
static const struct fa_tenant_account *find_idle(const struct fa_pool *pool, uint32_t tag)
{
	const struct fa_tenant_account *own = fa_tenant_account(pool, tag), *other = own;
	uint32_t cursor = 0;

	while (other && !other->idle_bytes)
		other = next_of_user(pool, own, record_of(pool, tag)->uid, &cursor);
	return other;
}

void fa_reclaim_quota(struct fa_pool *pool, uint32_t tag, uint64_t more_bytes)
{
	const struct fa_pool_more more = { .bytes = more_bytes };
	const struct fa_tenant_account *whose;
	struct fa_pool_tenant_info held;

	while (pool->quota && (whose = find_idle(pool, tag))) {
		describe_held(pool, tag, true, &held);
		if (pool->quota(pool->quota_userdata, &held, &more, NULL) == 0)
			break;
		fa_pages_evict_of(pool, pool->tenant_records[whose - pool->tenants].tag,
		                  more_bytes);
	}
}

uint64_t fa_tenant_cells(const struct fa_pool *pool, uint32_t tag)
{
	const struct fa_tenant_account *own = fa_tenant_account(pool, tag), *other;
	uint64_t n = own->n_cells;
	uint32_t cursor = 0;

	while ((other = next_of_user(pool, own, record_of(pool, tag)->uid, &cursor)))
		n += other->n_cells + other->need_cells;
	return n;
}

bool fa_access_allows(const struct fa_pool *pool, uint32_t tenant, uint32_t mode,
                      const struct fa_actor *actor, enum fa_right right)
{
	uint32_t admitted = mode >> 2 * right & 3;

	if (actor->admin || actor->tenant == tenant)
		return true;
	/* Whoever may append or fork sees what is there. */
	for (int other = FA_RIGHT_APPEND; right == FA_RIGHT_READ && other <= FA_RIGHT_FORK; other++)
		if ((mode >> 2 * other & 3) > admitted)
			admitted = mode >> 2 * other & 3;
	switch (admitted) {
	case FA_ADMIT_ALL:
		return true;
	case FA_ADMIT_UID:
		return record_of(pool, actor->tenant)->uid == record_of(pool, tenant)->uid;
	}
	return false;
}

int fa_access_check_name(const char *name, struct fa_error *error)
{
	size_t length = strlen(name);

	if (!length)
		return fa_fail(error, -EINVAL, "the name is empty; expected 1 to %d bytes",
		               FA_NAME_BYTES - 1);
	if (length >= FA_NAME_BYTES)
		return fa_fail(error, -ENAMETOOLONG, "the name has %zu bytes; expected at most %d",
		               length, FA_NAME_BYTES - 1);
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return fa_fail(error, -EINVAL,
			               "byte %zu of the name is a control character", i);
	return 0;
}

int fa_access_check_mode(uint32_t mode, struct fa_error *error)
{
	for (int right = FA_RIGHT_READ; right <= FA_RIGHT_FORK; right++)
		if ((mode >> 2 * right & 3) > FA_ADMIT_ALL)
			return fa_fail(error, -EINVAL,
			               "the mode is 0x%" PRIx32
			               "; bits %d and %d of it mean nothing",
			               mode, 2 * right, 2 * right + 1);
	if (mode >> 6)
		return fa_fail(error, -EINVAL, "the mode is 0x%" PRIx32 "; expected at most 0x2a",
		               mode);
	return 0;
}
