/*
 * A session: one connection, its ids, and what is on its way to and from it. Loop
 * thread only.
 *
 * It is connected until its Hello was answered, then ready, then closing: the
 * socket is closed and nothing more is read or written, but the object lives until
 * its streams have come back from the engine and its import from the worker. Each
 * of these holds a reference. So nothing that belongs to a client is given back
 * while the device may still touch it, and nothing stays when the last has gone.
 *
 * Reading stops (the kernel's buffer then holds the client up) while an import of
 * this session runs, so that what follows finds the buffer; while answers that it
 * does not read fill half of session_out_bytes; while FA_SESSION_REFUSED_MAX
 * refused requests wait for their turn behind others; and at the end of a drain.
 * What it can pile up is therefore bounded, and it is never disconnected for it. What
 * it waits for always ends, by itself, by its deadline, or because the client goes;
 * but a Cancel that comes behind so many refused requests is not read before that.
 * Nor is anything read while too many descriptors that it sent for nothing are not yet
 * closed; nor what brings some, while there are too many that its user sent so.
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
#include "daemon/session/pinned_page.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <uv.h>

struct fa_registration;
struct fa_context;
struct fa_session_ring;
struct fa_timeline;

/* Streams of a session: those of its client, and behind them one of its own. */
#define FA_SESSION_STREAM_OWN FA_COMPLETION_SLOTS
#define FA_SESSION_STREAMS (FA_SESSION_STREAM_OWN + 1)

/* A client that connects and does not say Hello is not waited for any longer. */
#define FA_SESSION_HELLO_NS (10 * FA_NS_PER_SEC)

/* Refused requests that may wait for their turn; no other limit counts them. */
#define FA_SESSION_REFUSED_MAX 32

enum fa_session_state {
	FA_SESSION_CONNECTED,
	FA_SESSION_READY,
	FA_SESSION_CLOSING,
};

/* Why nothing is read; or-ed. */
enum fa_session_pause {
	FA_PAUSE_IMPORT = 1 << 0,
	FA_PAUSE_OUTBOX = 1 << 1,
	FA_PAUSE_REFUSED = 1 << 2,
	FA_PAUSE_DRAIN = 1 << 3,
	FA_PAUSE_REJECTED = 1 << 4,
	FA_PAUSE_HASHES = 1 << 5,
};

struct fa_session_stream {
	struct fa_stream *stream; /* NULL: there is none under this id */
	uint64_t next_value;      /* 1 at first; goes on after the stream was freed */
	uint64_t finished;        /* highest value that was answered */
	unsigned int n_requests;  /* in flight */
	struct fa_request *last;  /* of those that are in flight; NULL: it has ended */
	uint64_t
		device_value; /* the last that the device may tell itself (session/device_completion.h); 0: none */
};

struct fa_session {
	unsigned int n_refs;
	struct fa_context *context;
	struct fa_list link; /* context.sessions */
	uint64_t id;         /* that of the session that it is again, if it is one */
	uint64_t connection; /* a number of its own */
	struct fa_peer peer;
	struct fa_tenant *tenant;
	struct fa_charge charge_session, charge_socket;
	struct fa_charge charge_hello; /* for what goes with HelloReply, until then */
	struct fa_log_subject subject; /* for the log */

	enum fa_session_state state;
	unsigned int paused;
	bool privileged; /* root, or the daemon's own user */
	int fd;
	uv_poll_t poll;
	int poll_events;           /* those it was started with */
	struct fa_list hello_link; /* context.hello_pending, until Hello */
	uint64_t hello_deadline_ns;

	char name[FA_WIRE_NAME_BYTES_MAX + 1];
	struct fa_wire_secret secret;
	struct fa_completion_slot *completions; /* NULL until Hello */
	void *device_page; /* the same as the device addresses it (session/device_completion.h) */
	struct fa_pinned_page completions_pin;
	uint64_t device_streams;      /* bits of those of which early is not finished */
	struct fa_list device_link;   /* context.early, while there are any */
	struct fa_session_ring *ring; /* NULL unless it asked for one (session/submission_ring.h) */
	struct fa_timeline *timeline; /* NULL unless it asked for one (session/timeline.h) */
	struct fa_pinned_page timeline_pin;   /* of the slots that the client writes */
	struct fa_id_table buffers;           /* struct fa_registered_buffer, one reference each */
	struct fa_registered_buffer *import;  /* the one that is being made */
	struct fa_registration *registration; /* one that waits for pieces (requests/buffer.h) */
	uint64_t buffer_bytes;                /* of those in the table */
	unsigned int n_device_buffers; /* of them, the device's memory that the client has, too */
	struct fa_engine_group *group; /* of its streams; NULL before the first */
	struct fa_session_stream streams[FA_SESSION_STREAMS];
	struct fa_completion_slot own_slot; /* of its own stream: nobody looks at it */
	struct fa_list blocked;             /* struct fa_request that wait for other streams */
	unsigned int n_streams;             /* the client's */
	unsigned int n_requests;            /* in flight, of all streams */
	unsigned int n_refused;             /* of these, those that only wait for their turn */

	struct fa_kv_session kv;

	struct fa_list out; /* answers that the socket did not take */
	unsigned int n_out;
	uint64_t out_bytes;
	struct fa_charge charge_sent; /* descriptors sent and perhaps not received */

	uint64_t n_messages, n_errors;
	uint64_t n_prefixes;  /* that attention of its steps read once for several sequences */
	uint64_t n_submitted; /* requests, of which one message may be several */
	struct fa_usage usage;
};

/* Consumes @fd if it succeeds. -EDQUOT and others, with a sentence for the client. */
int fa_session_new(struct fa_context *context, int fd, struct fa_error *error,
                   struct fa_session **ret_session);
struct fa_session *fa_session_ref(struct fa_session *session);
struct fa_session *fa_session_unref(struct fa_session *session);

/* Ends it; in flight work is cancelled. May be called in any state. */
void fa_session_close(struct fa_session *session);

/* ---- sending */

/*
 * Sends a message, now or later, with @fd (-1: none), which is consumed together
 * with its charge (@charge NULL: none). If it cannot, the session is closed.
 */
void fa_session_send(struct fa_session *session, const struct fa_wire_message *message, int fd,
                     struct fa_charge *charge);

/* The same with several descriptors, all of which are consumed. */
#define FA_SESSION_SEND_FDS 4
void fa_session_send_fds(struct fa_session *session, const struct fa_wire_message *message,
                         int *fds, size_t n_fds, struct fa_charge *charge);

/* Answers request @id with a status and a sentence. */
void fa_session_reply(struct fa_session *session, uint64_t id, int status, const char *text);

/* The same, after which the connection is closed. */
void fa_session_refuse(struct fa_session *session, uint64_t id, int status, const char *text);

/* Charges descriptors, such as are to be sent. -EDQUOT. */
int fa_session_charge_fds(struct fa_session *session, uint64_t n, struct fa_charge *charge,
                          struct fa_error *error);
int fa_session_charge_fd(struct fa_session *session, struct fa_charge *charge,
                         struct fa_error *error);

/* Releases the charge for descriptors that were received meanwhile. */
void fa_session_release_received(struct fa_session *session);

/* Says why to a connection that gets no session, and closes @fd. */
void fa_session_reject(struct fa_context *context, int fd, int status, const char *text);

/* ---- for the handlers */

void fa_session_pause(struct fa_session *session, enum fa_session_pause reason);
void fa_session_resume(struct fa_session *session, enum fa_session_pause reason);

/* Makes stream @id; 0 or a negative errno. */
int fa_session_stream_new(struct fa_session *session, uint32_t id, int priority);
