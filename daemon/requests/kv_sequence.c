/* Handles sequence messages, except publish and attach (kv_prefix.c). */
#include "daemon/requests/kv.h"

#include "daemon/kv/growth.h"
#include "daemon/session/context.h"

#include <errno.h>

static struct fa_pool *pool_of(const struct fa_call *call)
{
	return call->session->context->kv->pool;
}

int fa_kv_sequence_reply(struct fa_call *call, const struct fa_actor *actor, uint64_t id,
                         uint64_t matched, struct fa_error *error)
{
	struct fa_wire_message message;
	struct fa_pool_sequence_info info;
	int r;

	r = fa_pool_sequence_get_info(pool_of(call), actor, id, error, &info);
	if (r < 0)
		return r;
	message = (struct fa_wire_message){
		.id = call->message->id,
		.type = FA_WIRE_SEQUENCE_REPLY,
		.sequence_reply = {
			.sequence = info.id,
			.cache = info.cache,
			.length = info.length,
			.planned = info.planned,
			.first = info.first,
			.step = info.step,
			.mode = info.mode,
			.matched = matched,
			.uid = info.uid,
			.checkpoint = info.checkpoint,
			.checkpoints = info.n_checkpoints,
		},
	};
	fa_session_send(call->session, &message, -1, NULL);
	return 0;
}

int fa_kv_sequence_create(struct fa_call *call, struct fa_error *error)
{
	const struct fa_actor *actor = NULL;
	uint64_t id;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_new(pool_of(call), actor, call->message->sequence_create.cache,
		                         error, &id);
	return r ? r : fa_kv_sequence_reply(call, actor, id, 0, error);
}

int fa_kv_sequence_find(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_find *m = &call->message->sequence_find;
	struct fa_actor actor;
	uint32_t uid = 0;
	uint64_t id;
	int r;

	r = fa_kv_user(m->user, error, &uid);
	if (r == 0)
		r = fa_kv_actor_admin(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_find(pool_of(call), &actor, m->name.text ? m->name.text : "",
		                          uid, fa_kv_now_ns(), error, &id);
	return r ? r : fa_kv_sequence_reply(call, &actor, id, 0, error);
}

int fa_kv_sequence_fork(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_fork *m = &call->message->sequence_fork;
	const struct fa_actor *actor = NULL;
	uint64_t id;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_fork(pool_of(call), actor, m->sequence, m->tokens, error, &id);
	return r ? r : fa_kv_sequence_reply(call, actor, id, 0, error);
}

int fa_kv_sequence_set_name(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_set_name *m = &call->message->sequence_set_name;
	const struct fa_actor *actor = NULL;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_set_name(pool_of(call), actor, m->sequence,
		                              m->name.text ? m->name.text : "", m->mode, m->ttl_ns,
		                              fa_kv_now_ns(), error);
	return r ? r : fa_kv_sequence_reply(call, actor, m->sequence, 0, error);
}

int fa_kv_sequence_truncate(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_truncate *m = &call->message->sequence_truncate;
	const struct fa_actor *actor = NULL;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_truncate(pool_of(call), actor, m->sequence, m->tokens, error);
	return r ? r : fa_kv_sequence_reply(call, actor, m->sequence, 0, error);
}

int fa_kv_sequence_drop(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_sequence_drop *m = &call->message->sequence_drop;
	const struct fa_actor *actor = NULL;
	uint64_t first;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_drop(pool_of(call), actor, m->sequence, m->first, error,
		                          &first);
	return r ? r : fa_kv_sequence_reply(call, actor, m->sequence, 0, error);
}

int fa_kv_sequence_free(struct fa_call *call, struct fa_error *error)
{
	struct fa_actor actor;
	int r;

	r = fa_kv_actor_admin(call->session, &actor, error);
	if (r == 0)
		r = fa_pool_sequence_remove(pool_of(call), &actor,
		                            call->message->sequence_free.sequence, error);
	if (r == 0)
		fa_session_reply(call->session, call->message->id, 0, NULL);
	return r;
}

int fa_kv_sequence_info(struct fa_call *call, struct fa_error *error)
{
	const struct fa_actor *actor = NULL;
	int r;

	r = fa_kv_actor(call->session, &actor, error);
	return r ? r
	         : fa_kv_sequence_reply(call, actor, call->message->sequence_info.sequence, 0,
	                                error);
}
