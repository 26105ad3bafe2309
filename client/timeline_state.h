/*
 * The timeline of a client across connections. Its words are read without the mutex, as memory
 * stays mapped until the client is freed; the mutex guards the rest.
 */
#pragma once

#include "client/client.h"
#include "client/timeline_kernels.h"
#include "common/cudriver.h"
#include "common/timeline.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The memory that one connection gave. */
struct fa_timeline_memory {
	struct fa_timeline_memory *older;
	struct fa_timeline_in *in;
	const struct fa_timeline_out *out;
	/* Set once it is registered with the driver. */
	CUcontext context; /* in which it was registered; NULL: not registered */
	CUdeviceptr in_device, out_device;
};

struct fa_timeline {
	void *handle;             /* what the program has */
	struct fa_client *client; /* does not change */
	/* Guarded by the client's mutex. */
	struct fa_timeline_memory *memory;   /* the current one; NULL: none yet */
	uint32_t epoch;                      /* the connection that gave the memory */
	uint64_t n_set_ups;                  /* how often it was set up */
	bool setting_up;                     /* a thread is setting it up */
	uint64_t planned[FA_TIMELINE_SLOTS]; /* highest value that a request was to signal */
	uint64_t lost[FA_TIMELINE_SLOTS]; /* what planned was when the current memory was set up */
	struct fa_timeline_kernels *kernels; /* one for each context that asked for them */
};

int fa_timeline_enter(struct fa_timeline *timeline, const char *name, uint32_t slot);
/* Sets the timeline up for the current connection; may release the mutex. -ECONNRESET: the
 * connection is lost. */
int fa_timeline_set_up(struct fa_timeline *timeline);
/* Returns 0, or -ECONNRESET if the value was lost with a connection. */
int fa_timeline_check_wait(const struct fa_timeline *timeline, const struct fa_wire_gate *wait);
/* Frees the timeline. Takes NULL. */
struct fa_timeline *fa_timeline_release(struct fa_timeline *timeline, bool forked);
