#include "tests/lib/ring.h"

#include "common/cleanup.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

void fa_raw_ring_open(struct fa_raw *raw, struct fa_raw_ring *ring, uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_RING_SETUP);
	const struct fa_wire_ring_reply *reply = &raw->message.ring_reply;
	void *records;

	message.ring_setup.bytes = bytes;
	fa_raw_call(raw, &message, NULL, 0);
	fa_check_eq(raw->message.type, FA_WIRE_RING_REPLY);
	fa_check_eq(raw->n_fds, FA_WIRE_RING_FDS);
	fa_check(fa_ring_is_valid_size(reply->bytes));
	fa_check_eq(reply->results_bytes, fa_results_bytes(reply->records));
	*ring = (struct fa_raw_ring){
		.bytes = reply->bytes,
		.n_records = reply->records,
		.ring_fd = fa_steal_fd(&raw->fds[0]),
		.results_fd = fa_steal_fd(&raw->fds[1]),
		.doorbell = fa_steal_fd(&raw->fds[2]),
		.wake = fa_steal_fd(&raw->fds[3]),
	};
	ring->memory = mmap(NULL, FA_RING_HEAD_BYTES + ring->bytes, PROT_READ | PROT_WRITE,
	                    MAP_SHARED, ring->ring_fd, 0);
	fa_check(ring->memory != MAP_FAILED);
	records = mmap(NULL, fa_results_bytes(ring->n_records), PROT_READ, MAP_SHARED,
	               ring->results_fd, 0);
	fa_check(records != MAP_FAILED);
	ring->records = records;
	fa_ring_producer_init(&ring->end, ring->memory, ring->bytes);
}

void fa_raw_ring_close(struct fa_raw_ring *ring)
{
	if (!ring->memory)
		return;
	(void)munmap(ring->memory, FA_RING_HEAD_BYTES + ring->bytes);
	(void)munmap((void *)ring->records, fa_results_bytes(ring->n_records));
	fa_close_fdp(&ring->ring_fd);
	fa_close_fdp(&ring->results_fd);
	fa_close_fdp(&ring->doorbell);
	fa_close_fdp(&ring->wake);
	*ring = (struct fa_raw_ring){ 0 };
}

void fa_raw_ring_bell(struct fa_raw_ring *ring)
{
	fa_check_eq(eventfd_write(ring->doorbell, 1), 0);
}

int fa_raw_ring_put_bytes(struct fa_raw_ring *ring, const void *bytes, size_t length)
{
	int r = fa_ring_put(&ring->end, bytes, length);

	if (r == 0 && fa_ring_needs_doorbell(&ring->end))
		fa_raw_ring_bell(ring);
	return r;
}

int fa_raw_ring_put(struct fa_raw_ring *ring, const struct fa_wire_message *message)
{
	static _Alignas(8) _Thread_local unsigned char buffer[FA_WIRE_BYTES_MAX + 64];

	return fa_raw_ring_put_bytes(ring, buffer, fa_raw_encode(message, buffer));
}

void fa_raw_ring_send(struct fa_raw_ring *ring, const struct fa_wire_message *message)
{
	int r = 0;

	fa_check_eventually((r = fa_raw_ring_put(ring, message)) != -EAGAIN);
	fa_check_eq(r, 0);
}

void fa_raw_ring_marker(struct fa_raw_ring *ring, uint32_t stream, uint64_t value)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER);

	message.marker.stream = stream;
	message.marker.value = value;
	fa_raw_ring_send(ring, &message);
}

struct fa_outcome fa_raw_ring_wait(const struct fa_raw *raw, const struct fa_raw_ring *ring,
                                   uint32_t stream, uint64_t value)
{
	struct fa_outcome outcome = { 0 };

	fa_check_eventually(atomic_load(&raw->page[stream].completed) >= value);
	fa_check(fa_record_read(&ring->records[fa_record_index(stream, ring->n_records, value)],
	                        value, &outcome));
	return outcome;
}
