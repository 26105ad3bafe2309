/*
 * The submission ring of a connection, as the client sees it; part of the connection and
 * guarded like it. Only its completion page, its records and its wake pipe are looked at
 * without the mutex, and then fa_client.outside keeps the connection.
 *
 * It is made with the first request of a connection: who only asks questions, as factl
 * does, never pays for one. Where the daemon has none to give, or there are no descriptors for
 * it, requests go through the socket, and after a pause that doubles one of them tries again.
 * Nobody sends any while RingSetup is not answered: those before it have been read by then, and
 * are answered through the socket; all others of the connection go through the ring.
 *
 * What was put into the ring is answered by its record; one that failed by a Completion
 * as well, which brings the sentence. So the books follow the records as far as these
 * say success, and the socket from there on.
 */
#pragma once

#include "common/results.h"
#include "common/ring.h"

#include <stdbool.h>
#include <stdint.h>

struct fa_client;

/* A daemon may have died while it polled the ring: after such a pause the socket is
 * looked at before anything more is put. */
#define FA_RING_PAUSE_NS FA_NS_PER_MS

/* When a connection has no ring, another is tried after so long, and at last after so long. */
#define FA_RING_AGAIN_FIRST_NS (100 * FA_NS_PER_MS)
#define FA_RING_AGAIN_LAST_NS (10 * FA_NS_PER_SEC)

struct fa_client_ring {
	void *memory; /* NULL: there is no ring */
	struct fa_ring_producer end;
	const struct fa_record *records;
	uint32_t n_records; /* of each stream */
	int doorbell;       /* ours to write */
	int wake;           /* ours to read */
	uint64_t put_ns;    /* when something was put last */
};

/* With the mutex: whether it is time for fa_ring_begin() before a request is sent. */
bool fa_ring_is_due(const struct fa_client *client);
/* With the mutex, which is released meanwhile: makes the ring if that is due, or waits while
 * another thread does. There may be none afterwards. */
void fa_ring_begin(struct fa_client *client);
void fa_ring_end(struct fa_client_ring *ring);

/* With the mutex: puts an encoded message. -EAGAIN: there is no room. */
int fa_ring_send(struct fa_client *client, const void *bytes, size_t length);
/* Waits for room; -EAGAIN at the deadline. */
int fa_ring_await_room(struct fa_client *client, size_t length, uint64_t deadline_ns);

/* Takes what the records say into the books. Returns whether there was anything. */
bool fa_ring_collect_stream(struct fa_client *client, uint32_t stream);
bool fa_ring_collect(struct fa_client *client);

/* Whether a wake-up has come. */
bool fa_ring_is_woken(const struct fa_client_ring *ring);
/* Lets go of those that have. */
void fa_ring_drain(const struct fa_client_ring *ring);
/* Somebody polls the client's descriptor: it becomes readable when a request ends. */
void fa_ring_watch(struct fa_client *client);
