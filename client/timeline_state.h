/*
 * The timeline of a client across connections. Its memory stays mapped until the client is freed,
 * so words are read without the mutex, which guards the rest.
 */
#pragma once

#include "client/client.h"
#include "client/timeline_kernels.h"
#include "common/cudriver.h"
#include "common/timeline.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* Each connection gives its own memory. */
struct fa_timeline_memory {
	struct fa_timeline_memory *older;
	struct fa_timeline_in *in;
	const struct fa_timeline_out *out;
	/* Set when the memory is registered with the driver. */
	CUcontext context; /* where it was registered; or NULL */
	CUdeviceptr in_device, out_device;
};

struct fa_timeline {
	void *handle;
	struct fa_client *client; /* does not change */
	/* Guarded by the client's mutex. */
	struct fa_timeline_memory *memory; /* current; NULL: none yet */
	uint32_t epoch;
	uint64_t n_set_ups;
	bool setting_up;
	uint64_t planned[FA_TIMELINE_SLOTS]; /* highest value to be signalled */
	uint64_t lost[FA_TIMELINE_SLOTS];    /* planned when the current memory was set up */
	struct fa_timeline_kernels *kernels;
};

int fa_timeline_enter(struct fa_timeline *timeline, const char *name, uint32_t slot);
/* For the current connection; may release the mutex. -ECONNRESET: the connection is lost. */
int fa_timeline_set_up(struct fa_timeline *timeline);
/* -ECONNRESET: the value was lost with a connection. */
int fa_timeline_check_wait(const struct fa_timeline *timeline, const struct fa_wire_gate *wait);
/* Frees the timeline. Takes NULL. */
struct fa_timeline *fa_timeline_release(struct fa_timeline *timeline, bool forked);
