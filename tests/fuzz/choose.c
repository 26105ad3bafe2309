#include "tests/fuzz/choose.h"

#include <string.h>

static const uint8_t *next;
static size_t left;

void choose_from(const uint8_t *bytes, size_t length)
{
	next = bytes;
	left = length;
}

bool choose_has_more(void)
{
	return left != 0;
}

uint32_t pick(uint32_t bound)
{
	uint32_t number = 0;

	for (uint32_t reach = 1; reach < bound && left; reach <<= 8, --left)
		number = number << 8 | *next++;
	return number % bound;
}

bool once_in(uint32_t n)
{
	return left && pick(n) == n - 1;
}

uint64_t spoil_number(uint64_t number)
{
	static const uint64_t boundaries[] = {
		0,          1,          2,          3,
		4,          8,          16,         63,
		64,         65,         255,        256,
		4095,       4096,       65535,      65536,
		1u << 20,   INT32_MAX,  1u << 31,   UINT32_MAX,
		1ull << 32, 1ull << 40, 1ull << 61, 1ull << 62,
		INT64_MAX,  1ull << 63, UINT64_MAX, UINT64_MAX - 3,
	};

	switch (pick(6)) {
	case 0:
		return number + 1;
	case 1:
		return number - 1;
	case 2:
		return pick(8);
	case 3:
		return number ^ 1ull << pick(64);
	case 4:
		return boundaries[pick(sizeof(boundaries) / sizeof(*boundaries))] + pick(16);
	default:
		return boundaries[pick(sizeof(boundaries) / sizeof(*boundaries))];
	}
}

#define SPOIL(field) ((field) = (__typeof__(field))spoil_number((uint64_t)(field)))

static void spoil_view(struct fa_wire_view *view)
{
	switch (pick(7)) {
	case 0:
		SPOIL(view->offset);
		break;
	case 1:
		SPOIL(view->shape[pick(FA_WIRE_RANK_MAX)]);
		break;
	case 2:
		SPOIL(view->strides[pick(FA_WIRE_RANK_MAX)]);
		break;
	case 3:
		SPOIL(view->buffer);
		break;
	case 4:
		view->dtype = (uint8_t)pick(5);
		break;
	case 5:
		SPOIL(view->reserved);
		break;
	default:
		view->rank = (uint8_t)pick(6);
		break;
	}
}

static void spoil_string(struct fa_wire_string *string, size_t max)
{
	static char text[FA_WIRE_TEXT_BYTES_MAX + 2];
	const size_t lengths[] = { 0, 1, max - 1, max, max + 1, pick(8) };

	string->length = lengths[pick(6)];
	memset(text, once_in(4) ? '/' : 'a', sizeof(text) - 1);
	if (once_in(4))
		text[0] = (char)pick(256);
	text[string->length] = 0;
	string->text = text;
}

/* A vector's new entries. The type with the largest entries is fa_wire_gate. */
static const void *spoil_vector(const void *entries, size_t bytes, size_t *n, size_t max)
{
	static _Alignas(8) unsigned char space[(FA_WIRE_TOKENS_MAX + 1) * sizeof(uint32_t)];
	const size_t room = sizeof(space) / bytes, old = entries ? *n : 0;
	const size_t numbers[] = { 0,        1,      old, old, old, old + 1, old ? old - 1 : 0,
		                   pick(16), max + 1 };

	/* Most messages with too many entries cannot be encoded. */
	*n = numbers[pick(once_in(8) ? 9 : 8)];
	if (*n > room)
		*n = room;
	memset(space, 0, *n * bytes);
	if (entries)
		memcpy(space, entries, (*n < old ? *n : old) * bytes);
	if (*n) {
		const size_t at = pick(*n < 65536 ? (uint32_t)*n : 65536) * bytes;
		uint32_t word = 0;

		memcpy(&word, space + at, bytes < sizeof(word) ? bytes : sizeof(word));
		SPOIL(word);
		memcpy(space + at, &word, bytes < sizeof(word) ? bytes : sizeof(word));
	}
	return *n ? space : NULL;
}

/* Each message gets a function that spoils one of its fields. */
#define NUMBER(field) +1
#define NUMBER_IF(field, has) +1
#define STRING(field, max) +1
#define VECTOR(field, max) +1
#define PIECES(field) +1
#define VIEW(field) +1
#define HANDLE(field) +1
#define SECRET(field) +1
#define OPTIONAL(field, has) +1
#define NESTED(field, member) +1
#define MESSAGE(TAG, Table, member, fields)                                                        \
	enum {                                                                                     \
		N_##TAG = 0 fields                                                                 \
	};
#define TABLE(Table, member, fields)                                                               \
	enum {                                                                                     \
		N_##Table = 0 fields                                                               \
	};
#include "schema/messages.def"

#define FIELD(change)                                                                              \
	if (!at--) {                                                                               \
		change;                                                                            \
		return;                                                                            \
	}
#define NUMBER(field) FIELD(SPOIL(message->field))
#define NUMBER_IF(field, has) FIELD(SPOIL(message->field))
#define STRING(field, max) FIELD(spoil_string(&message->field, max))
#define VECTOR(field, max)                                                                         \
	FIELD(message->field = spoil_vector(message->field, sizeof(*message->field),               \
	                                    &message->n_##field, max))
#define PIECES(field)                                                                              \
	FIELD(message->n_##field = pick(FA_WIRE_FDS_MAX + 1);                                      \
	      SPOIL(message->field[pick(FA_WIRE_FDS_MAX)]))
#define VIEW(field) FIELD(spoil_view(&message->field))
#define HANDLE(field) FIELD(message->field[0] = (uint8_t)pick(3))
#define SECRET(field) FIELD(SPOIL(message->field.lo))
#define OPTIONAL(field, has) FIELD(message->has = !message->has)
#define NESTED(field, member) FIELD(spoil_##member(&message->field, pick(8)))
#define TABLE(Table, member, fields) MESSAGE(, Table, member, fields)
#define MESSAGE(TAG, Table, member, fields)                                                        \
	static void spoil_##member(struct fa_wire_##member *message, uint32_t at)                  \
	{                                                                                          \
		fields                                                                             \
	}
#include "schema/messages.def"

static void spoil_gates(struct fa_wire_message *message)
{
	static struct fa_wire_gate gates[2][FA_WIRE_GATES_MAX + 1];

	for (size_t i = 0; i < 2; ++i)
		for (size_t j = 0; j <= FA_WIRE_GATES_MAX; ++j) {
			gates[i][j] = (struct fa_wire_gate){ .slot = pick(66), .value = pick(4) };
			if (once_in(4))
				gates[i][j].slot |= FA_WIRE_GATE_OUT;
			if (once_in(8))
				SPOIL(gates[i][j].value);
		}
	message->n_waits = pick(FA_WIRE_GATES_MAX + 1);
	message->n_signals = pick(FA_WIRE_GATES_MAX + 1);
	message->waits = message->n_waits ? gates[0] : NULL;
	message->signals = message->n_signals ? gates[1] : NULL;
}

void spoil_message(struct fa_wire_message *message)
{
	switch (pick(24)) {
	case 0:
		spoil_gates(message);
		return;
	case 1:
		SPOIL(message->timeout_ns);
		return;
	case 2:
		if (once_in(8))
			message->fds = (uint8_t)pick(10);
		return;
	}
	switch (message->type) {
#define MESSAGE(TAG, Table, member, fields)                                                        \
	case FA_WIRE_##TAG:                                                                        \
		spoil_##member(&message->member, pick(N_##TAG));                                   \
		break;
#include "schema/messages.def"
	default: /* a message without fields */
		break;
	}
}
