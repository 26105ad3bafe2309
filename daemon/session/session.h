/*
 * A session: one connection, the objects that its client made, and its requests. Loop thread.
 *
 * It is connected until its Hello is answered, then ready, then closing: the socket is closed, and
 * the object lives until its streams are back from the engine and its import from the worker, each
 * of which holds a reference. So nothing of a client is freed while the device may use it.
 *
 * A paused session (enum fa_session_pause) reads nothing. So what a client piles up is bounded by
 * the socket's buffer, and it is never disconnected for it. Every pause ends: by itself, at a
 * deadline, or with the client. A Cancel behind FA_SESSION_REFUSED_MAX refused requests waits, too.
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
#include "daemon/session/pinned_page.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <uv.h>

struct fa_registration;
struct fa_context;
struct fa_session_ring;
struct fa_timeline;

/* The client's streams, then one for requests of the daemon itself. */
#define FA_SESSION_STREAM_OWN FA_COMPLETION_SLOTS
#define FA_SESSION_STREAMS (FA_SESSION_STREAM_OWN + 1)

/* A connection without Hello is closed after this time. */
#define FA_SESSION_HELLO_NS (10 * FA_NS_PER_SEC)

/* Refused requests that may wait behind others of their streams; no other limit counts them. */
#define FA_SESSION_REFUSED_MAX 32

enum fa_session_state {
	FA_SESSION_CONNECTED,
	FA_SESSION_READY,
	FA_SESSION_CLOSING,
};

/* Why the session reads nothing; or-ed. */
enum fa_session_pause {
	FA_PAUSE_IMPORT = 1 << 0,   /* messages after BufferRegister must find the buffer */
	FA_PAUSE_OUTBOX = 1 << 1,   /* half of session_out_bytes is unread by the client */
	FA_PAUSE_REFUSED = 1 << 2,  /* FA_SESSION_REFUSED_MAX requests */
	FA_PAUSE_DRAIN = 1 << 3,    /* the last phase of a drain */
	FA_PAUSE_REJECTED = 1 << 4, /* descriptors that no message wanted are not closed yet */
	FA_PAUSE_HASHES = 1 << 5,   /* a worker hashes tokens (requests/kv_prefix.c) */
};

struct fa_session_stream {
	struct fa_stream *stream; /* NULL: there is none under this id */
	uint64_t next_value;      /* starts at 1; continues after the stream is freed */
	uint64_t finished;        /* highest value that was answered */
	unsigned int n_requests;  /* in flight */
	struct fa_request *last;  /* last submitted; NULL: it has ended */
	uint64_t device_value;    /* last one that the device completes (device_completion.h) */
};

struct fa_session {
	unsigned int n_refs;
	struct fa_context *context;
	struct fa_list link; /* context.sessions */
	uint64_t id;         /* a resumed session keeps its id */
	uint64_t connection; /* unique */
	struct fa_peer peer;
	struct fa_tenant *tenant;
	struct fa_charge charge_session, charge_socket;
	struct fa_charge charge_hello; /* for the descriptor of HelloReply, until it is sent */
	struct fa_log_subject subject;

	enum fa_session_state state;
	unsigned int paused; /* enum fa_session_pause */
	bool privileged;     /* root, or the daemon's own user */
	int fd;
	uv_poll_t poll;
	int poll_events;
	struct fa_list hello_link; /* context.hello_pending, until Hello */
	uint64_t hello_deadline_ns;

	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	struct fa_wire_secret secret;
	struct fa_completion_slot *completions; /* the completion page; NULL until Hello */

	/* session/device_completion.h */
	void *device_page; /* the completion page as the device addresses it; NULL: not pinned */
	struct fa_pinned_page completions_pin;
	uint64_t device_streams;    /* bits: streams whose device_value is not finished */
	struct fa_list device_link; /* context.device_sessions, while device_streams is not 0 */

	struct fa_session_ring *ring;         /* NULL: none (session/submission_ring.h) */
	struct fa_timeline *timeline;         /* NULL: none (session/timeline.h) */
	struct fa_pinned_page timeline_pin;   /* the slots that the client writes */
	struct fa_id_table buffers;           /* struct fa_registered_buffer, referenced */
	struct fa_registered_buffer *import;  /* the one that is being imported */
	struct fa_registration *registration; /* waits for pieces (requests/buffer.h) */
	uint64_t buffer_bytes;                /* of the buffers in the table */
	unsigned int n_device_buffers;        /* of these, buffers in the device's memory */

	struct fa_engine_group *group; /* of its streams; NULL before the first */
	struct fa_session_stream streams[FA_SESSION_STREAMS];
	struct fa_completion_slot own_slot; /* for FA_SESSION_STREAM_OWN; no client reads it */
	struct fa_list blocked;             /* struct fa_request that wait for other streams */
	unsigned int n_streams;             /* the client's */
	unsigned int n_requests;            /* in flight, of all streams */
	unsigned int n_refused;             /* of these, refused ones */

	struct fa_kv_session kv;
	struct fa_outbox outbox;

	uint64_t n_messages, n_errors;
	uint64_t n_prefixes;  /* prefixes that its steps read once for several sequences */
	uint64_t n_submitted; /* requests; one message may be several */
	struct fa_usage usage;
};

/* Consumes @fd on success. -EDQUOT and others, with a sentence for the client. */
int fa_session_new(struct fa_context *context, int fd, struct fa_error *error,
                   struct fa_session **ret_session);
struct fa_session *fa_session_ref(struct fa_session *session);
struct fa_session *fa_session_unref(struct fa_session *session);

/* Cancels requests in flight and closes the socket. Allowed in any state. */
void fa_session_close(struct fa_session *session);

void fa_session_pause(struct fa_session *session, enum fa_session_pause reason);
void fa_session_resume(struct fa_session *session, enum fa_session_pause reason);

/* Makes stream @id; 0 or a negative errno. */
int fa_session_stream_new(struct fa_session *session, uint32_t id, int priority);
