/* Waiting for the result of a request. */
#pragma once

#include "client/client.h"

/* With the mutex, which is released meanwhile. Returns the result; -EAGAIN after @timeout_ns. */
int fa_result_wait(struct fa_client *client, uint32_t stream, uint64_t value, uint64_t timeout_ns,
                   struct fa_completion *ret_completion);
/* The same for a step begun through the ring. @ret_number: 0 if only the page told the success. */
int fa_result_wait_number(struct fa_client *client, uint32_t stream, uint64_t value,
                          uint64_t timeout_ns, uint64_t *ret_number);
