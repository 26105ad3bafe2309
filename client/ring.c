#include "client/internal.h"

#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Read in one go. */
#define WAKES_MAX 16

/* With more requests in flight no ring is tried again: of those that the daemon refuses it lets
 * a few wait for their turn, and reads nothing while there are more. */
#define AGAIN_IN_FLIGHT_MAX 16

/* ---- making and ending */

void fa_ring_end(struct fa_client_ring *ring)
{
	if (ring->memory) {
		(void)munmap(ring->memory, FA_RING_HEAD_BYTES + ring->end.bytes);
		(void)munmap((void *)ring->records, fa_results_bytes(ring->n_records));
		fa_close_fdp(&ring->doorbell);
		fa_close_fdp(&ring->wake);
	}
	*ring = (struct fa_client_ring){ 0 };
}

static int map(int fd, uint64_t bytes, int protection, struct fa_error *error, void **ret_memory)
{
	uint64_t size;
	int r, seals;

	r = fa_memfd_check(fd, 0, bytes, error, &size, &seals);
	if (r < 0)
		return r;
	*ret_memory = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	if (*ret_memory == MAP_FAILED)
		return fa_fail(error, -errno, "it cannot be mapped: %m");
	return 0;
}

/* Whether writing to and reading from them does nothing else: to a pipe that nobody reads it
 * would end the program with SIGPIPE, and a receive can be told not to wait. */
static bool are_of_kind(int doorbell, int wake)
{
	struct stat st;

	if (fstat(doorbell, &st) < 0 || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) ||
	    S_ISCHR(st.st_mode) || S_ISREG(st.st_mode))
		return false;
	return !fstat(wake, &st) && S_ISSOCK(st.st_mode);
}

/* Makes a ring of what the daemon has sent; the descriptors it keeps become -1. */
static int take(const struct fa_wire_ring_reply *reply, int *fds, struct fa_error *error,
                struct fa_client_ring *ret_ring)
{
	void *memory, *records;
	int r;

	if (!fa_ring_is_size(reply->bytes) || reply->bytes < FA_RING_BYTES_DEFAULT ||
	    !reply->records || reply->records & (reply->records - 1) ||
	    reply->results_bytes != fa_results_bytes(reply->records))
		return fa_fail(error, -EPROTO, "its sizes make no sense");
	if (!are_of_kind(fds[2], fds[3]))
		return fa_fail(error, -EPROTO, "its descriptors are no eventfd and socket");
	if (fcntl(fds[2], F_SETFL, O_NONBLOCK) < 0)
		return fa_fail(error, -errno, "its eventfd cannot be set up: %m");
	r = map(fds[0], FA_RING_HEAD_BYTES + reply->bytes, PROT_READ | PROT_WRITE, error, &memory);
	if (r < 0)
		return r;
	r = map(fds[1], reply->results_bytes, PROT_READ, error, &records);
	if (r < 0) {
		(void)munmap(memory, FA_RING_HEAD_BYTES + reply->bytes);
		return r;
	}
	*ret_ring = (struct fa_client_ring){
		.memory = memory,
		.records = records,
		.n_records = reply->records,
		.doorbell = fa_steal_fd(&fds[2]),
		.wake = fa_steal_fd(&fds[3]),
	};
	fa_ring_producer_init(&ret_ring->end, memory, reply->bytes);
	return 0;
}

static void make(struct fa_client *client)
{
	struct fa_wire_message message = { .type = FA_WIRE_RING_SETUP };
	struct fa_call call = { .expect = FA_WIRE_RING_REPLY, .expect_fds = FA_WIRE_RING_FDS };
	struct fa_client_ring *ring = &client->connection.ring;
	struct epoll_event event = { .events = EPOLLIN };
	uint32_t epoch = client->epoch;
	struct fa_error error;
	int r;

	for (size_t i = 0; i < FA_WIRE_RING_FDS; ++i)
		call.ring_fds[i] = -1;
	message.ring_setup.bytes = FA_RING_BYTES_DEFAULT;
	/* Refused, it was a try: the socket does as well. */
	if (fa_io_call(client, &message, NULL, 0, false, &call) == 0 && client->epoch == epoch &&
	    client->state == FA_CLIENT_CONNECTED) {
		r = take(&call.ring, call.ring_fds, &error, ring);
		if (r < 0)
			fa_client_lose(client, -EPROTO, "the daemon's ring is unusable: %.180s",
			               error.text);
		else
			(void)epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, ring->wake, &event);
		for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
			client->streams[i].by_socket = client->streams[i].submitted;
	}
	for (size_t i = 0; i < FA_WIRE_RING_FDS; ++i)
		fa_close_fdp(&call.ring_fds[i]);
	if (ring->memory && ring->n_records < client->max_requests)
		client->max_requests = ring->n_records;
}

bool fa_ring_is_due(const struct fa_client *client)
{
	if (client->ring_making || !client->ring_try_ns)
		return true;
	return client->ring_try_ns != FA_NS_NEVER && client->in_flight <= AGAIN_IN_FLIGHT_MAX &&
	       fa_now_ns() >= client->ring_try_ns;
}

void fa_ring_begin(struct fa_client *client)
{
	uint32_t epoch;

	while (client->ring_making)
		pthread_cond_wait(&client->changed, &client->lock);
	if (client->state != FA_CLIENT_CONNECTED || !fa_ring_is_due(client))
		return;
	client->ring_try_ns = FA_NS_NEVER;
	if (client->no_ring || !(client->connection.features & FA_WIRE_FEATURE_RING))
		return;
	epoch = client->epoch;
	client->ring_making = true;
	make(client);
	client->ring_making = client->ring_near = false;
	pthread_cond_broadcast(&client->changed);
	if (client->epoch != epoch || client->connection.ring.memory)
		return;
	client->ring_try_ns = fa_deadline_ns(client->ring_pause_ns);
	client->ring_pause_ns = 2 * client->ring_pause_ns < FA_RING_AGAIN_LAST_NS
	                                ? 2 * client->ring_pause_ns
	                                : FA_RING_AGAIN_LAST_NS;
}

/* ---- putting */

int fa_ring_send(struct fa_client *client, const void *bytes, size_t length)
{
	struct fa_client_ring *ring = &client->connection.ring;
	int r;

	if (client->watched)
		fa_ring_watch(client);
	r = fa_ring_put(&ring->end, bytes, length);
	if (r == -EPROTO) {
		fa_client_lose(client, -EPROTO, "the daemon's ring is out of order");
		return fa_client_lost_error(client);
	}
	/* One that is full wakes already. The daemon may make it one for which a write waits. */
	if (r == 0 && fa_ring_must_ring(&ring->end) && !fa_poll(ring->doorbell, POLLOUT, 0))
		(void)eventfd_write(ring->doorbell, 1);
	return r;
}

struct room_waiter {
	struct fa_waiter waiter;
	size_t length;
	uint32_t epoch;
};

static bool room_ready(const struct fa_client *client, struct fa_waiter *waiter)
{
	const struct room_waiter *room = fa_container_of(waiter, const struct room_waiter, waiter);

	if (client->state == FA_CLIENT_LOST || client->epoch != room->epoch ||
	    fa_ring_has_room(&client->connection.ring.end, room->length))
		return true;
	/* Less room than this came, and was told; so once more, and a last look. */
	fa_ring_want_room((struct fa_ring_producer *)&client->connection.ring.end);
	return fa_ring_has_room(&client->connection.ring.end, room->length);
}

int fa_ring_await_room(struct fa_client *client, size_t length, uint64_t deadline_ns)
{
	struct room_waiter room = { .waiter.ready = room_ready,
		                    .length = length,
		                    .epoch = client->epoch };

	fa_ring_want_room(&client->connection.ring.end);
	return fa_io_await(client, &room.waiter, deadline_ns);
}

/* ---- records */

/* The connection stands, as far as is known, and has nothing to read. */
static bool is_silent(const struct fa_client *client)
{
	char byte;

	return recv(client->connection.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
	       (errno == EAGAIN || errno == EINTR);
}

bool fa_ring_collect_stream(struct fa_client *client, uint32_t id)
{
	const struct fa_client_ring *ring = &client->connection.ring;
	struct fa_client_stream *stream = &client->streams[id];
	uint64_t completed, known = stream->known;
	struct fa_outcome outcome;

	if (!ring->memory || stream->known == stream->submitted ||
	    stream->known < stream->by_socket)
		return false;
	completed = atomic_load_explicit(&client->connection.page[id].completed,
	                                 memory_order_acquire);
	while (stream->known < stream->submitted && stream->known + 1 - stream->base <= completed) {
		uint64_t wire = stream->known + 1 - stream->base;

		/* More are never in flight than there are records: it cannot be another's. But
		 * once the connection is closed they are gone, and the socket tells the end. */
		if (!fa_record_read(&ring->records[fa_record_index(id, ring->n_records, wire)],
		                    wire, &outcome)) {
			if (!is_silent(client))
				break;
			fa_client_lose(client, -EPROTO,
			               "the daemon has no record of request %llu of stream %u",
			               (unsigned long long)wire, id);
			break;
		}
		/* Its Completion says what was wrong. */
		if (outcome.status)
			break;
		fa_result_store(stream, 0, NULL, 0, outcome.queued_ns, outcome.started_ns,
		                outcome.finished_ns);
		--client->in_flight;
	}
	return stream->known != known;
}

bool fa_ring_collect(struct fa_client *client)
{
	bool any = false;

	if (!client->connection.ring.memory || client->state != FA_CLIENT_CONNECTED)
		return false;
	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		any = fa_ring_collect_stream(client, i) || any;
	if (any)
		fa_io_ring(client);
	return any;
}

/* ---- waking */

bool fa_ring_is_woken(const struct fa_client_ring *ring)
{
	char byte;

	return recv(ring->wake, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void fa_ring_drain(const struct fa_client_ring *ring)
{
	char byte;

	/* Each is a packet; what is left wakes once more. */
	for (int i = 0; i < WAKES_MAX && recv(ring->wake, &byte, 1, MSG_DONTWAIT) > 0; ++i)
		;
}

void fa_ring_watch(struct fa_client *client)
{
	struct fa_client_ring *ring = &client->connection.ring;

	if (ring->memory && !fa_ring_is_armed(&ring->end))
		fa_ring_arm(&ring->end);
}
