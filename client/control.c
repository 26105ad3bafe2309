#include "client/call.h"
#include "client/cancel.h"
#include "client/last_error.h"
#include "client/reconnect.h"
#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define STATUS_BYTES_MAX (64u << 20)

static int simple_call(struct fa_client *client, enum fa_wire_type type)
{
	struct fa_wire_message message = { .type = type };
	struct fa_client_call call = { .expect = FA_WIRE_REPLY };
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	r = fa_call_run(client, &message, NULL, 0, true, &call);
	fa_client_leave(client);
	return r;
}

int fa_ping(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return simple_call(client, FA_WIRE_PING);
}

int fa_daemon_drain(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return simple_call(client, FA_WIRE_DRAIN);
}

static int read_status(int fd, uint64_t bytes, char **ret_json)
{
	_fa_cleanup_(fa_freep) char *json = NULL;
	struct fa_error why;
	uint64_t size;
	int r, seals;

	r = fa_memfd_check(fd, 0, bytes, &why, &size, &seals);
	if (r < 0 || bytes > STATUS_BYTES_MAX)
		return fa_error_set(-EPROTO, "the daemon's status is unusable: %.180s",
		                    r < 0 ? why.text : "it is too long");
	json = malloc(bytes + 1);
	if (!json)
		return fa_error_set(-ENOMEM, "no memory for the status");
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = pread(fd, json + at, bytes - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fa_error_set(n ? -errno : -EPROTO, "cannot read the status");
		at += (uint64_t)n;
	}
	json[bytes] = '\0';
	*ret_json = fa_steal_ptr(json);
	return 0;
}

void *fa_free(void *memory)
{
	free(memory);
	return NULL;
}

int fa_status(struct fa_client *handle, char **ret_json)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_STATUS };
	struct fa_client_call call = { .expect = FA_WIRE_STATUS_REPLY, .expect_fds = 1 };
	int r;

	if (!ret_json)
		return fa_error_set(-EINVAL, "ret_json is NULL");
	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	r = fa_call_run(client, &message, NULL, 0, true, &call);
	fa_client_leave(client);
	if (r >= 0)
		r = read_status(call.fd, call.bytes, ret_json);
	fa_close_fdp(&call.fd);
	return r;
}
