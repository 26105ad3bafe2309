/* Finds the buffer that an address lies in. */
#include "client/cancel.h"
#include "client/client.h"
#include "client/handle.h"
#include "client/last_error.h"
#include "client/registration.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* @address is the CPU's or the GPU's. */
static uint64_t bytes_from(const struct fa_buffer *buffer, uint64_t address)
{
	const uint64_t begin = buffer->data ? (uint64_t)(uintptr_t)buffer->data
	                                    : buffer->device_data;

	if (!begin || address < begin || address - begin >= buffer->bytes)
		return 0;
	return buffer->bytes - (address - begin);
}

/* With the mutex held. If buffers overlap, takes the one that goes on longest. NULL: none. */
static const struct fa_buffer *find(const struct fa_client *client, uint64_t address,
                                    uint64_t *ret_offset)
{
	const struct fa_buffer *best = NULL;
	uint64_t best_bytes = 0;
	struct fa_list *pos;

	fa_list_for_each(pos, &client->buffers) {
		const struct fa_buffer *buffer = fa_container_of(pos, const struct fa_buffer, link);
		uint64_t bytes = bytes_from(buffer, address);

		if (bytes <= best_bytes)
			continue;
		best = buffer;
		best_bytes = bytes;
		*ret_offset = buffer->bytes - bytes;
	}
	return best;
}

int fa_tensor_from_pointer(struct fa_client *handle, const void *ptr, uint32_t dtype, uint32_t rank,
                           const int64_t *shape, const int64_t *strides,
                           struct fa_tensor *ret_tensor)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_tensor tensor = { .dtype = dtype, .rank = rank };
	const struct fa_buffer *buffer;
	int r;

	if (!ret_tensor)
		return fa_error_set(-EINVAL, "ret_tensor is NULL");
	if (rank > FA_WIRE_RANK_MAX || (rank && !shape))
		return fa_error_set(-EINVAL,
		                    "rank is %" PRIu32 " and shape %p; expected at most %u", rank,
		                    (const void *)shape, FA_WIRE_RANK_MAX);
	if (rank)
		memcpy(tensor.shape, shape, rank * sizeof(*shape));
	if (rank && strides)
		memcpy(tensor.strides, strides, rank * sizeof(*strides));
	r = fa_client_enter(client);
	if (r < 0)
		return r;
	buffer = find(client, (uint64_t)(uintptr_t)ptr, &tensor.offset);
	if (buffer)
		tensor.buffer = buffer->handle;
	fa_client_leave(client);
	if (!buffer)
		return fa_error_set(-EINVAL,
		                    "%p is in no buffer of this client; expected memory of "
		                    "fa_buffer_new(), or of fa_buffer_import_fd() or "
		                    "fa_buffer_import_cuda()",
		                    ptr);
	*ret_tensor = tensor;
	return 0;
}
