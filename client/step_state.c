#include "client/step_state.h"

#include "client/client.h"
#include "client/last_error.h"
#include "common/cleanup.h"

#include <errno.h>
#include <stdlib.h>

int fa_step_new(struct fa_client *client, const struct fa_step_options *options,
                struct fa_step **ret_step)
{
	struct fa_step *step = fa_new(struct fa_step);
	int r;

	if (step)
		step->parts = calloc(options->n_items, sizeof(*step->parts));
	if (!step || !step->parts) {
		free(step);
		return fa_error_set(-ENOMEM, "no memory for a step");
	}
	step->client = client;
	step->refs = 1;
	step->n_items = options->n_items;
	fa_list_init(&step->link);
	for (uint32_t i = 0; i < options->n_items; ++i)
		step->parts[i] = (struct fa_step_part){ .sequence = options->items[i].sequence,
			                                .n_new = options->items[i].n_new };
	r = fa_handle_new(FA_HANDLE_STEP, step, &step->handle);
	if (r < 0) {
		fa_step_unref(step);
		return r;
	}
	*ret_step = step;
	return 0;
}

void fa_step_unref(struct fa_step *step)
{
	if (!step || --step->refs)
		return;
	(void)fa_handle_take(FA_HANDLE_STEP, step->handle);
	fa_list_remove(&step->link);
	free(step->parts);
	free(step);
}

void fa_step_tokens(const struct fa_step *step, uint64_t cache, uint64_t *ret_least,
                    uint64_t *ret_most)
{
	*ret_least = *ret_most = 0;
	for (uint32_t i = 0; i < step->n_items; ++i) {
		const struct fa_step_part *part = &step->parts[i];

		if (cache && part->cache && part->cache != cache)
			continue;
		*ret_most += part->n_new;
		if (!cache || part->cache)
			*ret_least += part->n_new;
	}
}

static bool has_sequence(const struct fa_step *step, uint64_t sequence)
{
	for (uint32_t i = 0; i < step->n_items; ++i)
		if (step->parts[i].sequence == sequence)
			return true;
	return false;
}

struct fa_step *fa_step_of_sequence(struct fa_client *client, uint64_t sequence)
{
	struct fa_step *found = NULL;
	struct fa_list *pos;

	fa_list_for_each(pos, &client->steps) {
		struct fa_step *step = fa_container_of(pos, struct fa_step, link);

		/* Later steps are newer. */
		if (!step->ended && (!found || fa_step_is_open(step) || !fa_step_is_open(found)) &&
		    has_sequence(step, sequence))
			found = step;
	}
	if (found)
		++found->refs;
	return found;
}

int fa_step_check(struct fa_step *step)
{
	const struct fa_client *client = step->client;

	if (step->ended)
		return fa_error_set(-EINVAL, "the step was committed or aborted before");
	if (client->state == FA_CLIENT_LOST || client->epoch != step->epoch)
		return fa_error_set(-ECONNRESET, "the step is gone with the connection: %.200s",
		                    client->lost_error.text);
	return 0;
}

bool fa_step_is_open(const struct fa_step *step)
{
	const struct fa_client *client = step->client;

	return !step->ended && client->state != FA_CLIENT_LOST && client->epoch == step->epoch;
}

bool fa_step_begins_by_ring(const struct fa_client *client)
{
	return client->state == FA_CLIENT_CONNECTED && client->connection.ring.memory &&
	       client->connection.features & FA_WIRE_FEATURE_STEP_RING;
}

static void forget(struct fa_list *steps)
{
	while (!fa_list_empty(steps)) {
		struct fa_step *step = fa_container_of(steps->next, struct fa_step, link);

		fa_list_remove(&step->link);
		fa_step_unref(step);
	}
}

void fa_step_forget_abandoned(struct fa_client *client)
{
	forget(&client->abandoned);
}

void fa_step_forget_all(struct fa_client *client)
{
	forget(&client->abandoned);
	forget(&client->steps);
}
