#include "tests/daemon/pool-runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define RUNS_CHUNK_BYTES 4096u
#define FOREIGN 0xe0000000u /* bits of a token that belongs to no tenant */

static const uint32_t page_tokens[MODEL_CACHES] = { 16, 32, 16 };
static const uint32_t layers[MODEL_CACHES] = { 1, 2, 3 };
/* Pages of 512, 6144 and 1536 bytes: in runs of 4, 16 and 8 KiB an eighth is unused at most, except
 * where runs cannot be larger. */
static const uint32_t runs_layers[MODEL_CACHES] = { 1, 6, 3 };

int runner_quota(void *userdata, const struct fa_pool_tenant_info *held,
                 const struct fa_pool_more *more, struct fa_error *error)
{
	const struct runner *runner = userdata;

	if (held->uid != 2000 || !more->bytes || held->bytes + more->bytes <= runner->quota_bytes)
		return 0;
	return fa_fail(error, -EDQUOT, "no more");
}

static void add_cache(struct runner *runner, uint32_t place, enum scene_actor actor,
                      struct fa_error *error, int *ret_result, uint64_t *ret_id)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry, .mode = 0x2a };
	char name[8];

	snprintf(name, sizeof(name), "c%u", place);
	config.name = name;
	config.geometry.page_tokens = page_tokens[place];
	config.geometry.layers = runner->runs ? runs_layers[place] : layers[place];
	*ret_result = fa_pool_cache_new(runner->scene.pool, &runner->scene.actors[actor], &config,
	                                0, error, ret_id);
}

void runner_init(struct runner *runner, bool runs)
{
	const struct fa_pool_config config = {
		.chunk_bytes = runs ? RUNS_CHUNK_BYTES : MODEL_CHUNK_BYTES,
		.max_chunks = MODEL_CHUNKS * (runs ? MODEL_CHUNK_BYTES / RUNS_CHUNK_BYTES : 1),
		.run_bytes_max = runs ? MODEL_CHUNK_BYTES : 0,
		.page_bytes_min = 512,
		.max_sequences = SCENE_SEQUENCES,
	};
	struct scene *scene = &runner->scene;
	int r;

	*runner = (struct runner){ .quota_bytes = (runs ? 80 : 40) * 512,
		                   .runs = runs,
		                   .chunk_bytes = (uint32_t)config.chunk_bytes,
		                   .max_chunks = config.max_chunks };
	runner->model = calloc(1, sizeof(*runner->model));
	fa_check(runner->model);
	device_init(&scene->device, (uint64_t)MODEL_CHUNKS * MODEL_CHUNK_BYTES);
	fa_check_eq(fa_pool_format(&config, &scene->error, &scene->fd), 0);
	fa_check_eq(fa_pool_open(scene->fd, NULL, &scene->error, &scene->pool), 0);
	fa_pool_set_quota(scene->pool, runner_quota, runner);
	fa_pool_quarantine_end(scene->pool);
	scene->actors[SCENE_ADMIN].admin = true;
	scene_hold_tenants(scene);
	for (int i = 0; i < SCENE_ACTORS; i++)
		runner->model->owners[i] = scene->actors[i].owner = (uint64_t)i + 1;
	for (uint32_t i = 0; i < config.max_chunks / 2; i++)
		fa_check_eq(fa_pool_chunk_add(scene->pool, i, true, &scene->error), 0);
	for (uint32_t i = 0; i < MODEL_CACHES; i++) {
		add_cache(runner, i, SCENE_ANNA, &scene->error, &r, &runner->model->caches[i].id);
		fa_check_eq(r, 0);
		runner->model->caches[i].page_tokens = page_tokens[i];
	}
}

void runner_deinit(struct runner *runner)
{
	scene_deinit(&runner->scene);
	free(runner->model);
}

/* ---- Running. */

static bool may_see_page(const struct runner *runner, const struct fa_pool_step *step,
                         uint32_t entry, uint64_t page, uint32_t tokens, enum scene_actor tenant)
{
	for (uint32_t t = 0; t < tokens; t++)
		if (!model_may_see(tenant, *device_step_token(&runner->scene.device, step, entry,
		                                              page * tokens + t)))
			return false;
	return true;
}

/* Does what a step's kernels do. */
static void attend(struct runner *runner, const struct op *op, const struct fa_pool_step *step)
{
	device_begin(&runner->scene.device, step);
	for (uint32_t i = 0; i < step->n_entries; i++) {
		const struct fa_pool_step_entry *entry = &step->entries[i];
		const struct op_item *item = &op->items[entry->item];
		const struct model_sequence *sequence = model_find(runner->model, entry->sequence);
		uint32_t tokens = device_group(step, i)->layout.page_tokens;

		fa_check_eq(entry->sequence, item->sequence);
		fa_check_eq(entry->after - entry->before, item->n_tokens);
		fa_check_eq(entry->first, sequence->first);
		for (uint64_t p = entry->first; p < entry->before && p < sequence->length; p++)
			fa_check_eq(*device_step_token(&runner->scene.device, step, i, p),
			            sequence->tokens[p]);
		for (uint64_t page = (entry->before + tokens - 1) / tokens;
		     page * tokens < entry->after; page++)
			fa_check(may_see_page(runner, step, i, page, tokens, sequence->tenant));
		for (uint64_t p = entry->before; p < entry->after; p++)
			*device_step_token(&runner->scene.device, step, i,
			                   p) = model_token(sequence, item, entry->before, p);
	}
}

/* Fails unless the caches really have too few free and idle pages for @op. */
static void check_exhausted(struct runner *runner, const struct op *op)
{
	uint64_t need[MODEL_CACHES] = { 0 };
	bool enough = true;

	for (uint32_t i = 0; i < op->n_items; i++) {
		uint32_t cache = model_find(runner->model, op->items[i].sequence)->cache;

		need[cache] += op->items[i].n_tokens / page_tokens[cache] + 2;
	}
	for (uint32_t i = 0; i < MODEL_CACHES; i++) {
		struct fa_pool_cache_info info;

		if (!need[i])
			continue;
		info = scene_cache_info(&runner->scene, runner->model->caches[i].id);
		enough &= need[i] <= info.free_pages + info.idle_pages;
	}
	fa_check(!enough);
}

static void run_plan(struct runner *runner, struct op *op)
{
	struct fa_pool_step_item items[MODEL_ITEMS];
	struct scene *scene = &runner->scene;
	struct fa_pool_step *step = NULL;

	for (uint32_t i = 0; i < op->n_items; i++)
		items[i] = (struct fa_pool_step_item){ op->items[i].sequence,
			                               op->items[i].n_tokens };
	op->result = fa_pool_step_plan(scene->pool, &scene->actors[op->actor], items, op->n_items,
	                               runner->model->serial + 1, 0, &scene->error, &step);
	if (op->result == -ENOMEM)
		check_exhausted(runner, op);
	if (op->result < 0)
		return;
	runner->steps[op->step] = step;
	attend(runner, op, step);
}

static void run_keep(struct runner *runner, struct op *op)
{
	struct fa_pool_step *step = runner->steps[op->step];
	uint32_t positions[64], moved[64], n = 0, n_moves, to, entry = 0;
	struct scene *scene = &runner->scene;
	const uint32_t *from;

	for (uint32_t i = 0; i < 64; i++)
		if (op->kept >> i & 1)
			positions[n++] = i;
	while (step->entries[entry].item != op->n_items)
		entry++;
	op->result = fa_pool_step_keep(scene->pool, step, entry, positions, n, &scene->error, &from,
	                               &n_moves, &to);
	if (op->result < 0)
		return;
	for (uint32_t i = 0; i < n_moves; i++)
		moved[i] = *device_step_token(&scene->device, step, entry, from[i]);
	for (uint32_t i = 0; i < n_moves; i++)
		*device_step_token(&scene->device, step, entry, to + i) = moved[i];
}

/* A step keeps its pages until it ends, even if they were dropped. */
static void check_held(struct runner *runner, const struct op *op, const struct fa_pool_step *step)
{
	for (uint32_t i = 0; i < step->n_entries; i++) {
		const struct fa_pool_step_entry *entry = &step->entries[i];
		const struct model_part *part = &runner->model->steps[op->step].parts[entry->item];
		const struct model_sequence *sequence = model_find(runner->model, entry->sequence);

		/* Tokens of a part that only reads may have been truncated. */
		if (!part->appends || part->cancelled)
			continue;
		for (uint64_t p = entry->first; p < entry->before && p < sequence->length; p++)
			fa_check_eq(*device_step_token(&runner->scene.device, step, i, p),
			            sequence->tokens[p]);
	}
}

static void run_end(struct runner *runner, struct op *op)
{
	struct fa_pool_step *step = runner->steps[op->step];
	struct scene *scene = &runner->scene;

	op->result = 0;
	check_held(runner, op, step);
	if (op->kind == OP_COMMIT)
		op->result = fa_pool_step_commit(scene->pool, step, &scene->error);
	else if (op->kind == OP_ABORT)
		fa_pool_step_abort(scene->pool, step);
	else
		fa_pool_step_suspect(scene->pool, step);
	if (op->result == 0)
		runner->steps[op->step] = fa_pool_step_free(step);
}

static void run_prefix(struct runner *runner, struct op *op)
{
	struct fa_prefix_key key = { .extra = "x",
		                     .extra_bytes = op->name == 1,
		                     .shared = op->shared };
	struct scene *scene = &runner->scene;
	uint32_t tokens[MODEL_TOKENS];

	for (uint64_t p = 0; p < op->tokens; p++)
		tokens[p] = model_lookup_token(runner->model, op, p);
	if (op->kind == OP_PUBLISH)
		op->result = pool_publish(scene->pool, &scene->actors[op->actor], op->sequence,
		                          &key, tokens, op->tokens, &scene->error, &op->ret_tokens);
	else
		op->result = pool_attach(scene->pool, &scene->actors[op->actor], op->sequence, &key,
		                         tokens, op->tokens, &scene->error, &op->ret_tokens);
	if (op->kind == OP_ATTACH && op->result == 0 && op->ret_tokens)
		runner->n_attached++;
}

static void run_chunk(struct runner *runner, struct op *op)
{
	struct scene *scene = &runner->scene;
	const uint32_t slots = runner->chunk_bytes / FA_SLOT_BYTES;
	uint32_t chunk = op->chunk;

	if (op->kind == OP_CHUNK_REMOVE)
		op->result = fa_pool_chunk_remove(scene->pool, &scene->error, &chunk);
	if (op->kind == OP_CHUNK_REMOVE || op->shared)
		for (uint32_t i = 0; op->result == 0 && i < slots * DEVICE_PAGE_TOKENS; i++)
			*device_token(&scene->device, chunk * slots + i / DEVICE_PAGE_TOKENS,
			              i % DEVICE_PAGE_TOKENS) = op->kind == OP_CHUNK_REMOVE
			                                                ? FOREIGN + i
			                                                : 0;
	if (op->kind == OP_CHUNK_ADD)
		op->result = fa_pool_chunk_add(scene->pool, chunk, op->shared, &scene->error);
}

void runner_run(struct runner *runner, struct op *op)
{
	struct scene *scene = &runner->scene;
	const struct fa_actor *actor = &scene->actors[op->actor];
	uint64_t cache = runner->model->caches[op->cache].id;
	char name[8];

	snprintf(name, sizeof(name), "n%u", op->name);
	op->result = 0;
	switch (op->kind) {
	case OP_PLAN:
		run_plan(runner, op);
		break;
	case OP_KEEP:
		run_keep(runner, op);
		break;
	case OP_COMMIT:
	case OP_ABORT:
	case OP_SUSPECT:
		run_end(runner, op);
		break;
	case OP_NEW:
		op->result = fa_pool_sequence_new(scene->pool, actor, cache, &scene->error,
		                                  &op->ret_id);
		break;
	case OP_FORK:
		op->result = fa_pool_sequence_fork(scene->pool, actor, op->sequence, op->tokens,
		                                   &scene->error, &op->ret_id);
		break;
	case OP_TRUNCATE:
		op->result = fa_pool_sequence_truncate(scene->pool, actor, op->sequence, op->tokens,
		                                       &scene->error);
		break;
	case OP_DROP:
		op->result = fa_pool_sequence_drop(scene->pool, actor, op->sequence, op->tokens,
		                                   &scene->error, &op->ret_tokens);
		break;
	case OP_REMOVE:
		op->result = fa_pool_sequence_remove(scene->pool, actor, op->sequence,
		                                     &scene->error);
		break;
	case OP_PUBLISH:
	case OP_ATTACH:
		run_prefix(runner, op);
		break;
	case OP_NAME:
		op->result = fa_pool_sequence_set_name(scene->pool, actor, op->sequence, name,
		                                       op->mode, 0, 0, &scene->error);
		break;
	case OP_FIND:
		op->result = fa_pool_sequence_find(scene->pool, actor, name, model_uid(op->of), 0,
		                                   &scene->error, &op->ret_id);
		break;
	case OP_RELEASE_OWNER:
		fa_pool_release_owner(scene->pool, actor->owner);
		break;
	case OP_CACHE_NEW:
		add_cache(runner, op->cache, op->actor, &scene->error, &op->result, &op->ret_id);
		break;
	case OP_CACHE_REMOVE:
		op->result = fa_pool_cache_remove(scene->pool, actor, cache, &scene->error);
		break;
	case OP_CHUNK_ADD:
	case OP_CHUNK_REMOVE:
		run_chunk(runner, op);
		break;
	case OP_EVICT:
		pool_evict(scene->pool, cache);
		break;
	case OP_QUARANTINE_END:
		fa_pool_quarantine_end(scene->pool);
		break;
	case OPS:
		break;
	}
}

/* Failures that the model does not predict. */
static bool is_tolerated(const struct op *op)
{
	switch (op->kind) {
	case OP_PLAN:
		return op->result == -ENOMEM || op->result == -EDQUOT;
	case OP_PUBLISH:
		return op->result == -EDQUOT;
	case OP_CHUNK_REMOVE:
		return op->result == -EBUSY;
	default:
		return false;
	}
}

void runner_do(struct runner *runner, struct op *op)
{
	int expected;

	runner->scene.error.text[0] = '\0';
	runner_run(runner, op);
	expected = model_expect(runner->model, op);
	/* The model does not know which users had the record of a removed sequence. */
	if (expected == -ESTALE && op->result == -ENOENT)
		expected = -ENOENT;
	if (op->result != expected && !(expected == 0 && is_tolerated(op)))
		fa_test_fail(__FILE__, __LINE__, "operation %d gave %d (%s), expected %d", op->kind,
		             op->result, runner->scene.error.text, expected);
	if (op->result < 0) {
		fa_check(runner->scene.error.text[0] != '\0');
		runner->n_failed[op->kind]++;
		return;
	}
	runner->n_done[op->kind]++;
	if (op->kind == OP_REMOVE)
		runner->stale = op->sequence;
	model_apply(runner->model, op);
	for (int i = 0; i < SCENE_ACTORS; i++)
		runner->scene.actors[i].owner = runner->model->owners[i];
}

/* ---- Comparing. */

bool runner_has(struct runner *runner, const struct model_sequence *sequence)
{
	struct scene *scene = &runner->scene;
	uint32_t slots[MODEL_TOKENS / 16 + 1], tokens = page_tokens[sequence->cache];
	struct fa_pool_sequence_info info;
	char name[8] = "";
	size_t n;

	if (sequence->name)
		snprintf(name, sizeof(name), "n%u", sequence->name);
	if (fa_pool_sequence_get_info(scene->pool, &scene->actors[SCENE_ADMIN], sequence->id, NULL,
	                              &info) < 0)
		return false;
	if (info.length != sequence->length || info.first != sequence->first ||
	    info.step != sequence->step || info.owner != sequence->owner ||
	    strcmp(info.name, name) != 0 || info.tenant != scene->actors[sequence->tenant].tenant ||
	    info.mode != sequence->mode || info.cache != runner->model->caches[sequence->cache].id)
		return false;
	n = pool_sequence_slots(scene->pool, sequence->id, slots, MODEL_TOKENS / 16 + 1);
	fa_check_eq(n, (info.length + tokens - 1) / tokens - info.first / tokens);
	for (uint64_t p = info.first; p < info.length; p++)
		if (*device_token(&scene->device, slots[(p - info.first) / tokens],
		                  (uint32_t)(p % tokens)) != sequence->tokens[p])
			return false;
	return true;
}

void runner_verify(struct runner *runner)
{
	struct fa_pool_sequence_info info;
	uint32_t cursor = 0, n = 0;

	for (uint32_t i = 0; i < MODEL_ROWS; i++) {
		const struct model_sequence *sequence = &runner->model->sequences[i];

		if (!sequence->id || sequence->removed)
			continue;
		n++;
		if (!runner_has(runner, sequence))
			fa_test_fail(__FILE__, __LINE__, "sequence %llx is not as it should be",
			             (unsigned long long)sequence->id);
	}
	while (fa_pool_sequence_each(runner->scene.pool, &cursor, &info))
		n--;
	fa_check_eq(n, 0);
}

void runner_settle(struct runner *runner)
{
	for (;;) {
		struct op op = { .kind = OP_COMMIT };
		uint64_t oldest = UINT64_MAX;

		for (uint32_t i = 0; i < MODEL_STEPS; i++)
			if (runner->model->steps[i].serial &&
			    runner->model->steps[i].serial < oldest) {
				oldest = runner->model->steps[i].serial;
				op.step = i;
			}
		if (oldest == UINT64_MAX)
			break;
		runner_run(runner, &op);
		fa_check_eq(op.result, model_expect(runner->model, &op));
		model_apply(runner->model, &op);
		if (op.result == 0)
			continue;
		op.kind = OP_ABORT;
		runner_do(runner, &op);
	}
	runner_verify(runner);
	scene_check_counts(&runner->scene);
}

void runner_reopen(struct runner *runner)
{
	for (uint32_t i = 0; i < MODEL_STEPS; i++)
		if (runner->steps[i]) {
			/* The step's process is gone, so the abort only frees memory. */
			fa_pool_step_abort(runner->scene.pool, runner->steps[i]);
			runner->steps[i] = fa_pool_step_free(runner->steps[i]);
		}
	scene_reopen(&runner->scene);
	fa_pool_set_quota(runner->scene.pool, runner_quota, runner);
	runner->quarantine = true;
	model_drop_in_flight(runner->model);
}
