#include "daemon/pool/access.h"

#include "daemon/pool/tenant_account.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

bool fa_access_allows(const struct fa_pool *pool, uint32_t tenant, uint32_t mode,
                      const struct fa_actor *actor, enum fa_right right)
{
	uint32_t admitted = mode >> 2 * right & 3;

	if (actor->admin || actor->tenant == tenant)
		return true;
	/* A right to APPEND or FORK includes READ. */
	for (int other = FA_RIGHT_APPEND; right == FA_RIGHT_READ && other <= FA_RIGHT_FORK; other++)
		if ((mode >> 2 * other & 3) > admitted)
			admitted = mode >> 2 * other & 3;
	switch (admitted) {
	case FA_ADMIT_ALL:
		return true;
	case FA_ADMIT_UID:
		return fa_tenant_record(pool, actor->tenant)->uid ==
		       fa_tenant_record(pool, tenant)->uid;
	}
	return false;
}

bool fa_access_shows(const struct fa_pool *pool, uint32_t tenant, uint32_t mode,
                     const struct fa_actor *actor)
{
	return fa_tenant_record(pool, actor->tenant)->uid == fa_tenant_record(pool, tenant)->uid ||
	       fa_access_allows(pool, tenant, mode, actor, FA_RIGHT_READ);
}

uint32_t fa_access_name_uid(const struct fa_pool *pool, const struct fa_actor *actor, uint32_t uid)
{
	return uid == FA_UID_OWN ? fa_tenant_record(pool, actor->tenant)->uid : uid;
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
