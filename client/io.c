/*
 * The socket of a client: sending, receiving, and waiting for what was sent.
 * Everything here runs with the client's mutex; see internal.h for what is done
 * without it meanwhile.
 *
 * What comes from the daemon is checked like anything that comes from outside:
 * a message that does not fit what was asked ends the connection with -EPROTO.
 */
#include "client/internal.h"

#include "common/packet.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

/* Who has filled sockets with descriptors may be about to read them, or not. */
#define CROWDED_NS (2 * FA_NS_PER_SEC)

/* A daemon that closed its end has said all it will. */
#define LAST_WORDS_NS FA_NS_PER_SEC

/* So often a leader spins in vain before it sleeps at once so many times. */
#define SPIN_TRIES 4
#define SPIN_REST 256
/* Looks for a packet between two at what the ring has brought for others. */
#define SPIN_LOOKS 8

/* ---- leaving the mutex */

void fa_io_outside_begin(struct fa_client *client)
{
	++client->outside;
	pthread_mutex_unlock(&client->lock);
}

void fa_io_outside_end(struct fa_client *client)
{
	pthread_mutex_lock(&client->lock);
	if (!--client->outside && client->state == FA_CLIENT_LOST)
		pthread_cond_broadcast(&client->changed);
}

/* Returns at once if the connection is lost meanwhile. */
static void poll_outside(struct fa_client *client, short events, uint64_t deadline_ns)
{
	int fd = client->connection.socket;

	fa_io_outside_begin(client);
	(void)fa_poll(fd, events, deadline_ns);
	fa_io_outside_end(client);
}

void fa_io_ring(struct fa_client *client)
{
	if (!client->watched || client->rung)
		return;
	client->rung = !eventfd_write(client->event_fd, 1);
}

/* ---- receiving */

static struct fa_call *find_call(struct fa_client *client, uint64_t id)
{
	struct fa_list *pos;

	fa_list_for_each(pos, &client->calls) {
		struct fa_call *call = fa_container_of(pos, struct fa_call, link);

		if (call->id == id && !call->done)
			return call;
	}
	return NULL;
}

static const char *text_of(const struct fa_wire_string *string)
{
	return string->text ? string->text : "";
}

static void handle_reply(struct fa_client *client, const struct fa_wire_message *message, int *fds,
                         size_t n_fds)
{
	const struct fa_wire_reply *reply = &message->reply;
	bool plain = message->type == FA_WIRE_REPLY;
	struct fa_call *call;

	/* The daemon says why it is about to close the connection. */
	if (plain && !message->id && reply->status < 0) {
		fa_client_lose(client, reply->status == -EPROTO ? -EPROTO : -ECONNRESET,
		               "the daemon closed the connection: %.*s", (int)reply->text.length,
		               text_of(&reply->text));
		return;
	}
	if (message->id & FA_ID_DETACHED && plain && client->detached) {
		--client->detached;
		return;
	}

	call = find_call(client, message->id);
	if (!call) {
		fa_client_lose(client, -EPROTO, "the daemon answered a request that was not made");
		return;
	}
	if (plain && reply->status < 0) {
		call->status = fa_fail(&call->error, reply->status, "%.*s", (int)reply->text.length,
		                       text_of(&reply->text));
	} else if (message->type != call->expect || n_fds != call->expect_fds ||
	           (plain && reply->status)) {
		fa_client_lose(client, -EPROTO,
		               "the daemon gave a wrong answer: %s with %zu "
		               "descriptors",
		               fa_wire_type_name(message->type), n_fds);
		return;
	}
	switch (message->type) {
	case FA_WIRE_BUFFER_REPLY:
		call->bytes = message->buffer_reply.bytes;
		call->piece_bytes = message->buffer_reply.piece_bytes;
		break;
	case FA_WIRE_STATUS_REPLY:
		call->bytes = message->status_reply.bytes;
		break;
	case FA_WIRE_CACHE_REPLY:
		call->cache = message->cache_reply;
		break;
	case FA_WIRE_SEQUENCE_REPLY:
		call->sequence = message->sequence_reply;
		break;
	case FA_WIRE_STEP_REPLY:
		call->step = message->step_reply;
		break;
	case FA_WIRE_RING_REPLY:
		call->ring = message->ring_reply;
		for (size_t i = 0; i < FA_WIRE_RING_FDS; ++i)
			call->ring_fds[i] = fa_steal_fd(&fds[i]);
		client->ring_near = true;
		break;
	case FA_WIRE_TIMELINE_REPLY:
		call->timeline = message->timeline_reply;
		call->fd = fa_steal_fd(&fds[0]);
		call->second_fd = fa_steal_fd(&fds[1]);
		break;
	default:
		break;
	}
	if (call->expect_fds == 1 && n_fds)
		call->fd = fa_steal_fd(&fds[0]);
	call->done = true;
}

static void handle_completion(struct fa_client *client, const struct fa_wire_message *message)
{
	const struct fa_wire_completion *completion = &message->completion;
	struct fa_client_stream *stream;
	bool told;

	if (completion->stream >= FA_COMPLETION_SLOTS) {
		fa_client_lose(client, -EPROTO, "the daemon completed a request of stream %u",
		               completion->stream);
		return;
	}
	stream = &client->streams[completion->stream];
	/* Those before it that succeeded have no Completion. */
	(void)fa_ring_collect_stream(client, completion->stream);
	if (client->state == FA_CLIENT_LOST)
		return;
	/* The records go when the daemon closes the connection; what it sent before is here. */
	if (client->connection.ring.memory && completion->status <= 0 &&
	    completion->value > stream->known + 1 - stream->base &&
	    completion->value <= stream->submitted - stream->base &&
	    fa_result_probe(client, completion->stream, completion->value + stream->base, false)) {
		fa_client_lose(client, -ECONNRESET,
		               "the daemon ended the connection before its results were read");
		return;
	}
	if (stream->known == stream->submitted ||
	    completion->value != stream->known + 1 - stream->base || completion->status > 0) {
		fa_client_lose(client, -EPROTO,
		               "the daemon completed request %llu of stream %u out of turn",
		               (unsigned long long)completion->value, completion->stream);
		return;
	}
	/* Somebody may know of a success that the device has told before it was lost. */
	told = fa_completion_is_early(&client->connection.page[completion->stream],
	                              completion->value);
	fa_result_store(stream, told ? 0 : completion->status, completion->text.text,
	                completion->text.length, completion->queued_ns, completion->started_ns,
	                completion->finished_ns);
	--client->in_flight;
	fa_io_ring(client);
}

static bool is_reply(enum fa_wire_type type)
{
	return type == FA_WIRE_REPLY || type == FA_WIRE_BUFFER_REPLY ||
	       type == FA_WIRE_STATUS_REPLY || type == FA_WIRE_CACHE_REPLY ||
	       type == FA_WIRE_SEQUENCE_REPLY || type == FA_WIRE_STEP_REPLY ||
	       type == FA_WIRE_RING_REPLY || type == FA_WIRE_TIMELINE_REPLY;
}

/* What lies in client->in, and came with it. */
struct packet {
	ssize_t n;
	size_t n_fds;
	int fds[FA_PACKET_FDS_MAX];
};

/* Consumes the descriptors; false if there was no packet, or it was the last. */
static bool handle_packet(struct fa_client *client, struct packet *packet)
{
	struct fa_wire_message message;
	size_t n_fds = packet->n_fds;
	int r, *fds = packet->fds;
	ssize_t n = packet->n;

	if (n == -EAGAIN || n == -EINTR)
		return false;
	if (n == -EMSGSIZE || n == -E2BIG) {
		fa_client_lose(client, -EPROTO, "the daemon sent an impossible packet: %s",
		               strerror((int)-n));
		return false;
	}
	/* There was room when it was asked. */
	if (n == -EMFILE) {
		fa_client_lose(client, -ECONNRESET,
		               "the daemon sent descriptors, and this process can have no more");
		return false;
	}
	if (n <= 0) {
		fa_client_lose(client, -ECONNRESET, "the daemon went away%s%s", n ? ": " : "",
		               n ? strerror((int)-n) : "");
		return false;
	}

	r = fa_wire_decode(client->in, (size_t)n, &message);
	if (r < 0)
		fa_client_lose(client, -EPROTO, "the daemon sent a message that cannot be read");
	else if (message.fds != n_fds)
		fa_client_lose(client, -EPROTO, "the daemon announced %u descriptors and sent %zu",
		               message.fds, n_fds);
	else if (message.type == FA_WIRE_COMPLETION && !n_fds)
		handle_completion(client, &message);
	else if (is_reply(message.type))
		handle_reply(client, &message, fds, n_fds);
	else
		fa_client_lose(client, -EPROTO, "the daemon sent %s with %zu descriptors",
		               fa_wire_type_name(message.type), n_fds);
	fa_packet_close_fds(fds, n_fds);
	return true;
}

static bool receive_one(struct fa_client *client)
{
	struct packet packet = { .n_fds = 0 };

	packet.n = fa_packet_receive(client->connection.socket, client->in, FA_WIRE_BYTES_MAX,
	                             packet.fds, &packet.n_fds, MSG_DONTWAIT);
	return handle_packet(client, &packet);
}

/* Something was asked whose answer has not been read. */
static bool is_due(const struct fa_client *client)
{
	struct fa_list *pos;

	if (client->in_flight || client->detached)
		return true;
	fa_list_for_each(pos, &client->calls)
		if (!fa_container_of(pos, struct fa_call, link)->done)
			return true;
	return false;
}

void fa_io_wake(struct fa_client *client)
{
	struct fa_list *pos;

	/* Behind a failure whose Completion has come there may be more. */
	(void)fa_ring_collect(client);
	if (client->state != FA_CLIENT_CONNECTED)
		return;
	fa_list_for_each(pos, &client->waiters) {
		struct fa_waiter *waiter = fa_container_of(pos, struct fa_waiter, link);

		if (waiter->ready(client, waiter))
			pthread_cond_signal(&waiter->wake);
	}
	fa_list_for_each(pos, &client->spinning) {
		struct fa_waiter *waiter = fa_container_of(pos, struct fa_waiter, link);

		(void)waiter->ready(client, waiter);
	}
}

void fa_io_collect(struct fa_client *client, uint32_t stream)
{
	if (!fa_ring_collect_stream(client, stream))
		return;
	fa_io_ring(client);
	fa_io_wake(client);
}

/* @any: something was read before. */
static void receive(struct fa_client *client, bool all, bool any)
{
	while (client->state == FA_CLIENT_CONNECTED && (all || is_due(client)) &&
	       receive_one(client))
		any = true;
	/* Whoever lost the connection has woken everybody. */
	if (any && client->state == FA_CLIENT_CONNECTED)
		fa_io_wake(client);
}

void fa_io_receive(struct fa_client *client, bool all)
{
	if (fa_ring_collect(client))
		fa_io_wake(client);
	/* Were what the leader waits for read by another thread, poll() would not
	 * return. It is about to read. */
	if (!client->leader)
		receive(client, all, false);
}

/* Who waits for requests in a ring has spun on their page. */
static bool is_worth_spinning(const struct fa_client *client)
{
	return !client->connection.ring.memory || !fa_list_empty(&client->calls);
}

/*
 * Looks for a packet for a while before it sleeps: most answers are there sooner than
 * this thread would be woken. When they were not several times, the next ones are
 * waited for asleep. What is told by @ring (NULL: there is none) is others', who sleep.
 * Outside the mutex; what counts is the leader's.
 */
static bool receive_spinning(struct fa_client *client, bool worth, int fd,
                             const struct fa_client_ring *ring, uint64_t deadline_ns,
                             struct packet *packet)
{
	unsigned int looks = 0;
	uint64_t end_ns;

	if (!client->spin_ns || !worth)
		return false;
	if (client->spin_rest) {
		--client->spin_rest;
		return false;
	}
	end_ns = fa_deadline_ns(client->spin_ns);
	if (deadline_ns < end_ns)
		end_ns = deadline_ns;
	do {
		packet->n = fa_packet_receive(fd, client->in, FA_WIRE_BYTES_MAX, packet->fds,
		                              &packet->n_fds, MSG_DONTWAIT);
		if (packet->n != -EAGAIN) {
			client->spun_in_vain = 0;
			return true;
		}
		if (ring && ++looks % SPIN_LOOKS == 0 && fa_ring_is_woken(ring))
			return false;
		if (client->yields)
			sched_yield();
	} while (fa_now_ns() < end_ns);
	if (++client->spun_in_vain >= SPIN_TRIES) {
		client->spun_in_vain = 0;
		client->spin_rest = SPIN_REST;
	}
	return false;
}

/* Sleeps until there is a packet, or the daemon says that requests of the ring have
 * ended, or there is room in it. */
static void lead_ring(struct fa_client *client, uint64_t deadline_ns)
{
	const struct fa_client_ring *ring = &client->connection.ring;
	struct packet packet = { .n = -EAGAIN };
	struct pollfd fds[] = {
		{ .fd = client->connection.socket, .events = POLLIN },
		{ .fd = ring->wake, .events = POLLIN },
	};
	uint64_t until_ns = fa_deadline_ns(FA_RECEIVE_SLICE_NS);
	bool worth;

	if (deadline_ns < until_ns)
		until_ns = deadline_ns;

	/* Armed first, and then the last look: what ends after it wakes. */
	fa_ring_arm(&client->connection.ring.end);
	if (fa_ring_collect(client)) {
		if (!client->watched)
			fa_ring_disarm(&client->connection.ring.end);
		fa_io_wake(client);
		return;
	}
	if (client->state == FA_CLIENT_LOST)
		return;

	client->leader = true;
	worth = is_worth_spinning(client);
	fa_io_outside_begin(client);
	if (!receive_spinning(client, worth, fds[0].fd, ring, until_ns, &packet) &&
	    !fa_poll_all(fds, 2, until_ns)) {
		if (fds[1].revents)
			fa_ring_drain(ring);
		if (fds[0].revents)
			packet.n = fa_packet_receive(fds[0].fd, client->in, FA_WIRE_BYTES_MAX,
			                             packet.fds, &packet.n_fds, MSG_DONTWAIT);
	}
	fa_io_outside_end(client);
	client->leader = false;

	if (client->state == FA_CLIENT_LOST) {
		fa_packet_close_fds(packet.fds, packet.n_fds);
		return;
	}
	/* The wake-up may have been meant for who polls the client's descriptor, and what it
	 * told of may be known by now. */
	if (client->watched)
		fa_ring_watch(client);
	else
		fa_ring_disarm(&client->connection.ring.end);
	if (handle_packet(client, &packet))
		receive(client, false, true);
	else if (client->state == FA_CLIENT_CONNECTED)
		fa_io_wake(client);
}

/*
 * Waits for a packet as the leader, reads it and what else is there. A receive
 * that sleeps saves the call of poll(), but keeps time only coarsely.
 */
static void lead(struct fa_client *client, uint64_t deadline_ns)
{
	struct packet packet = { .n = -EAGAIN };
	int fd = client->connection.socket;
	bool any, worth;

	client->leader = true;
	worth = is_worth_spinning(client);
	fa_io_outside_begin(client);
	if (!receive_spinning(client, worth, fd, NULL, deadline_ns, &packet)) {
		bool precise = deadline_ns != FA_NS_NEVER &&
		               deadline_ns < fa_deadline_ns(FA_RECEIVE_SLICE_NS);

		if (!precise || !fa_poll(fd, POLLIN, deadline_ns))
			packet.n = fa_packet_receive(fd, client->in, FA_WIRE_BYTES_MAX, packet.fds,
			                             &packet.n_fds, precise ? MSG_DONTWAIT : 0);
	}
	fa_io_outside_end(client);
	client->leader = false;

	/* It was lost meanwhile: whatever this is, nobody waits for it. */
	if (client->state == FA_CLIENT_LOST) {
		fa_packet_close_fds(packet.fds, packet.n_fds);
		return;
	}
	any = handle_packet(client, &packet);
	receive(client, false, any);
}

int fa_io_await(struct fa_client *client, struct fa_waiter *waiter, uint64_t deadline_ns)
{
	int r = 0;

	if (waiter->ready(client, waiter))
		return 0;
	pthread_cond_init(&waiter->wake, &client->clock);
	fa_list_append(&client->waiters, &waiter->link);

	while (!waiter->ready(client, waiter)) {
		if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns) {
			r = -EAGAIN;
			break;
		}
		/* Whoever sleeps for the socket alone is not woken by what the ring brings. */
		if (!client->leader && client->ring_near) {
			pthread_cond_wait(&client->changed, &client->lock);
		} else if (!client->leader && client->connection.ring.memory &&
		           client->state == FA_CLIENT_CONNECTED) {
			lead_ring(client, deadline_ns);
		} else if (!client->leader) {
			lead(client, deadline_ns);
		} else if (deadline_ns == FA_NS_NEVER) {
			pthread_cond_wait(&waiter->wake, &client->lock);
		} else {
			struct timespec until = { .tv_sec = (time_t)(deadline_ns / FA_NS_PER_SEC),
				                  .tv_nsec = (long)(deadline_ns % FA_NS_PER_SEC) };

			pthread_cond_timedwait(&waiter->wake, &client->lock, &until);
		}
	}

	fa_list_remove(&waiter->link);
	pthread_cond_destroy(&waiter->wake);
	/* Somebody else has to lead; if that one is ready too, it wakes the next. */
	if (!client->leader && !fa_list_empty(&client->waiters))
		pthread_cond_signal(
			&fa_container_of(client->waiters.next, struct fa_waiter, link)->wake);
	return r;
}

/* ---- sending */

struct end_waiter {
	struct fa_waiter waiter;
	uint32_t epoch;
};

/* The connection ended; there may be another already. */
static bool end_ready(const struct fa_client *client, struct fa_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST ||
	       client->epoch != fa_container_of(waiter, const struct end_waiter, waiter)->epoch;
}

/* One attempt; -EAGAIN if the socket is full, or the ring; -ETOOMANYREFS if sockets hold as
 * many descriptors of this user's as they may. */
static int try_send(struct fa_client *client, const struct fa_wire_message *message, const int *fds,
                    size_t n_fds, bool by_ring, size_t *ret_length)
{
	struct end_waiter end = { .waiter.ready = end_ready };
	const void *bytes;
	size_t length;
	int r;

	r = fa_wire_encode(message, client->out, FA_WIRE_BYTES_MAX, &bytes, &length);
	if (r == -EMSGSIZE)
		return fa_error_set(r,
		                    "the request is too long: what comes with it (lengths, "
		                    "masks, positions, items) has more than about %u bytes",
		                    FA_WIRE_BYTES_MAX - FA_WIRE_FIXED_BYTES_MAX);
	if (r < 0)
		return fa_error_set(r, "the request cannot be encoded: %s", strerror(-r));
	if (by_ring) {
		r = fa_ring_send(client, bytes, length);
		*ret_length = length;
		return r;
	}
	r = fa_packet_send(client->connection.socket, bytes, length, fds, n_fds, MSG_DONTWAIT);
	if (r == 0 || r == -EAGAIN || r == -ETOOMANYREFS)
		return r;
	if (r != -EPIPE && r != -ECONNRESET && r != -ENOTCONN)
		return fa_error_set(r, "the request cannot be sent: %s", strerror(-r));

	/* What the daemon said before it went is the better reason, and to be read. */
	end.epoch = client->epoch;
	(void)fa_io_await(client, &end.waiter, fa_deadline_ns(LAST_WORDS_NS));
	if (!end_ready(client, &end.waiter))
		fa_client_lose(client, -ECONNRESET, "the daemon went away: %s", strerror(-r));
	return fa_client_lost_error(client);
}

static int gave_up(struct fa_client *client)
{
	fa_client_lose(client, -ECONNRESET, "the daemon takes no more requests");
	return fa_error_copy(-ETIMEDOUT, &client->lost_error);
}

/*
 * Waits until the socket takes more. The daemon may have stopped reading because
 * its replies to us pile up; so they are read meanwhile, whoever leads. What is
 * @crowded out by descriptors in others' sockets can only be tried again.
 */
static int wait_room(struct fa_client *client, bool crowded, uint64_t deadline_ns)
{
	const uint64_t soon_ns = crowded ? fa_deadline_ns(FA_CROWDED_PAUSE_NS) : FA_NS_NEVER;
	uint32_t epoch = client->epoch;

	if (deadline_ns != FA_NS_NEVER && fa_now_ns() >= deadline_ns)
		return crowded ? fa_error_set(-EMFILE, "as many descriptors of this user as a "
		                                       "process may have lie in sockets, unread")
		               : gave_up(client);
	poll_outside(client, (short)(crowded ? 0 : POLLIN | POLLOUT),
	             soon_ns < deadline_ns ? soon_ns : deadline_ns);
	if (client->epoch == epoch)
		fa_io_receive(client, true);
	if (client->epoch != epoch || client->state == FA_CLIENT_LOST)
		return fa_client_lost_error(client);
	return 0;
}

/* The same for the ring. */
static int wait_ring_room(struct fa_client *client, size_t length, uint64_t deadline_ns)
{
	uint32_t epoch = client->epoch;
	int r;

	r = fa_ring_await_room(client, length, deadline_ns);
	if (client->epoch != epoch || client->state == FA_CLIENT_LOST)
		return fa_client_lost_error(client);
	return r < 0 ? gave_up(client) : 0;
}

/*
 * A ring takes messages whether anybody lives at its other end or not. What is put while
 * requests follow one another is in flight then, like those before; but after a pause it
 * is worth a look at the socket.
 */
static int look_after_pause(struct fa_client *client)
{
	struct fa_client_ring *ring = &client->connection.ring;
	uint64_t now_ns = fa_now_ns(), pause_ns = now_ns - ring->put_ns;

	ring->put_ns = now_ns;
	if (pause_ns < FA_RING_PAUSE_NS)
		return 0;
	fa_io_receive(client, true);
	return client->state == FA_CLIENT_LOST ? fa_client_lost_error(client) : 0;
}

int fa_io_post(struct fa_client *client, struct fa_wire_message *message, const int *fds,
               size_t n_fds, uint64_t deadline_ns, bool again)
{
	const uint64_t given_ns = deadline_ns;
	uint64_t crowded_ns = FA_NS_NEVER, *value;
	uint32_t *id;
	int r;

	message->fds = (uint8_t)n_fds;
	for (;;) {
		uint32_t epoch = client->epoch;
		size_t ring_length = 0;
		bool by_ring;

		/* The value is the next one at the moment of sending. */
		id = fa_request_stream(message, &value);
		while (id && client->state == FA_CLIENT_CONNECTED && fa_ring_is_due(client)) {
			fa_ring_begin(client);
			if (!again && client->epoch != epoch)
				return fa_client_lost_error(client);
			epoch = client->epoch;
		}
		if (id)
			*value = client->streams[*id].submitted + 1 - client->streams[*id].base;
		by_ring = id && client->connection.ring.memory;
		/* Whoever connects again has client->out, without the mutex. */
		if (client->state == FA_CLIENT_LOST)
			r = fa_client_lost_error(client);
		else
			r = by_ring ? look_after_pause(client) : 0;
		if (r == 0)
			r = try_send(client, message, fds, n_fds, by_ring, &ring_length);
		if ((r == -EAGAIN || r == -ETOOMANYREFS) && deadline_ns == FA_IO_USUAL)
			deadline_ns = fa_deadline_ns(client->call_ns);
		if (r == -ETOOMANYREFS && crowded_ns == FA_NS_NEVER)
			crowded_ns = fa_deadline_ns(CROWDED_NS);
		if (r == -EAGAIN || r == -ETOOMANYREFS) {
			bool crowded = r == -ETOOMANYREFS;

			r = by_ring ? wait_ring_room(client, ring_length, deadline_ns)
			            : wait_room(client, crowded,
			                        crowded && crowded_ns < deadline_ns ? crowded_ns
			                                                            : deadline_ns);
			if (r == 0)
				continue;
		}
		if (r < 0 && r != -ETIMEDOUT && again &&
		    (client->state == FA_CLIENT_LOST || client->epoch != epoch)) {
			again = false;
			deadline_ns = given_ns;
			crowded_ns = FA_NS_NEVER;
			r = fa_client_restore(client, client->reconnect_ns);
			if (r == 0)
				continue;
		}
		return r;
	}
}

static bool call_ready(const struct fa_client *client, struct fa_waiter *waiter)
{
	return fa_container_of(waiter, const struct fa_call, waiter)->done;
}

/* Whether an answer may come with descriptors. */
static bool are_fds_due(const struct fa_client *client)
{
	struct fa_list *pos;

	if (client->posting_for_fds)
		return true;
	fa_list_for_each(pos, &client->calls) {
		const struct fa_call *call = fa_container_of(pos, struct fa_call, link);

		if (call->expect_fds && !call->done)
			return true;
	}
	return false;
}

static bool no_fds_ready(const struct fa_client *client, struct fa_waiter *waiter)
{
	return client->state == FA_CLIENT_LOST || !are_fds_due(client);
}

/*
 * Sees that the descriptors of an answer will find room. One call at a time: whoever tries takes
 * them for a moment, in which another's would find none, and both would count on the same.
 */
static int make_sure_of_fds(struct fa_client *client, bool again, struct fa_call *call)
{
	int r;

	while (are_fds_due(client)) {
		struct fa_waiter turn = { .ready = no_fds_ready };

		if (client->state == FA_CLIENT_LOST && !again)
			return fa_client_lost_error(client);
		if (client->state == FA_CLIENT_LOST) {
			r = fa_client_restore(client, client->reconnect_ns);
			if (r < 0)
				return r;
		}
		/* Each has its own time to be answered in. */
		(void)fa_io_await(client, &turn, FA_NS_NEVER);
	}
	r = fa_connection_spare(client->event_fd, call->expect_fds, &call->error);
	return r < 0 ? fa_error_copy(r, &call->error) : 0;
}

int fa_io_call_begin(struct fa_client *client, struct fa_wire_message *message, const int *fds,
                     size_t n_fds, bool again, struct fa_call *call)
{
	int r;

	call->type = message->type;
	call->waiter.ready = call_ready;
	call->done = false;
	call->status = 0;
	call->fd = call->second_fd = -1;
	if (call->expect_fds) {
		r = make_sure_of_fds(client, again, call);
		if (r < 0)
			return r;
		client->posting_for_fds = true;
	}
	message->id = call->id = ++client->last_id;

	r = fa_io_post(client, message, fds, n_fds, FA_IO_USUAL, again);
	if (call->expect_fds)
		client->posting_for_fds = false;
	if (r < 0) {
		/* The next of those calls. */
		if (call->expect_fds)
			fa_io_wake(client);
		return r;
	}
	/* Whatever time the daemon took to come back: it has its own to answer. */
	call->deadline_ns = fa_deadline_ns(client->call_ns);
	call->epoch = client->epoch;
	fa_list_append(&client->calls, &call->link);
	return 0;
}

int fa_io_call_end(struct fa_client *client, struct fa_call *call)
{
	int r;

	r = fa_io_await(client, &call->waiter, call->deadline_ns);
	fa_list_remove(&call->link);
	if (r == -EAGAIN) {
		fa_client_lose(client, -ECONNRESET, "the daemon did not answer %s in time",
		               fa_wire_type_name(call->type));
		return fa_error_copy(-ETIMEDOUT, &client->lost_error);
	}
	return call->status < 0 ? fa_error_copy(call->status, &call->error) : 0;
}

int fa_io_call(struct fa_client *client, struct fa_wire_message *message, const int *fds,
               size_t n_fds, bool again, struct fa_call *call)
{
	int r;

	r = fa_io_call_begin(client, message, fds, n_fds, again, call);
	return r < 0 ? r : fa_io_call_end(client, call);
}

int fa_io_tell(struct fa_client *client, struct fa_wire_message *message, const int *fds,
               size_t n_fds)
{
	int r;

	message->id = ++client->last_id | FA_ID_DETACHED;
	r = fa_io_post(client, message, fds, n_fds, fa_deadline_ns(client->call_ns), false);
	if (r == 0)
		++client->detached;
	return r;
}
