#include "client/loss.h"

#include "client/last_error.h"
#include "client/pending.h"
#include "client/results.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int fa_client_lost_error(struct fa_client *client)
{
	/* While reconnecting the reason is that of the last loss. */
	return fa_error_copy(client->lost_code, &client->lost_error);
}

/* Requests whose success the completion page shows succeed; others end with the loss's code. */
static void end_requests(struct fa_client *client)
{
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i) {
		struct fa_client_stream *stream = &client->streams[i];

		(void)fa_result_collect(client, i);
		while (stream->finished < stream->submitted) {
			if (fa_result_probe(client, i, stream->finished + 1, true) > 0)
				fa_result_store(stream, 0, NULL, 0, 0, 0, 0);
			else
				fa_result_store(stream, client->lost_code, client->lost_error.text,
				                strlen(client->lost_error.text), 0, 0, 0);
		}
	}
	client->in_flight = 0;
	client->detached_replies = 0;
}

void fa_client_lose(struct fa_client *client, int code, const char *format, ...)
{
	struct fa_list *pos;
	va_list args;

	if (client->state == FA_CLIENT_LOST)
		return;
	client->state = FA_CLIENT_LOST;
	atomic_store_explicit(&client->lost, true, memory_order_release);
	client->lost_code = code;
	va_start(args, format);
	(void)vsnprintf(client->lost_error.text, sizeof(client->lost_error.text), format, args);
	va_end(args);

	end_requests(client);
	fa_list_for_each(pos, &client->calls) {
		struct fa_client_call *call = fa_container_of(pos, struct fa_client_call, link);

		if (call->done)
			continue;
		call->done = true;
		call->status = code;
		call->error = client->lost_error;
	}

	/* Removed explicitly: a child of fork() may keep the socket open. */
	(void)epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, client->connection.socket, NULL);
	if (client->connection.ring.memory)
		(void)epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, client->connection.ring.wake,
		                NULL);
	(void)shutdown(client->connection.socket, SHUT_RDWR);
	fa_list_for_each(pos, &client->waiters) {
		struct fa_client_waiter *waiter = fa_container_of(pos, struct fa_client_waiter,
		                                                  link);

		/* Threads that wait for a result copy it now. */
		(void)waiter->ready(client, waiter);
		pthread_cond_signal(&waiter->wake);
	}
	fa_list_for_each(pos, &client->spinning) {
		struct fa_client_waiter *waiter = fa_container_of(pos, struct fa_client_waiter,
		                                                  link);

		(void)waiter->ready(client, waiter);
	}
	fa_client_notify(client);
}
