/* Imports and frees of the program's CUDA memory. */
#pragma once

#include "client/client.h"
#include "client/registration.h"

/* Takes the buffer out of its registration. The caller frees it. */
void fa_cuda_cache_put(struct fa_client *client, struct fa_buffer *buffer);
