/*
 * Writes the corpus of fuzz-session: usual sessions, and invalid ones that mutation takes long to
 * find.
 */
#include "common/timeline.h"
#include "schema/wire.h"
#include "tests/fuzz/packets.h"
#include "tests/lib/attention.h"
#include "tests/lib/raw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t session[1 << 20];
static size_t used;
static uint64_t id;

static void put_bytes(uint8_t flags, const void *bytes, size_t length)
{
	used += packet_put(session + used, sizeof(session) - used, flags, bytes, length);
}

static void put(uint8_t flags, struct fa_wire_message message)
{
	static unsigned char bytes[FA_WIRE_BYTES_MAX + 64];

	message.id = ++id;
	put_bytes(flags, bytes, fa_raw_encode(&message, bytes));
}

static void hello(void)
{
	put(PACKET_WAIT | PACKET_READ, fa_raw_hello_message("fuzz"));
}

static void registers(uint32_t buffer, uint8_t fds)
{
	struct fa_wire_message message = fa_raw_register_message(buffer, 65536);

	message.fds = 1;
	if (fds == PACKET_MEMFD_READ_ONLY)
		message.buffer_register.flags = FA_WIRE_BUFFER_READ_ONLY;
	put(fds | PACKET_WAIT | PACKET_READ, message);
}

static void arena(uint32_t buffer)
{
	struct fa_wire_message message = fa_raw_register_message(buffer, 65536);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	put(PACKET_WAIT | PACKET_READ, message);
}

static void handle(uint32_t buffer, uint8_t first)
{
	struct fa_wire_message message = fa_raw_register_message(buffer, 32768);

	message.buffer_register.kind = FA_WIRE_BUFFER_CUDA_IPC;
	message.buffer_register.offset = 32768;
	message.buffer_register.handle[0] = first;
	message.buffer_register.pid = 1;
	put(PACKET_WAIT, message);
}

static void pieces_begin(uint32_t buffer, uint32_t n)
{
	struct fa_wire_message message = fa_raw_register_message(buffer, 65536);

	message.fds = 2;
	message.buffer_register.kind = FA_WIRE_BUFFER_CUDA_FD;
	message.buffer_register.offset = 32768;
	message.buffer_register.n_pieces = n;
	message.buffer_register.n_piece_bytes = 2;
	message.buffer_register.piece_bytes[0] = message.buffer_register.piece_bytes[1] = 65536;
	put(PACKET_TWO_FDS | PACKET_TURN, message);
}

static void pieces_go_on(uint32_t buffer)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_PIECES);

	message.fds = 2;
	message.buffer_pieces.buffer = buffer;
	message.buffer_pieces.n_piece_bytes = 2;
	message.buffer_pieces.piece_bytes[0] = message.buffer_pieces.piece_bytes[1] = 4096;
	put(PACKET_TWO_FDS | PACKET_WAIT, message);
}

static void releases(uint32_t buffer)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = buffer;
	put(PACKET_WAIT, message);
}

static void stream(enum fa_wire_type type, uint32_t number)
{
	struct fa_wire_message message = fa_raw_message(type);

	if (type == FA_WIRE_STREAM_CREATE)
		message.stream_create.stream = number;
	else
		message.stream_free.stream = number;
	put(PACKET_WAIT, message);
}

static void attention(struct fa_case attention_case, uint32_t buffer, uint32_t number,
                      uint64_t value, uint8_t flags, uint64_t timeout_ns)
{
	struct fa_wire_message message;

	fa_case_plan(&attention_case);
	message = fa_case_message(&attention_case, buffer, 0, number, value);
	message.timeout_ns = timeout_ns;
	put(flags, message);
}

/* Adds gates: the request waits for 1 in @slot (slot 0: for 0), and writes @signal to slot 1. */
static void add_gates(struct fa_wire_message *message, uint32_t slot, uint64_t signal)
{
	static struct fa_wire_gate wait, signals[2];

	wait = (struct fa_wire_gate){ .slot = slot, .value = slot != 0 };
	signals[0] = (struct fa_wire_gate){ .slot = 1, .value = signal };
	signals[1] = (struct fa_wire_gate){ .slot = 1, .value = signal };
	message->waits = &wait;
	message->n_waits = 1;
	message->signals = signals;
	message->n_signals = slot == 64 ? 2 : 1;
}

static void gated(struct fa_case attention_case, uint32_t buffer, uint32_t number, uint64_t value,
                  uint32_t slot, uint64_t signal)
{
	struct fa_wire_message message;

	fa_case_plan(&attention_case);
	message = fa_case_message(&attention_case, buffer, 0, number, value);
	add_gates(&message, slot, signal + value);
	put(0, message);
}

static void marker(uint32_t number, uint64_t value, uint32_t slot, uint64_t signal)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER);

	message.marker.stream = number;
	message.marker.value = value;
	add_gates(&message, slot, signal);
	put(0, message);
}

static void layers(uint32_t number, uint64_t value, uint32_t n_layers)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_ATTEND_LAYERS);

	message.step_attend_layers.attend.stream = number;
	message.step_attend_layers.attend.value = value;
	message.step_attend_layers.attend.step = 1;
	message.step_attend_layers.n_layers = n_layers;
	message.step_attend_layers.has_wait = true;
	message.step_attend_layers.wait.value = 1;
	message.step_attend_layers.has_signal = true;
	message.step_attend_layers.signal.slot = 2;
	message.step_attend_layers.signal.value = 1;
	message.step_attend_layers.signal_increment = 1;
	put(0, message);
}

static void cancel(uint32_t number, uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_CANCEL);

	message.cancel.stream = number;
	message.cancel.value = value;
	put(PACKET_WAIT, message);
}

static void save(const char *directory, const char *name)
{
	char path[1024];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	file = fopen(path, "wbe");
	if (!file || fwrite(session, 1, used, file) != used || fclose(file)) {
		perror(path);
		exit(1);
	}
	used = 0;
	id = 0;
}

int main(int argc, char **argv)
{
	const struct fa_case plain = { .heads = 2, .head_dim = 8, .seqlen_q = 3, .lse = true };
	const struct fa_case ragged = { .batch = 3,
		                        .ragged = true,
		                        .heads = 4,
		                        .kv_heads = 2,
		                        .head_dim = 16,
		                        .seqlen_q = 6,
		                        .seqlen_k = 9,
		                        .causal = true,
		                        .alibi = true,
		                        .sinks = true };
	const struct fa_case half = { .dtype = FA_WIRE_DTYPE_BF16,
		                      .heads = 2,
		                      .head_dim = 32,
		                      .seqlen_q = 5,
		                      .windowed = true,
		                      .window_left = 2,
		                      .window_right = -1,
		                      .softcap = 3 };
	struct fa_wire_message message;
	const char *directory;

	if (argc != 2) {
		fprintf(stderr, "Usage: corpus-session DIRECTORY\n");
		return 2;
	}
	directory = argv[1];

	hello();
	put(PACKET_WAIT, fa_raw_message(FA_WIRE_PING));
	put(PACKET_WAIT | PACKET_READ, fa_raw_message(FA_WIRE_STATUS));
	put(0, fa_raw_message(FA_WIRE_STATUS));
	save(directory, "status");

	hello();
	registers(1, PACKET_MEMFD);
	attention(plain, 1, 0, 1, PACKET_WAIT | PACKET_READ, 0);
	attention(plain, 1, 0, 2, PACKET_WAIT, 0);
	releases(1);
	save(directory, "attention");

	hello();
	registers(1, PACKET_MEMFD);
	attention(ragged, 1, 0, 1, PACKET_WAIT | PACKET_READ, 0);
	save(directory, "ragged");

	hello();
	arena(2);
	attention(half, 2, 0, 1, 0, 0);
	attention(half, 2, 0, 2, 0, 1);
	attention(half, 2, 0, 3, PACKET_WAIT, 1000000000);
	releases(2);
	save(directory, "arena");

	hello();
	arena(1);
	stream(FA_WIRE_STREAM_CREATE, 1);
	stream(FA_WIRE_STREAM_CREATE, 2);
	attention(plain, 1, 1, 1, 0, 0);
	attention(plain, 1, 2, 1, 0, 0);
	attention(plain, 1, 2, 2, 0, 0);
	cancel(2, 2);
	cancel(1, 1);
	stream(FA_WIRE_STREAM_FREE, 1);
	stream(FA_WIRE_STREAM_CREATE, 1);
	attention(plain, 1, 1, 2, PACKET_WAIT, 0);
	save(directory, "streams");

	hello();
	registers(1, PACKET_MEMFD);
	registers(2, PACKET_MEMFD_READ_ONLY);
	for (uint64_t value = 1; value <= 10; ++value)
		attention(plain, 1, 0, value, 0, 0);
	releases(1);
	releases(2);
	save(directory, "free-in-use");

	hello();
	handle(1, 1);
	handle(2, 2);
	attention(plain, 1, 0, 1, PACKET_WAIT | PACKET_READ, 0);
	releases(1);
	save(directory, "handle");

	hello();
	pieces_begin(1, 2);
	pieces_begin(2, 4);
	handle(3, 1);
	pieces_go_on(2);
	attention(plain, 1, 0, 1, PACKET_WAIT | PACKET_READ, 0);
	attention(plain, 2, 0, 2, PACKET_WAIT | PACKET_READ, 0);
	save(directory, "pieces");

	hello();
	pieces_begin(1, 5);
	pieces_begin(2, 5);
	attention(plain, 1, 0, 1, PACKET_WAIT | PACKET_READ, 0);
	pieces_go_on(2);
	releases(1);
	pieces_go_on(1);
	pieces_begin(1, 3);
	pieces_go_on(1);
	pieces_begin(1, 4);
	save(directory, "pieces-wrong");

	hello();
	for (uint32_t buffer = 1; buffer <= 6; ++buffer)
		arena(buffer);
	save(directory, "many-buffers");

	hello();
	for (uint8_t fds = PACKET_NO_FD; fds <= PACKET_TWENTY_FDS; ++fds) {
		message = fa_raw_register_message(fds + 1u,
		                                  fds == PACKET_MEMFD_SPARSE ? 1ull << 40 : 65536);
		message.fds = fds == PACKET_NO_FD ? 0 : fds == PACKET_TWO_FDS ? 2 : 1;
		put(fds | PACKET_WAIT, message);
	}
	save(directory, "descriptors");

	hello();
	registers(1, PACKET_MEMFD);
	put(PACKET_WAIT, fa_raw_message(FA_WIRE_TIMELINE_SETUP));
	arena(2);
	stream(FA_WIRE_STREAM_CREATE, 1);
	gated(plain, 1, 0, 1, 0, 1);                    /* met at once */
	gated(plain, 1, 1, 1, FA_WIRE_GATE_OUT | 1, 1); /* met by the previous request */
	gated(plain, 1, 0, 2, 5, 1);                    /* never met */
	marker(1, 2, 6, 1);
	marker(0, 3, 64, 1); /* no such slot */
	layers(0, 4, 3);
	layers(1, 3, 257);
	cancel(0, 5);
	cancel(0, 2);
	put(PACKET_WAIT, fa_raw_message(FA_WIRE_TIMELINE_SETUP));
	cancel(1, 2);
	put(PACKET_WAIT, fa_raw_message(FA_WIRE_STATUS));
	save(directory, "timeline");

	/* The ring stays empty while markers go by socket; then a second ring is set up. */
	hello();
	message = fa_raw_message(FA_WIRE_RING_SETUP);
	put(PACKET_WAIT, message);
	stream(FA_WIRE_STREAM_CREATE, 2);
	for (uint64_t value = 1; value <= 4; ++value) {
		message = fa_raw_message(FA_WIRE_MARKER);
		message.marker.stream = value % 2 ? 2 : 0;
		message.marker.value = (value + 1) / 2;
		put(value % 2 ? 0 : PACKET_WAIT, message);
	}
	message = fa_raw_message(FA_WIRE_RING_SETUP);
	message.ring_setup.bytes = UINT64_MAX;
	put(PACKET_WAIT, message);
	put(PACKET_WAIT, fa_raw_message(FA_WIRE_STATUS));
	message = fa_raw_message(FA_WIRE_MARKER);
	message.marker.value = 9;
	put(PACKET_WAIT, message);
	save(directory, "ring");

	message = fa_raw_hello_message("future");
	message.hello.version_min = message.hello.version_max = 9;
	put(PACKET_WAIT, message);
	save(directory, "version");

	message = fa_raw_hello_message("resume");
	message.hello.has_resume = true;
	message.hello.resume_secret.lo = 1;
	put(PACKET_WAIT, message);
	put(0, fa_raw_message(FA_WIRE_PING));
	put(0, fa_raw_hello_message("again"));
	save(directory, "second-hello");

	put(0, fa_raw_message(FA_WIRE_PING));
	save(directory, "no-hello");

	hello();
	put_bytes(PACKET_EIGHT_FDS, "garbage!", 8);
	save(directory, "garbage");

	hello();
	put_bytes(0, "", 0);
	save(directory, "empty");

	hello();
	for (int i = 0; i < 60; ++i)
		put(0, fa_raw_message(i % 3 ? FA_WIRE_PING : FA_WIRE_STATUS));
	save(directory, "unread");
	return 0;
}
