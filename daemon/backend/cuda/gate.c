/*
 * Works that wait on the GPU for a client's word, under MPS only. A gate, a kernel of one warp
 * (kernels/cuda/common/gate.h), precedes the launch.
 *
 * It gives up after PATIENCE_NS, or when another queue wants the stream: it reports its turn, and
 * the works behind it, which have done nothing, return to the engine. It preempts nothing before it
 * opens, and only works of its queue stand behind it.
 */
#include "daemon/backend/cuda/gate.h"

#include "common/clock.h"

/* How long a gate polls, and the engine polls it without sleeping. */
#define PATIENCE_NS (200 * FA_NS_PER_US)

void fa_cuda_gates_open(struct fa_device *device)
{
	const struct fa_cuda_paged_kernel *kernel = fa_cuda_paged_gate(&device->chip);

	if (device->info.can_wait && kernel)
		device->gate_function = device->paged_functions[kernel - fa_cuda_paged_kernels];
}

struct fa_cuda_gate fa_cuda_gate_of(const struct fa_cuda_stream *stream,
                                    const struct fa_device_work *work, struct fa_cuda_done *done)
{
	const struct fa_cuda_gates *gates = &stream->gates;

	done->shut = (const uint64_t *)gates->shut_at;
	done->gate_run = gates->run;
	return (struct fa_cuda_gate){
		.word = work->gate.word,
		.value = work->gate.value,
		.stop = (const uint64_t *)gates->stop_at,
		.turn = stream->sequence,
		.patience_ns = PATIENCE_NS,
		.shut = (uint64_t *)gates->shut_at,
		.run = gates->run,
		.report = (uint64_t *)gates->report_at,
	};
}

void fa_cuda_gates_add(struct fa_cuda_stream *stream, const struct fa_device_queue *queue)
{
	struct fa_cuda_gates *gates = &stream->gates;

	if (!gates->n_works++)
		gates->stopped = false;
	gates->queue = queue;
}

void fa_cuda_gates_stop(struct fa_cuda_stream *stream)
{
	stream->gates.stopped = true;
	__atomic_store_n(stream->gates.stop, stream->sequence, __ATOMIC_RELEASE);
}

bool fa_cuda_gates_are_shut(struct fa_cuda_stream *stream, uint64_t *ret_turn)
{
	struct fa_cuda_gates *gates = &stream->gates;
	const uint64_t report = __atomic_load_n(gates->report, __ATOMIC_ACQUIRE);
	const bool shut = report != gates->reported;

	gates->reported = *ret_turn = report;
	return shut;
}

void fa_cuda_gates_begin(struct fa_cuda_stream *stream)
{
	++stream->gates.run;
}
