/*
 * Steps in flight: the pool's plan (pool/step.h) in the kernels' form, and its requests. Loop
 * thread. A step ends with its StepEnd or its session, after its last request. A step planned on
 * another waits, layer by layer, for the other's requests, and commits after it. First a request on
 * the session's own stream clears other tenants' pages and copies shared ones.
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

#define FA_KV_STEP_TOKENS_MAX (1u << 24)

/* The sequences of one cache, in the kernels' form. */
struct fa_kv_group {
	uint64_t cache_id;
	struct fa_paged_cache cache;
	struct fa_paged_step step;
	bool v_in_k;
	uint32_t n_states, checkpoint_pages;
	const uint32_t *state_bytes; /* [n_states] */
	const uint32_t *tree_start;  /* NULL: no trees */
	const uint32_t *positions;   /* with trees */
	const uint32_t *copies;      /* slots of pages to copy, to and from */
};

struct fa_kv_step {
	struct fa_list link; /* session.kv.steps */
	struct fa_session *session;
	uint32_t id; /* the client's; 0: a read */
	struct fa_pool_step *plan;
	bool closed; /* committed or aborted */
	/* Freed after its last request; aborted unless closed. */
	bool abandoned;
	bool failed;             /* only an abort is possible */
	struct fa_error cause;   /* of the first failure */
	bool aborting;           /* StepEnd aborts, or was refused */
	bool device_lost;        /* while a request ran */
	struct fa_charge charge; /* for the tables */

	struct fa_kv_group *groups; /* [plan->n_groups] */
	uint32_t *entry_of_item;    /* [n_items]; memory of the plan */
	uint32_t n_items;
	/* Masks and positions; and slots, if the device has its own memory for tables. */
	struct fa_device_tables *tables;
	uint32_t *host_tables;
	/* States of the entries' checkpoints that requests write: [entries of the plan]
	 * [written_words] bits. NULL: no checkpoint. */
	uint64_t *written;
	uint32_t written_words;
	const uint32_t *tree; /* NULL: none */
	uint32_t *tree_start; /* [entries of the plan] */

	uint64_t *ordered; /* ids of ordered sequences, ascending */
	uint32_t n_ordered;
	struct fa_kv_step **predecessors;
	uint32_t n_predecessors;

	struct fa_list requests; /* in flight, by fa_request.step_link, with end_request */
	bool end_requested;      /* StepEnd was received */
	/* The request of StepEnd, until it ends. Others outlive it if the device is lost. */
	struct fa_request *end_request;
	uint64_t prepare_value; /* in the session's own stream; 0: nothing to prepare */
};

/* Plans a step and starts to prepare it. Masks of @item begin at tree[tree_start[item]];
 * @tree_start NULL: no trees. Errors of fa_pool_step_plan(), and -EBUSY: a step in flight writes a
 * page to copy. */
int fa_kv_step_new(struct fa_session *session, const struct fa_actor *actor, uint32_t id,
                   const struct fa_pool_step_item *items, uint32_t n_items, const uint32_t *tree,
                   size_t n_tree, const uint32_t *tree_start, struct fa_error *error,
                   struct fa_kv_step **ret_step);

/* -ENOENT. */
int fa_kv_step_find(struct fa_session *session, uint32_t id, struct fa_error *error,
                    struct fa_kv_step **ret_step);

/* Adds @request, which waits for what it needs of layers [layer, layer + n_layers). Its kind must
 * call fa_kv_step_request_ended(). -EINVAL: after StepEnd; -ECANCELED: the step failed; -ENOMEM. */
int fa_kv_step_add(struct fa_kv_step *step, struct fa_request *request, uint32_t layer,
                   uint32_t n_layers, struct fa_error *error);
void fa_kv_step_request_ended(struct fa_request *request);
/* Makes the step of a refused request fail, added or not. The cause: request->job.error, of
 * request->layer. */
void fa_kv_step_request_refused(struct fa_request *request);

/* Requests on states use layers from here on. */
#define FA_KV_STATE_LAYER ((uint32_t)1 << 31)

const struct fa_kv_group *fa_kv_step_group(const struct fa_kv_step *step, uint32_t entry);
/* Call it when a request writes a state of the entry's checkpoint. */
void fa_kv_step_state_written(struct fa_kv_step *step, uint32_t entry, uint32_t state);
/* -EINVAL: a state of some checkpoint was not written. */
int fa_kv_step_check_states(const struct fa_kv_step *step, struct fa_error *error);

/* Refuses what a step with failures cannot do. -ECANCELED. */
int fa_kv_step_refuse_failed(const struct fa_kv_step *step, struct fa_error *error);

/* Frees the step when nothing is in flight; aborts it unless committed. */
void fa_kv_step_abandon(struct fa_kv_step *step);
void fa_kv_step_abandon_all(struct fa_session *session);
