/*
 * Making another connection that holds the same buffers and streams. One thread connects at a time,
 * without the mutex, so that results that have arrived can still be had meanwhile.
 */
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

/* A daemon that ends as soon as it is started will do so again. */
#define SPAWNS_MAX 3

#define RETRY_FIRST_NS FA_NS_PER_MS

#define RETRY_LAST_NS (50 * FA_NS_PER_MS)

/* More than a daemon takes from making its socket to setting that's mode and group. */
#define FORBIDDEN_NS (200 * FA_NS_PER_MS)

/* ---- connecting again, without the mutex */

/* Worth another try: the daemon may be on its way back; or it is about to end, as its GPU is
 * lost; or it lives, and still holds what the lost session had. */
static bool is_passing(int code)
{
	return code == -ENOENT || code == -ECONNREFUSED || code == -ECONNRESET ||
	       code == -ESHUTDOWN || code == -ENODEV || code == -EAGAIN || code == -EDQUOT;
}

/* Even if nothing comes of @connection, its session is the one to come back to. */
static void remember_session(struct fa_client *client, const struct fa_connection *connection)
{
	client->resume = (struct fa_resume){ .secret = connection->secret,
		                             .generation = connection->generation };
	client->session_lost = client->session_lost || !connection->resumed;
}

/* *said is what the last daemon that was started says, or -1 if that was none, or it serves. */
static int try_again(struct fa_client *client, uint64_t deadline_ns, struct fa_error *error,
                     int *said, struct fa_connection *ret_connection)
{
	uint64_t pause = RETRY_FIRST_NS, forbidden_until_ns = 0;
	int r, spawns = 0;

	for (;;) {
		struct timespec sleep = { .tv_nsec = (long)pause };
		struct fa_connection connection;

		r = fa_connection_open(client->path, client->name, &client->resume, client->in,
		                       client->out, deadline_ns, error, &connection);
		if ((r == -ENOENT || r == -ECONNREFUSED) && client->spawned &&
		    spawns++ < SPAWNS_MAX) {
			fa_close_fdp(said);
			r = fa_spawn(client->daemon, client->config, client->path, error, said);
			if (r < 0)
				return r;
			continue;
		}
		if (r >= 0) {
			/* It serves: what is wrong from now on it says itself. */
			fa_close_fdp(said);
			remember_session(client, &connection);
			r = fa_restore(client, &connection, deadline_ns, error);
			if (r >= 0) {
				*ret_connection = connection;
				return 0;
			}
			fa_connection_close(&connection);
		}
		/* A socket is nobody's before its mode and group are set. What it is then stays. */
		if (r == -EACCES && !forbidden_until_ns)
			forbidden_until_ns = fa_deadline_ns(FORBIDDEN_NS);
		if (r == -EACCES ? fa_now_ns() >= forbidden_until_ns : !is_passing(r))
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
	_fa_cleanup_(fa_close_fdp) int said = -1;
	int r;

	r = try_again(client, deadline_ns, error, &said, ret_connection);
	return r < 0 && said >= 0 ? fa_spawn_explain(said, r, deadline_ns, error) : r;
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
	client->ring_try_ns = 0;
	client->ring_pause_ns = FA_RING_RETRY_FIRST_NS;
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
	while (client->outside)
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
