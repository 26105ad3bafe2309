/*
 * Polls jobs' gates: recent ones in every iteration, others between sleeps. With state_mutex.
 */
#include "daemon/engine/private.h"

#include "common/clock.h"

/* A young gate is polled in each iteration. */
#define GATE_HOT_NS (200 * FA_NS_PER_US)
/* Later the engine sleeps between polls, for this part of the time waited so far. */
#define GATE_PAUSE_PART 16
#define GATE_PAUSE_MAX_NS FA_NS_PER_MS
#define GATE_LONG_NS FA_NS_PER_SEC
#define GATE_LONG_PAUSE_MAX_NS (8 * FA_NS_PER_MS)
/* Limits the hot gates, and the parked ones, of an iteration. */
#define GATES_PER_ITERATION 64

static uint64_t gate_pause_ns(uint64_t waited_ns)
{
	uint64_t max_ns = waited_ns < GATE_LONG_NS ? GATE_PAUSE_MAX_NS : GATE_LONG_PAUSE_MAX_NS;

	return waited_ns / GATE_PAUSE_PART < max_ns ? waited_ns / GATE_PAUSE_PART : max_ns;
}

static void poll_hot_gates(struct fa_engine *engine, uint64_t now_ns)
{
	struct fa_list due;

	fa_list_init(&due);
	fa_list_splice(&due, &engine->hot_gates);
	for (int i = 0; i < GATES_PER_ITERATION && !fa_list_empty(&due); i++) {
		struct fa_stream *stream = fa_container_of(due.next, struct fa_stream, gate_link);

		fa_list_remove(&stream->gate_link);
		if (!fa_job_is_gated(stream->gated))
			fa_stream_update(stream);
		else if (now_ns - stream->gated_ns < GATE_HOT_NS)
			fa_list_append(&engine->hot_gates, &stream->gate_link);
		else
			fa_deadline_heap_insert(&engine->parked_gates, &stream->gate_parked,
			                        now_ns + gate_pause_ns(now_ns - stream->gated_ns));
	}
	/* Gates that were not polled come first in the next iteration. */
	fa_list_splice(&due, &engine->hot_gates);
	fa_list_splice(&engine->hot_gates, &due);
}

static void poll_parked_gates(struct fa_engine *engine, uint64_t now_ns)
{
	struct fa_deadline *first;

	for (int i = 0; i < GATES_PER_ITERATION; i++) {
		struct fa_stream *stream;

		first = engine->parked_gates.root;
		if (!first || first->at_ns > now_ns)
			return;
		stream = fa_container_of(first, struct fa_stream, gate_parked);
		fa_deadline_heap_remove(&engine->parked_gates, first);
		if (fa_job_is_gated(stream->gated))
			fa_deadline_heap_insert(&engine->parked_gates, first,
			                        now_ns + gate_pause_ns(now_ns - stream->gated_ns));
		else
			fa_stream_update(stream);
	}
}

bool fa_engine_any_gate_open(const struct fa_engine *engine)
{
	const struct fa_list *pos;
	int n = 0;

	fa_list_for_each(pos, &engine->hot_gates) {
		if (!fa_job_is_gated(
			    fa_container_of(pos, const struct fa_stream, gate_link)->gated))
			return true;
		if (++n == GATES_PER_ITERATION)
			break;
	}
	return false;
}

void fa_engine_poll_gates(struct fa_engine *engine)
{
	uint64_t now_ns;

	if (fa_list_empty(&engine->hot_gates) && !engine->parked_gates.root)
		return;
	now_ns = fa_now_ns();
	poll_hot_gates(engine, now_ns);
	poll_parked_gates(engine, now_ns);
}
