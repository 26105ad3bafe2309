/* Chooses operations, mostly ones that can succeed. */
#include "tests/daemon/pool-runner.h"

static const struct {
	enum op_kind kind;
	uint32_t weight;
} weights[] = {
	{ OP_PLAN, 300 },         { OP_COMMIT, 230 },  { OP_ABORT, 30 },        { OP_KEEP, 30 },
	{ OP_SUSPECT, 1 },        { OP_NEW, 50 },      { OP_FORK, 60 },         { OP_TRUNCATE, 40 },
	{ OP_DROP, 30 },          { OP_REMOVE, 35 },   { OP_PUBLISH, 50 },      { OP_ATTACH, 50 },
	{ OP_NAME, 15 },          { OP_FIND, 10 },     { OP_RELEASE_OWNER, 1 }, { OP_CACHE_NEW, 4 },
	{ OP_CACHE_REMOVE, 1 },   { OP_CHUNK_ADD, 6 }, { OP_CHUNK_REMOVE, 6 },  { OP_EVICT, 1 },
	{ OP_QUARANTINE_END, 2 },
};

static enum op_kind choose_kind(struct fa_test_random *random)
{
	uint64_t sum = 0, at;
	size_t i;

	for (i = 0; i < sizeof(weights) / sizeof(*weights); i++)
		sum += weights[i].weight;
	at = fa_test_random_below(random, sum);
	for (i = 0; at >= weights[i].weight; i++)
		at -= weights[i].weight;
	return weights[i].kind;
}

static bool one_in(struct fa_test_random *random, uint32_t n)
{
	return fa_test_random_below(random, n) == 0;
}

#define NO_SEQUENCE ((uint64_t)UINT32_MAX << 32 | 1)

/* Chooses mostly a sequence that the actor may use, sometimes any other, or none. */
static uint64_t choose_sequence(struct runner *runner, struct fa_test_random *random,
                                const struct op *op, bool empty)
{
	const struct model_sequence *sequence;
	uint64_t id = 0;

	if (one_in(random, 100))
		return NO_SEQUENCE;
	if (one_in(random, 100) && runner->stale)
		return runner->stale;
	for (int tries = 0; tries < 300; tries++) {
		sequence = &runner->model->sequences[fa_test_random_below(random, MODEL_ROWS)];
		if (!sequence->id || (sequence->removed && !one_in(random, 20)))
			continue;
		id = sequence->id;
		if (empty && sequence->length && !one_in(random, 30))
			continue;
		if (sequence->owner == runner->model->owners[op->actor] ||
		    (sequence->name &&
		     (sequence->tenant == model_tenant(op->actor) || one_in(random, 4))) ||
		    one_in(random, 200))
			break;
	}
	return id ? id : NO_SEQUENCE;
}

static uint32_t choose_length(struct fa_test_random *random)
{
	switch (fa_test_random_below(random, 10)) {
	case 0:
		return 0;
	case 1:
	case 2:
	case 3:
	case 4:
		return 1;
	case 5:
	case 6:
	case 7:
		return 1 + (uint32_t)fa_test_random_below(random, 20);
	case 8:
		return 1 + (uint32_t)fa_test_random_below(random, 64);
	default:
		return 1 + (uint32_t)fa_test_random_below(random, 300);
	}
}

static void choose_item(struct runner *runner, struct fa_test_random *random, const struct op *op,
                        struct op_item *item)
{
	const struct model_sequence *sequence;
	uint64_t planned = 0;
	bool in_flight;

	for (int tries = 0; tries < 10; tries++) {
		bool twice = false;

		item->sequence = choose_sequence(runner, random, op, false);
		for (const struct op_item *other = op->items; other < item; other++)
			twice |= other->sequence == item->sequence;
		if (!twice || one_in(random, 30))
			break;
	}
	item->n_tokens = choose_length(random);
	item->base = runner->unique;
	item->text = 0;
	runner->unique += item->n_tokens;
	sequence = model_find(runner->model, item->sequence);
	if (!sequence)
		return;
	planned = model_planned(runner->model, item->sequence, &in_flight);
	if (planned + item->n_tokens > MODEL_TOKENS)
		item->n_tokens = (uint32_t)(MODEL_TOKENS - planned);
	/* Texts are shared: other sequences with the same text can attach the pages. */
	if (!planned && !one_in(random, 3))
		item->text = 1 + (uint32_t)fa_test_random_below(random, 3);
	else if (planned && planned == sequence->length && !one_in(random, 4) &&
	         sequence->tokens[0] >> 28 == 15)
		item->text = sequence->tokens[0] >> 20 & 0xff;
}

static bool choose_step(struct runner *runner, struct fa_test_random *random, struct op *op,
                        bool there)
{
	uint32_t first = (uint32_t)fa_test_random_below(random, MODEL_STEPS);
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = 0; i < MODEL_STEPS; i++) {
		uint32_t place = (first + i) % MODEL_STEPS;
		uint64_t serial = runner->model->steps[place].serial;

		if ((serial != 0) != there || (there && serial >= oldest))
			continue;
		oldest = serial;
		op->step = place;
		if (!there || one_in(random, 8))
			return true;
	}
	return oldest != UINT64_MAX;
}

static bool choose_kept(struct runner *runner, struct fa_test_random *random, struct op *op)
{
	const struct model_step *step = &runner->model->steps[op->step];
	uint32_t n;

	op->n_items = (uint32_t)fa_test_random_below(random, step->n_parts);
	n = step->parts[op->n_items].item.n_tokens;
	if (n > 63)
		return false;
	op->kept = fa_test_random(random) & ((1ull << n) - 1);
	if (one_in(random, 3)) /* keep a prefix */
		op->kept = (1ull << fa_test_random_below(random, n + 1)) - 1;
	return true;
}

static void choose_tokens(struct runner *runner, struct fa_test_random *random, struct op *op)
{
	const struct model_sequence *sequence = model_find(runner->model, op->sequence);
	const struct model_sequence *source = sequence;

	op->wrong = UINT64_MAX;
	op->source = op->sequence;
	if (!sequence)
		return;
	if (op->kind == OP_ATTACH) {
		for (int tries = 0; tries < 20; tries++) {
			source =
				&runner->model->sequences[fa_test_random_below(random, MODEL_ROWS)];
			if (source->id && source->length > 16)
				break;
		}
		if (!source->id)
			source = sequence;
		op->source = source->id;
	}
	op->tokens = fa_test_random_below(random, source->length + 1);
	if (op->kind == OP_PUBLISH || op->kind == OP_ATTACH || op->kind == OP_FORK)
		op->tokens = one_in(random, 3) ? op->tokens : source->length;
	if (op->kind == OP_TRUNCATE && !one_in(random, 4) && op->tokens < source->length)
		op->tokens = source->length -
		             fa_test_random_below(random, 10) % (source->length - op->tokens);
	if (op->kind == OP_ATTACH && op->tokens && one_in(random, 3))
		op->wrong = fa_test_random_below(random, op->tokens);
	/* Usually takes no more tokens than the source has. */
	if (op->kind != OP_ATTACH && op->kind != OP_PUBLISH && one_in(random, 50))
		op->tokens += 1000;
}

static bool choose_chunk(struct runner *runner, struct fa_test_random *random, struct op *op)
{
	op->chunk = (uint32_t)fa_test_random_below(random, runner->max_chunks);
	return fa_pool_chunk_state(runner->scene.pool, op->chunk) == FA_CHUNK_ABSENT;
}

void runner_choose(struct runner *runner, struct fa_test_random *random, struct op *op)
{
	bool possible;

	do {
		*op = (struct op){
			.kind = choose_kind(random),
			.actor = (enum scene_actor)fa_test_random_below(random, SCENE_ADMIN),
			.of = (enum scene_actor)fa_test_random_below(random, SCENE_ADMIN),
			.cache = fa_test_random_below(random, 8) < 6 ? 0 : 1,
			.shared = fa_test_random_below(random, 2),
			.name = 1 + (uint32_t)fa_test_random_below(random, 6)
		};
		possible = true;
		op->mode = FA_MODE(fa_test_random_below(random, 3), fa_test_random_below(random, 3),
		                   fa_test_random_below(random, 3));
		if (one_in(random, 10))
			op->cache = 2;
		switch (op->kind) {
		case OP_PLAN:
			possible = choose_step(runner, random, op, false);
			op->n_items = 1 + (uint32_t)fa_test_random_below(random, MODEL_ITEMS);
			for (uint32_t i = 0; i < op->n_items; i++)
				choose_item(runner, random, op, &op->items[i]);
			break;
		case OP_COMMIT:
		case OP_ABORT:
		case OP_SUSPECT:
			possible = choose_step(runner, random, op, true);
			break;
		case OP_KEEP:
			possible = choose_step(runner, random, op, true) &&
			           choose_kept(runner, random, op);
			break;
		case OP_CACHE_NEW:
		case OP_CACHE_REMOVE:
			op->cache = 2;
			/* The model has one cache of each name, and users could have one each. */
			if (op->kind == OP_CACHE_NEW && runner->model->caches[2].id &&
			    model_uid(op->actor) != model_uid(runner->model->caches[2].tenant))
				op->actor = runner->model->caches[2].tenant;
			break;
		case OP_CHUNK_ADD:
			possible = choose_chunk(runner, random, op);
			break;
		default:
			op->sequence = choose_sequence(runner, random, op, op->kind == OP_ATTACH);
			choose_tokens(runner, random, op);
			break;
		}
	} while (!possible);
}
