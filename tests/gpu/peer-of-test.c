/* A peer for test-peer with the one variant "even"; it writes the batch of each request. */
#include "bench/kernels/peer.h"

#include <errno.h>
#include <string.h>

int fa_peer_decode(const struct fa_peer_decode *request);

__attribute__((visibility("default"))) int fa_peer_decode(const struct fa_peer_decode *request)
{
	if (request->size < sizeof(*request))
		return -EINVAL;
	if (strcmp(request->name, "even") != 0)
		return -ENOTSUP;
	*(int32_t *)request->out = request->batch;
	return 0;
}
