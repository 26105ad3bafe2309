/* Checks of rights, names and modes. */
#pragma once

#include "common/error.h"
#include "daemon/pool/actor.h"

struct fa_pool;

bool fa_access_allows(const struct fa_pool *pool, uint32_t tenant, uint32_t mode,
                      const struct fa_actor *actor, enum fa_right right);
bool fa_access_shows(const struct fa_pool *pool, uint32_t tenant, uint32_t mode,
                     const struct fa_actor *actor);
/* Returns @uid, or the actor's own for FA_UID_OWN. */
uint32_t fa_access_name_uid(const struct fa_pool *pool, const struct fa_actor *actor, uint32_t uid);
/* -EINVAL, -ENAMETOOLONG. */
int fa_access_check_name(const char *name, struct fa_error *error);
/* -EINVAL. */
int fa_access_check_mode(uint32_t mode, struct fa_error *error);
