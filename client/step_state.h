/* Step handles. With the client's mutex held. */
#pragma once

#include "client/faclient.h"
#include "common/list.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_step {
	void *handle;
	/* Constant. */
	struct fa_client *client;
	uint64_t number;
	uint32_t id, epoch, n_items;
	struct fa_step_part {
		uint64_t sequence, cache; /* cache 0: unknown to the client */
		uint32_t n_new;
	} * parts; /* [n_items] */
	/* Under the client's mutex. */
	unsigned int refs;
	bool ended;          /* its commit or abort was */
	struct fa_list link; /* fa_client.steps; after fa_step_free(): .abandoned */
};

/* The step is in no list. Called without the mutex. -ENOMEM. */
int fa_step_new(struct fa_client *client, const struct fa_step_options *options,
                struct fa_step **ret_step);
/* Takes NULL. If no other thread knows the step, without the mutex. */
void fa_step_unref(struct fa_step *step);
/* Returns bounds of the number of new tokens of the items in @cache; 0: of all. Any thread. */
void fa_step_tokens(const struct fa_step *step, uint64_t cache, uint64_t *ret_least,
                    uint64_t *ret_most);
/* The step that plans tokens of @sequence: the newest open one, else the newest that went with its
 * connection. Referenced. NULL: none. */
struct fa_step *fa_step_of_sequence(struct fa_client *client, uint64_t sequence);

/* -EINVAL: it was ended; -ECONNRESET: its connection is lost. */
int fa_step_check(struct fa_step *step);
/* The daemon has it and was not asked to end it. */
bool fa_step_is_open(const struct fa_step *step);
bool fa_step_begins_by_ring(const struct fa_client *client);
void fa_step_forget_abandoned(struct fa_client *client);
void fa_step_forget_all(struct fa_client *client);
