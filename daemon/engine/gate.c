#include "daemon/engine/gate.h"

#include "daemon/persist/timeline_release.h"

bool fa_gates_met(struct fa_gates *gates)
{
	struct fa_timeline_words *words = gates->words;

	while (gates->n_met < gates->n_waits) {
		const struct fa_gate *gate = &gates->gates[gates->n_met];
		const _Atomic uint64_t *word = gate->out ? &words->values[gate->slot]
		                                         : &words->in[gate->slot].value;

		if (!fa_timeline_reached(atomic_load_explicit(word, memory_order_acquire),
		                         gate->value))
			return false;
		gates->n_met++;
	}
	return true;
}

bool fa_gates_last_wait(const struct fa_gates *gates, struct fa_device_gate *ret_wait)
{
	const struct fa_timeline_words *words = gates->words;
	const struct fa_timeline_in *in = atomic_load_explicit(&words->in_at, memory_order_relaxed);
	const struct fa_gate *gate = &gates->gates[gates->n_met];

	if (!in || gates->n_met + 1 != gates->n_waits || gate->out)
		return false;
	if (ret_wait)
		*ret_wait = (struct fa_device_gate){
			.word = (const uint64_t *)&in[gate->slot].value,
			.host_word = (const uint64_t *)&words->in[gate->slot].value,
			.value = gate->value,
		};
	return true;
}

/* With the mutex. Another stream may have signalled a later value. */
static void signal_one(struct fa_timeline_words *words, const struct fa_gate *gate, int status)
{
	struct fa_timeline_out *out = &words->out[gate->slot];
	uint64_t value = atomic_load_explicit(&words->values[gate->slot], memory_order_relaxed);

	/* Streams may signal one slot in any order. */
	if (status &&
	    (!atomic_load_explicit(&out->status, memory_order_relaxed) ||
	     !fa_timeline_reached(atomic_load_explicit(&out->failed, memory_order_relaxed),
	                          gate->value))) {
		atomic_store_explicit(&out->status, status, memory_order_relaxed);
		atomic_store_explicit(&out->failed, gate->value, memory_order_relaxed);
	}
	if (fa_timeline_reached(value, gate->value))
		return;
	atomic_store_explicit(&words->values[gate->slot], gate->value, memory_order_release);
	atomic_store_explicit(&out->value, gate->value, memory_order_release);
	atomic_fetch_add_explicit(&out->changes, 1, memory_order_seq_cst);
	/* A client announces its sleep before it looks at the word for the last time. */
	if (atomic_load_explicit(&words->in[gate->slot].sleepers, memory_order_seq_cst))
		fa_timeline_wake(&out->changes);
}

void fa_gates_signal(struct fa_gates *gates, int status)
{
	struct fa_timeline_words *words = gates->words;

	if (!gates->n_signals)
		return;
	pthread_mutex_lock(&words->mutex);
	for (unsigned int i = 0; i < gates->n_signals; i++)
		signal_one(words, &fa_gates_signals(gates)[i], status);
	pthread_mutex_unlock(&words->mutex);
}
