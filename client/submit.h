/* Submits requests of streams. */
#pragma once

#include "client/client.h"
#include "client/request.h"

/* With the mutex held; may release it. Sends @request as the next of its stream. Waits while
 * max_requests are in flight; -EAGAIN at the deadline (0: at once). -ECONNRESET: the request's step
 * is lost. */
int fa_request_send(struct fa_client *client, struct fa_client_request *request,
                    uint64_t deadline_ns, uint64_t *ret_value);
/* Without the mutex. Waits for the end if @ret_ticket is NULL. */
int fa_request_submit(struct fa_client *client, struct fa_client_request *request,
                      struct fa_ticket *ret_ticket);
/* For a write to tokens of @sequence: it belongs to the step that reserved them, and ends with
 * it. */
int fa_request_submit_write(struct fa_client *client, struct fa_client_request *request,
                            uint64_t sequence, struct fa_ticket *ret_ticket);
