/*
 * A process that works on a pool is killed at a counted store or at any instruction. Finished
 * operations must be there, the unfinished one may be, sequence by sequence. The child's journal
 * leads the parent's model to the same state.
 */
#include "daemon/pool/state_store.h"
#include "tests/daemon/pool-runner.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define DEATHS 100
#define DEATHS_LONG 1000
#define OPS_MAX 2000u
#define DIED_AT_A_FAULT 42

struct journal {
	uint32_t n_ops;
	struct op ops[OPS_MAX];
};

struct crash {
	struct runner runner;
	struct journal *journal;
	uint64_t seed;
	uint64_t n_points; /* stores until the child dies; 0: by SIGKILL */
};

static uint64_t points_left;

static void count_down(void)
{
	if (!--points_left)
		_exit(DIED_AT_A_FAULT);
}

static int child(void *userdata)
{
	struct crash *crash = userdata;
	struct fa_test_random random = { crash->seed };
	struct journal *journal = crash->journal;

	points_left = crash->n_points;
	fa_state_fault_hook = points_left ? count_down : NULL;
	while (journal->n_ops < OPS_MAX) {
		struct op op, *entry = &journal->ops[journal->n_ops];

		runner_choose(&crash->runner, &random, &op);
		*entry = op;
		__atomic_store_n(&journal->n_ops, journal->n_ops + 1, __ATOMIC_RELEASE);
		runner_do(&crash->runner, &op);
		*entry = op;
		__atomic_store_n(&entry->done, true, __ATOMIC_RELEASE);
	}
	return 0;
}

static bool exists(struct crash *crash, uint64_t id)
{
	struct scene *scene = &crash->runner.scene;
	struct fa_pool_sequence_info info;

	return fa_pool_sequence_get_info(scene->pool, &scene->actors[SCENE_ADMIN], id, NULL,
	                                 &info) == 0;
}

/* A sequence that the model does not have; 0: none. */
static uint64_t find_new(struct crash *crash)
{
	struct fa_pool_sequence_info info;
	uint32_t cursor = 0;

	while (fa_pool_sequence_each(crash->runner.scene.pool, &cursor, &info))
		if (!model_find(crash->runner.model, info.id))
			return info.id;
	return 0;
}

static void find_cache(struct crash *crash, uint32_t uid, uint64_t *ret_id)
{
	struct scene *scene = &crash->runner.scene;

	*ret_id = 0;
	(void)fa_pool_cache_find(scene->pool, &scene->actors[SCENE_ADMIN], "c2", uid, 0, NULL,
	                         ret_id);
}

/* Results of the unfinished operation; false: it had no durable effect. */
static bool complete(struct crash *crash, struct op *op)
{
	struct scene *scene = &crash->runner.scene;
	const struct model_sequence *sequence = model_find(crash->runner.model, op->sequence);
	struct fa_pool_sequence_info info;

	op->result = 0;
	if (model_expect(crash->runner.model, op) < 0)
		return false;
	switch (op->kind) {
	case OP_NEW:
	case OP_FORK:
		op->ret_id = find_new(crash);
		return op->ret_id != 0;
	case OP_DROP:
		op->ret_tokens = op->tokens - op->tokens % (sequence->cache == 1 ? 32 : 16);
		if (op->ret_tokens < sequence->first)
			op->ret_tokens = sequence->first;
		return true;
	case OP_ATTACH:
		fa_check_eq(fa_pool_sequence_get_info(scene->pool, &scene->actors[SCENE_ADMIN],
		                                      op->sequence, NULL, &info),
		            0);
		op->ret_tokens = info.length;
		return true;
	case OP_CACHE_NEW:
		find_cache(crash, model_uid(op->actor), &op->ret_id);
		return op->ret_id != 0;
	case OP_CACHE_REMOVE: {
		uint64_t id;

		find_cache(crash, model_uid(crash->runner.model->caches[2].tenant), &id);
		return id == 0;
	}
	case OP_PLAN:
	case OP_KEEP:
	case OP_FIND:
		return false;
	default:
		return true;
	}
}

/* Each sequence is as before the unfinished operation, or as after it. */
static void reconcile(struct crash *crash, struct op *last)
{
	struct model *model = crash->runner.model, *after = malloc(sizeof(*after));

	fa_check(after);
	*after = *model;
	if (last && complete(crash, last))
		model_apply(after, last);
	model_drop_in_flight(model);
	model_drop_in_flight(after);
	memcpy(model->caches, after->caches, sizeof(model->caches));
	for (uint32_t i = 0; i < MODEL_ROWS; i++) {
		struct model_sequence *a = &model->sequences[i], *b = &after->sequences[i];

		if (!a->id && !b->id)
			continue;
		if (a->id && runner_has(&crash->runner, a))
			continue;
		if (b->id && runner_has(&crash->runner, b))
			*a = *b;
		else if (!b->id && !exists(crash, a->id))
			a->id = 0;
		else
			fail_msg("sequence %llx is neither as before operation %d nor as after it",
			         (unsigned long long)(a->id ? a->id : b->id),
			         last ? (int)last->kind : -1);
	}
	free(after);
}

static void reopen(struct crash *crash, const struct op *last)
{
	struct fa_pool_report report = {};
	struct scene *scene = &crash->runner.scene;

	scene->pool = fa_pool_free(scene->pool);
	assert_int_equal(fa_pool_open(scene->fd, &report, &scene->error, &scene->pool), 0);
	for (size_t i = 0; i < report.n_lines; i++)
		if (!last || last->kind != OP_SUSPECT)
			fail_msg("%s", report.lines[i]);
	fa_pool_report_deinit(&report);
	scene_hold_tenants(scene);
	fa_pool_set_quota(scene->pool, runner_quota, &crash->runner);
}

static void die_once(struct crash *crash, struct fa_test_random *random)
{
	struct runner *runner = &crash->runner;
	struct journal *journal = crash->journal;
	struct op *last = NULL;
	int status;
	pid_t pid;

	journal->n_ops = 0;
	crash->seed = fa_test_random(random);
	crash->n_points = 0;
	if (fa_test_random_below(random, 2))
		crash->n_points = 1 + fa_test_random_below(random, 4000);
	pid = fa_test_fork(child, crash);
	if (!crash->n_points) {
		fa_test_any_moment_us(fa_test_random_below(random, 6000));
		kill(pid, SIGKILL);
	}
	status = fa_test_reap(pid);
	assert_true(WIFSIGNALED(status)
	                    ? WTERMSIG(status) == SIGKILL
	                    : WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED_AT_A_FAULT);

	for (uint32_t i = 0; i < journal->n_ops; i++) {
		struct op *op = &journal->ops[i];

		if (!op->done) {
			assert_int_equal(i, journal->n_ops - 1);
			last = op;
			break;
		}
		model_apply(runner->model, op);
		for (uint32_t j = 0; op->kind == OP_PLAN && j < op->n_items; j++)
			runner->unique = op->items[j].base + op->items[j].n_tokens;
	}
	reopen(crash, last);
	reconcile(crash, last);
	for (int i = 0; i < SCENE_ACTORS; i++)
		runner->scene.actors[i].owner = runner->model->owners[i];
	runner_settle(runner);
	if (fa_test_random_below(random, 2))
		fa_pool_quarantine_end(runner->scene.pool);
}

static void die_again_and_again(bool runs)
{
	const char *seed = getenv("FAD_TEST_SEED");
	struct fa_test_random random = { seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) };
	struct crash *crash = calloc(1, sizeof(*crash));
	uint64_t n_ops = 0, n_unfinished = 0;
	void *journal;

	assert_non_null(crash);
	printf("FAD_TEST_SEED=%llu\n", (unsigned long long)random.state);
	fflush(stdout);
	journal = mmap(NULL, sizeof(struct journal), PROT_READ | PROT_WRITE,
	               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(journal != MAP_FAILED);
	crash->journal = journal;
	runner_init(&crash->runner, runs);
	for (int i = 0; i < (fa_test_long() ? DEATHS_LONG : DEATHS); i++) {
		die_once(crash, &random);
		n_ops += crash->journal->n_ops;
		n_unfinished += crash->journal->n_ops &&
		                !crash->journal->ops[crash->journal->n_ops - 1].done;
	}
	printf("%llu operations, of which %llu were cut short\n", (unsigned long long)n_ops,
	       (unsigned long long)n_unfinished);
	assert_true(n_unfinished > 0);
	runner_deinit(&crash->runner);
	munmap(journal, sizeof(struct journal));
	free(crash);
}

static void test_deaths(void **state)
{
	die_again_and_again(false);
}

static void test_deaths_runs(void **state)
{
	die_again_and_again(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_deaths),
		cmocka_unit_test(test_deaths_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
