/*
 * A client of a fake daemon that keeps the last request: for tests of what the calls about the
 * KV cache say on the wire, what they make of the answers, and what they refuse themselves.
 */
#pragma once

#include "client/faclient.h"
#include "tests/client/fake.h"
#include "tests/lib/check.h"

extern struct fa_client *client;

/* What came. Written by the fake's thread before it answers, read after the answer. */
struct seen {
	struct fa_wire_message last;
	int count[_FA_WIRE_TYPE_N];
	/* Vectors and strings point into the bytes of the connection, which are those of the
	 * last message. */
	uint32_t *buffer; /* the buffer that was registered last, mapped; never unmapped */
	uint64_t buffer_bytes;
	struct fa_wire_view tokens_view; /* of the last SequencePublish */
	int status;                      /* of the next answers; 0: they are good */
};
struct seen *heard(void);

/* Of a group of tests. */
int calls_setup(void **state);
int calls_teardown(void **state);

/* A step of @n_items sequences; a tensor of @buffer; all that a layer of a step may be given. */
struct fa_step *begin(uint32_t n_items);
struct fa_tensor tensor(struct fa_buffer *buffer, uint32_t rank, int64_t a, int64_t b, int64_t c);
struct fa_step_attend attend_all(struct fa_buffer *buffer);

#define check_string(string, expected)                                                             \
	do {                                                                                       \
		fa_check_eq((string).length, strlen(expected));                                    \
		fa_check(!memcmp((string).text, (expected), (string).length));                     \
	} while (0)
