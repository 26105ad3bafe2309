/*
 * Samples: messages of protocol version 1, each type once with every field set, and once with every
 * optional field absent. They never change, as the recorded bytes in golden/v1 are compared with
 * them. Fields of later versions are zero, as they are absent from the bytes.
 */
#pragma once

#include "schema/wire.h"

struct fa_sample {
	const char *name; /* name of the file under golden/v1, without .bin */
	struct fa_wire_message message;
};

extern const struct fa_sample fa_samples_v1[];
extern const size_t fa_samples_v1_n;
