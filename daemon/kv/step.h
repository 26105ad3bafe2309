/*
 * Steps in flight: the pool's plan (pool/step.h) as kernels take it, and what was asked for it.
 * Loop thread.
 *
 * A step ends when StepEnd does, whatever comes of it, or with its session; but not before
 * the last request that belongs to it has ended. Steps of a session can be planned on one
 * another: then the later one's requests come after the earlier one's that write the same
 * layer, and it can be committed only behind it.
 *
 * Pages that may hold what is another's are cleared, and those that others see are copied,
 * by a request of the session's own, before which no other of the step starts. So whatever
 * is cancelled, nobody reads what is not his.
 */
#pragma once

#include "common/error.h"
#include "common/list.h"
#include "daemon/account/tenant.h"
#include "daemon/pool/step.h"
#include "daemon/session/request.h"
#include "kernels/paged.h"

#include <stdbool.h>
#include <stdint.h>

/* New tokens of a step, all sequences together. */
#define FA_KV_STEP_TOKENS_MAX (1u << 24)

/* The sequences of one cache: struct fa_pool_step_group for kernels. */
struct fa_kv_group {
	uint64_t cache_id;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	bool v_in_k;
	const uint32_t *tree_start; /* [batch]; NULL: no trees */
	const uint32_t *positions;  /* [new tokens], with trees */
	const uint32_t *copies;     /* slots to and from, in turn, of pages that are copied */
};

struct fa_kv_step {
	struct fa_list link; /* session.kv.steps */
	struct fa_session *session;
	uint32_t id; /* the client's; 0: made for a read */
	struct fa_pool_step *plan;
	bool over;    /* the plan was committed or aborted */
	bool doomed;  /* it can only be aborted, and is once its last request has ended */
	bool failed;  /* a request of it did */
	bool aborts;  /* StepEnd says so, or will */
	bool suspect; /* ... while the device was lost */
	struct fa_charge charge; /* of its tables */

	struct fa_kv_group *groups; /* [plan->n_groups] */
	uint32_t *places;           /* [items of the client]: entries of the plan */
	uint32_t n_items;
	/* Where the device wants arrays to be that are read by kernels: slots, masks,
	 * positions. */
	struct fa_device_tables *tables;
	uint32_t *host_tables; /* instead, where it does not mind: masks and positions */
	const uint32_t *tree;  /* all masks; NULL: none */
	uint32_t *tree_start;  /* [entries of the plan] */

	uint64_t *ordered; /* ids of sequences that are ordered, ascending */
	uint32_t n_ordered;
	struct fa_kv_step **before; /* not ended, and this one is planned on them */
	uint32_t n_before;

	struct fa_list works;   /* struct fa_request in flight, by step_link; end is among them */
	bool ends;              /* StepEnd came */
	struct fa_request *end; /* it; NULL again once it has ended, which others may outlive */
	uint64_t prepared;      /* its value in the session's own stream; 0: it needed none */
};

/*
 * Plans a step and puts it in the session's list; what has to be cleared or copied is under
 * way. @tree_start NULL: no trees; else masks of @item begin at tree[tree_start[item]]. -EBUSY
 * also: a page has to be copied that a step in flight is writing to. See fa_pool_step_plan().
 */
int fa_kv_step_new(struct fa_session *session, const struct fa_actor *actor, uint32_t id,
                   const struct fa_pool_step_item *items, uint32_t n_items, const uint32_t *tree,
                   size_t n_tree, const uint32_t *tree_start, struct fa_error *error,
                   struct fa_kv_step **ret_step);

/* -ENOENT. */
int fa_kv_step_find(struct fa_session *session, uint32_t id, struct fa_error *error,
                    struct fa_kv_step **ret_step);

/* @work is one of the step's from now on, comes behind what it needs of @layer, and gives
 * notice by fa_kv_step_work_ended(). -EINVAL the step is ending; -ENOMEM, -ECANCELED. */
int fa_kv_step_add(struct fa_kv_step *step, struct fa_request *work, uint32_t layer,
                   struct fa_error *error);
void fa_kv_step_work_ended(struct fa_request *work);
/* It was added, or not yet, and then refused: what it was to write is not there. */
void fa_kv_step_work_refused(struct fa_request *work);

/* It can only be aborted now, and is when nothing of it is in flight any more. */
void fa_kv_step_doom(struct fa_kv_step *step);
void fa_kv_step_doom_all(struct fa_session *session);
