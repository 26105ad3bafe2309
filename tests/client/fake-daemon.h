/* A socket and a thread that serves one connection after another with a function of the test. */
#pragma once

#include "common/completion.h"
#include "tests/lib/raw.h"

#include <pthread.h>
#include <stdbool.h>

/* The ids of every cache and sequence that the fake creates or finds. */
#define FAKE_DAEMON_CACHE 0x700000001ull
#define FAKE_DAEMON_SEQUENCE 0x900000002ull
#define FAKE_DAEMON_STEP 0xb00000003ull

struct fake_daemon {
	char dir[48], socket[64];
	int listen_fd;
	pthread_t thread;
	/*
	 * Serves one connection on the fake's thread; the caller closes the connection. NULL: the
	 * fake accepts none.
	 */
	void (*serve)(struct fa_raw *raw, void *userdata);
	void *userdata;
};

void fake_daemon_start(struct fake_daemon *fake, void (*serve)(struct fa_raw *raw, void *userdata),
                       void *userdata);
void fake_daemon_stop(struct fake_daemon *fake);

int fake_daemon_setup(void **state);

/* Receives and answers Hello; returns the writable page, or NULL if the client has gone. */
struct fa_completion_slot *fake_daemon_welcome(struct fa_raw *raw);

struct fa_completion_slot *fake_daemon_welcome_as(struct fa_raw *raw, uint64_t generation,
                                                  struct fa_wire_secret secret, bool resumed);

/* Returns a valid HelloReply, to be sent with one descriptor. */
struct fa_wire_message fake_daemon_hello_reply(uint64_t id);

struct fa_completion_slot *fake_daemon_welcome_with(struct fa_raw *raw,
                                                    const struct fa_wire_message *reply);

/* Receives the next request; false: the connection has ended. Fails on a time-out. */
bool fake_daemon_next(struct fa_raw *raw);

void fake_daemon_reply(struct fa_raw *raw, uint64_t id, int status, const char *text);
void fake_daemon_complete(struct fa_raw *raw, uint32_t stream, uint64_t value, int status,
                          const char *text);

void fake_daemon_answer(struct fa_raw *raw, struct fa_completion_slot *page);

void fake_daemon_serve(struct fa_raw *raw, void *userdata);
