/* Timelines, gates, and steps gated layer by layer; part of wire.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FA_WIRE_GATES_MAX 8         /* waits, or signals, of one request */
#define FA_WIRE_GATE_OUT (1u << 31) /* Gate.slot: the daemon's, not the client's */
#define FA_WIRE_LAYERS_MAX 256      /* StepAttendLayers.n_layers */

/*
 * A value of a slot of the session's timeline (common/timeline.h). A wait: the request starts once
 * the slot has reached the value, (int64_t)(slot - value) >= 0. A signal: a slot of the daemon is
 * set to the value when the request has ended, successfully or not; the value is above those of
 * all earlier signals of the slot. reserved is 0.
 *
 * A request with an invalid gate is refused with -EINVAL; its valid signals are set all the same.
 */
struct fa_wire_gate {
	uint32_t slot;
	uint32_t reserved;
	uint64_t value;
};

/* TimelineSetup, without fields, asks for the session's timeline. Answered by TimelineReply, or by
 * Reply with an error: -EEXIST if the session has one. */

/* Two fds: the client's slots, writable, and the daemon's, read-only. All values are 0. */
struct fa_wire_timeline_reply {
	uint32_t slots; /* of either side */
	uint64_t in_bytes, out_bytes;
};

/*
 * n_layers StepAttends in a row, starting with attend. From one to the next, layer and value grow
 * by one, the tensors' offsets by q_bytes to lse_bytes, and the values of wait and signal by their
 * increments. The message's waits are those of the first, its signals those of the last. Each is
 * answered by a Completion. If one fails, all later ones end with its error; cancelling one
 * cancels all. With an n_layers outside 1 to FA_WIRE_LAYERS_MAX the message counts as one request
 * and is refused; the signals of the last layer are set.
 */
struct fa_wire_step_attend_layers {
	struct fa_wire_step_attend attend;
	uint32_t n_layers;
	uint64_t q_bytes, k_bytes, v_bytes, out_bytes, lse_bytes;
	bool has_wait, has_signal; /* these gates are given */
	struct fa_wire_gate wait;
	uint64_t wait_increment;
	struct fa_wire_gate signal;
	uint64_t signal_increment;
};
