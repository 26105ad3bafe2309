/*
 * Mutates inputs of fuzz-session so that they stay sessions: adds, removes and swaps packets; or
 * decodes a message, changes one field and encodes it again. Sometimes changes bytes directly.
 */
#include "schema/wire.h"
#include "tests/fuzz/packets.h"

#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t length, size_t max_length);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t length, size_t max_length, unsigned int seed);

#define PACKETS_MAX 64

static uint64_t state;

static uint32_t pick(uint32_t bound)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((state >> 33) % bound);
}

/* Returns a boundary value or one near it. */
static uint64_t interesting(void)
{
	static const uint64_t numbers[] = {
		0,          1,
		2,          3,
		4,          8,
		16,         63,
		64,         65,
		255,        4095,
		4096,       65535,
		65536,      1u << 20,
		INT32_MAX,  1u << 31,
		UINT32_MAX, 1ull << 32,
		1ull << 40, 1ull << 61,
		1ull << 62, INT64_MAX,
		1ull << 63, UINT64_MAX - 3,
		UINT64_MAX,
	};
	uint64_t number = numbers[pick(sizeof(numbers) / sizeof(numbers[0]))];

	switch (pick(4)) {
	case 0:
		return number - 1;
	case 1:
		return number + pick(16);
	default:
		return number;
	}
}

static void change(uint64_t *number)
{
	switch (pick(4)) {
	case 0:
		*number += 1;
		break;
	case 1:
		*number -= 1;
		break;
	case 2:
		*number = pick(8);
		break;
	default:
		*number = interesting();
		break;
	}
}

#define CHANGE(field)                                                                              \
	do {                                                                                       \
		uint64_t _number = (uint64_t)(field);                                              \
		change(&_number);                                                                  \
		(field) = (__typeof__(field))_number;                                              \
	} while (0)

static void change_view(struct fa_wire_view *view)
{
	switch (pick(7)) {
	case 0:
		CHANGE(view->offset);
		break;
	case 1:
	case 2:
		CHANGE(view->shape[pick(4)]);
		break;
	case 3:
		CHANGE(view->strides[pick(4)]);
		break;
	case 4:
		CHANGE(view->buffer);
		break;
	case 5:
		view->dtype = (uint8_t)pick(5);
		break;
	default:
		view->rank = (uint8_t)pick(6);
		break;
	}
}

/* Vectors in mutated messages point here, which outlives the encoding. */
static uint32_t lengths[16];
static float numbers[16];

static const uint32_t *new_lengths(size_t *ret_n)
{
	uint32_t sum = 0;

	*ret_n = pick(8);
	for (size_t i = 0; i < *ret_n; ++i) {
		lengths[i] = sum;
		sum += pick(5);
	}
	if (*ret_n && !pick(2))
		CHANGE(lengths[pick((uint32_t)*ret_n)]);
	return *ret_n ? lengths : NULL;
}

static const float *new_numbers(size_t *ret_n)
{
	*ret_n = pick(8);
	for (size_t i = 0; i < *ret_n; ++i)
		numbers[i] = (float)pick(100) - 50;
	return *ret_n ? numbers : NULL;
}

static void change_attention(struct fa_wire_attention *attention)
{
	struct fa_wire_view *views[] = { &attention->q, &attention->k, &attention->v,
		                         &attention->out, &attention->lse };

	switch (pick(14)) {
	case 0:
		attention->stream = pick(4);
		break;
	case 1:
		CHANGE(attention->flags);
		break;
	case 2:
		CHANGE(attention->value);
		break;
	case 3:
		CHANGE(attention->window_left);
		break;
	case 4:
		CHANGE(attention->window_right);
		break;
	case 5:
		attention->cu_seqlens_q = new_lengths(&attention->n_cu_seqlens_q);
		if (pick(2)) {
			attention->cu_seqlens_k = attention->cu_seqlens_q;
			attention->n_cu_seqlens_k = attention->n_cu_seqlens_q;
		}
		break;
	case 6:
		attention->alibi_slopes = new_numbers(&attention->n_alibi_slopes);
		break;
	case 7:
		attention->sinks = new_numbers(&attention->n_sinks);
		break;
	case 8:
		attention->softcap = (float)pick(4) - 1;
		break;
	default:
		change_view(views[pick(5)]);
		break;
	}
}

static void change_layers(struct fa_wire_step_attend_layers *layers)
{
	switch (pick(5)) {
	case 0:
		CHANGE(layers->n_layers);
		break;
	case 1:
		CHANGE(layers->q_bytes);
		break;
	case 2:
		layers->has_wait = pick(2);
		layers->wait.slot = pick(66);
		CHANGE(layers->wait_increment);
		break;
	case 3:
		layers->has_signal = pick(2);
		layers->signal.slot = pick(66);
		CHANGE(layers->signal_increment);
		break;
	default:
		CHANGE(layers->attend.value);
		break;
	}
}

/* Sets gates that are met at once, never met, or invalid. */
static void change_gates(struct fa_wire_message *message)
{
	static struct fa_wire_gate gates[2][FA_WIRE_GATES_MAX];

	for (size_t i = 0; i < 2; ++i)
		for (size_t j = 0; j < FA_WIRE_GATES_MAX; ++j) {
			gates[i][j] = (struct fa_wire_gate){ .slot = pick(66), .value = pick(4) };
			if (!pick(4))
				gates[i][j].slot |= FA_WIRE_GATE_OUT;
			if (!pick(8))
				CHANGE(gates[i][j].value);
		}
	message->n_waits = pick(FA_WIRE_GATES_MAX + 1);
	message->n_signals = pick(FA_WIRE_GATES_MAX + 1);
	message->waits = message->n_waits ? gates[0] : NULL;
	message->signals = message->n_signals ? gates[1] : NULL;
}

static void change_message(struct fa_wire_message *message)
{
	switch (pick(9)) {
	case 2:
		change_gates(message);
		return;
	case 0:
		message->fds = (uint8_t)pick(10);
		return;
	case 1:
		CHANGE(message->timeout_ns);
		return;
	}
	switch (message->type) {
	case FA_WIRE_HELLO:
		if (pick(2))
			CHANGE(message->hello.version_min);
		else
			CHANGE(message->hello.version_max);
		message->hello.has_resume = !pick(3);
		break;
	case FA_WIRE_BUFFER_REGISTER:
		switch (pick(8)) {
		case 0:
			CHANGE(message->buffer_register.buffer);
			break;
		case 1:
			message->buffer_register.kind = (uint8_t)pick(6);
			break;
		case 5:
			CHANGE(message->buffer_register.n_pieces);
			break;
		case 6:
			message->buffer_register.n_piece_bytes = pick(FA_WIRE_FDS_MAX + 1);
			break;
		case 7:
			CHANGE(message->buffer_register.piece_bytes[pick(FA_WIRE_FDS_MAX)]);
			break;
		case 2:
			message->buffer_register.flags = pick(4);
			break;
		case 3:
			CHANGE(message->buffer_register.offset);
			break;
		default:
			CHANGE(message->buffer_register.bytes);
			break;
		}
		break;
	case FA_WIRE_BUFFER_FREE:
		CHANGE(message->buffer_free.buffer);
		break;
	case FA_WIRE_BUFFER_PIECES:
		switch (pick(3)) {
		case 0:
			CHANGE(message->buffer_pieces.buffer);
			break;
		case 1:
			message->buffer_pieces.n_piece_bytes = pick(FA_WIRE_FDS_MAX + 1);
			break;
		default:
			CHANGE(message->buffer_pieces.piece_bytes[pick(FA_WIRE_FDS_MAX)]);
			break;
		}
		break;
	case FA_WIRE_STREAM_CREATE:
		CHANGE(message->stream_create.stream);
		break;
	case FA_WIRE_STREAM_FREE:
		CHANGE(message->stream_free.stream);
		break;
	case FA_WIRE_RING_SETUP:
		CHANGE(message->ring_setup.bytes);
		break;
	case FA_WIRE_STEP_ATTEND_LAYERS:
		change_layers(&message->step_attend_layers);
		break;
	case FA_WIRE_MARKER:
		if (pick(2))
			CHANGE(message->marker.stream);
		else
			CHANGE(message->marker.value);
		break;
	case FA_WIRE_CANCEL:
		if (pick(2))
			CHANGE(message->cancel.stream);
		else
			CHANGE(message->cancel.value);
		break;
	case FA_WIRE_ATTENTION:
		change_attention(&message->attention);
		break;
	default:
		/* another type without fields */
		message->type = pick(2) ? FA_WIRE_PING : FA_WIRE_STATUS;
		break;
	}
}

/* Makes a message of any type with plausible numbers. */
static void new_message(struct fa_wire_message *ret_message)
{
	memset(ret_message, 0, sizeof(*ret_message));
	ret_message->type = (enum fa_wire_type)(1 + pick(_FA_WIRE_TYPE_N - 1));
	ret_message->id = pick(100);
	switch (ret_message->type) {
	case FA_WIRE_HELLO:
		ret_message->hello.version_min = ret_message->hello.version_max = 1;
		break;
	case FA_WIRE_BUFFER_REGISTER:
		ret_message->buffer_register.buffer = 1 + pick(4);
		ret_message->buffer_register.kind = (uint8_t)(1 + pick(4));
		ret_message->buffer_register.bytes = 65536;
		ret_message->fds = ret_message->buffer_register.kind == FA_WIRE_BUFFER_HOST_FD;
		ret_message->buffer_register.handle[0] = (uint8_t)pick(2);
		ret_message->buffer_register.n_pieces = pick(4);
		break;
	case FA_WIRE_BUFFER_PIECES:
		ret_message->buffer_pieces.buffer = 1 + pick(4);
		ret_message->buffer_pieces.n_piece_bytes = pick(3);
		ret_message->buffer_pieces.piece_bytes[0] = 65536;
		ret_message->buffer_pieces.piece_bytes[1] = 65536;
		ret_message->fds = (uint8_t)ret_message->buffer_pieces.n_piece_bytes;
		break;
	case FA_WIRE_BUFFER_FREE:
		ret_message->buffer_free.buffer = 1 + pick(4);
		break;
	case FA_WIRE_STREAM_CREATE:
		ret_message->stream_create.stream = 1 + pick(3);
		break;
	case FA_WIRE_STREAM_FREE:
		ret_message->stream_free.stream = 1 + pick(3);
		break;
	case FA_WIRE_STEP_ATTEND_LAYERS:
		ret_message->step_attend_layers.attend.stream = pick(3);
		ret_message->step_attend_layers.attend.value = 1 + pick(4);
		ret_message->step_attend_layers.n_layers = pick(4);
		break;
	case FA_WIRE_MARKER:
		ret_message->marker.stream = pick(3);
		ret_message->marker.value = 1 + pick(4);
		break;
	case FA_WIRE_CANCEL:
		ret_message->cancel.stream = pick(3);
		ret_message->cancel.value = 1 + pick(4);
		break;
	case FA_WIRE_ATTENTION:
		ret_message->attention.stream = pick(3);
		ret_message->attention.value = 1 + pick(4);
		ret_message->attention.window_left = ret_message->attention.window_right = -1;
		break;
	default:
		break;
	}
}

/* Encodes @message and returns the length; 0 if the message cannot be encoded. */
static size_t encode(const struct fa_wire_message *message, uint8_t *output)
{
	static _Alignas(8) unsigned char space[FA_WIRE_BYTES_MAX];
	const void *bytes;
	size_t length;

	if (fa_wire_encode(message, space, sizeof(space), &bytes, &length) < 0)
		return 0;
	memcpy(output, bytes, length);
	return length;
}

/* Mutates the message of one packet; returns its new length. */
static size_t change_packet(const struct packet *packet, uint8_t *output, size_t room)
{
	static _Alignas(8) unsigned char aligned[UINT16_MAX + 1];
	struct fa_wire_message message;
	size_t length = packet->length;

	memcpy(aligned, packet->bytes, length);
	if (pick(6) && fa_wire_decode(aligned, length, &message) == 0) {
		change_message(&message);
		length = encode(&message, output);
		if (length)
			return length;
		length = packet->length;
	}
	memcpy(output, aligned, length);
	if (!length)
		return 0;
	return LLVMFuzzerMutate(output, length, room < UINT16_MAX ? room : UINT16_MAX);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t length, size_t max_length, unsigned int seed)
{
	static uint8_t changed[UINT16_MAX + 1];
	struct packet packets[PACKETS_MAX + 1];
	size_t n = 0, left = length, used = 0;
	const uint8_t *input = data;
	struct fa_wire_message message;
	uint8_t *output;
	uint32_t at, other;

	state = seed;
	if (!pick(20))
		return LLVMFuzzerMutate(data, length, max_length);
	while (n < PACKETS_MAX && packet_next(&input, &left, &packets[n]))
		++n;
	at = n ? pick((uint32_t)n) : 0;
	other = n ? pick((uint32_t)n) : 0;

	switch (n ? pick(8) : 0) {
	case 0: /* add a packet */
		new_message(&message);
		memmove(&packets[at + 1], &packets[at], (n - at) * sizeof(packets[0]));
		packets[at] = (struct packet){ (uint8_t)pick(128), changed,
			                       encode(&message, changed) };
		++n;
		break;
	case 1: /* remove one */
		memmove(&packets[at], &packets[at + 1], (n - at - 1) * sizeof(packets[0]));
		--n;
		break;
	case 2: { /* swap two */
		struct packet packet = packets[at];

		packets[at] = packets[other];
		packets[other] = packet;
		break;
	}
	case 3: /* repeat one */
		memmove(&packets[other + 1], &packets[other], (n - other) * sizeof(packets[0]));
		++n;
		break;
	case 4:
		packets[at].flags = (uint8_t)pick(128);
		break;
	default:
		packets[at].length = change_packet(&packets[at], changed, sizeof(changed));
		packets[at].bytes = changed;
		break;
	}

	output = malloc(max_length ? max_length : 1);
	if (!output)
		return 0;
	for (size_t i = 0; i < n; ++i)
		used += packet_put(output + used, max_length - used, packets[i].flags,
		                   packets[i].bytes, packets[i].length);
	memcpy(data, output, used);
	free(output);
	return used;
}
