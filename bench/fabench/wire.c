/*
 * wire: time to encode a message, and to verify and decode one; the longest attention request
 * against a memcpy() of its size. One thread, no daemon. The best of many short blocks counts, as
 * interference only slows.
 */
#include "bench/fabench/bench.h"

#include "common/clock.h"
#include "schema/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS 1000
#define QUICK_BLOCKS 10
#define BLOCK_NS (300 * FA_NS_PER_US)
#define STEP 64 /* operations between clock readings */

enum operation {
	ENCODE,
	DECODE,
	COPY
};

struct wire {
	struct fa_wire_message message;
	struct fa_wire_message decoded;
	_Alignas(64) unsigned char buffer[FA_WIRE_BYTES_MAX];
	_Alignas(64) unsigned char copy[FA_WIRE_BYTES_MAX];
	const void *bytes; /* inside buffer */
	size_t length;
};

/* The benchmark's state, which is too large for the stack. */
static struct wire wire;

static int run_once(enum operation operation)
{
	int r = 0;

	switch (operation) {
	case ENCODE:
		wire.message.id++;
		r = fa_wire_encode(&wire.message, wire.buffer, sizeof(wire.buffer), &wire.bytes,
		                   &wire.length);
		break;
	case DECODE:
		r = fa_wire_decode(wire.bytes, wire.length, &wire.decoded);
		break;
	case COPY:
		memcpy(wire.copy, wire.bytes, wire.length);
		break;
	}
	/* The compiler must assume that all results are used. */
	__asm__ volatile("" ::: "memory");
	return r;
}

static int measure(struct fa_bench *bench, enum operation operation, double *ret_ns)
{
	unsigned n_blocks = bench->quick ? QUICK_BLOCKS : BLOCKS;
	double best = 0;

	for (unsigned i = 0; i < n_blocks; i++) {
		uint64_t start = fa_now_ns(), elapsed;
		uint64_t n = 0;
		double ns;

		do {
			for (unsigned j = 0; j < STEP; j++) {
				int r = run_once(operation);

				if (r < 0)
					return r;
			}
			n += STEP;
			elapsed = fa_now_ns() - start;
		} while (elapsed < BLOCK_NS);
		ns = (double)elapsed / (double)n;
		if (i == 0 || ns < best)
			best = ns;
	}
	*ret_ns = best;
	return 0;
}

static int bench_message(struct fa_bench *bench, const char *name, bool against_copy)
{
	static const char *const verbs[] = { [ENCODE] = "encode", [DECODE] = "decode" };
	double ns[3] = {};
	char label[64];
	int r;

	for (int operation = ENCODE; operation <= (against_copy ? COPY : DECODE); operation++) {
		r = measure(bench, (enum operation)operation, &ns[operation]);
		if (r < 0) {
			fprintf(stderr, "fabench: wire: %s: %s\n", name, strerror(-r));
			return r;
		}
	}
	for (int operation = ENCODE; operation <= DECODE; operation++) {
		(void)snprintf(label, sizeof(label), "wire/%s/%s", verbs[operation], name);
		r = fa_bench_add(bench, label, ns[operation], "ns", against_copy ? "memcpy" : NULL,
		                 against_copy ? ns[COPY] / ns[operation] : 0);
		if (r < 0)
			return r;
	}
	return 0;
}

int fa_bench_wire(struct fa_bench *bench)
{
	static const char text[] =
		"head_dim 257 is not supported; expected a multiple of 8 up to 256";
	static const struct fa_wire_gate gate = { .slot = 1, .value = 1 };
	static uint32_t sequences[FA_WIRE_SEQUENCES_MAX + 1];
	static float heads[FA_WIRE_HEADS_MAX];
	const struct fa_wire_view view = {
		.shape = { 1, 2048, 32, 128 },
		.strides = { 8388608, 4096, 128, 1 },
		.buffer = 1,
		.dtype = FA_WIRE_DTYPE_BF16,
		.rank = 4,
	};
	int r;

	wire.message = (struct fa_wire_message){
		.type = FA_WIRE_ATTENTION,
		.attention = { .stream = 1,
		               .flags = FA_WIRE_ATTENTION_CAUSAL,
		               .value = 1,
		               .q = view,
		               .k = view,
		               .v = view,
		               .out = view,
		               .lse = view,
		               .scale = 0.125f,
		               .window_left = -1,
		               .window_right = -1 },
	};
	r = bench_message(bench, "attention", false);
	if (r < 0)
		return r;

	wire.message.attention.cu_seqlens_q = sequences;
	wire.message.attention.cu_seqlens_k = sequences;
	wire.message.attention.n_cu_seqlens_q = FA_WIRE_SEQUENCES_MAX + 1;
	wire.message.attention.n_cu_seqlens_k = FA_WIRE_SEQUENCES_MAX + 1;
	wire.message.attention.alibi_slopes = heads;
	wire.message.attention.sinks = heads;
	wire.message.attention.n_alibi_slopes = FA_WIRE_HEADS_MAX;
	wire.message.attention.n_sinks = FA_WIRE_HEADS_MAX;
	r = bench_message(bench, "attention-longest", true);
	if (r < 0)
		return r;

	/* The request for a layer of a decode step. If it has a gate, FlatBuffers encodes it. */
	wire.message = (struct fa_wire_message){
		.type = FA_WIRE_STEP_ATTEND,
		.step_attend = { .stream = 1,
		                 .value = 1,
		                 .step = 1,
		                 .flags = FA_WIRE_STEP_CAUSAL,
		                 .q = view,
		                 .out = view,
		                 .scale = 0.125f,
		                 .window_left = -1,
		                 .window_right = -1 },
	};
	r = bench_message(bench, "step-attend", false);
	if (r < 0)
		return r;
	wire.message.signals = &gate;
	wire.message.n_signals = 1;
	r = bench_message(bench, "step-attend-gated", false);
	if (r < 0)
		return r;

	wire.message = (struct fa_wire_message){
		.type = FA_WIRE_COMPLETION,
		.completion = { .stream = 1,
		                .status = -ENOTSUP,
		                .value = 1,
		                .queued_ns = 1,
		                .started_ns = 2,
		                .finished_ns = 3,
		                .text = { text, sizeof(text) - 1 } },
	};
	r = bench_message(bench, "completion", false);
	if (r < 0)
		return r;

	wire.message = (struct fa_wire_message){ .type = FA_WIRE_PING };
	return bench_message(bench, "ping", false);
}
