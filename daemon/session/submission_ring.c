#include "daemon/session/submission_ring.h"

#include "common/backoff.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cpu.h"
#include "daemon/session/completions.h"
#include "daemon/session/context.h"
#include "daemon/session/device_completion.h"
#include "daemon/session/session.h"
#include "daemon/session/turns.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

/* Limits entries of one ring before others are polled. */
#define BATCH_MAX 16
/* Older entries handled before a packet; if there are more, it waits. */
#define CATCH_UP_MAX 64
/* Time for rings before the loop polls descriptors. */
#define SLICE_NS (20 * FA_NS_PER_US)
/* Holds if a ring had a request: the device is busy then, so the delay costs nothing. */
#define SLICE_BUSY_NS (5 * FA_NS_PER_US)
/* Polls between reads of the clock. */
#define POLLS_PER_CLOCK 16
/* Limits doorbells that do not start polling, after it was fruitless. */
#define SKIPPED_MAX 64

#define DOORBELL_EVENTS_MAX 64
#define RECORDS_MAX 4096

struct fa_session_ring {
	struct fa_session *session;
	struct fa_list link; /* in rings.polled */
	struct fa_ring_consumer consumer;
	struct fa_completion_records *records;
	int doorbell;
	struct fa_charge charge_bytes, charge_fds;

	uint64_t last_ns;
	bool wake_client;    /* done without the engine since the last wake-up */
	bool was_polled;     /* since it was activated */
	bool poll_succeeded; /* an entry came meanwhile */
	struct fa_backoff backoff;

	uint64_t n_requests, n_doorbells;
};

static void stop_polling(struct fa_session_ring *ring)
{
	if (fa_list_empty(&ring->link))
		return;
	fa_list_remove(&ring->link);
	--ring->session->context->rings.n_polled;
}

static uint64_t spin_ns(const struct fa_rings *rings, const struct fa_session_ring *ring)
{
	const struct fa_context *context = rings->context;
	unsigned int us = context->config.spin_us;

	if (!rings->polls || !fa_backoff_may_spin(&ring->backoff))
		return 0;
	/* The step's next layer comes soon. The CPU backend's workers need the processor more. */
	if (ring->session->kv.n_steps && context->info.polled && context->config.spin_step_us > us)
		us = context->config.spin_step_us;
	return us * FA_NS_PER_US;
}

/* Goes not beyond @mark. May close the session. */
static bool consume(struct fa_session_ring *ring, unsigned int max, const uint64_t *mark)
{
	struct fa_session *session = fa_session_ref(ring->session);
	struct fa_context *context = session->context;
	unsigned char *entry = context->rings.entry;
	uint64_t now_ns = fa_now_ns();
	const char *wrong;
	uint64_t submitted = session->n_submitted;
	unsigned int n = 0;
	size_t length;
	int r = 0;

	/* An entry counts for all its requests. */
	while (session->state == FA_SESSION_READY && n < max &&
	       session->n_submitted - submitted < max && !session->paused &&
	       !(mark && fa_ring_has_reached(&ring->consumer, *mark))) {
		/* Ends that the client may have seen are reaped before its next entry. */
		if (!fa_ring_has_entries(&ring->consumer) || !fa_completions_reap(session, false))
			break;
		r = fa_ring_take(&ring->consumer, entry, FA_WIRE_BYTES_MAX, &length, &wrong);
		if (r < 0)
			break;
		++n;
		++session->n_messages;
		/* Handles completions first that the client may have seen. */
		(void)fa_completions_reap(session, true);
		if (!fa_list_empty(&context->device_sessions)) {
			fa_device_completion_sync(context);
			fa_engine_batch_begin(context->engine);
		}
		if (session->state == FA_SESSION_READY)
			context->hooks->ring_entry(session, entry, length, now_ns);
	}
	context->rings.n_submitted += session->n_submitted - submitted;
	if (r == -EPROTO)
		fa_session_refuse(session, 0, -EPROTO, wrong);
	if (n) {
		fa_turn_note(session, now_ns);
		ring->n_requests += n;
		context->rings.n_requests += n;
		ring->last_ns = now_ns;
		if (ring->was_polled)
			ring->poll_succeeded = true;
		/* A closed session's ring lives until the last reference. */
		if (fa_ring_needs_room_wakeup(&ring->consumer) ||
		    (ring->wake_client && fa_ring_needs_wakeup(ring->consumer.words)))
			fa_completion_records_wake(ring->records);
		ring->wake_client = false;
	}
	fa_session_unref(session);
	return n;
}

static void arm_doorbell(struct fa_session_ring *ring)
{
	if (!fa_ring_sleep(&ring->consumer))
		return;
	if (ring->was_polled && ring->poll_succeeded)
		fa_backoff_succeeded(&ring->backoff);
	else if (ring->was_polled)
		fa_backoff_failed(&ring->backoff, SKIPPED_MAX);
	stop_polling(ring);
}

/* True: a ring had an entry, or the engine has more to launch. */
static bool poll_all(struct fa_rings *rings, uint64_t now_ns)
{
	bool any = false;

	fa_engine_batch_begin(rings->context->engine);
	for (unsigned int n = rings->n_polled; n && !fa_list_empty(&rings->polled); --n) {
		struct fa_session_ring *ring = fa_container_of(rings->polled.next,
		                                               struct fa_session_ring, link);

		fa_list_remove(&ring->link);
		fa_list_append(&rings->polled, &ring->link);
		if (ring->session->paused)
			stop_polling(ring);
		else if (fa_ring_has_entries(&ring->consumer))
			any = consume(ring, BATCH_MAX, NULL) || any;
		else if ((int64_t)(now_ns - ring->last_ns) >= (int64_t)spin_ns(rings, ring))
			arm_doorbell(ring);
		else
			ring->was_polled = true;
	}
	return fa_engine_poll(rings->context->engine) || any;
}

static void stop(struct fa_rings *rings)
{
	(void)uv_idle_stop(&rings->idle);
	fa_engine_poll_end(rings->context->engine);
	fa_completions_arm(rings->context);
}

static void on_idle(uv_idle_t *idle)
{
	struct fa_rings *rings = idle->data;
	uint64_t start_ns = fa_now_ns(), now_ns = start_ns, slice_ns = SLICE_NS;
	const uint64_t n_submitted = rings->n_submitted;

	do {
		bool any = false;

		for (int i = 0; i < POLLS_PER_CLOCK && rings->n_polled && !any; ++i) {
			any = poll_all(rings, now_ns);
			any = fa_completions_poll(rings->context) || any;
			if (!any)
				fa_cpu_spin_pause(rings->yields);
		}
		now_ns = fa_now_ns();

		if (rings->n_submitted != n_submitted)
			slice_ns = SLICE_BUSY_NS;
	} while (rings->n_polled && now_ns - start_ns < slice_ns);
	if (!rings->n_polled)
		stop(rings);
}

bool fa_rings_are_polled(const struct fa_rings *rings)
{
	return rings->n_polled;
}

void fa_ring_activate(struct fa_session_ring *ring)
{
	struct fa_rings *rings = &ring->session->context->rings;

	if (!fa_list_empty(&ring->link))
		return;
	fa_ring_awake(&ring->consumer);
	ring->was_polled = ring->poll_succeeded = false;
	fa_list_append(&rings->polled, &ring->link);
	++rings->n_polled;
	(void)uv_idle_start(&rings->idle, on_idle);
}

static void on_doorbells(uv_poll_t *poll, int status, int events)
{
	struct fa_rings *rings = poll->data;
	struct epoll_event ready[DOORBELL_EVENTS_MAX];
	int n;

	n = epoll_wait(rings->doorbell_epoll, ready, DOORBELL_EVENTS_MAX, 0);
	/* Wake the engine thread while this thread reads. */
	if (n > 0)
		fa_engine_prewake(rings->context->engine);
	for (int i = 0; i < n; ++i) {
		struct fa_session_ring *ring = ready[i].data.ptr;

		++ring->n_doorbells;
		++rings->n_doorbells;
		(void)fa_backoff_next(&ring->backoff);
		if (!ring->session->paused)
			fa_ring_activate(ring);
	}
	(void)poll_all(rings, fa_now_ns());
	if (!rings->n_polled)
		fa_engine_poll_end(rings->context->engine);
}

int fa_rings_init(struct fa_rings *rings, struct fa_context *context)
{
	const unsigned int n = fa_cpu_count();
	int r;

	rings->context = context;
	rings->polls = n > 1;
	rings->yields = n <= FA_CPU_FEW;
	fa_list_init(&rings->polled);
	rings->doorbell_epoll = epoll_create1(EPOLL_CLOEXEC);
	if (rings->doorbell_epoll < 0)
		return -errno;
	(void)uv_idle_init(context->loop, &rings->idle);
	rings->idle.data = rings;
	r = uv_poll_init(context->loop, &rings->poll, rings->doorbell_epoll);
	rings->poll.data = rings;
	if (r == 0)
		r = uv_poll_start(&rings->poll, UV_READABLE, on_doorbells);
	return r;
}

void fa_rings_deinit(struct fa_rings *rings)
{
	fa_close_fdp(&rings->doorbell_epoll);
}

static uint64_t power_of_two(uint64_t least, uint64_t most, uint64_t wanted)
{
	uint64_t size = least;

	while (size < wanted && size < most)
		size *= 2;
	return size;
}

static int charge(struct fa_session_ring *ring, uint64_t bytes, struct fa_charge *sent,
                  struct fa_error *error)
{
	struct fa_session *session = ring->session;
	int r;

	r = fa_charge_add(&ring->charge_bytes, session->tenant, FA_RESOURCE_BUFFER_BYTES, bytes,
	                  error);
	if (r == 0)
		r = fa_session_charge_fds(session, 2, &ring->charge_fds, error);
	if (r == 0)
		r = fa_session_charge_fds(session, FA_SESSION_SEND_FDS, sent, error);
	return r;
}

static int ring_make(struct fa_session_ring *ring, uint64_t bytes, uint32_t records, int fds[4])
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = ring };
	struct fa_session *session = ring->session;
	int r, made[3];

	r = fa_completion_records_new(bytes, records, &ring->records, made);
	if (r < 0)
		return r;
	fds[0] = made[0];
	fds[1] = made[1];
	fds[3] = made[2];
	ring->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->doorbell < 0)
		return -errno;
	fds[2] = fcntl(ring->doorbell, F_DUPFD_CLOEXEC, 0);
	if (fds[2] < 0 || epoll_ctl(session->context->rings.doorbell_epoll, EPOLL_CTL_ADD,
	                            ring->doorbell, &event) < 0)
		return -errno;
	fa_ring_consumer_init(&ring->consumer, ring->records->memory, bytes);
	return 0;
}

static void ring_free(struct fa_session_ring *ring)
{
	fa_completion_records_unref(ring->records);
	fa_close_fdp(&ring->doorbell);
	fa_charge_release(&ring->charge_bytes);
	fa_charge_release(&ring->charge_fds);
	free(ring);
}

int fa_ring_setup(struct fa_session *session, const struct fa_wire_message *message,
                  struct fa_error *error)
{
	const uint64_t wanted = message->ring_setup.bytes;
	struct fa_context *context = session->context;
	uint32_t records = (uint32_t)power_of_two(1, RECORDS_MAX,
	                                          context->config.limits.session_requests);
	uint64_t bytes = wanted ? power_of_two(FA_RING_BYTES_MIN, FA_RING_BYTES_MAX, wanted)
	                        : FA_RING_BYTES_DEFAULT;
	int r, fds[FA_SESSION_SEND_FDS] = { -1, -1, -1, -1 };
	struct fa_wire_message reply;
	struct fa_charge sent = {};
	struct fa_session_ring *ring;

	if (context->state != FA_DAEMON_RUNNING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	if (session->ring)
		return fa_fail(error, -EEXIST, "this session has a ring already");
	ring = fa_new(struct fa_session_ring);
	if (!ring)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a ring");
	ring->session = session;
	ring->doorbell = -1;
	fa_list_init(&ring->link);
	r = charge(ring, FA_RING_HEAD_BYTES + bytes + fa_results_bytes(records), &sent, error);
	if (r == 0) {
		r = ring_make(ring, bytes, records, fds);
		if (r < 0)
			fa_fail(error, r, "the ring cannot be made: %s", strerror(-r));
	}
	if (r < 0) {
		for (size_t i = 0; i < FA_SESSION_SEND_FDS; ++i)
			fa_close_fdp(&fds[i]);
		fa_charge_release(&sent);
		ring_free(ring);
		return r;
	}

	session->ring = ring;
	++context->rings.n_rings;
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		if (session->streams[i].stream)
			fa_engine_stream_set_records(session->streams[i].stream, ring->records, i);
	reply = (struct fa_wire_message){
		.id = message->id,
		.fds = FA_SESSION_SEND_FDS,
		.type = FA_WIRE_RING_REPLY,
		.ring_reply = { .bytes = bytes,
		                .results_bytes = fa_results_bytes(records),
		                .records = records },
	};
	fa_session_send_fds(session, &reply, fds, FA_SESSION_SEND_FDS, &sent);
	fa_device_completion_open(session);
	return 0;
}

bool fa_ring_catch_up(struct fa_session *session)
{
	struct fa_session_ring *ring = session->ring;
	uint64_t mark = fa_ring_mark(&ring->consumer);

	if (fa_ring_has_reached(&ring->consumer, mark))
		return true;
	fa_engine_batch_begin(session->context->engine);
	(void)consume(ring, CATCH_UP_MAX, &mark);
	fa_engine_batch_end(session->context->engine);
	/* With its tail moved back a client has no entries up to @mark. */
	return session->state == FA_SESSION_READY && (fa_ring_has_reached(&ring->consumer, mark) ||
	                                              !fa_ring_has_entries(&ring->consumer));
}

void fa_ring_wake_later(struct fa_session *session)
{
	session->ring->wake_client = true;
}

struct fa_completion_records *fa_ring_records(struct fa_session *session)
{
	return session->ring->records;
}

void fa_ring_close(struct fa_session *session)
{
	struct fa_session_ring *ring = session->ring;

	if (!ring)
		return;
	stop_polling(ring);
	/* When the daemon ends, the client may still read the records. */
	if (session->context->state != FA_DAEMON_RUNNING ||
	    fa_context_device_lost(session->context))
		ring->records->keep_memory = true;
	/* Closing would not remove it: the client has the eventfd, too. */
	(void)epoll_ctl(session->context->rings.doorbell_epoll, EPOLL_CTL_DEL, ring->doorbell,
	                NULL);
}

void fa_ring_free(struct fa_session *session)
{
	if (!session->ring)
		return;
	--session->context->rings.n_rings;
	ring_free(fa_steal_ptr(session->ring));
}

bool fa_ring_status(const struct fa_session *session, struct fa_ring_status *ret_status)
{
	const struct fa_session_ring *ring = session->ring;

	if (!ring)
		return false;
	*ret_status = (struct fa_ring_status){ .bytes = ring->consumer.bytes,
		                               .requests = ring->n_requests,
		                               .doorbells = ring->n_doorbells,
		                               .polled = !fa_list_empty(&ring->link) };
	return true;
}
