/* Gates: timeline values that a request waits for and signals. */
#pragma once

#include "client/client.h"
#include "client/request.h"

#include <stdbool.h>

/* @gates may be NULL: none. */
int fa_request_gates(struct fa_client_request *request, const struct fa_gates *gates);
/* @may_be_out: the gate may name a slot of the daemon. */
int fa_gate_check(const char *what, const struct fa_gate *gate, bool may_be_out);
bool fa_request_is_gated(const struct fa_client_request *request);

/* These functions need the mutex held, and a request with gates. */
/* Sets the timeline up before the request is sent; may release the mutex. -ECONNRESET: the request
 * waits for a lost value. */
int fa_gates_prepare(struct fa_client *client, const struct fa_client_request *request);
bool fa_gates_are_ready(const struct fa_client *client);
/* Call after the request was sent. */
void fa_gates_sent(struct fa_client *client, const struct fa_client_request *request);
