/* Waiting for the result of a request. */
#pragma once

#include "client/client.h"

/* With the mutex, which is released meanwhile. Returns the result; -EAGAIN after @timeout_ns. */
int fa_result_wait(struct fa_client *client, uint32_t stream, uint64_t value, uint64_t timeout_ns,
                   struct fa_completion *ret_completion);
