#include "client/gates.h"

#include "client/last_error.h"
#include "client/struct_size.h"
#include "client/timeline_state.h"

#include <errno.h>
#include <stddef.h>

_Static_assert(FA_GATES_MAX == FA_WIRE_GATES_MAX && FA_GATE_DAEMON == FA_WIRE_GATE_OUT,
               "gates travel as they are");

_Static_assert(sizeof(struct fa_gate) == sizeof(struct fa_wire_gate) &&
                       offsetof(struct fa_gate, value) == offsetof(struct fa_wire_gate, value) &&
                       offsetof(struct fa_gate, reserved) ==
                               offsetof(struct fa_wire_gate, reserved),
               "gates travel as they are");

int fa_gate_check(const char *what, const struct fa_gate *gate, bool may_be_out)
{
	uint32_t slot = may_be_out ? gate->slot & ~FA_GATE_DAEMON : gate->slot;

	if (slot >= FA_TIMELINE_SLOTS)
		return fa_error_set(-EINVAL, "%s: slot is 0x%x; expected less than %d", what,
		                    gate->slot, FA_TIMELINE_SLOTS);
	if (gate->reserved)
		return fa_error_set(-EINVAL, "%s: reserved is not 0", what);
	return 0;
}

int fa_request_gates(struct fa_client_request *request, const struct fa_gates *gates)
{
	const void *checked;
	int r;

	if (!gates)
		return 0;
	r = fa_struct_in("fa_gates", gates, &request->gates, sizeof(request->gates), &checked);
	if (r < 0)
		return r;
	gates = checked;
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

bool fa_request_is_gated(const struct fa_client_request *request)
{
	const struct fa_wire_message *message = &request->message;

	return message->n_waits || message->n_signals ||
	       (message->type == FA_WIRE_STEP_ATTEND_LAYERS &&
	        (message->step_attend_layers.has_wait || message->step_attend_layers.has_signal));
}

int fa_gates_prepare(struct fa_client *client, const struct fa_client_request *request)
{
	const struct fa_wire_message *message = &request->message;
	int r;

	if (!client->timeline)
		return fa_error_set(-EINVAL, "the request has gates, and the client no timeline; "
		                             "call fa_timeline_open() first");
	r = fa_timeline_set_up(client->timeline);
	for (size_t i = 0; i < message->n_waits && r == 0; ++i)
		r = fa_timeline_check_wait(client->timeline, &message->waits[i]);
	if (r == 0 && message->type == FA_WIRE_STEP_ATTEND_LAYERS &&
	    message->step_attend_layers.has_wait)
		r = fa_timeline_check_wait(client->timeline, &message->step_attend_layers.wait);
	return r;
}

bool fa_gates_are_ready(const struct fa_client *client)
{
	return client->state == FA_CLIENT_CONNECTED && client->timeline->epoch == client->epoch;
}

static void plan(struct fa_timeline *timeline, const struct fa_wire_gate *signal, uint64_t more)
{
	uint64_t value = signal->value + more;

	if (!fa_timeline_reached(timeline->planned[signal->slot], value))
		timeline->planned[signal->slot] = value;
}

void fa_gates_sent(struct fa_client *client, const struct fa_client_request *request)
{
	const struct fa_wire_message *message = &request->message;
	const struct fa_wire_step_attend_layers *layers = &message->step_attend_layers;

	for (size_t i = 0; i < message->n_signals; ++i)
		plan(client->timeline, &message->signals[i], 0);
	if (message->type == FA_WIRE_STEP_ATTEND_LAYERS && layers->has_signal)
		plan(client->timeline, &layers->signal,
		     (layers->n_layers - 1) * layers->signal_increment);
}
