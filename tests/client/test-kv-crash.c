/*
 * The supervised daemon is killed again and again while threads append to sequences,
 * fork, truncate, read and free them. Whatever was committed is there afterwards, bit by
 * bit; what was under way has happened or has not, and the library tells which.
 */
#include "client/faclient.h"
#include "tests/client/kv.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	THREADS = 4,
	CLIENTS = 2, /* threads share them */
	SEQUENCES = 4,
	LENGTH_MAX = 400,
	PIPELINE = 4, /* steps at once */
};

static struct fa_test_daemon supervisor;
static atomic_bool stop;
static atomic_uint_fast64_t progress;

struct sequence {
	uint64_t id; /* 0: none */
	uint32_t tags[LENGTH_MAX + KV_ROWS_MAX];
	uint32_t length;
};

struct worker {
	pthread_t thread;
	struct kv kv;
	struct kv pipeline[PIPELINE]; /* the same with other memory */
	struct fa_test_random random;
	struct sequence sequences[SEQUENCES];
	uint32_t last_tag, stream;
	uint64_t reconnects;       /* seen */
	uint64_t happened, undone; /* steps under way when the daemon died */
};

static uint32_t below(struct worker *w, uint32_t n)
{
	return (uint32_t)fa_test_random_below(&w->random, n);
}

static void broken(const char *what, int r)
{
	fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}

/* 0, or the daemon died under it. */
static bool died(const char *what, int r)
{
	if (r < 0 && r != -ECONNRESET)
		broken(what, r);
	return r < 0;
}

/* What can be asked again until it is answered. */
static struct fa_sequence_info info_of(struct worker *w, const struct sequence *s)
{
	struct fa_sequence_info info = { .size = sizeof(info) };

	while (died("info", fa_sequence_info(w->kv.client, s->id, &info)))
		;
	return info;
}

static void check(struct worker *w, struct sequence *s)
{
	struct fa_sequence_info info = info_of(w, s);

	fa_check_eq(info.length, s->length);
	while (died("read", kv_check_pages(&w->kv, s->id, s->tags, 0, s->length)))
		;
}

/* A sequence that was made when the daemon died stays the session's, unknown to us. */
static void create(struct worker *w, struct sequence *s)
{
	while (died("create", fa_sequence_create(w->kv.client, w->kv.cache, &s->id)))
		;
	s->length = 0;
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
	if (died("begin", kv_begin(&w->kv, &item, 1, &step)))
		return;
	number = fa_step_number(step);
	r = kv_attend(&w->kv, step, &item, 1, w->stream, below(w, 2));
	if (!r)
		r = commits ? fa_step_commit(step, NULL, NULL) : fa_step_abort(step, 0, NULL);
	fa_step_free(step);
	if (!died("step", r)) {
		/* What was asked before it has ended, too. */
		kv_check_out(&w->kv, &item, 1);
		s->length += commits ? n : 0;
		return;
	}
	info = info_of(w, s);
	if (info.step == number) {
		fa_check(commits);
		s->length += n;
		++w->happened;
	} else {
		++w->undone;
	}
	fa_check_eq(info.length, s->length);
	fa_check_eq(info.planned, s->length);
}

/*
 * Several steps, each on what the one before has planned, committed without waiting: when
 * the daemon dies some of them have happened, in order, and those that said so among them.
 */
static void append_many(struct worker *w, struct sequence *s)
{
	struct fa_ticket tickets[PIPELINE];
	struct fa_step *steps[PIPELINE] = {};
	struct kv_item items[PIPELINE];
	uint32_t n = 1 + below(w, 20), begun, asked = 0, done = 0;
	struct fa_sequence_info info;
	int r = 0;

	if (s->length + PIPELINE * n > LENGTH_MAX)
		return;
	for (uint32_t i = 0; i < PIPELINE * n; ++i)
		s->tags[s->length + i] = ++w->last_tag;
	for (begun = 0; begun < PIPELINE; ++begun) {
		items[begun] = (struct kv_item){ .sequence = s->id,
			                         .tags = s->tags,
			                         .length = s->length + (begun + 1) * n,
			                         .n_new = n };
		r = kv_begin(&w->pipeline[begun], &items[begun], 1, &steps[begun]);
		/* A page that is shared is copied before anything can follow. */
		if (r == -EBUSY || died("begin", r))
			break;
		r = kv_attend(&w->pipeline[begun], steps[begun], &items[begun], 1, w->stream,
		              false);
		if (!r)
			r = fa_step_commit(steps[begun], NULL, &tickets[begun]);
		if (died("step", r))
			break;
		++asked;
	}
	for (uint32_t i = 0; i < asked; ++i) {
		if (died("commit", fa_wait(w->kv.client, &tickets[i], UINT64_MAX, NULL)))
			break;
		kv_check_out(&w->pipeline[i], &items[i], 1);
		++done;
	}
	info = info_of(w, s);
	if (done < asked || begun < PIPELINE) {
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
	for (uint32_t i = 0; i < PIPELINE; ++i)
		fa_step_free(steps[i]);
}

static void fork_one(struct worker *w, struct sequence *s)
{
	struct sequence *parent = &w->sequences[below(w, SEQUENCES)];
	uint32_t n = below(w, parent->length + 1);

	if (parent == s || !parent->id)
		return;
	if (s->id) {
		int r;

		/* Freed twice is freed. */
		do
			r = fa_sequence_free(w->kv.client, s->id);
		while (r == -ECONNRESET);
		if (r < 0 && r != -ESTALE)
			broken("free", r);
	}
	while (died("fork", fa_sequence_fork(w->kv.client, parent->id, n, &s->id)))
		;
	memcpy(s->tags, parent->tags, n * sizeof(*s->tags));
	s->length = n;
}

static void truncate_one(struct worker *w, struct sequence *s)
{
	uint32_t n = below(w, s->length + 1);

	while (died("truncate", fa_sequence_truncate(w->kv.client, s->id, n)))
		;
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

/* The supervisor's only child. */
static pid_t child_pid(void)
{
	char path[64], line[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%ld/task/%ld/children", (long)supervisor.pid,
	         (long)supervisor.pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(line, sizeof(line), file))
		line[0] = '\0';
	(void)fclose(file);
	return (pid_t)atol(line);
}

static struct fa_client *connect_client(void)
{
	struct fa_options options = { .size = sizeof(options), .socket = supervisor.socket };
	struct fa_client *client;

	options.reconnect_ns = fa_test_patience_ns();
	fa_check_eq(fa_connect(&options, &client), 0);
	return client;
}

static void test_kills(void **state)
{
	static const char *const args[] = { "--supervise", NULL };
	const struct fa_test_daemon_options options = { .args = args };
	const int kills = fa_test_long() ? 1000 : fa_test_sanitized() ? 20 : 100;
	struct worker *workers = calloc(THREADS, sizeof(*workers));
	struct fa_test_random random = { .state = 99 };
	struct fa_info info = { .size = sizeof(info) };
	struct fa_client *clients[CLIENTS];
	uint64_t happened = 0, undone = 0, longest_ns = 0;

	fa_check(workers);
	fa_test_daemon_start(&supervisor, &options);
	for (int i = 0; i < CLIENTS; ++i) {
		clients[i] = connect_client();
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
	for (int i = 0; i < kills; ++i) {
		uint64_t before = atomic_load(&progress), died_ns;
		pid_t pid = child_pid(), next = 0;

		/* At any moment of what it does, starting included now and then. */
		if (i % 8)
			fa_check_eventually(atomic_load(&progress) > before + 20);
		for (uint64_t k = fa_test_random_below(&random, 12); k; --k)
			fa_test_sleep_ms(1);
		fa_check(pid > 0);
		fa_check(!kill(pid, SIGKILL));
		died_ns = fa_now_ns();
		before = atomic_load(&progress);
		fa_check_eventually((next = child_pid()) > 0 && next != pid);
		if (i % 8 == 7)
			continue;
		fa_check_eventually(atomic_load(&progress) > before);
		if (fa_now_ns() - died_ns > longest_ns)
			longest_ns = fa_now_ns() - died_ns;
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; ++i) {
		pthread_join(workers[i].thread, NULL);
		kv_deinit(&workers[i].kv);
		for (int k = 0; k < PIPELINE; ++k)
			kv_deinit(&workers[i].pipeline[k]);
		happened += workers[i].happened;
		undone += workers[i].undone;
	}
	for (int i = 0; i < CLIENTS; ++i) {
		fa_check_eq(fa_info(clients[i], &info), 0);
		fa_check(info.reconnects > 0);
		fa_check_eq(info.resumed, info.reconnects);
		fa_disconnect(clients[i]);
	}
	print_message("%d kills, %" PRIu64 " operations; steps under way: %" PRIu64
	              " had happened, %" PRIu64 " had not; at most %" PRIu64 " ms without work\n",
	              kills, (uint64_t)atomic_load(&progress), happened, undone,
	              (uint64_t)(longest_ns / FA_NS_PER_MS));
	fa_test_daemon_stop(&supervisor);
	free(workers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kills),
	};

	return cmocka_run_group_tests_name("kv-crash", tests, NULL, NULL);
}
