/* The engine on the CPU backend; the test controls the kernels. */
#include "common/clock.h"
#include "daemon/engine/engine.h"
#include "fake-kernels.h"

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STREAMS 48
#define GROUPS 5
#define PATIENCE_SEC 30

struct item {
	struct fa_job request;
	struct fake_job job;
	bool taken;
};

struct fixture {
	struct fa_engine *engine;
	struct fa_device *device;
	sem_t notified;
	struct fa_completion_slot slots[STREAMS];
	struct fa_engine_group *groups[GROUPS];
	struct fa_stream *streams[STREAMS];
	uint64_t last[STREAMS], taken[STREAMS];
	unsigned int n_closed;
};

static void on_notify(void *userdata)
{
	struct fixture *f = userdata;

	sem_post(&f->notified);
}

static void fixture_init(struct fixture *f)
{
	struct fa_device_config config = { .threads = 3, .notify = fa_engine_wake };
	struct fa_error error;

	memset(f, 0, sizeof(*f));
	sem_init(&f->notified, 0, 0);
	assert_int_equal(fa_engine_new(&fa_device_cpu, on_notify, f, &f->engine), 0);
	config.userdata = f->engine;
	assert_int_equal(fa_device_cpu.open(&config, &error, &f->device), 0);
	assert_int_equal(fa_engine_start(f->engine, f->device), 0);
	for (unsigned int i = 0; i < GROUPS; i++)
		assert_int_equal(fa_engine_group_new(f->engine, &f->groups[i]), 0);
	for (unsigned int i = 0; i < STREAMS; i++)
		assert_int_equal(fa_engine_stream_new(f->groups[i % GROUPS], i % 8 == 7,
		                                      &f->slots[i], 1, &f->taken[i],
		                                      &f->streams[i]),
		                 0);
}

static void take(struct fixture *f)
{
	struct fa_job *request;
	struct fa_stream *closed;
	struct timespec until;
	struct item *item;
	uint64_t *taken;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_SEC;
	while (!fa_engine_take(f->engine, &request, &closed))
		if (sem_timedwait(&f->notified, &until) < 0 && errno == ETIMEDOUT)
			fail_msg("nothing came out of the engine");
	if (closed) {
		taken = fa_stream_owner(closed);
		assert_int_equal(*taken, f->last[taken - f->taken]);
		fa_stream_free(closed);
		f->n_closed++;
		return;
	}
	item = fa_container_of(request, struct item, request);
	taken = fa_stream_owner(request->stream);
	assert_int_equal(request->value, ++*taken);
	assert_false(item->taken);
	assert_false(item->job.wrong);
	if (request->status == 0)
		assert_int_equal(item->job.n_ran, item->job.n_tiles);
	else
		assert_true(request->status == -ECANCELED || request->status == -ETIMEDOUT ||
		            request->status == -ECONNRESET);
	item->taken = true;
}

static void submit(struct fixture *f, unsigned int i, struct item *item)
{
	item->request.stream = f->streams[i];
	item->request.value = ++f->last[i];
	item->request.queued_ns = fa_now_ns();
	if (!item->request.deadline_ns)
		item->request.deadline_ns = FA_NS_NEVER;
	item->request.params.q.data = &item->job;
	fa_engine_submit(f->engine, &item->request);
}

static void fixture_deinit(struct fixture *f)
{
	for (unsigned int i = 0; i < STREAMS; i++)
		fa_engine_stream_close(f->engine, f->streams[i], -ECONNRESET);
	while (f->n_closed < STREAMS)
		take(f);
	for (unsigned int i = 0; i < GROUPS; i++)
		assert_null(fa_engine_group_free(f->groups[i]));
	assert_null(fa_engine_free(f->engine));
	assert_null(fa_device_cpu.close(f->device));
	sem_destroy(&f->notified);
}

static void test_stress(void **state)
{
	const unsigned int total = 4000;
	struct item *items = calloc(total, sizeof(*items));
	struct fa_engine_stats stats;
	unsigned int i, seed = 11, n_taken = 0;
	struct fixture f;

	assert_non_null(items);
	fixture_init(&f);
	for (unsigned int n = 0; n < total; n++) {
		i = (unsigned int)rand_r(&seed) % STREAMS;
		items[n].job.n_tiles = rand_r(&seed) % 8 ? rand_r(&seed) % 6 : rand_r(&seed) % 300;
		items[n].job.scratch_bytes = (size_t)(rand_r(&seed) % 4) * 4096;
		if (rand_r(&seed) % 4 == 0)
			items[n].request.deadline_ns = fa_deadline_ns((uint64_t)rand_r(&seed) %
			                                              (10 * FA_NS_PER_MS));
		submit(&f, i, &items[n]);
		if (rand_r(&seed) % 4 == 0)
			fa_engine_cancel(f.engine, f.streams[i],
			                 f.last[i] - (uint64_t)rand_r(&seed) % 8, 0);
		while (n - n_taken > 1000) {
			take(&f);
			n_taken++;
		}
	}
	fa_engine_stats(f.engine, &stats);
	assert_int_equal(stats.submitted, total);
	fixture_deinit(&f);
	for (unsigned int n = 0; n < total; n++)
		assert_true(items[n].taken);
	free(items);
}

/* One stream's huge request, which times out, does not keep other streams. */
static void test_small_beside_huge(void **state)
{
	struct item *huge = calloc(1, sizeof(*huge)), *small = calloc(100, sizeof(*small));
	struct fixture f;

	assert_non_null(huge);
	assert_non_null(small);
	fixture_init(&f);
	huge->job.n_tiles = INT64_MAX / 2;
	huge->job.tile_ns = FA_NS_PER_MS;
	submit(&f, 0, huge);
	for (int i = 0; i < 100; i++) {
		small[i].job.n_tiles = 3;
		submit(&f, 1, &small[i]);
		take(&f);
		assert_true(small[i].taken);
		assert_int_equal(small[i].request.status, 0);
	}
	assert_false(huge->taken);
	fa_engine_cancel(f.engine, f.streams[0], 1, 0);
	take(&f);
	assert_true(huge->taken);
	assert_int_equal(huge->request.status, -ECANCELED);
	assert_true(huge->request.started_ns > 0);

	*huge = (struct item){ .job = { .n_tiles = INT64_MAX / 2, .tile_ns = FA_NS_PER_MS } };
	huge->request.deadline_ns = fa_deadline_ns(200 * FA_NS_PER_MS);
	submit(&f, 0, huge);
	take(&f);
	assert_int_equal(huge->request.status, -ETIMEDOUT);
	fixture_deinit(&f);
	free(huge);
	free(small);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stress),
		cmocka_unit_test(test_small_beside_huge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
