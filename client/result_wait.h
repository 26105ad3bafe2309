/* Waiting for the result of a request. */
#pragma once

#include "client/client.h"

/* With the client's mutex held, and released while waiting. -EAGAIN after @timeout_ns. */
int fa_result_wait(struct fa_client *client, uint32_t stream, uint64_t value, uint64_t timeout_ns,
                   struct fa_completion *ret_completion);
/* For a step begun through the ring. @ret_number: the step's, or 0 if only the completion page
 * reported success. */
int fa_result_wait_number(struct fa_client *client, uint32_t stream, uint64_t value,
                          uint64_t timeout_ns, uint64_t *ret_number);
