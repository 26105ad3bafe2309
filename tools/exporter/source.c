#include "tools/exporter/source.h"

#include "common/clock.h"

#include <stdio.h>

/* A scrape lasts ten seconds at most by default. */
#define CONNECT_NS (2 * FA_NS_PER_SEC)
#define REPLY_NS (2 * FA_NS_PER_SEC)

void fa_source_deinit(struct fa_source *source)
{
	json_decref(source->status);
	source->status = NULL;
	source->client = fa_disconnect(source->client);
}

static int ask(struct fa_source *source, json_t **ret_status)
{
	const struct fa_options options = {
		.size = sizeof(options),
		.socket = source->socket,
		.name = "fad-metrics",
		.flags = FA_CONNECT_NO_RING,
		.connect_ns = CONNECT_NS,
		.reconnect_ns = UINT64_MAX,
		.reply_ns = REPLY_NS,
	};
	char *text;
	int r;

	if (!source->client) {
		r = fa_connect(&options, &source->client);
		if (r < 0)
			return r;
	}
	r = fa_status(source->client, &text);
	if (r < 0) {
		source->client = fa_disconnect(source->client);
		return r;
	}
	*ret_status = json_loads(text, 0, NULL);
	fa_free(text);
	return 0;
}

bool fa_source_refresh(struct fa_source *source)
{
	const uint64_t now_ns = fa_now_ns();
	const bool was_connected = source->client != NULL;
	json_t *status = NULL;
	int r;

	if (source->was_asked && now_ns - source->asked_ns < FA_SOURCE_FRESH_NS)
		return false;
	r = ask(source, &status);
	/* The daemon may have been restarted. */
	if (r < 0 && was_connected)
		r = ask(source, &status);
	if (r < 0 && !source->was_lost)
		fprintf(stderr, "fad-metrics: the daemon does not answer: %s\n", fa_error());
	if (r == 0 && source->was_lost)
		fprintf(stderr, "fad-metrics: the daemon answers again\n");
	source->was_lost = r < 0;
	json_decref(source->status);
	source->status = status;
	source->was_asked = true;
	source->asked_ns = fa_now_ns();
	return true;
}
