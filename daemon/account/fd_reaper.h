/*
 * Closes descriptors that clients sent, and clients' connections, which may hold
 * more of them unread. close() of a file on some filesystems, or of a connection that
 * lingers, waits for somebody else, which may be the client, and may be for ever: so
 * threads that do nothing else close what may be anything. Each user (root: each
 * tenant) has a queue of its own, of which one descriptor is being closed at a time; a
 * user thus holds up nobody but itself. What is given back for a closed descriptor is
 * given back by the loop thread, as everything here is called by it.
 *
 * Nothing piles up without bound: what was charged stays charged until it is closed;
 * what is rejected is counted, and so are connections that were never let in.
 */
#pragma once

#include "common/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fa_charge;
struct fa_fd_reaper;
struct fa_tenant;

/* Descriptors that a tenant may have rejected and not closed; who sends more waits. */
#define FA_FD_REAPER_REJECTED_SOFT_MAX 64
/* ... with which nothing that brings any is received from its other connections, either. The
 * packet that was the last to be may have brought FA_PACKET_KEEP_MAX. */
#define FA_FD_REAPER_REJECTED_HARD_MAX 128

/* Connections that nobody was charged for and that are not closed; while there are so
 * many, no others should be accepted. */
#define FA_FD_REAPER_UNCHARGED_MAX 128

/* A user's or tenant's; zeroed at first. */
struct fa_fd_reaper_queue {
	/* The reaper's, under its mutex. */
	struct fa_list link;    /* reaper.ready */
	struct fa_list entries; /* oldest first */
	bool started;           /* the lists are initialised */
	bool busy;              /* in reaper.ready, or at a thread */
	/* The loop thread's. */
	uint64_t n_rejected; /* descriptors among them that nobody wanted */
};

/* @notify is called by any thread when something was closed. */
int fa_fd_reaper_new(void (*notify)(void *userdata), void *userdata,
                     struct fa_fd_reaper **ret_reaper);

/* Waits for a while until all is closed; what still hangs then is left to the
 * end of the process. Takes NULL. */
struct fa_fd_reaper *fa_fd_reaper_free(struct fa_fd_reaper *reaper);

/* Consumes @n_fds descriptors that came with a message and counts them as rejected;
 * those that are -1 are skipped. */
void fa_fd_reaper_add_rejected(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int *fds,
                               size_t n_fds);

/* Consumes one descriptor and its charge, which is released when it is closed. */
void fa_fd_reaper_add_charged(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                              struct fa_charge *charge);

/* Whether FA_FD_REAPER_UNCHARGED_MAX is reached. */
bool fa_fd_reaper_is_full(const struct fa_fd_reaper *reaper);

/*
 * Ends a connection so that the client sees what was sent, and then its end, at once,
 * and consumes it. What is unread is thrown away before it is closed, as that would
 * otherwise reset it. @tenant and @charge may be NULL.
 */
void fa_fd_reaper_add_connection(struct fa_fd_reaper *reaper, struct fa_tenant *tenant, int fd,
                                 struct fa_charge *charge);

/* Releases what was charged for descriptors that were closed meanwhile. Returns whether
 * a tenant may again send what is rejected. */
bool fa_fd_reaper_collect(struct fa_fd_reaper *reaper);
