/*
 * rtt, second part: a client's step of 32 minimal layers by 32 requests ("attends") and by one
 * ("attend-layers"): time in the calls, and until the last layer is computed ("-done"). Blocks of
 * both alternate.
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 32
#define BLOCKS 40
#define BLOCK_STEPS 50
#define WARM_UP_STEPS 20

enum {
	ATTENDS,       /* one request per layer */
	ATTEND_LAYERS, /* one request */
	GATED,         /* one request; each layer waits for a gate opened later */
	VARIANTS
};

struct layers {
	struct fa_client *client;
	struct fa_timeline *timeline;
	struct fa_buffer *buffer;
	struct fa_step *step;
	struct fa_step_attend attend;
	uint64_t value; /* value of slot 0 on both sides of the timeline */
	uint64_t *sent[VARIANTS], *done[VARIANTS];
};

static int make_step(struct layers *l)
{
	const struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                        .dtype = FA_F32,
		                                        .layers = LAYERS,
		                                        .kv_heads = 1,
		                                        .head_dim = 8,
		                                        .page_tokens = 16 };
	static const int64_t shape[3] = { 1, 1, 8 };
	struct fa_step_item item = { .n_new = 1 };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	uint64_t cache;
	int r;

	r = fa_cache_create(l->client, &cache_options, &cache);
	if (r == 0)
		r = fa_sequence_create(l->client, cache, &item.sequence);
	if (r == 0)
		r = fa_step_begin(l->client, &options, &l->step);
	if (r == 0)
		r = fa_buffer_new(l->client, 4096, 0, &l->buffer);
	if (r < 0)
		return r;
	l->attend = (struct fa_step_attend){ .size = sizeof(l->attend) };
	fa_tensor_init(&l->attend.q, l->buffer, 0, FA_F32, 3, shape);
	fa_tensor_init(&l->attend.out, l->buffer, 64, FA_F32, 3, shape);
	fa_tensor_init(&l->attend.k_new, l->buffer, 128, FA_F32, 3, shape);
	fa_tensor_init(&l->attend.v_new, l->buffer, 192, FA_F32, 3, shape);
	return 0;
}

static int send(struct layers *l, int variant, struct fa_ticket *ret_ticket)
{
	const struct fa_gate gate = { .value = l->value + 1 };
	const struct fa_step_attend_layers all = { .size = sizeof(all),
		                                   .n_layers = LAYERS,
		                                   .attend = &l->attend,
		                                   .wait = variant == GATED ? &gate : NULL,
		                                   .wait_increment = variant == GATED,
		                                   .signal = variant == GATED ? &gate : NULL,
		                                   .signal_increment = variant == GATED };
	struct fa_step_attend attend = l->attend;
	int r = 0;

	if (variant != ATTENDS)
		return fa_step_attend_layers(l->step, &all, ret_ticket);
	for (attend.layer = 0; attend.layer < LAYERS && r == 0; attend.layer++)
		r = fa_step_attend(l->step, &attend, ret_ticket);
	return r;
}

/* Opens the gates in the order of a client's stream. */
static int open_gates(struct layers *l)
{
	int r = 0;

	for (int i = 0; i < LAYERS && r == 0; i++) {
		r = fa_timeline_write(l->timeline, 0, ++l->value);
		if (r == 0)
			r = fa_timeline_wait(l->timeline, 0, l->value, UINT64_MAX);
	}
	return r;
}

static int step(struct layers *l, int variant, uint64_t *ret_sent_ns, uint64_t *ret_done_ns)
{
	uint64_t start_ns = fa_now_ns();
	struct fa_ticket ticket;
	int r;

	r = send(l, variant, &ticket);
	*ret_sent_ns = fa_now_ns() - start_ns;
	if (r == 0 && variant == GATED)
		r = open_gates(l);
	if (r == 0)
		r = fa_wait(l->client, &ticket, UINT64_MAX, NULL);
	*ret_done_ns = fa_now_ns() - start_ns;
	return r;
}

static int measure(struct layers *l, size_t blocks, size_t steps)
{
	uint64_t unused;
	int r = 0;

	for (int variant = 0; variant < VARIANTS; variant++)
		for (int i = 0; i < WARM_UP_STEPS && r == 0; i++)
			r = step(l, variant, &unused, &unused);
	for (size_t block = 0; block < blocks; block++)
		for (int variant = 0; variant < VARIANTS; variant++)
			for (size_t i = block * steps; i < (block + 1) * steps && r == 0; i++)
				r = step(l, variant, &l->sent[variant][i], &l->done[variant][i]);
	return r;
}

static int report(struct fa_bench *bench, struct layers *l, size_t n)
{
	static const char *const names[VARIANTS] = { "attends", "attend-layers",
		                                     "attend-layers-gated" };
	double peer_sent = (double)fa_bench_percentile(l->sent[ATTENDS], n, 50);
	double peer_done = (double)fa_bench_percentile(l->done[ATTENDS], n, 50);
	char name[64];
	int r = 0;

	for (int variant = 0; variant < VARIANTS && r == 0; variant++) {
		const char *peer = variant == ATTENDS ? NULL : names[ATTENDS];
		double sent = (double)fa_bench_percentile(l->sent[variant], n, 50);
		double done = (double)fa_bench_percentile(l->done[variant], n, 50);

		snprintf(name, sizeof(name), "rtt/%s/%d", names[variant], LAYERS);
		r = fa_bench_add(bench, name, sent / 1e3, "us", peer, peer ? peer_sent / sent : 0);
		snprintf(name, sizeof(name), "rtt/%s/%d-done", names[variant], LAYERS);
		if (r == 0)
			r = fa_bench_add(bench, name, done / 1e3, "us", peer,
			                 peer ? peer_done / done : 0);
	}
	return r;
}

int fa_bench_layers(struct fa_bench *bench)
{
	size_t blocks = bench->quick ? 2 : BLOCKS, steps = bench->quick ? 5 : BLOCK_STEPS;
	struct fa_options options = { .size = sizeof(options), .name = "fabench rtt" };
	struct fa_bench_daemon daemon;
	struct layers l = { 0 };
	int r, stopped;

	r = fa_bench_daemon_start(bench, &daemon);
	if (r < 0)
		return r;
	options.socket = daemon.socket;
	r = fa_connect(&options, &l.client);
	if (r == 0)
		r = fa_timeline_open(l.client, &l.timeline);
	if (r == 0)
		r = make_step(&l);
	for (int variant = 0; variant < VARIANTS && r == 0; variant++) {
		l.sent[variant] = calloc(blocks * steps, sizeof(uint64_t));
		l.done[variant] = calloc(blocks * steps, sizeof(uint64_t));
		if (!l.sent[variant] || !l.done[variant])
			r = -ENOMEM;
	}
	if (r == 0)
		r = measure(&l, blocks, steps);
	if (r == 0)
		r = report(bench, &l, blocks * steps);
	if (r < 0)
		fa_bench_log(bench, "fabench rtt: %s (%s)", strerror(-r), fa_error());

	for (int variant = 0; variant < VARIANTS; variant++) {
		free(l.sent[variant]);
		free(l.done[variant]);
	}
	fa_step_free(l.step);
	fa_buffer_free(l.buffer);
	fa_disconnect(l.client);
	stopped = fa_bench_daemon_stop(&daemon);
	if (stopped < 0)
		fa_bench_log(bench, "fabench rtt: the daemon did not exit cleanly");
	return r < 0 ? r : stopped;
}
