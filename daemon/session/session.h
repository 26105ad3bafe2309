/*
 * A session: one connection, its client's objects and requests. Loop thread. A closing session has
 * no socket, and lives until its streams are back from the engine and its import from the worker:
 * the device may use a client's memory until then.
 *
 * A paused session (enum fa_session_pause) reads nothing, so the socket's buffer bounds what a
 * client queues. A pause ends at the latest at a deadline or with the client.
 */
#pragma once

#include "common/clock.h"
#include "common/completion.h"
#include "common/list.h"
#include "daemon/account/peer.h"
#include "daemon/account/tenant.h"
#include "daemon/account/usage.h"
#include "daemon/base/id_table.h"
#include "daemon/base/log.h"
#include "daemon/engine/engine.h"
#include "daemon/memory/buffer.h"
#include "daemon/session/kv_state.h"
#include "daemon/session/outbox.h"
#include "daemon/session/peer_watch.h"
#include "daemon/session/pinned_page.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <uv.h>

struct fa_held_packet;
struct fa_registration;
struct fa_context;
struct fa_session_ring;
struct fa_timeline;

/* The daemon's own requests; lower numbers are the client's. */
#define FA_SESSION_STREAM_OWN FA_COMPLETION_SLOTS
#define FA_SESSION_STREAMS (FA_SESSION_STREAM_OWN + 1)

#define FA_SESSION_HELLO_NS (10 * FA_NS_PER_SEC)

/* Limits refused requests in flight, which nothing else counts. */
#define FA_SESSION_REFUSED_MAX 32

enum fa_session_state {
	FA_SESSION_CONNECTED,
	FA_SESSION_READY,
	FA_SESSION_CLOSING,
};

enum fa_session_pause {
	FA_PAUSE_IMPORT = 1 << 0,   /* later messages must find the buffer */
	FA_PAUSE_OUTBOX = 1 << 1,   /* half of session_out_bytes is unread */
	FA_PAUSE_REFUSED = 1 << 2,  /* FA_SESSION_REFUSED_MAX is reached; holds Cancel, too */
	FA_PAUSE_DRAIN = 1 << 3,    /* last phase of a drain */
	FA_PAUSE_REJECTED = 1 << 4, /* unwanted descriptors are not closed */
	FA_PAUSE_HASHES = 1 << 5,   /* a worker hashes tokens (kv_prefix.c) */
	FA_PAUSE_HELD = 1 << 6,     /* a message is held (service/hold.h) */
	FA_PAUSE_TURN = 1 << 7,     /* its account's time is used (turns.h) */
	FA_PAUSE_STATUS = 1 << 8,   /* a worker writes the status (status_reply.h) */
};

struct fa_session_stream {
	struct fa_stream *stream;          /* NULL: none */
	uint64_t next_value;               /* to submit; outlives the stream */
	uint64_t finished;                 /* highest answered value */
	unsigned int n_requests;           /* requests in flight */
	struct fa_request *last;           /* NULL: it has ended */
	uint64_t device_value;             /* last that the device completes */
	struct fa_request *device_request; /* of device_value; NULL: it has ended */
	/* The device has reported values up to this; the engine may still have them. */
	uint64_t reported;
};

/* For the client, requests up to this value have ended. */
static inline uint64_t fa_session_stream_ended(const struct fa_session_stream *slot)
{
	return slot->finished > slot->reported ? slot->finished : slot->reported;
}

struct fa_session {
	unsigned int n_refs;
	struct fa_context *context;
	struct fa_list link; /* context.sessions */
	uint64_t id;         /* kept on resume */
	uint64_t connection; /* unique */
	struct fa_peer peer;
	struct fa_peer_watch peer_watch;
	struct fa_tenant *tenant;
	struct fa_charge charge_session, charge_socket;
	struct fa_charge charge_hello; /* descriptor in HelloReply */
	struct fa_log_subject subject;

	enum fa_session_state state;
	unsigned int paused;      /* enum fa_session_pause */
	struct fa_list turn_link; /* fa_turn.waiting */
	bool privileged;          /* root, or the daemon's user */
	bool observer;            /* sees all of the status */
	bool hung_up;             /* the client is gone; close in the account's turn */
	int fd;
	uv_poll_t poll;
	int poll_events;
	struct fa_list hello_link; /* context.hello_pending */
	uint64_t hello_deadline_ns;

	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	struct fa_wire_secret secret;
	struct fa_completion_slot *completions; /* NULL until Hello */

	/* session/device_completion.h uses these. */
	void *device_page; /* device address; NULL: not pinned */
	struct fa_pinned_page completions_pin;
	uint64_t device_streams;    /* bit set: device_value is unfinished */
	struct fa_list device_link; /* context.device_sessions */

	struct fa_session_ring *ring;
	struct fa_timeline *timeline;
	struct fa_pinned_page timeline_pin; /* of the client's slots */
	struct fa_id_table buffers;         /* to struct fa_registered_buffer */
	struct fa_registered_buffer *import;
	/* waits for pieces (requests/buffer.h) */
	struct fa_registration *registration;
	struct fa_held_packet *held;   /* service/hold.h; NULL: none */
	uint64_t buffer_bytes;         /* registered */
	unsigned int n_device_buffers; /* in device memory */

	struct fa_engine_group *group; /* NULL: no stream yet */
	struct fa_session_stream streams[FA_SESSION_STREAMS];
	struct fa_completion_slot own_slot; /* slot of FA_SESSION_STREAM_OWN */
	struct fa_list blocked;             /* requests that wait for other streams */
	unsigned int n_streams;             /* the client's */
	unsigned int n_requests;            /* in flight */
	unsigned int n_refused;             /* of them */

	struct fa_kv_session kv;
	struct fa_outbox outbox;

	uint64_t n_messages, n_errors;
	uint64_t n_prefixes;  /* read once for several sequences */
	uint64_t n_submitted; /* requests submitted */
	struct fa_usage usage;
};

/* Consumes @fd on success. -EDQUOT and others, with a sentence. */
int fa_session_new(struct fa_context *context, int fd, struct fa_error *error,
                   struct fa_session **ret_session);
struct fa_session *fa_session_ref(struct fa_session *session);
struct fa_session *fa_session_unref(struct fa_session *session);

/* Cancels its requests, too. Works in any state. */
void fa_session_close(struct fa_session *session);

void fa_session_pause(struct fa_session *session, enum fa_session_pause reason);
void fa_session_resume(struct fa_session *session, enum fa_session_pause reason);

/* Does nothing while the session is paused. */
void fa_session_read(struct fa_session *session);

int fa_session_stream_new(struct fa_session *session, uint32_t id, int priority);
