/* Gates: timeline values that a request waits for and signals. */
#pragma once

#include "client/client.h"
#include "client/request.h"

#include <stdbool.h>

/* Checks and adds the caller's gates; NULL: none. */
int fa_request_gates(struct fa_client_request *request, const struct fa_gates *gates);
/* @may_be_out: a slot of the daemon's is allowed. */
int fa_gate_check(const char *what, const struct fa_gate *gate, bool may_be_out);
bool fa_request_is_gated(const struct fa_client_request *request);

/* These are called with the mutex held, for a request with gates. */
/* Before sending: sets the timeline up; may release the mutex. -ECONNRESET: a wait is for a lost
 * value. */
int fa_gates_prepare(struct fa_client *client, const struct fa_client_request *request);
bool fa_gates_are_ready(const struct fa_client *client);
/* After it was sent. */
void fa_gates_sent(struct fa_client *client, const struct fa_client_request *request);
