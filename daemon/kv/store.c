#include "daemon/kv/store.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "daemon/kv/step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* How often it is looked for what has expired and for chunks to give back. */
#define TICK_MS 1000
#define CHUNK_IDLE_NS (10 * FA_NS_PER_SEC)
/* ... and while there is something in others, which may soon want it again: memory is given back,
 * and got, by this thread, and a GPU's takes its time. */
#define CHUNK_SPARE_NS (30 * FA_NS_PER_SEC)
/* Not for each step that wants pages. */
#define GROW_AGAIN_NS FA_NS_PER_SEC
#define CHUNKS_A_TICK 8
#define GIVEN_UP_A_TICK 1024 /* sessions */

/* A chunk holds whole pages, of all layers: small ones would not hold any. */
#define CHUNK_BYTES_MIN ((uint64_t)4 << 20)
#define CHUNK_BYTES_LARGE ((uint64_t)1 << 30)
#define POOL_BYTES_LARGE ((uint64_t)64 << 30)
#define CHUNKS_WANTED 16
/* A pool can become so many times as large as it was made. */
#define GROWTH_MAX 4

uint64_t fa_kv_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * FA_NS_PER_SEC + (uint64_t)now.tv_nsec;
}

/* ---- growing and shrinking */

/* The first that can be made; the pool's end if there is none. */
static uint32_t find_absent(const struct fa_kv *kv)
{
	const uint32_t end = fa_pool_max_chunks(kv->pool);
	uint32_t chunk = 0;

	while (chunk < end && (fa_pool_chunk_state(kv->pool, chunk) != FA_CHUNK_ABSENT ||
	                       fa_kv_is_stale(kv, chunk)))
		++chunk;
	return chunk;
}

static bool grow(void *userdata)
{
	struct fa_kv *kv = userdata;
	const struct fa_context *context = kv->context;
	struct fa_pool_info info;
	struct fa_error error;
	uint32_t chunk;
	int r, fd = -1;
	bool zeroed;

	fa_pool_get_info(kv->pool, &info);
	if (info.chunks >= kv->chunks_max || fa_now_ns() < kv->grow_again_ns)
		return false;
	chunk = find_absent(kv);
	if (chunk == fa_pool_max_chunks(kv->pool))
		return false;
	r = context->ops->pool_chunk_add(context->device, chunk, &error, &zeroed, &fd);
	if (r < 0) {
		kv->lost = r == -ENODEV;
		/* Others may give some back; it is said once, until something has changed. */
		kv->grow_again_ns = fa_deadline_ns(GROW_AGAIN_NS);
		if (kv->grow_failed != info.chunks)
			fa_log(FA_LOG_WARNING, "the pool stays at %" PRIu32 " chunks: %s",
			       info.chunks, error.text);
		kv->grow_failed = info.chunks;
		return false;
	}
	/* Kept before it counts, or as soon as it can be: nobody is refused for that. */
	fa_kv_keep(kv, chunk, fd);
	if (fa_pool_chunk_add(kv->pool, chunk, zeroed, &error) < 0) {
		context->ops->pool_chunk_remove(context->device, chunk);
		fa_kv_forget(kv, chunk);
		return false;
	}
	return true;
}

static void release(struct fa_kv *kv, uint32_t chunk)
{
	const struct fa_context *context = kv->context;

	context->ops->pool_chunk_remove(context->device, chunk);
	fa_kv_forget(kv, chunk);
	kv->grow_failed = UINT32_MAX;
}

static bool give_back(struct fa_kv *kv)
{
	uint32_t chunk;

	if (fa_pool_chunk_remove(kv->pool, NULL, &chunk) < 0)
		return false;
	release(kv, chunk);
	return true;
}

/* It has more than it may have since it was configured anew. */
static void give_back_excess(struct fa_kv *kv)
{
	struct fa_pool_info info;

	fa_pool_get_info(kv->pool, &info);
	for (uint32_t i = 0; i < CHUNKS_A_TICK && info.chunks - i > kv->chunks_max; ++i)
		if (!give_back(kv))
			return;
}

/* Each chunk by itself: there is always something in one or another. */
static void shrink(struct fa_kv *kv)
{
	const uint64_t now = fa_kv_now_ns();
	struct fa_pool_info info;
	uint32_t chunk;
	uint64_t quiet;
	bool in_use;

	give_back_excess(kv);
	/* What an earlier daemon had may be wanted as soon as its clients are back. */
	if (fa_now_ns() - kv->context->started_ns < CHUNK_IDLE_NS)
		return;
	fa_pool_get_info(kv->pool, &info);
	in_use = info.used_bytes || info.idle_bytes;
	quiet = in_use ? CHUNK_SPARE_NS : CHUNK_IDLE_NS;
	if (now < quiet)
		return;
	for (int i = 0; i < (in_use ? 1 : CHUNKS_A_TICK); ++i) {
		if (!fa_pool_chunk_remove_empty(kv->pool, now - quiet, &chunk))
			return;
		release(kv, chunk);
	}
}

/* Sessions that did not come back: so many at a time that nobody waits long. A daemon that ends
 * has one after it, to which they may come. */
static void end_grace(struct fa_kv *kv)
{
	struct fa_context *context = kv->context;
	uint64_t number;
	uint32_t n;

	if (context->state != FA_DAEMON_RUNNING || fa_context_device_lost(context))
		return;
	for (n = 0; n < GIVEN_UP_A_TICK &&
	            fa_session_store_expire(&kv->session_store, fa_now_ns(), &number);
	     ++n)
		fa_pool_release_owner(kv->pool, number);
	if (!n)
		return;
	fa_log(FA_LOG_INFO, "%" PRIu32 " sessions of the daemon before did not come back", n);
	/* One that ends when nobody is there any more has waited for them. */
	if (!kv->session_store.n_lost)
		context->hooks->maybe_idle(context);
}

static void rest(struct fa_kv *kv)
{
	struct fa_pool_info info;

	fa_pool_get_info(kv->pool, &info);
	if (!info.chunks && !info.caches && !kv->session_store.n_lost && !kv->quarantine_ns &&
	    !kv->n_late)
		uv_timer_stop(&kv->timer);
}

void fa_kv_quarantine_end(struct fa_kv *kv)
{
	if (!kv->quarantine_ns || fa_now_ns() < kv->quarantine_ns)
		return;
	kv->quarantine_ns = 0;
	fa_pool_quarantine_end(kv->pool);
}

static void on_tick(uv_timer_t *timer)
{
	struct fa_kv *kv = timer->data;
	size_t n = fa_pool_expire(kv->pool, fa_kv_now_ns());

	if (n)
		fa_log(FA_LOG_DEBUG, "%zu named sequences and caches have expired", n);
	fa_kv_quarantine_end(kv);
	fa_kv_keep_again(kv);
	shrink(kv);
	end_grace(kv);
	rest(kv);
}

/* A loop without timers is faster: there is none while there is nothing to look after. */
void fa_kv_wake(struct fa_kv *kv)
{
	if (!uv_is_active((uv_handle_t *)&kv->timer))
		(void)uv_timer_start(&kv->timer, on_tick, TICK_MS, TICK_MS);
}

/* ---- quotas */

static int check_limit(const char *name, uint64_t limit, uint64_t held, uint64_t more,
                       const char *whose, struct fa_error *error)
{
	if (!more || (held <= limit && more <= limit - held))
		return 0;
	return fa_fail(error, -EDQUOT,
	               "%" PRIu64 " more would exceed the limit %s, which is %" PRIu64
	               " for %s, of which %" PRIu64 " are in use",
	               more, name, limit, whose, held);
}

static int check_limits(const struct fa_limits *limits, uint64_t factor,
                        const struct fa_pool_tenant_info *held, const struct fa_pool_more *more,
                        const char *whose, struct fa_error *error)
{
	uint64_t bytes;
	int r;

	if (__builtin_mul_overflow(limits->pool_bytes, factor, &bytes))
		bytes = UINT64_MAX;
	r = check_limit("pool_bytes", bytes, held->bytes, more->bytes, whose, error);
	if (r == 0)
		r = check_limit("sequences", limits->sequences * factor, held->n_sequences,
		                more->sequences, whose, error);
	if (r == 0)
		r = check_limit("caches", limits->caches * factor, held->n_caches, more->caches,
		                whose, error);
	return r;
}

static int check_quota(void *userdata, const struct fa_pool_tenant_info *held,
                       const struct fa_pool_more *more, struct fa_error *error)
{
	const struct fa_kv *kv = userdata;
	const struct fa_limits *limits = &kv->context->config.limits;
	struct fa_pool_tenant_info all = *held;
	int r;

	r = check_limits(limits, 1, held, more, "a user", error);
	/* uid 0 makes cgroups for others. */
	if (r < 0 || !held->uid)
		return r;
	all.bytes = held->user.bytes;
	all.n_sequences = held->user.n_sequences;
	all.n_caches = held->user.n_caches;
	return check_limits(limits, limits->uid_factor, &all, more,
	                    "all cgroups of the uid together", error);
}

/* ---- sessions */

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
	/* Whatever is asked, what it uses does not expire. */
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

/* What was said may be all that there is: who said it does not hear the answer. */
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

/* It came back, and went before it asked for anything that it had: a client that would not wait
 * any longer for an answer, and may be at the door again. */
static void lose_again(struct fa_session *session)
{
	struct fa_kv_session *own = &session->kv;
	struct fa_kv *kv = session->context->kv;

	if (!own->resumed || own->known)
		return;
	fa_session_store_set_lost(&kv->session_store, own->record, fa_now_ns());
	own->record = FA_SESSION_STORE_NONE;
	own->resumed = false;
	fa_kv_wake(kv);
}

void fa_kv_session_close(struct fa_session *session)
{
	fa_kv_step_doom_all(session);
	lose_again(session);
}

void fa_kv_session_end(struct fa_session *session)
{
	struct fa_kv *kv = session->context->kv;

	if (!kv->pool)
		return;
	fa_pool_set_time(kv->pool, fa_kv_now_ns());
	/* A daemon that ends has one that comes after it: what was kept waits for the client. One
	 * that was refused as the device is lost may be gone before the loop has been told. */
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

/* ---- beginning and end */

static uint64_t floor_power(uint64_t value)
{
	return value ? (uint64_t)1 << (63 - __builtin_clzll(value)) : 0;
}

static uint64_t choose_chunk_bytes(uint64_t bytes)
{
	uint64_t chunk = floor_power(bytes / CHUNKS_WANTED);

	if (bytes >= POOL_BYTES_LARGE)
		return CHUNK_BYTES_LARGE;
	if (chunk > FA_POOL_CHUNK_BYTES_DEFAULT)
		return FA_POOL_CHUNK_BYTES_DEFAULT;
	return chunk < CHUNK_BYTES_MIN ? CHUNK_BYTES_MIN : chunk;
}

/* Bytes that it may have, as it is configured, of a daemon that is somebody's @own or not. */
static uint64_t wanted_bytes(const struct fa_kv *kv, bool own)
{
	const struct fa_context *context = kv->context;
	struct fa_pool_info info = {};
	struct fa_device_info device;

	if (kv->pool)
		fa_pool_get_info(kv->pool, &info);
	context->ops->describe(context->device, &device);
	return fa_config_pool_bytes(&context->config, device.memory_bytes, device.memory_free_bytes,
	                            kv->pool ? info.chunks * fa_pool_chunk_bytes(kv->pool) : 0,
	                            own);
}

/* Chunks that a pool of @chunks can ever have: with another configuration, more. What it
 * takes for those that never come are addresses. */
static uint32_t room_for(const struct fa_kv *kv, uint64_t chunks, uint64_t chunk_bytes)
{
	const struct fa_device_info *device = &kv->context->info;
	uint64_t memory = device->memory_bytes, most = chunks * GROWTH_MAX;

	if (!memory)
		memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	if (most > memory / chunk_bytes)
		most = memory / chunk_bytes;
	if (most < chunks)
		most = chunks;
	if (most > FA_KV_CHUNKS_MAX)
		most = FA_KV_CHUNKS_MAX;
	if (most > FA_POOL_BYTES_MAX / chunk_bytes)
		most = FA_POOL_BYTES_MAX / chunk_bytes;
	return (uint32_t)most;
}

static int make_pool(struct fa_kv *kv, struct fa_error *error)
{
	const struct fa_context *context = kv->context;
	const struct fa_config *config = &context->config;
	struct fa_pool_config pool = { .chunk_bytes = config->pool_chunk_bytes };
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	const uint64_t bytes = wanted_bytes(kv, context->exit_when_idle);
	uint64_t chunks;
	int r;

	if (!context->ops->pool_open)
		return fa_fail(error, -ENOTSUP, "the backend %s has none", context->info.backend);
	if (!bytes)
		return fa_fail(error, -ENOTSUP, "the configuration wants none");
	if (!pool.chunk_bytes)
		pool.chunk_bytes = choose_chunk_bytes(bytes);
	chunks = bytes / pool.chunk_bytes;
	if (!chunks)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " bytes are not enough for a chunk of %" PRIu64, bytes,
		               pool.chunk_bytes);
	if (chunks > FA_KV_CHUNKS_MAX)
		return fa_fail(error, -EINVAL,
		               "%" PRIu64 " bytes are %" PRIu64 " chunks of %" PRIu64
		               "; expected at most %d, each has a descriptor",
		               bytes, chunks, pool.chunk_bytes, FA_KV_CHUNKS_MAX);
	pool.max_chunks = room_for(kv, chunks, pool.chunk_bytes);
	r = fa_pool_format(&pool, error, &fd);
	if (r < 0)
		return r;
	r = context->ops->pool_open(context->device, pool.chunk_bytes, pool.max_chunks, error,
	                            &kv->base);
	if (r < 0)
		return r;
	r = fa_pool_open(fd, NULL, error, &kv->pool);
	if (r < 0) {
		context->ops->pool_close(context->device);
		return r;
	}
	fa_kv_keep(kv, FA_KV_KEEP_STATE, fa_steal_fd(&fd));
	return 0;
}

void fa_kv_device(const struct fa_context *context, struct fa_session_store_device *ret_device)
{
	*ret_device = (struct fa_session_store_device){
		.uuid = { context->info.uuid[0], context->info.uuid[1] },
	};
	memcpy(ret_device->backend, context->info.backend, sizeof(ret_device->backend));
}

static int make(struct fa_kv *kv, struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct fa_session_store_device device;
	int r;

	fa_kv_device(kv->context, &device);
	r = fa_session_store_new(&device, error, &kv->session_store, &fd);
	if (r < 0)
		return r;
	r = make_pool(kv, error);
	if (r < 0)
		fa_session_store_close(&kv->session_store);
	else
		fa_kv_keep(kv, FA_KV_KEEP_SESSIONS, fa_steal_fd(&fd));
	return r;
}

/* Numbers of sessions go on where they were; what is nobody's who may come back, goes. */
static void welcome_back(struct fa_kv *kv)
{
	struct fa_context *context = kv->context;
	struct fa_pool_info info;
	uint64_t owner, last = 0, grace_ns;
	uint32_t cursor = 0;

	fa_pool_set_time(kv->pool, fa_kv_now_ns());
	fa_pool_get_info(kv->pool, &info);
	fa_log(FA_LOG_INFO,
	       "the pool is back, for the %" PRIu64 ". time: %" PRIu32 " chunks, %" PRIu32
	       " caches, %" PRIu32 " sequences; %" PRIu32 " sessions may resume",
	       info.generation - 1, info.chunks, info.caches, info.sequences,
	       kv->session_store.n_lost);
	context->last_session = fa_session_store_last_number(&kv->session_store);
	while (fa_pool_owner_each(kv->pool, &cursor, &owner)) {
		/* They are looked up one by one, and have several. */
		if (owner == last)
			continue;
		last = owner;
		if (owner > context->last_session)
			context->last_session = owner;
		if (!fa_session_store_is_lost(&kv->session_store, owner))
			fa_pool_release_owner(kv->pool, owner);
	}
	grace_ns = context->config.pool_grace_s * FA_NS_PER_SEC;
	fa_session_store_start_grace(&kv->session_store, fa_now_ns(), grace_ns,
	                             FA_KV_GRACE_ALL * grace_ns);
}

/* Says how large it may be from now on. */
static void set_size(struct fa_kv *kv)
{
	const bool own = kv->context->exit_when_idle;
	const uint64_t bytes = wanted_bytes(kv, own);
	const uint64_t wanted = bytes / fa_pool_chunk_bytes(kv->pool);
	struct fa_pool_info info;
	char more[128] = "";

	fa_pool_get_info(kv->pool, &info);
	kv->chunks_max = fa_pool_max_chunks(kv->pool);
	if (wanted > kv->chunks_max)
		snprintf(more, sizeof(more),
		         ", not the %" PRIu64 " that are wanted: that takes a new pool", wanted);
	else
		kv->chunks_max = (uint32_t)wanted;
	/* Nobody configured that, so whom it stops has not heard of it. */
	snprintf(kv->remedy, sizeof(kv->remedy),
	         "; a daemon that a program starts for itself has at most %d MiB, unless [pool] "
	         "bytes in its configuration (FAD_CONFIG) says more",
	         FA_CONFIG_POOL_PRIVATE_MIB);
	fa_pool_set_exhausted_hint(kv->pool, kv->chunks_max,
	                           own && wanted_bytes(kv, false) > bytes ? kv->remedy : NULL);
	if (info.chunks > kv->chunks_max)
		snprintf(more, sizeof(more), "; it has %" PRIu32 ", of which empty ones go",
		         info.chunks);
	kv->grow_failed = UINT32_MAX;
	kv->grow_again_ns = 0;
	fa_log(FA_LOG_INFO, "the KV pool may have %" PRIu32 " chunks of %" PRIu64 " KiB%s",
	       kv->chunks_max, fa_pool_chunk_bytes(kv->pool) >> 10, more);
}

void fa_kv_resize(struct fa_context *context, uint64_t chunk_bytes)
{
	struct fa_kv *kv = context->kv;

	if (!kv->pool) {
		fa_log(FA_LOG_WARNING, "a KV pool is made with the next start only");
		return;
	}
	if (chunk_bytes && chunk_bytes != fa_pool_chunk_bytes(kv->pool))
		fa_log(FA_LOG_WARNING, "the KV pool's chunks change only when a new one is made");
	set_size(kv);
	fa_kv_wake(kv);
}

static void start(struct fa_kv *kv)
{
	const struct fa_context *context = kv->context;

	set_size(kv);
	fa_pool_set_quota(kv->pool, check_quota, kv);
	fa_pool_set_grow(kv->pool, grow, kv);
	(void)uv_timer_init(context->loop, &kv->timer);
	kv->timer.data = kv;
	fa_kv_wake(kv);
	uv_unref((uv_handle_t *)&kv->timer);
}

int fa_kv_open(struct fa_context *context, struct fa_error *error)
{
	struct fa_kv *kv = context->kv;
	int r;

	kv->context = context;
	fa_kv_keep_init(kv);
	kv->grow_failed = UINT32_MAX;
	/* Grows across restarts, as the clock does; and no daemon makes steps that fast. */
	kv->last_step = context->generation;
	r = fa_kv_recover(kv, &kv->reason);
	if (r == -EAGAIN) {
		*error = kv->reason;
		return r;
	}
	if (r == 0) {
		welcome_back(kv);
	} else {
		if (r != -ENOENT || kv->reason.text[0])
			fa_log(FA_LOG_ERROR, "the pool that was kept is dropped: %s",
			       kv->reason.text);
		r = make(kv, &kv->reason);
	}
	if (r < 0)
		fa_log(FA_LOG_INFO, "there is no KV pool: %s", kv->reason.text);
	else
		start(kv);
	return 0;
}

void fa_kv_close(struct fa_context *context)
{
	struct fa_kv *kv = context->kv;

	if (!kv->pool)
		return;
	fa_kv_keep_deinit(kv);
	kv->pool = fa_pool_free(kv->pool);
	fa_session_store_close(&kv->session_store);
	uv_close((uv_handle_t *)&kv->timer, NULL);
}
