#include "tests/client/kv-load.h"

#include "tests/client/kv.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	THREADS = 4,
	CLIENTS = 2,
	SEQUENCES = 4,
	LENGTH_MAX = 400,
	PIPELINE = 4,
};

static atomic_bool stop;
static atomic_uint_fast64_t progress;
static bool drops; /* allow the loss of sequences that a step was writing when the GPU was lost */

struct sequence {
	uint64_t id;
	uint32_t tags[LENGTH_MAX + KV_ROWS_MAX];
	uint32_t length;
	bool risked; /* a step was writing it when the device may have been lost */
};

struct worker {
	pthread_t thread;
	struct kv kv;
	struct kv pipeline[PIPELINE];
	struct fa_test_random random;
	struct sequence sequences[SEQUENCES];
	uint32_t last_tag, stream;
	uint64_t reconnects;
	uint64_t happened, undone; /* in flight at the daemon's death: took effect or not */
	uint64_t dropped;
};

static uint32_t below(struct worker *w, uint32_t n)
{
	return (uint32_t)fa_test_random_below(&w->random, n);
}

static void broken(const char *what, int r)
{
	fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

/*
 * Returns true if @r means that the daemon ends: until it exits, it refuses new requests and cancels
 * the later ones of a step. If it lost its device, it also fails requests in flight.
 */
static bool is_ending(int r)
{
	return r == -ECANCELED || r == -ESHUTDOWN || (drops && r == -ENODEV);
}

/* Returns false if @r is 0, true if the daemon died; fails otherwise. */
static bool died(const char *what, int r)
{
	if (r < 0 && r != -ECONNRESET && !is_ending(r))
		broken(what, r);
	return r < 0;
}

/*
 * Calls kv_begin() until it finds pages: under MPS, pages that a dead daemon may still write are
 * unavailable for a while.
 */
static int begin(struct kv *kv, const struct kv_item *item, struct fa_step **ret_step)
{
	int r = kv_begin(kv, item, 1, ret_step);
	uint64_t pause_ns = 0;

	while (drops && r == -ENOMEM && strstr(fa_error(), "has let go")) {
		fa_test_poll_pause(&pause_ns);
		r = kv_begin(kv, item, 1, ret_step);
	}
	return r;
}

/* If the daemon dies meanwhile, the session may keep another sequence, whose id nobody knows. */
static void create(struct worker *w, struct sequence *s)
{
	while (died("create", fa_sequence_create(w->kv.client, w->kv.cache, &s->id)))
		;
	s->length = 0;
	s->risked = false;
}

/* Replaces a sequence that @r says was dropped, if a drop is allowed; returns true if so. */
static bool is_gone(struct worker *w, struct sequence *s, int r)
{
	if (r != -ESTALE || !s->risked)
		return false;
	++w->dropped;
	create(w, s);
	return true;
}

/* fa_step_begin() sends its message again to the next daemon. A daemon that lost its device may
 * have carried out the first message. */
static void note_risk(struct sequence *s, int begun)
{
	if (begun == -ESTALE && drops)
		s->risked = true;
}

static bool ask(struct worker *w, struct sequence *s, struct fa_sequence_info *ret_info)
{
	int r;

	do {
		ret_info->size = sizeof(*ret_info);
		r = fa_sequence_info(w->kv.client, s->id, ret_info);
	} while (!is_gone(w, s, r) && died("info", r));
	return r == 0;
}

static void check(struct worker *w, struct sequence *s)
{
	struct fa_sequence_info info;
	int r;

	if (!ask(w, s, &info))
		return;
	fa_check_eq(info.length, s->length);
	do
		r = kv_check_pages(&w->kv, s->id, s->tags, 0, s->length);
	while (!is_gone(w, s, r) && died("read", r));
}

static uint64_t reconnects_of(const struct worker *w)
{
	struct fa_info info = { .size = sizeof(info) };

	fa_check_eq(fa_info(w->kv.client, &info), 0);
	return info.reconnects;
}

static void append(struct worker *w, struct sequence *s)
{
	uint32_t n = below(w, 4) ? 1 + below(w, 4) : 1 + below(w, 60);
	struct fa_sequence_info info;
	struct kv_item item;
	struct fa_step *step;
	uint64_t number;
	bool commits = below(w, 8);
	int r;

	if (s->length + n > LENGTH_MAX)
		return;
	for (uint32_t i = 0; i < n; ++i)
		s->tags[s->length + i] = ++w->last_tag;
	item = (struct kv_item){
		.sequence = s->id, .tags = s->tags, .length = s->length + n, .n_new = n
	};
	r = begin(&w->kv, &item, &step);
	note_risk(s, r);
	if (is_gone(w, s, r))
		return;
	/* From here on the daemon clears the new pages, even if the reply to begin is lost. */
	s->risked = drops;
	if (died("begin", r))
		return;
	number = fa_step_number(step);
	/* A commit fails if a layer was not computed; an abort does not tell. */
	r = kv_attend(&w->kv, step, &item, 1, w->stream, below(w, 2) || !commits);
	if (!r)
		r = commits ? fa_step_commit(step, NULL, NULL) : fa_step_abort(step, 0, NULL);
	fa_step_free(step);
	if (!died("step", r)) {
		kv_check_out(&w->kv, &item, 1);
		s->length += commits ? n : 0;
		s->risked = false;
		return;
	}
	if (!ask(w, s, &info))
		return;
	if (info.step == number) {
		fa_check(commits);
		s->length += n;
		++w->happened;
	} else {
		++w->undone;
	}
	fa_check_eq(info.length, s->length);
	/* A daemon that is about to exit may not have aborted the step yet. */
	fa_check(info.planned == s->length || is_ending(r));
}

/*
 * Commits several steps without waiting. If the daemon dies, the first few have taken effect: all
 * acknowledged ones, and maybe more.
 */
static void append_many(struct worker *w, struct sequence *s)
{
	struct fa_ticket tickets[PIPELINE];
	struct fa_step *steps[PIPELINE] = {};
	struct kv_item items[PIPELINE];
	uint32_t n = 1 + below(w, 20), asked = 0, done = 0;
	const uint64_t reconnects = reconnects_of(w);
	struct fa_sequence_info info;
	bool lost = false;
	int r = 0;

	if (s->length + PIPELINE * n > LENGTH_MAX)
		return;
	for (uint32_t i = 0; i < PIPELINE * n; ++i)
		s->tags[s->length + i] = ++w->last_tag;
	for (uint32_t begun = 0; begun < PIPELINE && !lost; ++begun) {
		items[begun] = (struct kv_item){ .sequence = s->id,
			                         .tags = s->tags,
			                         .length = s->length + (begun + 1) * n,
			                         .n_new = n };
		r = begin(&w->pipeline[begun], &items[begun], &steps[begun]);
		note_risk(s, r);
		/* A begin that copies a shared page excludes other steps until it is done. */
		if (r == -EBUSY || (!begun && is_gone(w, s, r)))
			break;
		s->risked = drops;
		lost = (r == -ESTALE && drops) || died("begin", r) ||
		       reconnects_of(w) != reconnects;
		if (lost && !r)
			(void)fa_step_abort(steps[begun], w->stream, NULL);
		if (lost)
			break;
		r = kv_attend(&w->pipeline[begun], steps[begun], &items[begun], 1, w->stream,
		              false);
		if (!r)
			r = fa_step_commit(steps[begun], NULL, &tickets[begun]);
		lost = died("step", r);
		asked += !lost;
	}
	for (uint32_t i = 0; i < asked; ++i) {
		if (died("commit", fa_wait(w->kv.client, &tickets[i], UINT64_MAX, NULL))) {
			lost = true;
			break;
		}
		kv_check_out(&w->pipeline[i], &items[i], 1);
		++done;
	}
	if (!ask(w, s, &info))
		goto free;
	s->risked = lost && drops;
	if (lost) {
		uint32_t had = (uint32_t)(info.length - s->length) / n;

		fa_check(had >= done && had <= asked);
		w->happened += had - done;
		w->undone += asked - had;
		done = had;
	}
	if (done)
		fa_check_eq(info.step, fa_step_number(steps[done - 1]));
	s->length += done * n;
	fa_check_eq(info.length, s->length);
free:
	for (uint32_t i = 0; i < PIPELINE; ++i)
		fa_step_free(steps[i]);
}

static void fork_one(struct worker *w, struct sequence *s)
{
	struct sequence *parent = &w->sequences[below(w, SEQUENCES)];
	uint32_t n = below(w, parent->length + 1);
	int r;

	if (parent == s || !parent->id)
		return;
	do
		r = s->id ? fa_sequence_remove(w->kv.client, s->id) : 0;
	while (r != -ESTALE && died("free", r));
	do
		r = fa_sequence_fork(w->kv.client, parent->id, n, &s->id);
	while (!is_gone(w, parent, r) && died("fork", r));
	if (r < 0) {
		create(w, s);
		return;
	}
	s->risked = false;
	memcpy(s->tags, parent->tags, n * sizeof(*s->tags));
	s->length = n;
}

static void truncate_one(struct worker *w, struct sequence *s)
{
	uint32_t n = below(w, s->length + 1);

	int r;

	do
		r = fa_sequence_truncate(w->kv.client, s->id, n);
	while (!is_gone(w, s, r) && died("truncate", r));
	if (r == 0)
		s->length = n;
}

static void *work(void *userdata)
{
	struct worker *w = userdata;
	struct fa_info info = { .size = sizeof(info) };

	for (uint32_t i = 0; i < SEQUENCES; ++i)
		create(w, &w->sequences[i]);
	while (!atomic_load(&stop)) {
		struct sequence *s = &w->sequences[below(w, SEQUENCES)];

		switch (below(w, 12)) {
		case 0:
			fork_one(w, s);
			break;
		case 1:
			if (s->length > LENGTH_MAX / 2)
				truncate_one(w, s);
			break;
		case 2:
			check(w, s);
			break;
		case 3:
		case 4:
		case 5:
			append_many(w, s);
			break;
		default:
			append(w, s);
		}
		atomic_fetch_add(&progress, 1);
		fa_check_eq(fa_info(w->kv.client, &info), 0);
		if (info.reconnects != w->reconnects) {
			w->reconnects = info.reconnects;
			for (uint32_t i = 0; i < SEQUENCES; ++i)
				check(w, &w->sequences[i]);
		}
	}
	for (uint32_t i = 0; i < SEQUENCES; ++i)
		check(w, &w->sequences[i]);
	return NULL;
}

static struct worker workers[THREADS];
static struct fa_client *clients[CLIENTS];

static struct fa_client *connect_client(const char *socket)
{
	struct fa_options options = { .size = sizeof(options), .socket = socket };
	struct fa_client *client;

	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

void kv_load_begin(const char *socket, bool may_drop)
{
	drops = may_drop;
	memset(workers, 0, sizeof(workers));
	atomic_store(&stop, false);
	atomic_store(&progress, 0);
	for (int i = 0; i < CLIENTS; ++i) {
		clients[i] = connect_client(socket);
		kv_init(&workers[i].kv, clients[i], NULL, 0);
	}
	for (int i = 0; i < THREADS; ++i) {
		if (i >= CLIENTS)
			kv_init_in(&workers[i].kv, clients[i % CLIENTS],
			           workers[i % CLIENTS].kv.cache);
		for (int k = 0; k < PIPELINE; ++k)
			kv_init_in(&workers[i].pipeline[k], clients[i % CLIENTS],
			           workers[i % CLIENTS].kv.cache);
		workers[i].random.state = (uint64_t)i + 1;
		workers[i].last_tag = (uint32_t)i << 24;
		fa_check_eq(fa_stream_new(clients[i % CLIENTS], i % 2, &workers[i].stream), 0);
		fa_check(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
}

uint64_t kv_load_progress(void)
{
	return atomic_load(&progress);
}

void kv_load_end(void)
{
	struct fa_info info = { .size = sizeof(info) };
	uint64_t happened = 0, undone = 0, dropped = 0;

	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; ++i) {
		pthread_join(workers[i].thread, NULL);
		kv_deinit(&workers[i].kv);
		for (int k = 0; k < PIPELINE; ++k)
			kv_deinit(&workers[i].pipeline[k]);
		happened += workers[i].happened;
		undone += workers[i].undone;
		dropped += workers[i].dropped;
	}
	for (int i = 0; i < CLIENTS; ++i) {
		struct fa_cache_info cache = { .size = sizeof(cache) };

		/* The cache has no user and no used page, so none has leaked. */
		fa_check_eq(fa_info(clients[i], &info), 0);
		fa_check(info.reconnects > 0);
		fa_check_eq(info.resumed, info.reconnects);
		fa_check_eq(fa_cache_info(clients[i], workers[i].kv.cache, &cache), 0);
		fa_check(cache.sequences >= SEQUENCES * THREADS / CLIENTS);
		fa_disconnect(clients[i]);
	}
	printf("%" PRIu64 " operations; steps under way: %" PRIu64 " had happened, %" PRIu64
	       " had not; %" PRIu64 " sequences were dropped\n",
	       kv_load_progress(), happened, undone, dropped);
}
