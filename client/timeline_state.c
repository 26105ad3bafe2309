#include "client/timeline_state.h"

#include "client/call.h"
#include "client/cuda_memory.h"
#include "client/last_error.h"
#include "client/loss.h"
#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void unmap(const void *memory)
{
	if (memory)
		(void)munmap((void *)memory, FA_TIMELINE_BYTES);
}

static int map(int fd, uint64_t bytes, int protection, void **ret_memory)
{
	struct fa_error why;
	uint64_t size;
	void *memory;
	int r, seals;

	if (bytes < FA_TIMELINE_BYTES)
		return fa_error_set(-EPROTO, "the daemon's timeline is too short");
	r = fa_memfd_check(fd, 0, FA_TIMELINE_BYTES, &why, &size, &seals);
	if (r < 0)
		return fa_error_set(-EPROTO, "the daemon's timeline is not sealed memory: %s",
		                    why.text);
	memory = mmap(NULL, FA_TIMELINE_BYTES, protection, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return fa_error_set(-errno, "the timeline cannot be mapped: %m");
	*ret_memory = memory;
	return 0;
}

static int take_memory(struct fa_timeline *timeline, const struct fa_client_call *call)
{
	struct fa_timeline_memory *memory = fa_new(struct fa_timeline_memory);
	void *in = NULL, *out = NULL;
	int r;

	if (!memory)
		return fa_error_set(-ENOMEM, "no memory for a timeline");
	r = map(call->fd, call->timeline.in_bytes, PROT_READ | PROT_WRITE, &in);
	if (r == 0)
		r = map(call->second_fd, call->timeline.out_bytes, PROT_READ, &out);
	if (r < 0) {
		unmap(in);
		free(memory);
		return r;
	}
	*memory = (struct fa_timeline_memory){
		.older = timeline->memory,
		.in = in,
		.out = out,
	};
	/* The client's slots keep their values. */
	for (unsigned int i = 0; timeline->memory && i < FA_TIMELINE_SLOTS; ++i)
		atomic_store_explicit(
			&memory->in[i].value,
			atomic_load_explicit(&timeline->memory->in[i].value, memory_order_acquire),
			memory_order_release);
	memcpy(timeline->lost, timeline->planned, sizeof(timeline->lost));
	timeline->memory = memory;
	++timeline->n_set_ups;
	return 0;
}

int fa_timeline_set_up(struct fa_timeline *timeline)
{
	struct fa_client *client = timeline->client;

	while (client->state == FA_CLIENT_CONNECTED && timeline->epoch != client->epoch) {
		struct fa_wire_message message = { .type = FA_WIRE_TIMELINE_SETUP };
		struct fa_client_call call = { .expect = FA_WIRE_TIMELINE_REPLY, .expect_fds = 2 };
		uint32_t epoch = client->epoch;
		int r;

		if (timeline->setting_up) {
			pthread_cond_wait(&client->changed, &client->lock);
			continue;
		}
		timeline->setting_up = true;
		r = fa_call_run(client, &message, NULL, 0, false, &call);
		timeline->setting_up = false;
		if (r == 0 && client->epoch == epoch && timeline->epoch != epoch) {
			r = take_memory(timeline, &call);
			if (r == 0)
				timeline->epoch = epoch;
		}
		pthread_cond_broadcast(&client->changed);
		fa_close_fdp(&call.fd);
		fa_close_fdp(&call.second_fd);
		if (r < 0)
			return r;
	}
	return client->state == FA_CLIENT_CONNECTED ? 0 : fa_client_lost_error(client);
}

int fa_timeline_check_wait(const struct fa_timeline *timeline, const struct fa_wire_gate *wait)
{
	uint32_t slot = wait->slot & ~FA_GATE_DAEMON;

	if (!(wait->slot & FA_GATE_DAEMON) || !timeline->lost[slot] ||
	    !fa_timeline_reached(timeline->lost[slot], wait->value))
		return 0;
	return fa_error_set(-ECONNRESET,
	                    "value %llu of the daemon's slot %u, which the request is to wait for, "
	                    "was lost with a connection",
	                    (unsigned long long)wait->value, slot);
}

struct fa_timeline *fa_timeline_release(struct fa_timeline *timeline, bool forked)
{
	const struct fa_cudriver *driver = NULL;
	struct fa_error error;

	if (!timeline)
		return NULL;
	if (timeline->kernels && !forked)
		(void)fa_cuda_open(&error, &driver);
	fa_timeline_kernels_free(driver, timeline->kernels);
	while (timeline->memory) {
		struct fa_timeline_memory *memory = timeline->memory;

		timeline->memory = memory->older;
		if (memory->context && !forked && fa_cuda_open(&error, &driver) == 0) {
			CUcontext before = NULL;

			(void)driver->cuCtxGetCurrent(&before);
			if (driver->cuCtxSetCurrent(memory->context) == CUDA_SUCCESS) {
				(void)driver->cuMemHostUnregister(memory->in);
				(void)driver->cuMemHostUnregister((void *)memory->out);
			}
			(void)driver->cuCtxSetCurrent(before);
		}
		unmap(memory->in);
		unmap(memory->out);
		free(memory);
	}
	(void)fa_handle_take(FA_HANDLE_TIMELINE, timeline->handle);
	free(timeline);
	return NULL;
}

/* The caller's timeline must have been set up at least once. */
int fa_timeline_enter(struct fa_timeline *timeline, const char *name, uint32_t slot)
{
	if (!timeline)
		return fa_error_set(-EINVAL, "the timeline is NULL, or went with its client");
	if (slot >= FA_TIMELINE_SLOTS)
		return fa_error_set(-EINVAL, "%s: slot is 0x%x; expected less than %d", name, slot,
		                    FA_TIMELINE_SLOTS);
	return fa_client_enter(timeline->client);
}
