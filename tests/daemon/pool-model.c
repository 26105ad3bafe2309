#include "tests/daemon/pool-model.h"

#include <errno.h>
#include <string.h>

#define PUBLIC 15u

enum scene_actor model_tenant(enum scene_actor actor)
{
	return actor == SCENE_BOB ? SCENE_ANNA : actor;
}

uint32_t model_uid(enum scene_actor tenant)
{
	return tenant == SCENE_DAVID ? 2000 : 1000;
}

struct model_sequence *model_find(struct model *model, uint64_t id)
{
	for (uint32_t i = 0; id && i < MODEL_ROWS; i++)
		if (model->sequences[i].id == id)
			return &model->sequences[i];
	return NULL;
}

static struct model_sequence *by_name(struct model *model, uint32_t uid, uint32_t name)
{
	for (uint32_t i = 0; i < MODEL_ROWS; i++)
		if (model->sequences[i].id && !model->sequences[i].removed &&
		    model->sequences[i].name == name &&
		    model_uid(model->sequences[i].tenant) == uid)
			return &model->sequences[i];
	return NULL;
}

uint32_t model_token(const struct model_sequence *sequence, const struct op_item *item,
                     uint64_t before, uint64_t position)
{
	if (item->text) /* a text is the same in all sequences */
		return PUBLIC << 28 | item->text << 20 | (uint32_t)position;
	return (uint32_t)(sequence->tenant + 1) << 28 |
	       ((item->base + (uint32_t)(position - before)) & 0xfffffff);
}

bool model_may_see(enum scene_actor tenant, uint32_t token)
{
	return !token || token >> 28 == PUBLIC || token >> 28 == (uint32_t)tenant + 1;
}

static bool admits(enum scene_actor tenant, uint32_t mode, enum scene_actor actor,
                   enum fa_right right)
{
	uint32_t who = mode >> 2 * right & 3;

	for (int other = FA_RIGHT_APPEND; right == FA_RIGHT_READ && other <= FA_RIGHT_FORK; other++)
		if ((mode >> 2 * other & 3) > who)
			who = mode >> 2 * other & 3;
	return model_tenant(actor) == tenant || who == FA_ADMIT_ALL ||
	       (who == FA_ADMIT_UID && model_uid(model_tenant(actor)) == model_uid(tenant));
}

/* Returns the error where an actor lacks a right: another user's object that it may not read does
 * not exist for it. */
static int refuse(const struct model_sequence *sequence, enum scene_actor actor)
{
	const bool shown = model_uid(model_tenant(actor)) == model_uid(sequence->tenant) ||
	                   admits(sequence->tenant, sequence->mode, actor, FA_RIGHT_READ);

	return shown ? -EACCES : -ENOENT;
}

static int access_to(struct model *model, enum scene_actor actor, uint64_t id, enum fa_right right)
{
	const struct model_sequence *sequence = model_find(model, id);

	if (id >> 32 == UINT32_MAX)
		return -ENOENT; /* the sequence never existed */
	if (!sequence || sequence->removed)
		return -ESTALE;
	if (!sequence->name)
		return sequence->owner == model->owners[actor] ? 0 : -ENOENT;
	return admits(sequence->tenant, sequence->mode, actor, right) ? 0 : refuse(sequence, actor);
}

struct flight {
	uint32_t n, n_appending;
	uint64_t appender, planned;
	bool cancelled, keeps;
};

static struct flight in_flight(struct model *model, uint64_t id)
{
	const struct model_sequence *sequence = model_find(model, id);
	struct flight flight = { .planned = sequence ? sequence->length : 0 };
	uint64_t newest = 0;

	for (uint32_t i = 0; i < MODEL_STEPS; i++)
		for (uint32_t j = 0; model->steps[i].serial && j < model->steps[i].n_parts; j++) {
			const struct model_part *part = &model->steps[i].parts[j];

			if (part->sequence != id)
				continue;
			flight.n++;
			flight.cancelled |= part->cancelled;
			flight.keeps |= part->keeps;
			if (!part->appends)
				continue;
			flight.n_appending++;
			flight.appender = model->steps[i].owner;
			if (model->steps[i].serial > newest) {
				newest = model->steps[i].serial;
				flight.planned = part->after;
			}
		}
	return flight;
}

uint64_t model_planned(struct model *model, uint64_t id, bool *ret_in_flight)
{
	struct flight flight = in_flight(model, id);

	*ret_in_flight = flight.n > 0;
	return flight.planned;
}

/* Returns true if an appending part of the sequence was planned before (or after) @serial. */
static bool has_other(const struct model *model, uint64_t id, uint64_t serial, bool before)
{
	for (uint32_t i = 0; i < MODEL_STEPS; i++)
		for (uint32_t j = 0; model->steps[i].serial && j < model->steps[i].n_parts; j++) {
			const struct model_part *part = &model->steps[i].parts[j];
			uint64_t other = model->steps[i].serial;

			if (part->sequence == id && part->appends &&
			    (before ? other < serial : other > serial))
				return true;
		}
	return false;
}

/*
 * Returns true if all rows are in use; a removed sequence keeps its row while steps are in flight.
 */
static bool is_full(const struct model *model)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < MODEL_ROWS; i++)
		n += model->sequences[i].id != 0;
	return n >= SCENE_SEQUENCES;
}

static bool joins_appenders(struct model *model, const struct op *op, const struct flight *flight,
                            uint32_t n_tokens)
{
	return n_tokens || (flight->n_appending && flight->appender == model->owners[op->actor]);
}

static int expect_plan(struct model *model, const struct op *op)
{
	for (uint32_t i = 0; i < op->n_items; i++) {
		const struct op_item *item = &op->items[i];
		struct flight flight;
		int r;

		r = access_to(model, op->actor, item->sequence,
		              item->n_tokens ? FA_RIGHT_APPEND : FA_RIGHT_READ);
		if (r < 0)
			return r;
		for (uint32_t j = 0; j < i; j++)
			if (op->items[j].sequence == item->sequence)
				return -EINVAL;
		flight = in_flight(model, item->sequence);
		if (!joins_appenders(model, op, &flight, item->n_tokens))
			continue;
		if (flight.n_appending && flight.appender != model->owners[op->actor])
			return -EBUSY;
		if (flight.cancelled || flight.keeps)
			return -EBUSY;
	}
	return 0;
}

static int expect_keep(struct model *model, const struct op *op)
{
	const struct model_step *step = &model->steps[op->step];
	const struct model_part *part = &step->parts[op->n_items];

	if (!part->item.n_tokens || part->keeps)
		return -EINVAL;
	if (part->cancelled)
		return -ECANCELED;
	return has_other(model, part->sequence, step->serial, false) ? -EBUSY : 0;
}

static int expect_commit(const struct model *model, const struct op *op)
{
	const struct model_step *step = &model->steps[op->step];
	int r = 0;

	/* If both errors apply either is right: the pool may check in another order. */
	for (uint32_t i = 0; i < step->n_parts; i++) {
		const struct model_part *part = &step->parts[i];

		if (part->cancelled && (op->result == -ECANCELED || !r))
			r = -ECANCELED;
		else if (part->appends && has_other(model, part->sequence, step->serial, true) &&
		         (op->result == -EBUSY || !r))
			r = -EBUSY;
	}
	return r;
}

static int expect_name(struct model *model, const struct op *op)
{
	const struct model_sequence *sequence = model_find(model, op->sequence);
	int r = access_to(model, op->actor, op->sequence, FA_RIGHT_READ);

	if (r < 0)
		return r;
	if (sequence->tenant != model_tenant(op->actor))
		return -EACCES;
	if (sequence->name && sequence->name != op->name)
		return -EEXIST;
	return !sequence->name && by_name(model, model_uid(sequence->tenant), op->name) ? -EEXIST
	                                                                                : 0;
}

static int expect_sequence(struct model *model, const struct op *op)
{
	static const enum fa_right rights[OPS] = {
		[OP_FORK] = FA_RIGHT_FORK,      [OP_TRUNCATE] = FA_RIGHT_APPEND,
		[OP_DROP] = FA_RIGHT_APPEND,    [OP_REMOVE] = FA_RIGHT_READ,
		[OP_PUBLISH] = FA_RIGHT_APPEND, [OP_ATTACH] = FA_RIGHT_APPEND,
	};
	const struct model_sequence *sequence = model_find(model, op->sequence);
	struct flight flight = in_flight(model, op->sequence);
	int r = access_to(model, op->actor, op->sequence, rights[op->kind]);

	if (r < 0)
		return r;
	switch (op->kind) {
	case OP_FORK:
		if (op->tokens > sequence->length || op->tokens < sequence->first)
			return -EINVAL;
		return is_full(model) ? -ENOSPC : 0;
	case OP_TRUNCATE:
		if (flight.n_appending)
			return -EBUSY;
		return op->tokens > sequence->length || op->tokens < sequence->first ? -EINVAL : 0;
	case OP_REMOVE:
		return sequence->name && sequence->tenant != model_tenant(op->actor) ? -EACCES : 0;
	case OP_ATTACH:
		if (flight.n)
			return -EBUSY;
		return sequence->length ? -EINVAL : 0;
	default: /* drop, publish */
		return op->tokens > sequence->length ? -EINVAL : 0;
	}
}

int model_expect(struct model *model, const struct op *op)
{
	const struct model_sequence *named;
	const struct model_cache *cache = &model->caches[op->cache];

	switch (op->kind) {
	case OP_PLAN:
		return expect_plan(model, op);
	case OP_KEEP:
		return expect_keep(model, op);
	case OP_COMMIT:
		return expect_commit(model, op);
	case OP_NEW:
		if (!cache->id)
			return -ENOENT;
		return is_full(model) ? -ENOSPC : 0;
	case OP_FORK:
	case OP_TRUNCATE:
	case OP_DROP:
	case OP_REMOVE:
	case OP_PUBLISH:
	case OP_ATTACH:
		return expect_sequence(model, op);
	case OP_NAME:
		return expect_name(model, op);
	case OP_FIND:
		named = by_name(model, model_uid(op->of), op->name);
		if (!named)
			return -ENOENT;
		return admits(named->tenant, named->mode, op->actor, FA_RIGHT_READ)
		               ? 0
		               : refuse(named, op->actor);
	case OP_CACHE_NEW:
		return cache->id ? -EEXIST : 0;
	case OP_CACHE_REMOVE:
		if (!cache->id)
			return -ENOENT;
		return cache->tenant == model_tenant(op->actor) ? 0 : -EACCES;
	default:
		return 0;
	}
}

/* The row stays while a step with the sequence is in flight. */
static void leave(struct model *model, struct model_sequence *sequence)
{
	sequence->removed = true;
	sequence->name = 0;
	if (!in_flight(model, sequence->id).n)
		sequence->id = 0;
}

static struct model_sequence *add_sequence(struct model *model, const struct op *op)
{
	struct model_sequence *sequence = model->sequences;

	while (sequence->id)
		sequence++;
	*sequence = (struct model_sequence){
		.id = op->ret_id,
		.tenant = model_tenant(op->actor),
		.owner = model->owners[op->actor],
	};
	return sequence;
}

static void apply_plan(struct model *model, const struct op *op)
{
	struct model_step *step = &model->steps[op->step];
	struct model_step planned = { .serial = ++model->serial,
		                      .owner = model->owners[op->actor],
		                      .n_parts = op->n_items };

	for (uint32_t i = 0; i < op->n_items; i++) {
		const struct op_item *item = &op->items[i];
		const struct model_sequence *sequence = model_find(model, item->sequence);
		struct flight flight = in_flight(model, item->sequence);
		bool appends = joins_appenders(model, op, &flight, item->n_tokens);
		uint64_t before = appends ? flight.planned : sequence->length;

		planned.parts[i] = (struct model_part){
			.sequence = item->sequence,
			.before = before,
			.after = before + item->n_tokens,
			.item = *item,
			.appends = appends,
		};
	}
	*step = planned;
}

static void apply_commit(struct model *model, const struct op *op)
{
	struct model_step step = model->steps[op->step];

	model->steps[op->step].serial = 0;
	for (uint32_t i = 0; i < step.n_parts; i++) {
		const struct model_part *part = &step.parts[i];
		struct model_sequence *sequence = model_find(model, part->sequence);

		if (sequence->removed) {
			leave(model, sequence);
			continue;
		}
		if (!part->item.n_tokens)
			continue;
		sequence->length = part->before;
		for (uint64_t p = part->before; p < part->after; p++)
			if (!part->keeps || (part->kept >> (p - part->before) & 1))
				sequence->tokens[sequence->length++] = model_token(
					sequence, &part->item, part->before, p);
		sequence->step = step.serial;
	}
}

static void apply_abort(struct model *model, const struct op *op)
{
	struct model_step step = model->steps[op->step];

	model->steps[op->step].serial = 0;
	for (uint32_t i = 0; i < step.n_parts; i++) {
		struct model_sequence *sequence = model_find(model, step.parts[i].sequence);

		for (uint32_t k = 0; step.parts[i].item.n_tokens && k < MODEL_STEPS; k++)
			for (uint32_t j = 0; j < model->steps[k].n_parts; j++) {
				struct model_part *part = &model->steps[k].parts[j];

				if (model->steps[k].serial > step.serial && part->appends &&
				    part->sequence == sequence->id)
					part->cancelled = true;
			}
		if (op->kind == OP_SUSPECT && step.parts[i].item.n_tokens)
			sequence->removed = true;
		if (sequence->removed)
			leave(model, sequence);
	}
}

uint32_t model_lookup_token(struct model *model, const struct op *op, uint64_t position)
{
	uint32_t token = model_find(model, op->source)->tokens[position];

	return position == op->wrong ? token ^ 1 : token;
}

static void apply_sequence(struct model *model, const struct op *op)
{
	struct model_sequence *sequence = model_find(model, op->sequence), *child;

	switch (op->kind) {
	case OP_FORK:
		child = add_sequence(model, op);
		child->cache = sequence->cache;
		child->length = op->tokens;
		child->first = sequence->first;
		child->step = sequence->step;
		memcpy(child->tokens, sequence->tokens, sizeof(child->tokens));
		break;
	case OP_TRUNCATE:
		sequence->length = op->tokens;
		break;
	case OP_DROP: {
		uint64_t first = op->tokens -
		                 op->tokens % model->caches[sequence->cache].page_tokens;

		if (first > sequence->first)
			sequence->first = first;
		fa_check_eq(op->ret_tokens, sequence->first);
		break;
	}
	case OP_REMOVE:
		leave(model, sequence);
		break;
	case OP_ATTACH:
		fa_check(op->ret_tokens <= op->tokens);
		fa_check_eq(op->ret_tokens % model->caches[sequence->cache].page_tokens, 0);
		sequence->length = op->ret_tokens;
		for (uint64_t p = 0; p < op->ret_tokens; p++)
			sequence->tokens[p] = model_lookup_token(model, op, p);
		break;
	default:
		break;
	}
}

static void apply_owner_gone(struct model *model, const struct op *op)
{
	uint64_t owner = model->owners[op->actor];

	for (uint32_t i = 0; i < MODEL_ROWS; i++) {
		struct model_sequence *sequence = &model->sequences[i];

		if (!sequence->id || sequence->removed || sequence->owner != owner)
			continue;
		sequence->owner = 0;
		if (!sequence->name)
			leave(model, sequence);
	}
	model->owners[op->actor] = ++model->n_owners + SCENE_ACTORS;
}

void model_apply(struct model *model, const struct op *op)
{
	if (op->result < 0)
		return;
	switch (op->kind) {
	case OP_PLAN:
		apply_plan(model, op);
		break;
	case OP_KEEP: {
		struct model_part *part = &model->steps[op->step].parts[op->n_items];

		part->keeps = true;
		part->kept = op->kept;
		break;
	}
	case OP_COMMIT:
		apply_commit(model, op);
		break;
	case OP_ABORT:
	case OP_SUSPECT:
		apply_abort(model, op);
		break;
	case OP_NEW:
		add_sequence(model, op)->cache = op->cache;
		break;
	case OP_NAME: {
		struct model_sequence *sequence = model_find(model, op->sequence);

		sequence->name = op->name;
		sequence->mode = op->mode;
		break;
	}
	case OP_FIND:
		fa_check_eq(op->ret_id, by_name(model, model_uid(op->of), op->name)->id);
		break;
	case OP_RELEASE_OWNER:
		apply_owner_gone(model, op);
		break;
	case OP_CACHE_NEW:
		model->caches[op->cache] = (struct model_cache){ op->ret_id,
			                                         model_tenant(op->actor), 16 };
		break;
	case OP_CACHE_REMOVE:
		for (uint32_t i = 0; i < MODEL_ROWS; i++)
			if (model->sequences[i].id && !model->sequences[i].removed &&
			    model->sequences[i].cache == op->cache)
				leave(model, &model->sequences[i]);
		model->caches[op->cache].id = 0;
		break;
	default:
		apply_sequence(model, op);
		break;
	}
}

void model_drop_in_flight(struct model *model)
{
	for (uint32_t i = 0; i < MODEL_STEPS; i++)
		model->steps[i].serial = 0;
	for (uint32_t i = 0; i < MODEL_ROWS; i++)
		if (model->sequences[i].removed)
			model->sequences[i].id = 0;
}
