/* Composes messages that the model says are valid. */
#pragma once

#include "tests/fuzz/client.h"

/* A message, its descriptors and its step. Vectors and strings are valid until the next message. */
struct parcel {
	struct fa_wire_message message;
	int fds[FDS];
	size_t n_fds;
	/* StepBegin, StepEnd: the step. Named caches and sequences: id is the number of the
	 * name. */
	struct step step;
};

/*
 * Composes a message of @type, or of a type that must come before: for example, a StepAttend
 * without a step becomes a StepBegin, and that without a sequence a SequenceCreate.
 */
void compose(struct client *client, enum fa_wire_type type, struct parcel *ret_parcel);
