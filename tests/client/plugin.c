/* A plugin that contains the static library. */
#include "client/faclient.h"

int plugin_ping(struct fa_client *client);

int plugin_ping(struct fa_client *client)
{
	return *fa_error() ? 0 : fa_ping(client);
}
