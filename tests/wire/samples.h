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

/* Samples are numbered from 0 to fa_samples_v1_n() - 1. */
size_t fa_samples_v1_n(void);
const struct fa_sample *fa_sample_v1(size_t i);

/* Samples of messages about the KV cache; they come last. */
extern const struct fa_sample fa_samples_kv_v1[];
extern const size_t fa_samples_kv_v1_n;
