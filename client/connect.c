#include "client/adopted.h"
#include "client/buffer_handle.h"
#include "client/cancel.h"
#include "client/last_error.h"
#include "client/receive.h"
#include "client/reconnect.h"
#include "client/registration.h"
#include "client/spawn.h"
#include "client/step_state.h"
#include "client/struct_size.h"
#include "client/timeline_state.h"
#include "client/trusted.h"
#include "common/cleanup.h"
#include "common/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONNECT_NS_DEFAULT (5 * FA_NS_PER_SEC)

#define RECONNECT_NS_DEFAULT (5 * FA_NS_PER_SEC)

#define REPLY_NS_DEFAULT (60 * FA_NS_PER_SEC)

#define SPIN_NS_DEFAULT (20 * FA_NS_PER_US)

#define INSTANCE_BYTES 64
#define INSTANCE_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

/* ---- the client object */

/* The kernel clears this page in a child of fork(): a check costs one load. NULL: it cannot, and
 * calls use getpid(). */
static volatile uint64_t *fork_page_new(void)
{
	uint64_t *page = mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE,
	                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return NULL;
	if (madvise(page, sizeof(uint64_t), MADV_WIPEONFORK) < 0) {
		(void)munmap(page, sizeof(uint64_t));
		return NULL;
	}
	*page = 1;
	return page;
}

/* On a single processor spinning keeps the daemon from running. */
static void choose_spin(struct fa_client *client, uint64_t spin_ns)
{
	const unsigned int n = fa_cpu_count();

	client->spin_yields = n <= FA_CPU_FEW;
	client->spin_ns = spin_ns ? spin_ns : n > 1 ? SPIN_NS_DEFAULT : 0;
}

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
	return value ? value : otherwise;
}

/* Returns @path, allocated: absolute, unless the absolute path leads elsewhere. NULL: no memory. */
static char *absolute_path(const char *path)
{
	_fa_cleanup_(fa_freep) char *directory = *path == '/' ? NULL : getcwd(NULL, 0);
	_fa_cleanup_(fa_freep) char *whole = NULL;
	struct stat given, found;

	if (!directory || *directory != '/')
		return strdup(path);
	if (asprintf(&whole, "%s/%s", directory, path) < 0) {
		whole = NULL;
		return NULL;
	}
	if (stat(path, &given) < 0 || stat(whole, &found) < 0 || given.st_dev != found.st_dev ||
	    given.st_ino != found.st_ino)
		return strdup(path);
	return fa_steal_ptr(whole);
}

/* @given, else the variable's, as an absolute path. */
static int choose_path(const char *given, const char *variable, char **ret_path)
{
	const char *path = given && *given ? given : secure_getenv(variable);

	if (!path || !*path)
		return 0;
	*ret_path = absolute_path(path);
	return *ret_path ? 0 : -ENOMEM;
}

static int client_new(const struct fa_options *options, struct fa_client **ret_client)
{
	static atomic_uint tags;
	const char *name = options->name ? options->name : program_invocation_short_name;
	struct fa_client *client;

	client = fa_new(struct fa_client);
	if (!client)
		return fa_error_set(-ENOMEM, "no memory for a client");
	client->state = FA_CLIENT_LOST;
	client->connection.socket = client->epoll_fd = client->event_fd = -1;
	client->pid = getpid();
	client->tag = atomic_fetch_add(&tags, 1) + 1;
	client->connect_ns = or_default(options->connect_ns, CONNECT_NS_DEFAULT);
	client->reconnect_ns = or_default(options->reconnect_ns, RECONNECT_NS_DEFAULT);
	client->reply_ns = or_default(options->reply_ns, REPLY_NS_DEFAULT);
	client->no_ring = options->flags & FA_CONNECT_NO_RING;
	choose_spin(client, options->spin_ns);
	(void)snprintf(client->name, sizeof(client->name), "%s", name);
	fa_list_init(&client->waiters);
	fa_list_init(&client->spinning);
	fa_list_init(&client->calls);
	fa_list_init(&client->buffers);
	fa_list_init(&client->registrations);
	fa_list_init(&client->cuda_used);
	fa_list_init(&client->cuda_unused);
	fa_list_init(&client->steps);
	fa_list_init(&client->abandoned);
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		client->streams[i].number = i;
	client->streams[0].state = FA_STREAM_OPEN;
	atomic_init(&client->lost, true);
	pthread_condattr_init(&client->clock);
	pthread_condattr_setclock(&client->clock, CLOCK_MONOTONIC);
	pthread_mutex_init(&client->import_lock, NULL);
	pthread_mutex_init(&client->lock, NULL);
	pthread_cond_init(&client->changed, &client->clock);
	*ret_client = client;

	client->fork_page = fork_page_new();
	client->in = aligned_alloc(8, FA_WIRE_BYTES_MAX);
	client->out = aligned_alloc(8, FA_WIRE_BYTES_MAX);
	if (!client->in || !client->out ||
	    choose_path(options->daemon, "FAD_DAEMON", &client->daemon) < 0 ||
	    choose_path(options->config, "FAD_CONFIG", &client->config) < 0)
		return fa_error_set(-ENOMEM, "no memory for a client");

	client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	client->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (client->epoll_fd < 0 || client->event_fd < 0 ||
	    epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, client->event_fd,
	              &(struct epoll_event){ .events = EPOLLIN }) < 0)
		return fa_error_set(-errno, "no descriptors for a client: %m");
	return 0;
}

static void free_registrations(struct fa_list *registrations)
{
	while (!fa_list_empty(registrations))
		fa_registration_free(
			fa_container_of(registrations->next, struct fa_client_registration, link));
}

static struct fa_client *client_free(struct fa_client *client)
{
	if (!client)
		return NULL;
	(void)fa_handle_take(FA_HANDLE_CLIENT, client->handle);
	fa_connection_close(&client->connection);
	fa_close_fdp(&client->epoll_fd);
	fa_close_fdp(&client->event_fd);
	while (!fa_list_empty(&client->buffers)) {
		struct fa_buffer *buffer = fa_container_of(client->buffers.next, struct fa_buffer,
		                                           link);

		fa_list_remove(&buffer->link);
		fa_buffer_release(buffer);
	}
	free_registrations(&client->cuda_used);
	free_registrations(&client->cuda_unused);
	fa_step_forget_all(client);
	for (size_t i = 0; i < FA_COMPLETION_SLOTS; ++i) {
		struct fa_result *results = client->streams[i].results;

		for (size_t k = 0; results && k < FA_RESULTS; ++k)
			free(results[k].text);
		free(results);
	}
	fa_timeline_release(client->timeline, fa_client_forked(client));
	if (client->fork_page)
		(void)munmap((void *)client->fork_page, sizeof(uint64_t));
	free(client->homes);
	free(client->daemon);
	free(client->config);
	free(client->in);
	free(client->out);
	free(client);
	return NULL;
}

/* ---- connecting */

static int try_path(struct fa_client *client, const char *path, enum fa_daemon_origin origin,
                    uint64_t deadline_ns, struct fa_error *error)
{
	_fa_cleanup_(fa_freep) char *whole = NULL;
	struct fa_connection connection;
	int r;

	r = fa_connection_open(path, origin == FA_DAEMON_NAMED || origin == FA_DAEMON_SPAWNED,
	                       client->name, &client->session_key, client->in, client->out,
	                       deadline_ns, error, &connection);
	if (r < 0)
		return r;
	whole = absolute_path(path);
	/* Stays relative if the absolute path is too long for an address. */
	if (whole && strlen(whole) < sizeof(client->path))
		path = whole;
	(void)snprintf(client->path, sizeof(client->path), "%s", path);
	client->session_key = (struct fa_session_key){ .secret = connection.secret,
		                                       .generation = connection.generation };
	fa_client_adopt(client, &connection);
	client->origin = origin;
	return 0;
}

static bool is_no_daemon(int code)
{
	return code == -ENOENT || code == -ECONNREFUSED || code == -EACCES;
}

/*
 * Stores the socket that the program or its user named, else NULL. Writes an instance's path to
 * @path. -EINVAL.
 */
static int named_socket(const char *socket, char path[FA_SOCKET_PATH_BYTES], struct fa_error *error,
                        const char **ret_socket)
{
	const char *instance;

	if (!socket || !*socket)
		socket = secure_getenv("FAD_SOCKET");
	*ret_socket = socket && *socket ? socket : NULL;
	instance = *ret_socket ? NULL : secure_getenv("FAD_INSTANCE");
	if (!instance || !*instance)
		return 0;
	if (strlen(instance) > INSTANCE_BYTES || instance[strspn(instance, INSTANCE_LETTERS)])
		return fa_fail(error, -EINVAL,
		               "FAD_INSTANCE is \"%.60s\"; expected the name of an instance of "
		               "fad@.service, of at most %d letters, digits, '-' and '_'",
		               instance, INSTANCE_BYTES);
	(void)snprintf(path, FA_SOCKET_PATH_BYTES, "/run/fad-%s/fad.sock", instance);
	*ret_socket = path;
	return 0;
}

static int connect_user(struct fa_client *client, uint64_t deadline_ns, struct fa_error *error)
{
	char path[FA_SOCKET_PATH_BYTES];
	const char *runtime;
	int r;

	r = fa_trusted_runtime_dir(error, &runtime);
	if (r < 0)
		return r;
	if (!runtime ||
	    (size_t)snprintf(path, sizeof(path), "%s/fad/fad.sock", runtime) >= sizeof(path))
		return -ENOENT;
	return try_path(client, path, FA_DAEMON_USER, deadline_ns, error);
}

static int connect_default(struct fa_client *client, uint64_t deadline_ns, struct fa_error *error)
{
	struct fa_error user_error = {};
	int r, user_r;

	user_r = connect_user(client, deadline_ns, &user_error);
	if (!is_no_daemon(user_r)) {
		*error = user_error;
		return user_r;
	}
	r = try_path(client, FA_SYSTEM_SOCKET, FA_DAEMON_SYSTEM, deadline_ns, error);
	/* A daemon that must not be used explains more than none at all. */
	if (user_r == -EACCES && (r == -ENOENT || r == -ECONNREFUSED)) {
		*error = user_error;
		return user_r;
	}
	return r;
}

static int connect_spawned(struct fa_client *client, uint64_t deadline_ns, struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int daemon_stderr = -1;
	char path[FA_SOCKET_PATH_BYTES] = "";
	int r;

	r = fa_spawn(client->daemon, client->config, path, deadline_ns, error, &daemon_stderr);
	if (r < 0)
		return r;
	r = try_path(client, path, FA_DAEMON_SPAWNED, deadline_ns, error);
	if (r < 0) {
		r = fa_spawn_explain(daemon_stderr, r, deadline_ns, error);
		/* It may clean up itself, so this comes after its exit. */
		fa_spawn_clean(path);
		return r;
	}
	return 0;
}

int fa_connect(const struct fa_options *options, struct fa_client **ret_client)
{
	fa_uncancelled();
	struct fa_options padded = { .size = sizeof(padded) };
	struct fa_client *client = NULL;
	struct fa_error error = {};
	char instance[FA_SOCKET_PATH_BYTES];
	const char *named = NULL;
	uint64_t deadline;
	const void *o = &padded;
	int r;

	fa_adopted_reap();
	if (!ret_client)
		return fa_error_set(-EINVAL, "ret_client is NULL");
	if (options) {
		r = fa_struct_in("fa_options", options, &padded, sizeof(padded), &o);
		if (r < 0)
			return r;
	}
	options = o;
	if (options->flags & ~(FA_CONNECT_SPAWN | FA_CONNECT_PRIVATE | FA_CONNECT_NO_RING))
		return fa_error_set(-EINVAL, "fa_options.flags has unknown bits: 0x%x",
		                    options->flags);
	if ((options->daemon || options->config) &&
	    !(options->flags & (FA_CONNECT_SPAWN | FA_CONNECT_PRIVATE)))
		return fa_error_set(-EINVAL,
		                    "fa_options.%s is given, which has no effect without "
		                    "FA_CONNECT_SPAWN or FA_CONNECT_PRIVATE",
		                    options->daemon ? "daemon" : "config");
	if (options->socket && options->flags & FA_CONNECT_PRIVATE)
		return fa_error_set(-EINVAL, "fa_options.socket is given, which has no effect with "
		                             "FA_CONNECT_PRIVATE");

	r = client_new(options, &client);
	if (r < 0) {
		client_free(client);
		return r;
	}
	r = fa_handle_new(FA_HANDLE_CLIENT, client, &client->handle);
	if (r < 0) {
		client_free(client);
		return r;
	}
	deadline = fa_deadline_ns(client->connect_ns);
	r = options->flags & FA_CONNECT_PRIVATE
	            ? 0
	            : named_socket(options->socket, instance, &error, &named);
	if (r < 0) {
		/* A name that is wrong does not count as no name. */
	} else if (options->flags & FA_CONNECT_PRIVATE) {
		r = connect_spawned(client, deadline, &error);
	} else if (named) {
		/* A private daemon would be a surprise where one was named. */
		r = try_path(client, named, FA_DAEMON_NAMED, deadline, &error);
		if (options->flags & FA_CONNECT_SPAWN && is_no_daemon(r)) {
			size_t n = strlen(error.text);

			(void)snprintf(error.text + n, sizeof(error.text) - n,
			               "; FA_CONNECT_SPAWN starts none in place of a named one");
		}
	} else {
		r = connect_default(client, deadline, &error);
		if (options->flags & FA_CONNECT_SPAWN && is_no_daemon(r)) {
			(void)snprintf(client->spawn_reason, sizeof(client->spawn_reason), "%s",
			               error.text);
			r = connect_spawned(client, deadline, &error);
		}
	}
	if (r < 0) {
		client_free(client);
		return fa_error_copy(r, &error);
	}
	*ret_client = client->handle;
	return 0;
}

/* ---- ending */

/* The session is the parent's: nothing is sent, and the socket is not shut down. If a thread held
 * the client at the fork, only closing descriptors is safe. */
static void disconnect_child(struct fa_client *client)
{
	if (!pthread_mutex_trylock(&client->lock) && !client->connecting) {
		client_free(client);
		return;
	}
	fa_close_fdp(&client->connection.socket);
	if (client->connection.ring.memory) {
		fa_close_fdp(&client->connection.ring.doorbell);
		fa_close_fdp(&client->connection.ring.wake);
	}
	fa_close_fdp(&client->epoll_fd);
	fa_close_fdp(&client->event_fd);
}

struct fa_client *fa_disconnect(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_handle_take(FA_HANDLE_CLIENT, handle);

	fa_adopted_reap();
	if (!client)
		return NULL;
	if (fa_client_forked(client)) {
		disconnect_child(client);
		return NULL;
	}
	/* The daemon may have died since the last call. */
	if (client->origin == FA_DAEMON_SPAWNED) {
		pthread_mutex_lock(&client->lock);
		fa_client_receive(client, true);
		fa_client_leave(client);
	}
	/* A child of this process may hold the socket open: closing it is not enough. */
	if (client->state == FA_CLIENT_CONNECTED)
		(void)shutdown(client->connection.socket, SHUT_RDWR);
	else if (client->origin == FA_DAEMON_SPAWNED)
		fa_spawn_clean(client->path);
	pthread_cond_destroy(&client->changed);
	pthread_mutex_destroy(&client->lock);
	pthread_mutex_destroy(&client->import_lock);
	pthread_condattr_destroy(&client->clock);
	return client_free(client);
}

/* ---- state of the connection */

enum fa_client_state fa_client_state(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	enum fa_client_state state;

	if (fa_client_enter(client) < 0)
		return FA_CLIENT_LOST;
	fa_client_receive(client, true);
	state = client->state;
	fa_client_leave(client);
	return state;
}

int fa_reconnect(struct fa_client *handle)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	uint64_t timeout_ns;
	int r;

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	fa_client_receive(client, true);
	timeout_ns = client->reconnect_ns == FA_NS_NEVER ? client->connect_ns
	                                                 : client->reconnect_ns;
	/* FA_NS_NEVER would forbid reconnecting. */
	if (timeout_ns == FA_NS_NEVER)
		--timeout_ns;
	r = fa_client_reconnect(client, timeout_ns);
	fa_client_leave(client);
	return r;
}
