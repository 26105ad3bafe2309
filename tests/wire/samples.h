/*
 * Messages of protocol version 1, at least one of every type, with every field
 * set and with everything absent that may be. What they say is frozen: the
 * recorded bytes under golden/v1 are compared with them for ever. Fields that
 * later versions add are zero here, as they are in bytes that lack them.
 */
#pragma once

#include "schema/wire.h"

struct fa_sample {
	const char *name; /* of the file under golden/v1, without .bin */
	struct fa_wire_message message;
};

extern const struct fa_sample fa_samples_v1[];
extern const size_t fa_samples_v1_n;
