/*
 * The protocol by hand: a connection that sends valid or invalid messages, and receives with a
 * deadline. One thread per connection.
 */
#pragma once

#include "common/completion.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Received while waiting for another message. */
struct fa_raw_completion {
	uint32_t stream;
	int32_t status;
	uint64_t id, value;
	uint64_t queued_ns, started_ns, finished_ns;
	char text[256];
};

struct fa_raw {
	int fd; /* -1: closed */
	uint64_t next_id;

	/* The last message; strings point into bytes. */
	struct fa_wire_message message;
	int fds[FA_WIRE_FDS_MAX];
	size_t n_fds;
	_Alignas(8) unsigned char bytes[FA_WIRE_BYTES_MAX + 64];

	/* From HelloReply. */
	int page_fd; /* -1 before */
	const struct fa_completion_slot *page;
	uint64_t generation, session;
	struct fa_wire_secret secret;
	struct fa_wire_limits limits;

	struct fa_raw_completion *completions; /* received, not yet waited for */
	size_t n_completions, size_completions;
};

/* ---- connection */

/* Without a Hello. Fails the test; fa_raw_connect_try() returns -errno. */
void fa_raw_connect(struct fa_raw *raw, const char *socket_path);
int fa_raw_connect_try(struct fa_raw *raw, const char *socket_path);

/* Takes over a connected socket. */
void fa_raw_init(struct fa_raw *raw, int fd);

/* Connects and says Hello. */
void fa_raw_open(struct fa_raw *raw, const char *socket_path);

/* Says Hello on a connected socket. */
void fa_raw_hello(struct fa_raw *raw);

void fa_raw_hello_with(struct fa_raw *raw, struct fa_wire_message *hello);

/* May be called twice. */
void fa_raw_close(struct fa_raw *raw);

/* ---- sending: 0 or -errno; blocks while the socket is full */

/* Sends @message unchanged, its fds field included, with @n_fds descriptors. */
int fa_raw_send(struct fa_raw *raw, const struct fa_wire_message *message, const int *fds,
                size_t n_fds);

/* Sends any bytes with up to 253 descriptors; @flags as of send(2). */
int fa_raw_send_bytes(struct fa_raw *raw, const void *bytes, size_t length, const int *fds,
                      size_t n_fds, int flags);

/* @buffer holds 65536 + 64 bytes. Returns the length. */
size_t fa_raw_encode(const struct fa_wire_message *message, unsigned char *buffer);

/* Changes the union tag of an encoded message. */
void fa_raw_set_type(unsigned char *bytes, uint8_t type);

/* ---- receiving */

/*
 * Receives into raw->message. The next receive closes its descriptors. Returns 1, 0 at the end of
 * the stream or after a reset, or -EAGAIN.
 */
int fa_raw_receive(struct fa_raw *raw, int timeout_ms);

/*
 * Receives until a message other than Completion comes; keeps Completions. The test fails if the
 * connection ends.
 */
void fa_raw_receive_reply(struct fa_raw *raw);

/* Gives @message a fresh id, sends it and receives the reply. */
void fa_raw_call(struct fa_raw *raw, struct fa_wire_message *message, const int *fds, size_t n_fds);

/* The reply must be a Reply with @status and a text with @part (NULL: any). */
void fa_raw_call_expect(struct fa_raw *raw, struct fa_wire_message *message, const int *fds,
                        size_t n_fds, int status, const char *part);

/* The next message must be this Reply; if @closed, the connection must then end. */
void fa_raw_expect_reply(struct fa_raw *raw, uint64_t id, int status, const char *part,
                         bool closed);

/* The connection must end without another message, except Completions, which are kept. */
void fa_raw_expect_end(struct fa_raw *raw);

/* The test fails if the connection ends before the Completion. */
void fa_raw_wait(struct fa_raw *raw, uint32_t stream, uint64_t value,
                 struct fa_raw_completion *ret_completion);

/* As above, and checks @status and that the text contains @part (NULL: any). */
void fa_raw_wait_expect(struct fa_raw *raw, uint32_t stream, uint64_t value, int status,
                        const char *part);

/* ---- common messages */

struct fa_wire_message fa_raw_message(enum fa_wire_type type);
struct fa_wire_message fa_raw_hello_message(const char *name);

void fa_raw_ping(struct fa_raw *raw);

struct fa_raw_buffer {
	uint32_t id;
	int fd;
	uint64_t bytes;
	unsigned char *data;
};

/* A sealed, mapped memfd, not registered. */
void fa_raw_buffer_make(struct fa_raw_buffer *buffer, uint32_t id, uint64_t bytes);

/* Also registers, with @flags of BufferRegister. */
void fa_raw_buffer_register(struct fa_raw *raw, struct fa_raw_buffer *buffer, uint32_t id,
                            uint64_t bytes, uint32_t flags);

/* Requests an arena and maps it. */
void fa_raw_buffer_arena(struct fa_raw *raw, struct fa_raw_buffer *buffer, uint32_t id,
                         uint64_t bytes);

/* Registers bytes [0, @bytes) of a memfd. */
struct fa_wire_message fa_raw_register_message(uint32_t id, uint64_t bytes);

/* Also frees it in the daemon, unless @raw is NULL. */
void fa_raw_buffer_free(struct fa_raw *raw, struct fa_raw_buffer *buffer);

void fa_raw_stream_create(struct fa_raw *raw, uint32_t stream, int priority);
void fa_raw_stream_free(struct fa_raw *raw, uint32_t stream);

/* As JSON; the caller frees it. */
char *fa_raw_status(struct fa_raw *raw);
