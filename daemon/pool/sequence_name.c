#include "daemon/pool/access.h"
#include "daemon/pool/name_index.h"
#include "daemon/pool/sequence.h"
#include "daemon/pool/sequence_private.h"
#include "daemon/pool/state_store.h"
#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* The first four bytes, stored last, make it valid. */
static void set_name(struct fa_state_sequence *record, const char *name)
{
	union {
		char text[FA_STATE_NAME_BYTES];
		uint32_t first;
	} copy = {};

	static_assert(offsetof(struct fa_state_sequence, name) % sizeof(uint32_t) == 0, "aligned");
	memcpy(copy.text, name, strlen(name));
	memcpy(record->name + sizeof(copy.first), copy.text + sizeof(copy.first),
	       sizeof(copy.text) - sizeof(copy.first));
	fa_state_store((uint32_t *)(void *)record->name, copy.first);
}

int fa_pool_sequence_set_name(struct fa_pool *pool, const struct fa_actor *actor, uint64_t id,
                              const char *name, uint32_t mode, uint64_t ttl_ns, uint64_t now_ns,
                              struct fa_error *error)
{
	struct fa_state_sequence *record;
	struct fa_pool_sequence *sequence = NULL;
	int r;

	pool->now_ns = now_ns;
	r = fa_pool_sequence_get(pool, actor, id, FA_RIGHT_READ, error, &sequence);
	if (r < 0)
		return r;
	r = fa_access_check_name(name, error);
	if (r < 0)
		return r;
	r = fa_access_check_mode(mode, error);
	if (r < 0)
		return r;
	record = sequence->record;
	if (!actor->admin && actor->tenant != record->tenant)
		return fa_fail(error, -EACCES,
		               "the sequence '%s' is another tenant's; only that can change it",
		               record->name);
	if (record->name[0] && strcmp(record->name, name) != 0)
		return fa_fail(error, -EEXIST, "the sequence has a name already, '%s'",
		               record->name);
	if (!record->name[0] &&
	    fa_name_index_find(pool, fa_tenant_record(pool, record->tenant)->uid, name))
		return fa_fail(error, -EEXIST, "there is a sequence named '%s' already", name);
	if (!sequence->cache->record->name[0])
		return fa_fail(
			error, -EINVAL,
			"the sequence's cache has no name and goes with its session; expected "
			"one that can outlive it");
	r = fa_name_index_prepare(pool);
	if (r < 0)
		return fa_fail(error, r, "there is no memory for another name");

	record->ttl_ns = ttl_ns;
	record->used_ns = now_ns;
	fa_state_store(&record->mode, mode);
	if (record->name[0])
		return 0;
	set_name(record, name);
	fa_name_index_add(pool, sequence);
	return 0;
}

int fa_pool_sequence_find(struct fa_pool *pool, const struct fa_actor *actor, const char *name,
                          uint32_t uid, uint64_t now_ns, struct fa_error *error, uint64_t *ret_id)
{
	struct fa_pool_sequence *sequence = NULL;
	int r;

	pool->now_ns = now_ns;
	r = fa_access_check_name(name, error);
	if (r < 0)
		return r;
	sequence = fa_name_index_find(pool, fa_access_name_uid(pool, actor, uid), name);
	if (!sequence)
		return fa_fail(error, -ENOENT, "there is no sequence named '%s'", name);
	r = fa_pool_sequence_get(pool, actor, fa_pool_sequence_id(sequence), FA_RIGHT_READ, error,
	                         &sequence);
	if (r == -ENOENT)
		return fa_fail(error, r, "there is no sequence named '%s'", name);
	if (r < 0)
		return r;
	sequence->record->used_ns = now_ns;
	*ret_id = fa_pool_sequence_id(sequence);
	return 0;
}
