/*
 * Timelines, gates, and what is gated layer by layer, as plain C structs; part of wire.h.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FA_WIRE_GATES_MAX 8         /* of waits, and of signals, of one request */
#define FA_WIRE_GATE_OUT (1u << 31) /* Gate.slot: one of the daemon's slots, not of the client's */
#define FA_WIRE_LAYERS_MAX 256      /* of one StepAttendLayers */

/*
 * A value of a slot of the session's timeline (common/timeline.h). As one of waits: the
 * request is not started before the slot has it, or a later one, counted round the clock:
 * (int64_t)(slot - value) >= 0. As one of signals: the daemon's slot gets it when the
 * request has ended, however that was; it is more than what any earlier request was to
 * give to that slot. reserved is 0.
 *
 * A request with a gate that cannot be is refused with -EINVAL; those of its signals that
 * can be are given all the same.
 */
struct fa_wire_gate {
	uint32_t slot;
	uint32_t reserved;
	uint64_t value;
};

/* TimelineSetup, which has no fields, asks for the session's timeline, once. Answered by
 * TimelineReply, or by Reply with an error: -EEXIST if the session has one. */

/* Carries two fds: the client's slots, which it writes, and the daemon's, which can only
 * be read. All are 0. */
struct fa_wire_timeline_reply {
	uint32_t slots; /* of each */
	uint64_t in_bytes, out_bytes;
};

/*
 * As n_layers StepAttends one behind the other, the first of attend.layer and attend.value:
 * with each the layer and the value grow by one, the tensors' offsets by so many bytes, and
 * the values of wait and signal by their increments. Waits of the message are the first
 * one's, its signals the last one's. Each is answered by a Completion. If one fails, those
 * behind it end with its error; to cancel one of them is to cancel all. If n_layers is not
 * 1 to FA_WIRE_LAYERS_MAX it is taken for one request, and refused, with the signals that
 * the last layer would give.
 */
struct fa_wire_step_attend_layers {
	struct fa_wire_step_attend attend;
	uint32_t n_layers;
	uint64_t q_bytes, k_bytes, v_bytes, out_bytes, lse_bytes;
	bool has_wait, has_signal; /* the two fields below are given */
	struct fa_wire_gate wait;
	uint64_t wait_increment;
	struct fa_wire_gate signal;
	uint64_t signal_increment;
};
