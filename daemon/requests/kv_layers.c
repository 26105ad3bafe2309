/*
 * StepAttendLayers: one message for many layers, split into StepAttend requests, each with its
 * gates. They are chained: a failure ends later ones.
 */
#include "daemon/requests/kv.h"

#include "daemon/kv/step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>

static int refuse(struct fa_request *request, const struct fa_wire_message *message,
                  struct fa_error *error)
{
	return fa_fail(error, -EINVAL, "n_layers is %" PRIu32 "; expected 1 to %d",
	               message->step_attend_layers.n_layers, FA_WIRE_LAYERS_MAX);
}

static void release(struct fa_request *request)
{
}

static void refused(struct fa_request *request, const struct fa_wire_message *message)
{
	if (fa_kv_step_find(request->session, message->step_attend_layers.attend.step, NULL,
	                    &request->step) == 0 &&
	    request->step->end_requested)
		request->step = NULL;
	request->layer = message->step_attend_layers.attend.layer;
	fa_kv_step_request_refused(request);
}

static const struct fa_request_kind no_layers_kind = {
	.name = "StepAttendLayers",
	.bytes = sizeof(struct fa_request),
	.bind = refuse,
	.release = release,
	.refused = refused,
};

/* On overflow the offset is outside any buffer, and so refused. */
static void advance(struct fa_wire_view *view, uint64_t bytes)
{
	if (view->rank && __builtin_add_overflow(view->offset, bytes, &view->offset))
		view->offset = UINT64_MAX;
}

static void next_layer(struct fa_wire_step_attend *attend,
                       const struct fa_wire_step_attend_layers *layers)
{
	++attend->value;
	++attend->layer;
	advance(&attend->q, layers->q_bytes);
	advance(&attend->k, layers->k_bytes);
	advance(&attend->v, layers->v_bytes);
	advance(&attend->out, layers->out_bytes);
	advance(&attend->lse, layers->lse_bytes);
}

/* A layer's own gates; at the first and last also the message's. */
struct gates {
	struct fa_wire_gate gates[FA_WIRE_GATES_MAX + 1];
	size_t n;
};

static void add(struct gates *gates, const struct fa_wire_gate *more, size_t n)
{
	for (size_t i = 0; i < n; ++i)
		gates->gates[gates->n++] = more[i];
}

static void set_gates(struct fa_wire_message *message, const struct fa_call *call, uint32_t i,
                      struct gates *waits, struct gates *signals)
{
	const struct fa_wire_step_attend_layers *layers = &call->message->step_attend_layers;
	struct fa_wire_gate wait = layers->wait, signal = layers->signal;

	waits->n = signals->n = 0;
	wait.value += i * layers->wait_increment;
	signal.value += i * layers->signal_increment;
	if (layers->has_wait)
		add(waits, &wait, 1);
	if (!i)
		add(waits, call->message->waits, call->message->n_waits);
	if (layers->has_signal)
		add(signals, &signal, 1);
	if (i == layers->n_layers - 1 || !layers->n_layers)
		add(signals, call->message->signals, call->message->n_signals);
	message->waits = waits->gates;
	message->n_waits = waits->n;
	message->signals = signals->gates;
	message->n_signals = signals->n;
}

/* Submits a request that fails. It signals the last layer's values, which releases the others'
 * waiters, too. */
static int refuse_all(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_attend_layers *layers = &call->message->step_attend_layers;
	struct fa_wire_message message = *call->message;
	struct fa_call whole = *call;
	struct gates waits, signals;

	set_gates(&message, call, layers->n_layers ? layers->n_layers - 1 : 0, &waits, &signals);
	/* It waits only for the requests before it. */
	message.n_waits = 0;
	whole.message = &message;
	return fa_call_submit(&whole, &no_layers_kind, layers->attend.stream, layers->attend.value,
	                      error);
}

int fa_kv_attend_layers(struct fa_call *call, struct fa_error *error)
{
	const struct fa_wire_step_attend_layers *layers = &call->message->step_attend_layers;
	struct fa_wire_message message = {
		.id = call->message->id,
		.timeout_ns = call->message->timeout_ns,
		.fds = call->message->fds,
		.type = FA_WIRE_STEP_ATTEND,
		.step_attend = layers->attend,
	};
	struct fa_engine *engine = call->session->context->engine;
	struct fa_call layer = *call;
	struct gates waits, signals;
	int r = 0;

	if (layers->n_layers < 1 || layers->n_layers > FA_WIRE_LAYERS_MAX)
		return refuse_all(call, error);
	layer.message = &message;
	for (uint32_t i = 0; i < layers->n_layers && r == 0; ++i) {
		layer.chained = i != 0;
		set_gates(&message, call, i, &waits, &signals);
		r = fa_call_submit(&layer, &fa_kv_attend_kind, message.step_attend.stream,
		                   message.step_attend.value, error);
		next_layer(&message.step_attend, layers);
		/* The engine launches the first layer while this thread checks the others. */
		if (i == 0 && layers->n_layers > 1) {
			fa_engine_batch_end(engine);
			fa_engine_batch_begin(engine);
		}
	}
	/* For requests of a ring the caller ends the batch. */
	if (!call->by_ring)
		fa_engine_batch_end(engine);
	return r;
}
