#include "client/cancel.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "client/receive.h"
#include "client/reconnect.h"
#include "client/struct_size.h"
#include "client/timeline_state.h"
#include "common/cleanup.h"
#include "common/cpu.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Sleeping, and spinning, threads then check that the daemon lives. */
#define SLEEP_SLICE_NS (20 * FA_NS_PER_MS)

#define SPIN_SLICE_NS (50 * FA_NS_PER_US)

/* How often the word is read before the clock is. */
#define SPIN_LOOKS 16

int fa_timeline_open(struct fa_client *handle, struct fa_timeline **ret_timeline)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	int r;

	if (!ret_timeline)
		return fa_error_set(-EINVAL, "ret_timeline is NULL");
	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	if (!client->timeline) {
		struct fa_timeline *timeline = fa_new(struct fa_timeline);

		r = timeline ? fa_handle_new(FA_HANDLE_TIMELINE, timeline, &timeline->handle)
		             : fa_error_set(-ENOMEM, "no memory for a timeline");
		if (r < 0) {
			fa_client_leave(client);
			free(timeline);
			return r;
		}
		timeline->client = client;
		client->timeline = timeline;
	}
	r = fa_timeline_set_up(client->timeline);
	if (r >= 0)
		*ret_timeline = client->timeline->handle;
	fa_client_leave(client);
	return r;
}

int fa_timeline_info(struct fa_timeline *handle, struct fa_timeline_info *ret_info)
{
	fa_uncancelled();
	struct fa_timeline *timeline = fa_timeline_of(handle);
	struct fa_timeline_info info = { .slots = FA_TIMELINE_SLOTS,
		                         .stride = sizeof(struct fa_timeline_in) };
	int r;

	r = fa_struct_out_check("fa_timeline_info", ret_info);
	if (r >= 0)
		r = fa_timeline_enter(timeline, "fa_timeline_info", 0);
	if (r < 0)
		return r;
	if (timeline->client->state == FA_CLIENT_CONNECTED)
		(void)fa_timeline_set_up(timeline);
	info.client_slots = (uint64_t *)&timeline->memory->in->value;
	info.daemon_slots = (const uint64_t *)&timeline->memory->out->value;
	info.epoch = timeline->n_set_ups;
	fa_struct_out(ret_info, &info, sizeof(info));
	fa_client_leave(timeline->client);
	return 0;
}

int fa_timeline_write(struct fa_timeline *handle, uint32_t slot, uint64_t value)
{
	fa_uncancelled();
	struct fa_timeline *timeline = fa_timeline_of(handle);
	int r;

	r = fa_timeline_enter(timeline, "fa_timeline_write", slot);
	if (r < 0)
		return r;
	/* The mutex is held because the memory may be replaced. */
	atomic_store_explicit(&timeline->memory->in[slot].value, value, memory_order_release);
	fa_client_leave(timeline->client);
	return 0;
}

int fa_timeline_read(struct fa_timeline *handle, uint32_t slot, uint64_t *ret_value)
{
	fa_uncancelled();
	struct fa_timeline *timeline = fa_timeline_of(handle);
	uint32_t number = slot & ~FA_GATE_DAEMON;
	int r;

	if (!ret_value)
		return fa_error_set(-EINVAL, "ret_value is NULL");
	r = fa_timeline_enter(timeline, "fa_timeline_read", number);
	if (r < 0)
		return r;
	*ret_value = atomic_load_explicit(slot & FA_GATE_DAEMON
	                                          ? &timeline->memory->out[number].value
	                                          : &timeline->memory->in[number].value,
	                                  memory_order_acquire);
	fa_client_leave(timeline->client);
	return 0;
}

/* ---- waiting */

/* 1: not reached; else the status of the request that signalled the value. */
static int read_status(const struct fa_timeline_out *out, uint64_t value)
{
	int status;

	if (!fa_timeline_reached(atomic_load_explicit(&out->value, memory_order_acquire), value))
		return 1;
	status = atomic_load_explicit(&out->status, memory_order_relaxed);
	if (!status ||
	    !fa_timeline_reached(atomic_load_explicit(&out->failed, memory_order_relaxed), value))
		return 0;
	return status < 0 ? status : -EPROTO;
}

static int spin(const struct fa_client *client, const struct fa_timeline_out *out, uint64_t value,
                uint64_t spin_ns)
{
	uint64_t end_ns = fa_deadline_ns(spin_ns);
	int r;

	do {
		for (int i = 0; i < SPIN_LOOKS; ++i) {
			r = read_status(out, value);
			if (r <= 0)
				return r;
			fa_cpu_spin_pause(client->spin_yields);
		}
	} while (fa_now_ns() < end_ns &&
	         !atomic_load_explicit(&client->lost, memory_order_relaxed));
	return 1;
}

static void sleep_on(struct fa_timeline_in *in, const struct fa_timeline_out *out, uint64_t value,
                     uint64_t until_ns)
{
	uint64_t now_ns = fa_now_ns(), slice_ns = SLEEP_SLICE_NS;
	struct timespec timeout = {};
	uint32_t changes;

	if (until_ns <= now_ns)
		return;
	if (until_ns - now_ns < slice_ns)
		slice_ns = until_ns - now_ns;
	timeout.tv_nsec = (long)slice_ns;
	/* Counted as a sleeper before the word is read, while the daemon changes the word before it
	 * looks for sleepers: no wake-up is lost. */
	atomic_fetch_add(&in->sleepers, 1);
	changes = atomic_load(&out->changes);
	if (read_status(out, value) > 0)
		(void)syscall(SYS_futex, &out->changes, FUTEX_WAIT, changes, &timeout, NULL, 0);
	atomic_fetch_sub(&in->sleepers, 1);
}

static int report(int status, uint32_t slot, uint64_t value)
{
	if (!status)
		return 0;
	return fa_error_set(status,
	                    "a request that gave slot %u the value %llu, or a later one, "
	                    "has failed: %s",
	                    slot, (unsigned long long)value, strerror(-status));
}

/* Without the mutex. */
static bool is_lost(struct fa_client *client, uint32_t epoch)
{
	bool lost;

	pthread_mutex_lock(&client->lock);
	if (client->state == FA_CLIENT_CONNECTED && client->epoch == epoch)
		fa_client_receive(client, true);
	lost = client->state != FA_CLIENT_CONNECTED || client->epoch != epoch;
	pthread_mutex_unlock(&client->lock);
	return lost;
}

/* @value was to come over an earlier connection, whose requests were to signal @last at most. */
static bool is_from_earlier(uint64_t last, uint64_t value)
{
	return last && fa_timeline_reached(last, value);
}

/* With the mutex held. */
static bool needs_set_up(const struct fa_timeline *timeline)
{
	const struct fa_client *client = timeline->client;

	return client->state == FA_CLIENT_CONNECTED && timeline->epoch != client->epoch;
}

/* Waits until another call has set the timeline up. Returns 1: set up, or lost; 0: the value is
 * reached. */
static int await_set_up(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                        uint64_t deadline_ns)
{
	struct fa_client *client = timeline->client;

	while (needs_set_up(timeline)) {
		uint64_t until_ns = fa_deadline_ns(SLEEP_SLICE_NS);
		struct timespec until;

		if (is_from_earlier(timeline->planned[slot], value))
			return -ECONNRESET;
		if (fa_timeline_reached(0, value))
			return 0;
		if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns)
			return -EAGAIN;
		if (deadline_ns < until_ns)
			until_ns = deadline_ns;
		until = (struct timespec){ .tv_sec = (time_t)(until_ns / FA_NS_PER_SEC),
			                   .tv_nsec = (long)(until_ns % FA_NS_PER_SEC) };
		pthread_cond_timedwait(&client->changed, &client->lock, &until);
		if (needs_set_up(timeline))
			fa_client_receive(client, true);
	}
	return 1;
}

static int fail_lost(uint32_t slot, uint64_t value)
{
	return fa_error_set(-ECONNRESET,
	                    "value %llu of the daemon's slot %u was lost with a connection",
	                    (unsigned long long)value, slot);
}

static int fail_not_yet(uint32_t slot, uint64_t value)
{
	return fa_error_set(-EAGAIN, "slot %u has not reached %llu", slot,
	                    (unsigned long long)value);
}

int fa_timeline_wait(struct fa_timeline *handle, uint32_t slot, uint64_t value, uint64_t timeout_ns)
{
	fa_uncancelled();
	struct fa_timeline *timeline = fa_timeline_of(handle);
	const struct fa_timeline_out *out;
	struct fa_timeline_in *in;
	uint64_t deadline_ns, spin_ns;
	struct fa_client *client;
	uint32_t epoch;
	int r;

	r = fa_timeline_enter(timeline, "fa_timeline_wait", slot);
	if (r < 0)
		return r;
	client = timeline->client;
	deadline_ns = fa_deadline_ns(timeout_ns);
	r = await_set_up(timeline, slot, value, deadline_ns);
	if (r <= 0) {
		fa_client_leave(client);
		return r == -ECONNRESET ? fail_lost(slot, value)
		       : r < 0          ? fail_not_yet(slot, value)
		                        : 0;
	}
	in = &timeline->memory->in[slot];
	out = &timeline->memory->out[slot];
	epoch = timeline->epoch;
	/* The value was to come over an earlier connection. */
	if (is_from_earlier(timeline->lost[slot], value)) {
		fa_client_leave(client);
		return fail_lost(slot, value);
	}
	fa_client_leave(client);

	spin_ns = client->spin_ns < timeout_ns ? client->spin_ns : timeout_ns;
	r = read_status(out, value);
	while (r > 0) {
		uint64_t slice_ns = spin_ns < SPIN_SLICE_NS ? spin_ns : SPIN_SLICE_NS;
		bool lost;

		spin_ns -= slice_ns;
		if (slice_ns)
			r = spin(client, out, value, slice_ns);
		if (r <= 0)
			break;
		lost = is_lost(client, epoch);
		/* The value may have arrived before the loss. */
		r = read_status(out, value);
		if (r <= 0)
			break;
		if (lost)
			return fa_error_set(-ECONNRESET,
			                    "the daemon went away, and value %llu of its slot %u "
			                    "with it",
			                    (unsigned long long)value, slot);
		if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns)
			return fail_not_yet(slot, value);
		if (!spin_ns)
			sleep_on(in, out, value, deadline_ns);
		r = read_status(out, value);
	}
	return report(r, slot, value);
}
