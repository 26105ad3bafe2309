/*
 * A daemon, and a client of its KV cache with a stream, a ring and a timeline, for tests of steps
 * whose messages may go by the ring. Each test begins with a sequence of 20 tokens.
 */
#pragma once

#include "common/timeline.h"
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/ring.h"

enum {
	STREAM = 3,
	SLOT = 9,
	TOKENS = 4,
};

static struct fa_test_daemon daemon_process;
static struct kv_client client;
static struct fa_raw_ring ring;
static struct fa_timeline_in *in;
static uint64_t sequence;
static uint64_t gate; /* the largest value of SLOT that something waits for */
static uint32_t numbers[64];

static int start(void **state)
{
	fa_test_daemon_start(&daemon_process,
	                     &(struct fa_test_daemon_options){ .config = "[pool]\nbytes = 16M\n"
	                                                                 "chunk_bytes = 2M\n" });
	kv_count(numbers, 1, 64);
	return 0;
}

static int stop(void **state)
{
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

static int open_client(void **state)
{
	kv_open(&client, daemon_process.socket);
	fa_raw_stream_create(&client.raw, STREAM, 0);
	kv_open_timeline(&client, &in, NULL);
	gate = 0;
	fa_raw_ring_open(&client.raw, &ring, 0);
	sequence = kv_sequence(&client, kv_cache(&client, NULL, 0));
	kv_append(&client, sequence, numbers, 0, 20);
	return 0;
}

/* Stream and sequence must be usable whatever the test did. */
static int close_client(void **state)
{
	uint32_t length = (uint32_t)kv_info(&client, sequence).length;

	kv_check(&client, sequence, numbers, 0, length);
	kv_append(&client, sequence, numbers, length, 1);
	fa_raw_ring_close(&ring);
	kv_close_timeline(in, NULL);
	kv_close(&client);
	return 0;
}

static void open_gate(void)
{
	atomic_store((_Atomic uint64_t *)(void *)&in[SLOT].value, gate);
}

static void check_lengths(uint64_t length, uint64_t planned)
{
	const struct fa_wire_sequence_reply info = kv_info(&client, sequence);

	fa_check_eq(info.length, length);
	fa_check_eq(info.planned, planned);
}
