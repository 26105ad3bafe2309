#include "tests/client/alone.h"

#include "tests/lib/check.h"

struct fa_test_daemon alone_daemon;
struct fa_client *alone_client;

int alone_setup(void **state)
{
	struct fa_options options = { .size = sizeof(options) };

	fa_test_daemon_start(&alone_daemon, NULL);
	options.socket = alone_daemon.socket;
	fa_check_eq(fa_connect(&options, &alone_client), 0);
	return 0;
}

int alone_teardown(void **state)
{
	fa_disconnect(alone_client);
	fa_test_daemon_stop(&alone_daemon);
	return 0;
}

void must(int r, const char *what)
{
	if (r < 0)
		fa_test_fail(__FILE__, __LINE__, "%s: %d, %s", what, r, fa_error());
}
