#include "daemon/session/timeline.h"

#include "common/cleanup.h"
#include "common/memfd.h"
#include "daemon/engine/gate.h"
#include "daemon/persist/fd_store.h"
#include "daemon/persist/timeline_release.h"
#include "daemon/session/context.h"
#include "daemon/session/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define STORED_NAME FA_FD_STORE_TIMELINE_PREFIX "%" PRIu64
#define NAME_BYTES 64

struct fa_timeline {
	struct fa_timeline_words words;
	struct fa_charge charge, charge_bytes;
	uint64_t planned[FA_TIMELINE_SLOTS]; /* the highest that requests will write */
	char name[NAME_BYTES];
	bool stored;
	struct fa_list ended_link; /* context.timelines_ended */
};

static void unmap(void *memory)
{
	if (memory)
		(void)munmap(memory, FA_TIMELINE_BYTES);
}

static int map(int fd, void **ret_memory)
{
	void *memory = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return -errno;
	*ret_memory = memory;
	return 0;
}

static struct fa_timeline *timeline_free(struct fa_timeline *timeline)
{
	if (!timeline)
		return NULL;
	unmap(timeline->words.in);
	unmap(timeline->words.out);
	pthread_mutex_destroy(&timeline->words.mutex);
	fa_charge_release(&timeline->charge);
	fa_charge_release(&timeline->charge_bytes);
	free(timeline);
	return NULL;
}

static void timeline_freep(struct fa_timeline **timeline)
{
	timeline_free(*timeline);
}

static int timeline_new(struct fa_tenant *tenant, struct fa_error *error,
                        struct fa_timeline **ret_timeline)
{
	_fa_cleanup_(timeline_freep) struct fa_timeline *timeline = NULL;
	int r;

	timeline = fa_new(struct fa_timeline);
	if (!timeline)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a timeline");
	pthread_mutex_init(&timeline->words.mutex, NULL);
	fa_list_init(&timeline->ended_link);
	r = fa_charge_add(&timeline->charge, tenant, FA_RESOURCE_TIMELINES, 1, error);
	if (r == 0)
		r = fa_charge_add(&timeline->charge_bytes, tenant, FA_RESOURCE_BUFFER_BYTES,
		                  2 * FA_TIMELINE_BYTES, error);
	if (r < 0)
		return r;
	*ret_timeline = fa_steal_ptr(timeline);
	return 0;
}

/* @ret_fds: the client's slots; the daemon's, read-only and writable. */
static int timeline_map(struct fa_timeline *timeline, int ret_fds[3])
{
	_fa_cleanup_(fa_close_fdp) int in = -1, out = -1, reading = -1;
	void *memory = NULL;
	int r;

	r = fa_memfd_new("fad-timeline-in", FA_TIMELINE_BYTES, 1, &in);
	if (r == 0)
		r = map(in, &memory);
	if (r < 0)
		return r;
	timeline->words.in = memory;
	r = fa_memfd_new("fad-timeline-out", FA_TIMELINE_BYTES, 1, &out);
	if (r == 0)
		r = map(out, &memory);
	if (r < 0)
		return r;
	timeline->words.out = memory;
	r = fa_memfd_reopen_read_only(out, &reading);
	if (r < 0)
		return r;
	ret_fds[0] = fa_steal_fd(&in);
	ret_fds[1] = fa_steal_fd(&reading);
	ret_fds[2] = fa_steal_fd(&out);
	return 0;
}

/* Without the fd store nothing would release waiters if this process died. */
static int store(struct fa_session *session, struct fa_timeline *timeline, int fd,
                 struct fa_error *error)
{
	const struct fa_fd_store_ops *fd_store = &session->context->fd_store;
	uint64_t max = fd_store->timelines_max;
	int r;

	if (!fd_store->add)
		return 0;
	if (max && session->context->n_timelines >= max)
		return fa_fail(error, -EDQUOT,
		               "1 more timeline than %" PRIu64
		               " could not be kept for the daemon's successor",
		               max);
	(void)snprintf(timeline->name, sizeof(timeline->name), STORED_NAME, session->connection);
	r = fd_store->add(fd_store->userdata, timeline->name, fd);
	if (r < 0)
		return fa_fail(error, r,
		               "the timeline cannot be kept for the daemon's successor: %s",
		               strerror(-r));
	timeline->stored = true;
	++session->context->n_timelines;
	return 0;
}

/* A removal that fails is retried; the timeline stays charged. */
static void remove_ended(struct fa_context *context)
{
	const struct fa_fd_store_ops *fd_store = &context->fd_store;
	struct fa_list *pos, *tmp;

	fa_list_for_each_safe(pos, tmp, &context->timelines_ended) {
		struct fa_timeline *timeline = fa_container_of(pos, struct fa_timeline, ended_link);

		if (fd_store->remove(fd_store->userdata, timeline->name) < 0)
			return;
		fa_list_remove(&timeline->ended_link);
		--context->n_timelines;
		timeline_free(timeline);
	}
}

void fa_timelines_close(struct fa_context *context)
{
	struct fa_list *pos, *tmp;

	remove_ended(context);
	fa_list_for_each_safe(pos, tmp, &context->timelines_ended) {
		fa_list_remove(pos);
		timeline_free(fa_container_of(pos, struct fa_timeline, ended_link));
	}
}

static void on_pinned(struct fa_session *session, void *address)
{
	atomic_store_explicit(&session->timeline->words.in_at, address, memory_order_relaxed);
}

static void pin(struct fa_session *session)
{
	if (!session->context->info.can_wait)
		return;
	session->timeline_pin = (struct fa_pinned_page){
		.session = session,
		.ready = on_pinned,
		.failure = "the device does not wait for slots of the timeline",
	};
	fa_pinned_page_open(&session->timeline_pin, session->timeline->words.in, FA_TIMELINE_BYTES);
}

int fa_timeline_setup(struct fa_session *session, const struct fa_wire_message *message,
                      struct fa_error *error)
{
	_fa_cleanup_(timeline_freep) struct fa_timeline *timeline = NULL;
	struct fa_charge charge = {};
	struct fa_wire_message reply = {
		.id = message->id,
		.fds = 2,
		.type = FA_WIRE_TIMELINE_REPLY,
		.timeline_reply = { .slots = FA_TIMELINE_SLOTS,
		                    .in_bytes = FA_TIMELINE_BYTES,
		                    .out_bytes = FA_TIMELINE_BYTES },
	};
	int r, fds[3];

	if (session->timeline)
		return fa_fail(error, -EEXIST, "the session has a timeline already");
	if (session->context->state != FA_DAEMON_RUNNING)
		return fa_fail(error, -ESHUTDOWN, "the daemon is stopping");
	remove_ended(session->context);
	r = timeline_new(session->tenant, error, &timeline);
	if (r == 0)
		r = fa_session_charge_fds(session, 2, &charge, error);
	if (r < 0)
		return r;
	r = timeline_map(timeline, fds);
	if (r < 0) {
		fa_charge_release(&charge);
		return fa_fail(error, r, "the timeline cannot be made: %s", strerror(-r));
	}
	r = store(session, timeline, fds[2], error);
	fa_close_fdp(&fds[2]);
	if (r < 0) {
		fa_close_fdp(&fds[0]);
		fa_close_fdp(&fds[1]);
		fa_charge_release(&charge);
		return r;
	}
	session->timeline = fa_steal_ptr(timeline);
	pin(session);
	fa_session_send_fds(session, &reply, fds, 2, &charge);
	return 0;
}

void fa_timeline_end(struct fa_session *session)
{
	struct fa_timeline *timeline = fa_steal_ptr(session->timeline);
	struct fa_context *context = session->context;
	uint64_t values[FA_TIMELINE_SLOTS];

	if (!timeline)
		return;
	fa_pinned_page_close(&session->timeline_pin);
	for (unsigned int i = 0; i < FA_TIMELINE_SLOTS; ++i)
		values[i] = timeline->words.values[i];
	fa_timeline_out_release(timeline->words.out, values);
	if (!timeline->stored) {
		timeline_free(timeline);
		return;
	}
	fa_list_append(&context->timelines_ended, &timeline->ended_link);
	remove_ended(context);
}

void fa_timeline_recover(const struct fa_fd_store_ops *fd_store)
{
	char name[NAME_BYTES];
	unsigned int n = 0;
	int fd;

	if (!fd_store->take_any)
		return;
	while ((fd = fd_store->take_any(fd_store->userdata, FA_FD_STORE_TIMELINE_PREFIX, name,
	                                sizeof(name))) >= 0) {
		n += fa_timeline_fd_release(fd);
		close(fd);
		(void)fd_store->remove(fd_store->userdata, name);
	}
	if (n)
		fa_log(FA_LOG_INFO, "the waiters of %u timelines were released", n);
}

static int check_gate(const struct fa_wire_gate *gate, const char *name, size_t i, bool may_be_out,
                      struct fa_error *error)
{
	uint32_t slot = may_be_out ? gate->slot & ~FA_WIRE_GATE_OUT : gate->slot;

	if (slot >= FA_TIMELINE_SLOTS)
		return fa_fail(error, -EINVAL,
		               "%s[%zu].slot is %#" PRIx32 "; expected less than %d", name, i,
		               gate->slot, FA_TIMELINE_SLOTS);
	if (gate->reserved)
		return fa_fail(error, -EINVAL, "%s[%zu].reserved is %#" PRIx32 "; expected 0", name,
		               i, gate->reserved);
	return 0;
}

static int bind_waits(const struct fa_wire_message *message, struct fa_gates *gates,
                      struct fa_error *error)
{
	int r = 0;

	for (size_t i = 0; i < message->n_waits && r == 0; ++i) {
		const struct fa_wire_gate *wait = &message->waits[i];

		r = check_gate(wait, "waits", i, true, error);
		if (r == 0)
			gates->gates[gates->n_waits++] = (struct fa_gate){
				.value = wait->value,
				.slot = wait->slot & ~FA_WIRE_GATE_OUT,
				.out = wait->slot & FA_WIRE_GATE_OUT,
			};
	}
	return r;
}

/* It must rise, and stay below the value that releases all waiters. */
static int check_signal(const struct fa_timeline *timeline, const struct fa_wire_gate *signal,
                        size_t i, struct fa_error *error)
{
	const uint64_t planned = timeline->planned[signal->slot];
	const uint64_t has = atomic_load_explicit(&timeline->words.values[signal->slot],
	                                          memory_order_relaxed);

	if (fa_timeline_reached(planned, signal->value))
		return fa_fail(error, -EINVAL,
		               "signals[%zu].value is %" PRIu64 "; expected more than %" PRIu64
		               ", which slot %" PRIu32 " was to get before",
		               i, signal->value, planned, signal->slot);
	if (signal->value - has >= FA_TIMELINE_RELEASE)
		return fa_fail(error, -EINVAL,
		               "signals[%zu].value is %" PRIu64
		               "; expected less than 2^62 above %" PRIu64 ", which slot %" PRIu32
		               " has",
		               i, signal->value, has, signal->slot);
	return 0;
}

/* Binds all valid signals. Returns the first error. */
static int bind_signals(struct fa_timeline *timeline, const struct fa_wire_message *message,
                        struct fa_gates *gates, struct fa_error *error)
{
	struct fa_error other;
	int first = 0;

	for (size_t i = 0; i < message->n_signals; ++i) {
		const struct fa_wire_gate *signal = &message->signals[i];
		struct fa_error *say = first ? &other : error;
		int r;

		r = check_gate(signal, "signals", i, false, say);
		if (r == 0)
			r = check_signal(timeline, signal, i, say);
		if (r < 0) {
			first = first ? first : r;
			continue;
		}
		timeline->planned[signal->slot] = signal->value;
		fa_gates_signals(gates)[gates->n_signals++] =
			(struct fa_gate){ .value = signal->value, .slot = signal->slot };
	}
	return first;
}

int fa_timeline_bind(struct fa_session *session, const struct fa_wire_message *message,
                     struct fa_charge *charge, struct fa_error *error, struct fa_gates **ret_gates)
{
	const size_t n = message->n_waits + message->n_signals;
	struct fa_timeline *timeline = session->timeline;
	struct fa_error other;
	struct fa_gates *gates;
	int r, s;

	if (!n)
		return 0;
	if (!timeline)
		return fa_fail(error, -EINVAL,
		               "gates came, and the session has no timeline; set it up first");
	gates = calloc(1, sizeof(*gates) + n * sizeof(gates->gates[0]));
	if (!gates)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a request's gates");
	gates->words = &timeline->words;
	r = fa_charge_add(charge, session->tenant, FA_RESOURCE_GATES, n, error);
	if (r == 0)
		r = bind_waits(message, gates, error);
	/* A refused request waits for nothing. */
	if (r < 0)
		gates->n_waits = 0;
	s = bind_signals(timeline, message, gates, r < 0 ? &other : error);
	*ret_gates = gates;
	return r < 0 ? r : s;
}
