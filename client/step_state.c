#include "client/step_state.h"

#include "client/client.h"
#include "client/last_error.h"

#include <errno.h>
#include <stdlib.h>

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

void fa_step_forget_abandoned(struct fa_client *client)
{
	while (!fa_list_empty(&client->abandoned)) {
		struct fa_step *step = fa_container_of(client->abandoned.next, struct fa_step,
		                                       link);

		fa_list_remove(&step->link);
		free(step);
	}
}
