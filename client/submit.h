/* Submitting requests of streams. */
#pragma once

#include "client/client.h"
#include "client/request.h"

/* With the mutex, which may be released. Sends the request as the next of its stream. While
 * max_requests are in flight it waits; -EAGAIN at the deadline (0: at once). -ECONNRESET: its step
 * is lost. */
int fa_request_send(struct fa_client *client, struct fa_client_request *request,
                    uint64_t deadline_ns, uint64_t *ret_value);
/* Without the mutex. Sends the request; waits for its end if @ret_ticket is NULL. */
int fa_request_submit(struct fa_client *client, struct fa_client_request *request,
                      struct fa_ticket *ret_ticket);
