/* Entering and leaving a client; a client inherited through fork() is refused. */
#include "client/client.h"

#include "client/last_error.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool fa_client_forked(const struct fa_client *client)
{
	return client->fork_page ? !*client->fork_page : getpid() != client->pid;
}

int fa_client_child_error(void)
{
	return fa_error_set(-ECHILD, "this client was connected before fork(), by the parent "
	                             "process; a child has to call fa_connect() itself");
}

int fa_client_enter(struct fa_client *client)
{
	if (!client)
		return fa_error_set(-EINVAL, "the client is NULL, or was freed by "
		                             "fa_disconnect()");
	if (fa_client_forked(client))
		return fa_client_child_error();
	pthread_mutex_lock(&client->lock);
	return 0;
}

void fa_client_pin(struct fa_client *client)
{
	++client->pins;
	pthread_mutex_unlock(&client->lock);
}

void fa_client_unpin(struct fa_client *client)
{
	pthread_mutex_lock(&client->lock);
	if (!--client->pins && client->state == FA_CLIENT_LOST)
		pthread_cond_broadcast(&client->changed);
}

void fa_client_await_connecting(struct fa_client *client)
{
	while (client->connecting)
		pthread_cond_wait(&client->changed, &client->lock);
}

void fa_client_notify(struct fa_client *client)
{
	if (!client->fd_watched || client->fd_readable)
		return;
	client->fd_readable = !eventfd_write(client->event_fd, 1);
}
