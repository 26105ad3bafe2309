/*
 * A daemon that behaves as the test likes: a socket and a thread in the test's
 * own process, which serves one connection after another with a function of the
 * test's.
 */
#pragma once

#include "common/completion.h"
#include "tests/lib/raw.h"

#include <pthread.h>
#include <stdbool.h>

/* The numbers of what it makes and finds, whatever it is asked for. */
#define FA_FAKE_CACHE 0x700000001ull
#define FA_FAKE_SEQUENCE 0x900000002ull
#define FA_FAKE_STEP 0xb00000003ull

struct fa_fake {
	char dir[48], socket[64];
	int listen_fd;
	pthread_t thread;
	/* Serves one connection and returns; on the fake's thread. NULL: accepts
	 * nothing. Closing is the caller's. */
	void (*serve)(struct fa_raw *raw, void *userdata);
	void *userdata;
};

void fa_fake_start(struct fa_fake *fake, void (*serve)(struct fa_raw *raw, void *userdata),
                   void *userdata);
void fa_fake_stop(struct fa_fake *fake);

/* For groups that count descriptors: the first directory of a process leaves one open. */
int fa_fake_setup(void **state);

/* Answers Hello as it should be; the page, writable, or NULL if nobody is there. */
struct fa_completion_slot *fa_fake_welcome(struct fa_raw *raw);

/* Answers the Hello that was received as a session with this secret. */
struct fa_completion_slot *fa_fake_welcome_as(struct fa_raw *raw, uint64_t generation,
                                              struct fa_wire_secret secret, bool resumed);

/* A HelloReply that is right; it carries one descriptor. */
struct fa_wire_message fa_fake_hello_reply(uint64_t id);

/* Sends one, with a page. */
struct fa_completion_slot *fa_fake_welcome_with(struct fa_raw *raw,
                                                const struct fa_wire_message *reply);

/* Receives the next request; false at the end. Fails if neither comes. */
bool fa_fake_next(struct fa_raw *raw);

void fa_fake_reply(struct fa_raw *raw, uint64_t id, int status, const char *text);
void fa_fake_complete(struct fa_raw *raw, uint32_t stream, uint64_t value, int status,
                      const char *text);

/* Answers raw->message as a daemon that does everything at once and well. */
void fa_fake_answer(struct fa_raw *raw, struct fa_completion_slot *page);

/* For fa_fake_start(): welcomes and answers until the end. */
void fa_fake_serve(struct fa_raw *raw, void *userdata);
