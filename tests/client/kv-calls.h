/*
 * A client and a fake daemon that records the last request: what the KV calls send, how they read
 * replies, which arguments they refuse.
 */
#pragma once

#include "client/faclient.h"
#include "tests/client/fake-daemon.h"
#include "tests/lib/check.h"

extern struct fa_client *client;

/*
 * The last request. The fake's thread writes it before it replies; tests read it after the reply.
 */
struct seen {
	struct fa_wire_message last;
	int count[_FA_WIRE_TYPE_N];
	/* Vectors and strings point into the connection's buffer, which holds the last message. */
	uint32_t *buffer; /* the last buffer registered, mapped and never unmapped */
	uint64_t buffer_bytes;
	struct fa_wire_view tokens_view;
	int status;
};
struct seen *heard(void);

int calls_setup(void **state);
int calls_teardown(void **state);

struct fa_step *begin(uint32_t n_items);
struct fa_tensor tensor(struct fa_buffer *buffer, uint32_t rank, int64_t a, int64_t b, int64_t c);
struct fa_step_attend attend_all(struct fa_buffer *buffer);

#define check_string(string, expected)                                                             \
	do {                                                                                       \
		fa_check_eq((string).length, strlen(expected));                                    \
		fa_check(!memcmp((string).text, (expected), (string).length));                     \
	} while (0)
