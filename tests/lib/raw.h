/*
 * The protocol by hand: a connection that sends whatever it is told, right or
 * wrong, and receives with a deadline. For tests that must see what is on the
 * wire; one connection is used by one thread.
 */
#pragma once

#include "common/completion.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A Completion that came while something else was waited for. */
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

	/* The message received last; its strings point into bytes. */
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

	struct fa_raw_completion *completions; /* that nobody asked for so far */
	size_t n_completions, size_completions;
};

/* ---- connection */

/* Connects without a word. Fails the test; _try returns -errno. */
void fa_raw_connect(struct fa_raw *raw, const char *socket_path);
int fa_raw_connect_try(struct fa_raw *raw, const char *socket_path);

/* Takes over a socket that is connected already. */
void fa_raw_init(struct fa_raw *raw, int fd);

/* Connects and says Hello; the daemon must welcome it. */
void fa_raw_open(struct fa_raw *raw, const char *socket_path);

/* Says Hello on a connection; must be welcomed. */
void fa_raw_hello(struct fa_raw *raw);

/* The same with this message. */
void fa_raw_hello_with(struct fa_raw *raw, struct fa_wire_message *hello);

/* Closes and forgets everything. May be called twice. */
void fa_raw_close(struct fa_raw *raw);

/* ---- sending. 0 or -errno; blocks while the socket is full. */

/* Sends @message as it stands (its fds field too) with @n_fds descriptors. */
int fa_raw_send(struct fa_raw *raw, const struct fa_wire_message *message, const int *fds,
                size_t n_fds);

/* Any bytes, any number of descriptors up to 253; @flags as of send(2). */
int fa_raw_send_bytes(struct fa_raw *raw, const void *bytes, size_t length, const int *fds,
                      size_t n_fds, int flags);

/* Encodes for sending or spoiling. @buffer has room for 65536 + 64 bytes; the
 * message is moved to its beginning, its length is returned. */
size_t fa_raw_encode(const struct fa_wire_message *message, unsigned char *buffer);

/* Changes the union tag of an encoded message. */
void fa_raw_set_type(unsigned char *bytes, uint8_t type);

/* ---- receiving */

/*
 * Receives one message into raw->message, with descriptors that belong to the
 * caller until the next receive closes them. Returns 1, 0 at the end of the
 * stream (also when it was reset), or -EAGAIN after @timeout_ms.
 */
int fa_raw_receive(struct fa_raw *raw, int timeout_ms);

/* Receives until something that is no Completion comes (those are kept); fails
 * the test if nothing comes or the connection ends. */
void fa_raw_receive_reply(struct fa_raw *raw);

/* Gives @message a fresh id, sends it and receives what answers that id. */
void fa_raw_call(struct fa_raw *raw, struct fa_wire_message *message, const int *fds, size_t n_fds);

/* As above; the answer must be a Reply with @status whose text contains @part
 * (NULL: no matter). */
void fa_raw_call_expect(struct fa_raw *raw, struct fa_wire_message *message, const int *fds,
                        size_t n_fds, int status, const char *part);

/* The next message must be a Reply with this id and status, and then (if
 * @closed) the connection must end. */
void fa_raw_expect_reply(struct fa_raw *raw, uint64_t id, int status, const char *part,
                         bool closed);

/* Nothing more may come but the end of the connection. Completions are kept. */
void fa_raw_expect_end(struct fa_raw *raw);

/* Waits for the Completion of a request, whatever else comes. Fails the test
 * if the connection ends before. */
void fa_raw_wait(struct fa_raw *raw, uint32_t stream, uint64_t value,
                 struct fa_raw_completion *ret_completion);

/* ... which must have @status and a text that contains @part (NULL: no matter). */
void fa_raw_wait_expect(struct fa_raw *raw, uint32_t stream, uint64_t value, int status,
                        const char *part);

/* ---- usual messages */

struct fa_wire_message fa_raw_message(enum fa_wire_type type);
struct fa_wire_message fa_raw_hello_message(const char *name);

void fa_raw_ping(struct fa_raw *raw);

/* A buffer of the client: memory and its id. */
struct fa_raw_buffer {
	uint32_t id;
	int fd;
	uint64_t bytes;
	unsigned char *data;
};

/* Makes a memfd of @bytes, sealed as it must be, maps it; registers nothing. */
void fa_raw_buffer_make(struct fa_raw_buffer *buffer, uint32_t id, uint64_t bytes);

/* Makes one and registers it; with flags of BufferRegister. */
void fa_raw_buffer_register(struct fa_raw *raw, struct fa_raw_buffer *buffer, uint32_t id,
                            uint64_t bytes, uint32_t flags);

/* Asks for an arena and maps it. */
void fa_raw_buffer_arena(struct fa_raw *raw, struct fa_raw_buffer *buffer, uint32_t id,
                         uint64_t bytes);

/* The message that registers [0, bytes) of a memfd. */
struct fa_wire_message fa_raw_register_message(uint32_t id, uint64_t bytes);

/* Frees the id in the daemon (unless @raw is NULL), unmaps and closes. */
void fa_raw_buffer_free(struct fa_raw *raw, struct fa_raw_buffer *buffer);

void fa_raw_stream_create(struct fa_raw *raw, uint32_t stream, int priority);
void fa_raw_stream_free(struct fa_raw *raw, uint32_t stream);

/* The status as JSON, which the caller frees. */
char *fa_raw_status(struct fa_raw *raw);
