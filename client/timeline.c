/*
 * The client's timeline. The daemon's words are read without the mutex: memory that was
 * mapped stays so until the client is freed. Which memory is the present one, and what
 * was lost with earlier ones, is guarded by it.
 */
#include "client/cuda-memory.h"
#include "client/internal.h"

#include "common/memfd.h"
#include "common/timeline.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A sleeping thread looks after the daemon's life this often, a spinning one this. */
#define SLEEP_SLICE_NS (20 * FA_NS_PER_MS)
#define SPIN_SLICE_NS (50 * FA_NS_PER_US)
/* Looks at the word between two looks at the clock. */
#define SPIN_LOOKS 16

_Static_assert(FA_GATES_MAX == FA_WIRE_GATES_MAX && FA_GATE_OUT == FA_WIRE_GATE_OUT,
               "gates travel as they are");
_Static_assert(sizeof(struct fa_gate) == sizeof(struct fa_wire_gate) &&
                       offsetof(struct fa_gate, value) == offsetof(struct fa_wire_gate, value) &&
                       offsetof(struct fa_gate, reserved) ==
                               offsetof(struct fa_wire_gate, reserved),
               "gates travel as they are");

/* What one connection gave. */
struct memory {
	struct memory *before;
	struct fa_timeline_in *in;
	const struct fa_timeline_out *out;
	/* Once the driver knows it. */
	CUcontext context; /* in which it was registered; NULL: it was not */
	CUdeviceptr in_device, out_device;
};

struct fa_timeline {
	struct fa_client *client; /* never changes */
	/* With the client's mutex. */
	struct memory *memory;               /* the present one; NULL: there was none yet */
	uint32_t epoch;                      /* of the connection that gave it */
	uint64_t set_up;                     /* how often it was */
	bool busy;                           /* a thread is setting it up */
	uint64_t planned[FA_TIMELINE_SLOTS]; /* the last value that a request was to give */
	uint64_t lost[FA_TIMELINE_SLOTS];    /* of those, what went with earlier connections */
};

/* ---- memory; with the mutex */

static void unmap(const void *memory)
{
	if (memory)
		(void)munmap((void *)memory, FA_TIMELINE_BYTES);
}

static int map(int fd, uint64_t bytes, int protection, void **ret_memory)
{
	struct fa_error why;
	uint64_t size;
	void *memory;
	int r, seals;

	if (bytes < FA_TIMELINE_BYTES)
		return fa_error_set(-EPROTO, "the daemon's timeline is too short");
	r = fa_memfd_check(fd, 0, FA_TIMELINE_BYTES, &why, &size, &seals);
	if (r < 0)
		return fa_error_set(-EPROTO, "the daemon's timeline is no sealed memory: %s",
		                    why.text);
	memory = mmap(NULL, FA_TIMELINE_BYTES, protection, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return fa_error_set(-errno, "the timeline cannot be mapped: %m");
	*ret_memory = memory;
	return 0;
}

static int take_memory(struct fa_timeline *timeline, const struct fa_call *call)
{
	struct memory *memory = fa_new(struct memory);
	void *in = NULL, *out = NULL;
	int r;

	if (!memory)
		return fa_error_set(-ENOMEM, "no memory for a timeline");
	r = map(call->fd, call->timeline.in_bytes, PROT_READ | PROT_WRITE, &in);
	if (r == 0)
		r = map(call->second_fd, call->timeline.out_bytes, PROT_READ, &out);
	if (r < 0) {
		unmap(in);
		free(memory);
		return r;
	}
	*memory = (struct memory){
		.before = timeline->memory,
		.in = in,
		.out = out,
	};
	/* The program's slots go on from where they are. */
	for (unsigned int i = 0; timeline->memory && i < FA_TIMELINE_SLOTS; ++i)
		atomic_store_explicit(
			&memory->in[i].value,
			atomic_load_explicit(&timeline->memory->in[i].value, memory_order_acquire),
			memory_order_release);
	memcpy(timeline->lost, timeline->planned, sizeof(timeline->lost));
	timeline->memory = memory;
	++timeline->set_up;
	return 0;
}

/* Sees that the timeline is that of the connection, which stands. The mutex may be released
 * meanwhile; -ECONNRESET if the connection is lost then. */
static int set_up(struct fa_timeline *timeline)
{
	struct fa_client *client = timeline->client;

	while (client->state == FA_CLIENT_CONNECTED && timeline->epoch != client->epoch) {
		struct fa_wire_message message = { .type = FA_WIRE_TIMELINE_SETUP };
		struct fa_call call = { .expect = FA_WIRE_TIMELINE_REPLY, .expect_fds = 2 };
		uint32_t epoch = client->epoch;
		int r;

		/* Another thread was faster: it has the memory in a moment. */
		if (timeline->busy) {
			pthread_cond_wait(&client->changed, &client->lock);
			continue;
		}
		timeline->busy = true;
		r = fa_io_call(client, &message, NULL, 0, false, &call);
		timeline->busy = false;
		if (r == 0 && client->epoch == epoch && timeline->epoch != epoch) {
			r = take_memory(timeline, &call);
			if (r == 0)
				timeline->epoch = epoch;
		}
		pthread_cond_broadcast(&client->changed);
		fa_close_fdp(&call.fd);
		fa_close_fdp(&call.second_fd);
		if (r < 0)
			return r;
	}
	return client->state == FA_CLIENT_CONNECTED ? 0 : fa_client_lost_error(client);
}

struct fa_timeline *fa_timeline_release(struct fa_timeline *timeline, bool forked)
{
	const struct fa_cudriver *driver = NULL;
	struct fa_error error;

	if (!timeline)
		return NULL;
	while (timeline->memory) {
		struct memory *memory = timeline->memory;

		timeline->memory = memory->before;
		if (memory->context && !forked && fa_cuda_open(&error, &driver) == 0) {
			CUcontext before = NULL;

			(void)driver->cuCtxGetCurrent(&before);
			if (driver->cuCtxSetCurrent(memory->context) == CUDA_SUCCESS) {
				(void)driver->cuMemHostUnregister(memory->in);
				(void)driver->cuMemHostUnregister((void *)memory->out);
			}
			(void)driver->cuCtxSetCurrent(before);
		}
		unmap(memory->in);
		unmap(memory->out);
		free(memory);
	}
	free(timeline);
	return NULL;
}

/* ---- gates of requests */

int fa_request_gates(struct fa_request *request, const struct fa_gates *gates)
{
	const void *known;
	int r;

	if (!gates)
		return 0;
	r = fa_struct_in("fa_gates", gates, &request->gates, sizeof(request->gates), &known);
	if (r < 0)
		return r;
	gates = known;
	if (gates->n_waits > FA_GATES_MAX || gates->n_signals > FA_GATES_MAX)
		return fa_error_set(-EINVAL, "%u waits and %u signals; at most %d of each",
		                    gates->n_waits, gates->n_signals, FA_GATES_MAX);
	if ((gates->n_waits && !gates->waits) || (gates->n_signals && !gates->signals))
		return fa_error_set(-EINVAL, "fa_gates.%s is NULL",
		                    gates->n_waits && !gates->waits ? "waits" : "signals");
	if (gates->reserved)
		return fa_error_set(-EINVAL, "fa_gates.reserved is not 0");
	for (uint32_t i = 0; i < gates->n_waits; ++i) {
		r = fa_gate_check("waits", &gates->waits[i], true);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < gates->n_signals; ++i) {
		r = fa_gate_check("signals", &gates->signals[i], false);
		if (r < 0)
			return r;
	}
	request->message.waits = (const struct fa_wire_gate *)gates->waits;
	request->message.n_waits = gates->n_waits;
	request->message.signals = (const struct fa_wire_gate *)gates->signals;
	request->message.n_signals = gates->n_signals;
	return 0;
}

int fa_gate_check(const char *what, const struct fa_gate *gate, bool may_be_out)
{
	uint32_t slot = may_be_out ? gate->slot & ~FA_GATE_OUT : gate->slot;

	if (slot >= FA_TIMELINE_SLOTS)
		return fa_error_set(-EINVAL, "%s: slot is 0x%x; expected less than %d", what,
		                    gate->slot, FA_TIMELINE_SLOTS);
	if (gate->reserved)
		return fa_error_set(-EINVAL, "%s: reserved is not 0", what);
	return 0;
}

bool fa_request_is_gated(const struct fa_request *request)
{
	const struct fa_wire_message *message = &request->message;

	return message->n_waits || message->n_signals ||
	       (message->type == FA_WIRE_STEP_ATTEND_LAYERS &&
	        (message->step_attend_layers.has_wait || message->step_attend_layers.has_signal));
}

static int check_wait(const struct fa_timeline *timeline, const struct fa_wire_gate *wait)
{
	uint32_t slot = wait->slot & ~FA_GATE_OUT;

	if (!(wait->slot & FA_GATE_OUT) || !timeline->lost[slot] ||
	    !fa_timeline_reached(timeline->lost[slot], wait->value))
		return 0;
	return fa_error_set(-ECONNRESET,
	                    "value %llu of the daemon's slot %u, which the request is to wait for, "
	                    "was lost with a connection",
	                    (unsigned long long)wait->value, slot);
}

int fa_timeline_prepare(struct fa_client *client, const struct fa_request *request)
{
	const struct fa_wire_message *message = &request->message;
	int r;

	if (!client->timeline)
		return fa_error_set(-EINVAL, "the request has gates, and the client no timeline; "
		                             "call fa_timeline_open() first");
	r = set_up(client->timeline);
	for (size_t i = 0; i < message->n_waits && r == 0; ++i)
		r = check_wait(client->timeline, &message->waits[i]);
	if (r == 0 && message->type == FA_WIRE_STEP_ATTEND_LAYERS &&
	    message->step_attend_layers.has_wait)
		r = check_wait(client->timeline, &message->step_attend_layers.wait);
	return r;
}

bool fa_timeline_is_ready(const struct fa_client *client)
{
	return client->state == FA_CLIENT_CONNECTED && client->timeline->epoch == client->epoch;
}

static void plan(struct fa_timeline *timeline, const struct fa_wire_gate *signal, uint64_t more)
{
	uint64_t value = signal->value + more;

	if (!fa_timeline_reached(timeline->planned[signal->slot], value))
		timeline->planned[signal->slot] = value;
}

void fa_timeline_sent(struct fa_client *client, const struct fa_request *request)
{
	const struct fa_wire_message *message = &request->message;
	const struct fa_wire_step_attend_layers *layers = &message->step_attend_layers;

	for (size_t i = 0; i < message->n_signals; ++i)
		plan(client->timeline, &message->signals[i], 0);
	if (message->type == FA_WIRE_STEP_ATTEND_LAYERS && layers->has_signal)
		plan(client->timeline, &layers->signal,
		     (layers->n_layers - 1) * layers->signal_increment);
}

/* ---- the calls */

/* Takes the mutex, with a timeline that was set up at least once. */
static int enter(struct fa_timeline *timeline, const char *name, uint32_t slot)
{
	if (!timeline)
		return fa_error_set(-EINVAL, "the timeline is NULL");
	if (slot >= FA_TIMELINE_SLOTS)
		return fa_error_set(-EINVAL, "%s: slot is 0x%x; expected less than %d", name, slot,
		                    FA_TIMELINE_SLOTS);
	return fa_client_enter(timeline->client);
}

int fa_timeline_open(struct fa_client *client, struct fa_timeline **ret_timeline)
{
	int r;

	if (!ret_timeline)
		return fa_error_set(-EINVAL, "ret_timeline is NULL");
	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	if (!client->timeline) {
		struct fa_timeline *timeline = fa_new(struct fa_timeline);

		if (!timeline) {
			fa_client_leave(client);
			return fa_error_set(-ENOMEM, "no memory for a timeline");
		}
		timeline->client = client;
		client->timeline = timeline;
	}
	r = set_up(client->timeline);
	if (r >= 0)
		*ret_timeline = client->timeline;
	fa_client_leave(client);
	return r;
}

int fa_timeline_info(struct fa_timeline *timeline, struct fa_timeline_info *ret_info)
{
	struct fa_timeline_info info = { .slots = FA_TIMELINE_SLOTS,
		                         .stride = sizeof(struct fa_timeline_in) };
	int r;

	r = fa_struct_out_check("fa_timeline_info", ret_info);
	if (r >= 0)
		r = enter(timeline, "fa_timeline_info", 0);
	if (r < 0)
		return r;
	if (timeline->client->state == FA_CLIENT_CONNECTED)
		(void)set_up(timeline);
	info.in = (uint64_t *)&timeline->memory->in->value;
	info.out = (const uint64_t *)&timeline->memory->out->value;
	info.epoch = timeline->set_up;
	fa_struct_out(ret_info, &info, sizeof(info));
	fa_client_leave(timeline->client);
	return 0;
}

int fa_timeline_write(struct fa_timeline *timeline, uint32_t slot, uint64_t value)
{
	int r;

	r = enter(timeline, "fa_timeline_write", slot);
	if (r < 0)
		return r;
	/* With the mutex, so that it is not lost when the memory is replaced. */
	atomic_store_explicit(&timeline->memory->in[slot].value, value, memory_order_release);
	fa_client_leave(timeline->client);
	return 0;
}

int fa_timeline_read(struct fa_timeline *timeline, uint32_t slot, uint64_t *ret_value)
{
	uint32_t number = slot & ~FA_GATE_OUT;
	int r;

	if (!ret_value)
		return fa_error_set(-EINVAL, "ret_value is NULL");
	r = enter(timeline, "fa_timeline_read", number);
	if (r < 0)
		return r;
	*ret_value = atomic_load_explicit(slot & FA_GATE_OUT ? &timeline->memory->out[number].value
	                                                     : &timeline->memory->in[number].value,
	                                  memory_order_acquire);
	fa_client_leave(timeline->client);
	return 0;
}

/* ---- waiting */

/* 1: not reached yet; else what became of it. */
static int look(const struct fa_timeline_out *out, uint64_t value)
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
			r = look(out, value);
			if (r <= 0)
				return r;
			if (client->yields)
				sched_yield();
		}
	} while (fa_now_ns() < end_ns &&
	         !atomic_load_explicit(&client->lost, memory_order_relaxed));
	return 1;
}

/* Until there may be news, or @until_ns. */
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
	/* The daemon writes, and then looks whether somebody sleeps; here it is the reverse. */
	atomic_fetch_add(&in->sleepers, 1);
	changes = atomic_load(&out->changes);
	if (look(out, value) > 0)
		(void)syscall(SYS_futex, &out->changes, FUTEX_WAIT, changes, &timeout, NULL, 0);
	atomic_fetch_sub(&in->sleepers, 1);
}

static int say(int status, uint32_t slot, uint64_t value)
{
	if (!status)
		return 0;
	return fa_error_set(status,
	                    "a request that gave slot %u the value %llu, or a later one, "
	                    "has failed: %s",
	                    slot, (unsigned long long)value, strerror(-status));
}

/* Without the mutex: whether the connection of that number is over. */
static bool is_lost(struct fa_client *client, uint32_t epoch)
{
	bool lost;

	pthread_mutex_lock(&client->lock);
	if (client->state == FA_CLIENT_CONNECTED && client->epoch == epoch)
		fa_io_receive(client, true);
	lost = client->state != FA_CLIENT_CONNECTED || client->epoch != epoch;
	pthread_mutex_unlock(&client->lock);
	return lost;
}

/* Whether a request of an earlier connection was to give that value, of those up to @last. */
static bool is_of_earlier(uint64_t last, uint64_t value)
{
	return last && fa_timeline_reached(last, value);
}

/* With the mutex: the connection stands, and has not got the timeline yet. */
static bool is_due(const struct fa_timeline *timeline)
{
	const struct fa_client *client = timeline->client;

	return client->state == FA_CLIENT_CONNECTED && timeline->epoch != client->epoch;
}

/*
 * With the mutex, which is released meanwhile: while it is due there is nothing to see but this.
 * It is set up by who sends a request that gives a value, or by other calls: who waits for one
 * does not ask the daemon, which may take longer. 1: it is set up, or the connection lost.
 */
static int await_due(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                     uint64_t deadline_ns)
{
	struct fa_client *client = timeline->client;

	while (is_due(timeline)) {
		uint64_t until_ns = fa_deadline_ns(SLEEP_SLICE_NS);
		struct timespec until;

		if (is_of_earlier(timeline->planned[slot], value))
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
		if (is_due(timeline))
			fa_io_receive(client, true);
	}
	return 1;
}

static int say_lost(uint32_t slot, uint64_t value)
{
	return fa_error_set(-ECONNRESET,
	                    "value %llu of the daemon's slot %u was lost with a connection",
	                    (unsigned long long)value, slot);
}

static int say_not_yet(uint32_t slot, uint64_t value)
{
	return fa_error_set(-EAGAIN, "slot %u has not reached %llu", slot,
	                    (unsigned long long)value);
}

int fa_timeline_wait(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                     uint64_t timeout_ns)
{
	const struct fa_timeline_out *out;
	struct fa_timeline_in *in;
	uint64_t deadline_ns, spin_ns;
	struct fa_client *client;
	uint32_t epoch;
	int r;

	r = enter(timeline, "fa_timeline_wait", slot);
	if (r < 0)
		return r;
	client = timeline->client;
	deadline_ns = fa_deadline_ns(timeout_ns);
	r = await_due(timeline, slot, value, deadline_ns);
	if (r <= 0) {
		fa_client_leave(client);
		return r == -ECONNRESET ? say_lost(slot, value)
		       : r < 0          ? say_not_yet(slot, value)
		                        : 0;
	}
	in = &timeline->memory->in[slot];
	out = &timeline->memory->out[slot];
	epoch = timeline->epoch;
	/* Whoever gave it was of another connection. */
	if (is_of_earlier(timeline->lost[slot], value)) {
		fa_client_leave(client);
		return say_lost(slot, value);
	}
	fa_client_leave(client);

	spin_ns = client->spin_ns < timeout_ns ? client->spin_ns : timeout_ns;
	r = look(out, value);
	while (r > 0) {
		uint64_t slice_ns = spin_ns < SPIN_SLICE_NS ? spin_ns : SPIN_SLICE_NS;
		bool lost;

		spin_ns -= slice_ns;
		if (slice_ns)
			r = spin(client, out, value, slice_ns);
		if (r <= 0)
			break;
		lost = is_lost(client, epoch);
		/* It may have come before that. */
		r = look(out, value);
		if (r <= 0)
			break;
		if (lost)
			return fa_error_set(-ECONNRESET,
			                    "the daemon went away, and value %llu of its slot %u "
			                    "with it",
			                    (unsigned long long)value, slot);
		if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns)
			return say_not_yet(slot, value);
		if (!spin_ns)
			sleep_on(in, out, value, deadline_ns);
		r = look(out, value);
	}
	return say(r, slot, value);
}

/* ---- CUDA streams */

static int register_memory(const struct fa_cudriver *driver, struct memory *memory)
{
	const unsigned int flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	CUcontext context = NULL;
	struct fa_error error;
	CUresult result;

	result = driver->cuCtxGetCurrent(&context);
	if (result == CUDA_SUCCESS && !context)
		return fa_error_set(-EINVAL, "no CUDA context is current in this thread");
	if (result == CUDA_SUCCESS)
		result = driver->cuMemHostRegister(memory->in, FA_TIMELINE_BYTES, flags);
	if (result == CUDA_SUCCESS) {
		result = driver->cuMemHostRegister((void *)memory->out, FA_TIMELINE_BYTES,
		                                   flags | CU_MEMHOSTREGISTER_READ_ONLY);
		if (result == CUDA_SUCCESS)
			memory->context = context;
		else
			(void)driver->cuMemHostUnregister(memory->in);
	}
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_error_copy(fa_cudriver_fail(driver, &error, result,
	                                      "the timeline cannot be registered with the driver"),
	                     &error);
}

/* The device's address of the memory, which it learns of at need. */
static int device_memory(struct fa_timeline *timeline, const struct fa_cudriver *driver)
{
	struct memory *memory = timeline->memory;
	struct fa_error error;
	CUresult result;
	int r = 0;

	if (memory->out_device)
		return 0;
	if (!memory->context)
		r = register_memory(driver, memory);
	if (r < 0)
		return r;
	result = driver->cuMemHostGetDevicePointer(&memory->in_device, memory->in, 0);
	if (result == CUDA_SUCCESS)
		result = driver->cuMemHostGetDevicePointer(&memory->out_device, (void *)memory->out,
		                                           0);
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_error_copy(
		fa_cudriver_fail(driver, &error, result, "the timeline has no address on the GPU"),
		&error);
}

static int enqueue(struct fa_timeline *timeline, uint32_t slot, uint64_t value, void *stream,
                   bool waits)
{
	const size_t offset = slot * sizeof(struct fa_timeline_in);
	const struct fa_cudriver *driver;
	CUdeviceptr in, out;
	struct fa_error error;
	CUresult result;
	int r;

	r = fa_cuda_open(&error, &driver);
	if (r < 0)
		return fa_error_copy(r, &error);
	r = enter(timeline, waits ? "fa_timeline_enqueue_wait" : "fa_timeline_enqueue_write", slot);
	if (r < 0)
		return r;
	/* What is written to the old memory would be lost. */
	if (timeline->client->state == FA_CLIENT_CONNECTED)
		r = set_up(timeline);
	else if (waits)
		r = fa_client_lost_error(timeline->client);
	if (r >= 0 && waits) {
		const struct fa_wire_gate wait = { .slot = slot | FA_GATE_OUT, .value = value };

		r = check_wait(timeline, &wait);
	}
	if (r >= 0)
		r = device_memory(timeline, driver);
	in = timeline->memory->in_device;
	out = timeline->memory->out_device;
	fa_client_leave(timeline->client);
	if (r < 0)
		return r;
	/* Without the mutex: a stream that has too much to do makes its caller wait. */
	result = waits ? driver->cuStreamWaitValue64(stream, out + offset, value,
	                                             CU_STREAM_WAIT_VALUE_GEQ)
	               : driver->cuStreamWriteValue64(stream, in + offset, value,
	                                              CU_STREAM_WRITE_VALUE_DEFAULT);
	if (result == CUDA_SUCCESS)
		return 0;
	return fa_error_copy(
		fa_cudriver_fail(driver, &error, result, "the stream does not take it"), &error);
}

int fa_timeline_enqueue_write(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                              void *stream)
{
	return enqueue(timeline, slot, value, stream, false);
}

int fa_timeline_enqueue_wait(struct fa_timeline *timeline, uint32_t slot, uint64_t value,
                             void *stream)
{
	return enqueue(timeline, slot, value, stream, true);
}
