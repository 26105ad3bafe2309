/* The part of inspect.c for the messages of the KV cache. */
#pragma once

#include "schema/wire.h"

struct range {
	const unsigned char *bytes;
	size_t length;
};

const char *fa_inspect_kv_difference(const struct fa_wire_message *a,
                                     const struct fa_wire_message *b);
uint64_t fa_inspect_kv_read(const struct fa_wire_message *message, struct range range);
