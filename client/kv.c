#include "client/kv.h"

#include "client/call.h"
#include "client/last_error.h"
#include "client/reconnect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int fa_kv_name(const char *name, struct fa_wire_string *ret_name)
{
	size_t length;

	if (!name || !*name)
		return fa_error_set(-EINVAL, "the name is %s", name ? "empty" : "NULL");
	length = strlen(name);
	if (length >= FA_WIRE_NAME_BYTES_MAX)
		return fa_error_set(-ENAMETOOLONG,
		                    "the name has %zu bytes; at most %d are possible", length,
		                    FA_WIRE_NAME_BYTES_MAX - 1);
	*ret_name = (struct fa_wire_string){ .text = name, .length = length };
	return 0;
}

/* Entries of fa_client.homes. */
#define HOMES 4096

static size_t home_of(uint64_t sequence)
{
	return sequence * 0x9e3779b97f4a7c15u >> 52;
}

/* A sequence's cache never changes. */
static void learn(struct fa_client *client, uint64_t sequence, uint64_t cache)
{
	if (!sequence || !cache)
		return;
	if (!client->homes)
		client->homes = calloc(HOMES, sizeof(*client->homes));
	if (client->homes)
		client->homes[home_of(sequence)] = (struct fa_client_home){ sequence, cache };
}

uint64_t fa_kv_cache_of(const struct fa_client *client, uint64_t sequence)
{
	const struct fa_client_home *home = client->homes ? &client->homes[home_of(sequence)]
	                                                  : NULL;

	return home && home->sequence == sequence ? home->cache : 0;
}

int fa_kv_explain(const struct fa_client *client, int r)
{
	if (r != -ENOENT || client->resumed >= client->reconnects)
		return r;
	return fa_error_set(-ESTALE, "there is no such object: the session was lost when the "
	                             "daemon was restarted, with all its objects without a name");
}

/* True if a second message does no harm, whether or not the first was handled. A second StepBegin
 * finds no step of the first, as steps end with their connection; fa_sequence_attach() handles a
 * refused second SequenceAttach. */
static bool is_repeatable(enum fa_wire_type type)
{
	switch (type) {
	case FA_WIRE_CACHE_FIND:
	case FA_WIRE_SEQUENCE_FIND:
	case FA_WIRE_SEQUENCE_INFO:
	case FA_WIRE_SEQUENCE_TRUNCATE:
	case FA_WIRE_SEQUENCE_DROP:
	case FA_WIRE_SEQUENCE_PUBLISH:
	case FA_WIRE_SEQUENCE_ATTACH:
	case FA_WIRE_PREFIX_FIND:
	case FA_WIRE_STEP_BEGIN:
		return true;
	default:
		return false;
	}
}

int fa_kv_call(struct fa_client *client, struct fa_wire_message *message, bool by_number,
               struct fa_client_call *call)
{
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	r = fa_call_run(client, message, NULL, 0, true, call);
	if (r == -ECONNRESET && is_repeatable(message->type)) {
		r = fa_client_reconnect(client, client->reconnect_ns);
		if (r == 0)
			r = fa_call_run(client, message, NULL, 0, true, call);
		call->repeated = true;
	}
	if (r == 0 && call->expect == FA_WIRE_SEQUENCE_REPLY)
		learn(client, call->sequence.sequence, call->sequence.cache);
	if (by_number)
		r = fa_kv_explain(client, r);
	fa_client_leave(client);
	return r;
}

int fa_kv_check_states(struct fa_client *client)
{
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	if (!(client->connection.features & FA_WIRE_FEATURE_STATES))
		r = fa_error_set(-ENOTSUP, "the daemon is older than states of linear layers");
	fa_client_leave(client);
	return r;
}
