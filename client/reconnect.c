/* One thread reconnects at a time, without the mutex. */
#include "client/reconnect.h"

#include "client/last_error.h"
#include "client/loss.h"
#include "client/restore.h"
#include "client/spawn.h"
#include "client/step_state.h"
#include "common/cleanup.h"

#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

/* A daemon that exits at its start will do so again. */
#define SPAWNS_MAX 3

#define RETRY_FIRST_NS FA_NS_PER_MS

#define RETRY_LAST_NS (50 * FA_NS_PER_MS)

/* A daemon takes less from bind() to chmod() and chown() of its socket. */
#define EACCES_RETRY_NS (200 * FA_NS_PER_MS)

/* ---- reconnecting, without the mutex */

/* The daemon may restart, be about to exit as its GPU is lost, or hold the lost session's quota. */
static bool is_transient(int code)
{
	return code == -ENOENT || code == -ECONNREFUSED || code == -ECONNRESET ||
	       code == -ESHUTDOWN || code == -ENODEV || code == -EAGAIN || code == -EDQUOT;
}

/* The next connection resumes the session, even if @connection is given up. */
static void remember_session(struct fa_client *client, const struct fa_connection *connection)
{
	client->session_key = (struct fa_session_key){ .secret = connection->secret,
		                                       .generation = connection->generation };
	client->session_lost = client->session_lost || !connection->resumed;
}

/* daemon_stderr: of a spawned daemon before it serves, else -1. */
static int retry(struct fa_client *client, uint64_t deadline_ns, struct fa_error *error,
                 int *daemon_stderr, struct fa_connection *ret_connection)
{
	uint64_t pause = RETRY_FIRST_NS, eacces_until_ns = 0;
	int r, spawns = 0;

	for (;;) {
		struct timespec sleep = { .tv_nsec = (long)pause };
		struct fa_connection connection;

		r = fa_connection_open(client->path,
		                       client->origin != FA_DAEMON_USER &&
		                               client->origin != FA_DAEMON_SYSTEM,
		                       client->name, &client->session_key, client->in, client->out,
		                       deadline_ns, error, &connection);
		if ((r == -ENOENT || r == -ECONNREFUSED) && client->origin == FA_DAEMON_SPAWNED &&
		    spawns++ < SPAWNS_MAX) {
			fa_close_fdp(daemon_stderr);
			r = fa_spawn(client->daemon, client->config, client->path, deadline_ns,
			             error, daemon_stderr);
			if (r < 0)
				return r;
			continue;
		}
		if (r >= 0) {
			/* The daemon serves, and from now on reports errors itself. */
			fa_close_fdp(daemon_stderr);
			remember_session(client, &connection);
			r = fa_restore(client, &connection, deadline_ns, error);
			if (r >= 0) {
				*ret_connection = connection;
				return 0;
			}
			fa_connection_close(&connection);
		}
		/* The daemon sets the socket's mode and group once, after bind(). */
		if (r == -EACCES && !eacces_until_ns)
			eacces_until_ns = fa_deadline_ns(EACCES_RETRY_NS);
		if (r == -EACCES ? fa_now_ns() >= eacces_until_ns : !is_transient(r))
			return r;
		if (fa_now_ns() >= deadline_ns)
			return r;
		(void)nanosleep(&sleep, NULL);
		pause = pause * 2 < RETRY_LAST_NS ? pause * 2 : RETRY_LAST_NS;
	}
}

static int connect_again(struct fa_client *client, uint64_t deadline_ns, struct fa_error *error,
                         struct fa_connection *ret_connection)
{
	_fa_cleanup_(fa_close_fdp) int daemon_stderr = -1;
	int r;

	r = retry(client, deadline_ns, error, &daemon_stderr, ret_connection);
	return r < 0 && daemon_stderr >= 0 ? fa_spawn_explain(daemon_stderr, r, deadline_ns, error)
	                                   : r;
}

/* ---- with the mutex */

void fa_client_adopt(struct fa_client *client, struct fa_connection *connection)
{
	struct epoll_event event = { .events = EPOLLIN };

	client->connection = *connection;
	*connection = (struct fa_connection){ .socket = -1 };
	client->max_requests = client->connection.limits.requests < FA_RESULTS
	                               ? client->connection.limits.requests
	                               : FA_RESULTS;
	++client->epoch;
	fa_step_forget_abandoned(client);
	client->ring_retry_at_ns = 0;
	client->ring_backoff_ns = FA_RING_RETRY_FIRST_NS;
	for (size_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		client->streams[i].base = client->streams[i].submitted;
	client->state = FA_CLIENT_CONNECTED;
	atomic_store_explicit(&client->lost, false, memory_order_release);
	(void)epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->connection.socket, &event);
}

static int reconnect(struct fa_client *client, uint64_t timeout_ns)
{
	uint64_t deadline = fa_deadline_ns(timeout_ns);
	struct fa_connection connection;
	struct fa_error error = {};
	int r;

	client->connecting = true;
	while (client->pins)
		pthread_cond_wait(&client->changed, &client->lock);
	fa_connection_close(&client->connection);

	pthread_mutex_unlock(&client->lock);
	r = connect_again(client, deadline, &error, &connection);
	pthread_mutex_lock(&client->lock);

	if (r >= 0) {
		fa_client_adopt(client, &connection);
		++client->reconnects;
		client->resumed += !client->session_lost;
		client->session_lost = false;
	}
	client->connecting = false;
	client->attempt_code = r;
	client->attempt_error = error;
	++client->attempts;
	pthread_cond_broadcast(&client->changed);
	return r < 0 ? fa_error_copy(r, &error) : 0;
}

int fa_client_reconnect(struct fa_client *client, uint64_t timeout_ns)
{
	while (client->state == FA_CLIENT_LOST) {
		uint64_t attempts = client->attempts;

		if (timeout_ns == FA_NS_NEVER)
			return fa_client_lost_error(client);
		if (!client->connecting)
			return reconnect(client, timeout_ns);
		while (client->attempts == attempts)
			pthread_cond_wait(&client->changed, &client->lock);
		if (client->attempt_code < 0)
			return fa_error_copy(client->attempt_code, &client->attempt_error);
	}
	return 0;
}

int fa_client_enter_connected(struct fa_client *client)
{
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	r = fa_client_reconnect(client, client->reconnect_ns);
	if (r < 0)
		fa_client_leave(client);
	return r;
}

int fa_client_require(struct fa_client *client, uint64_t feature, const char *what)
{
	int r;

	r = fa_client_enter_connected(client);
	if (r < 0)
		return r;
	if (!(client->connection.features & feature))
		r = fa_error_set(-ENOTSUP, "the daemon is older than %s", what);
	fa_client_leave(client);
	return r;
}

int fa_client_require_masks(struct fa_client *client)
{
	return fa_client_require(client, FA_WIRE_FEATURE_MASKS, "chunk_tokens and prefix_lengths");
}

int fa_client_require_blocks(struct fa_client *client)
{
	return fa_client_require(client, FA_WIRE_FEATURE_BLOCKS,
	                         "block-sparse masks, bit masks and patterns of blocks");
}

int fa_client_require_e4m3(struct fa_client *client)
{
	return fa_client_require(client, FA_WIRE_FEATURE_E4M3, "q, k and v of e4m3");
}
