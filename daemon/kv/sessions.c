#include "daemon/kv/sessions.h"

#include "common/clock.h"
#include "daemon/kv/growth.h"
#include "daemon/kv/step.h"
#include "daemon/kv/store.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <poll.h>

int fa_kv_actor(struct fa_session *session, const struct fa_actor **ret_actor,
                struct fa_error *error)
{
	struct fa_kv_session *own = &session->kv;
	struct fa_kv *kv = session->context->kv;
	int r;

	if (!kv->pool)
		return fa_fail(error, -ENOTSUP, "this daemon has no KV pool: %s", kv->reason.text);
	if (session->context->state >= FA_DAEMON_FLUSHING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	fa_pool_set_time(kv->pool, fa_kv_now_ns());
	if (!own->known) {
		r = fa_pool_tenant_get(kv->pool, session->peer.uid, session->tenant->cgroup, error,
		                       &own->actor.tenant);
		if (r < 0)
			return r;
		own->known = true;
		own->actor.owner = session->id;
	}
	*ret_actor = &own->actor;
	return 0;
}

int fa_kv_actor_admin(struct fa_session *session, struct fa_actor *ret_actor,
                      struct fa_error *error)
{
	const struct fa_actor *actor = NULL;
	int r;

	r = fa_kv_actor(session, &actor, error);
	if (r < 0)
		return r;
	*ret_actor = *actor;
	ret_actor->admin = session->privileged;
	return 0;
}

static bool has_hung_up(const struct fa_session *session)
{
	struct pollfd polled = { .fd = session->fd };

	return poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP);
}

bool fa_kv_session_hello(struct fa_session *session, const struct fa_wire_secret *resume)
{
	struct fa_kv *kv = session->context->kv;
	uint64_t number;

	if (!kv->pool)
		return false;
	if (resume && has_hung_up(session))
		return false;
	if (resume && fa_session_store_resume(&kv->session_store, session->peer.uid, resume,
	                                      fa_now_ns(), &session->kv.record, &number) == 0) {
		session->id = session->subject.session = number;
		session->kv.resumed = true;
		session->secret = *resume;
		return true;
	}
	session->kv.record = fa_session_store_add(&kv->session_store, session->id,
	                                          session->peer.uid, &session->secret);
	return false;
}

/* The session has not used the pool: its client may have timed out, and may resume again. */
static void set_lost_again(struct fa_session *session)
{
	struct fa_kv_session *own = &session->kv;
	struct fa_kv *kv = session->context->kv;

	if (!own->resumed || own->known)
		return;
	fa_session_store_set_lost(&kv->session_store, own->record, fa_now_ns());
	own->record = FA_SESSION_STORE_NONE;
	own->resumed = false;
	fa_kv_timer_start(kv);
}

void fa_kv_session_close(struct fa_session *session)
{
	fa_kv_step_abandon_all(session);
	set_lost_again(session);
}

void fa_kv_session_end(struct fa_session *session)
{
	struct fa_kv *kv = session->context->kv;

	if (!kv->pool)
		return;
	fa_pool_set_time(kv->pool, fa_kv_now_ns());
	/* A daemon that stops, or lost its device, leaves the session to its successor. */
	if (session->context->state == FA_DAEMON_RUNNING &&
	    !fa_context_device_lost(session->context)) {
		if (session->kv.known || session->kv.resumed)
			fa_pool_release_owner(kv->pool, session->id);
		fa_session_store_remove(&kv->session_store, session->kv.record);
	}
	if (session->kv.known)
		fa_pool_tenant_put(kv->pool, session->kv.actor.tenant);
	session->kv.known = false;
}
