/*
 * Handlers and request kinds of the KV messages (schema/wire_kv.h), in kv_*.c. Loop thread.
 */
#pragma once

#include "daemon/kv/sessions.h"
#include "daemon/kv/store.h"
#include "daemon/pool/cache.h"
#include "daemon/pool/sequence.h"
#include "daemon/session/call.h"
#include "daemon/session/request.h"

fa_call_handler fa_kv_cache_create;
fa_call_handler fa_kv_cache_find;
fa_call_handler fa_kv_cache_remove;

fa_call_handler fa_kv_sequence_create;
fa_call_handler fa_kv_sequence_find;
fa_call_handler fa_kv_sequence_fork;
fa_call_handler fa_kv_sequence_set_name;
fa_call_handler fa_kv_sequence_truncate;
fa_call_handler fa_kv_sequence_drop;
fa_call_handler fa_kv_sequence_free;
fa_call_handler fa_kv_sequence_info;

fa_call_handler fa_kv_sequence_publish;
fa_call_handler fa_kv_sequence_attach;
fa_call_handler fa_kv_prefix_find;

fa_call_handler fa_kv_step_begin;
fa_call_handler fa_kv_attend_layers;

extern const struct fa_request_kind fa_kv_copy_kind;
extern const struct fa_request_kind fa_kv_pages_kind;
extern const struct fa_request_kind fa_kv_state_kind;
extern const struct fa_request_kind fa_kv_attend_kind;
extern const struct fa_request_kind fa_kv_end_kind;

/* Converts `user` of CacheFind and SequenceFind to a uid, or FA_UID_OWN. -EINVAL. */
int fa_kv_user(uint64_t user, struct fa_error *error, uint32_t *ret_uid);

/* -ENOENT, -ESTALE, -EACCES. */
int fa_kv_sequence_reply(struct fa_call *call, const struct fa_actor *actor, uint64_t id,
                         uint64_t matched, struct fa_error *error);
