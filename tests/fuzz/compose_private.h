/* What compose.c and compose_kv.c share. */
#pragma once

#include "tests/fuzz/compose.h"

struct fa_wire_string compose_name(uint32_t number);
/* NULL: none. Of BUFFER_BYTES at least. */
struct buffer *any_buffer(struct client *client, bool writable);
uint32_t any_stream(const struct client *client);

/* A packed tensor at @at, which moves behind it. */
struct fa_wire_view compose_view(const struct buffer *buffer, uint64_t *at, uint8_t dtype, int rank,
                                 const int64_t *shape);

/* Sometimes adds gates that are met, now or soon. */
void compose_gates(struct client *client, struct fa_wire_message *message);

void compose_kv(struct client *client, enum fa_wire_type type, struct parcel *ret_parcel);
