#include "daemon/memory/buffer.h"

#include "common/cleanup.h"
#include "daemon/memory/importer.h"

#include <errno.h>
#include <inttypes.h>

int fa_registered_buffer_new(struct fa_importer *importer, struct fa_error *error,
                             struct fa_registered_buffer **ret_buffer)
{
	struct fa_registered_buffer *buffer;

	if (importer->n_buffers >= importer->buffers_max)
		return fa_fail(error, -EDQUOT,
		               "the daemon has as many buffers as it can map, which is %" PRIu64,
		               importer->buffers_max);
	buffer = fa_new(struct fa_registered_buffer);
	if (!buffer)
		return fa_fail(error, -ENOMEM, "the daemon has no memory for a buffer");
	buffer->n_refs = 1;
	buffer->importer = importer;
	buffer->fd = -1;
	fa_list_init(&buffer->link);
	++importer->n_buffers;
	*ret_buffer = buffer;
	return 0;
}

struct fa_registered_buffer *fa_registered_buffer_ref(struct fa_registered_buffer *buffer)
{
	++buffer->n_refs;
	return buffer;
}

static void close_fd(struct fa_registered_buffer *buffer, int *fd)
{
	struct fa_charge charge = {};

	fa_charge_split(&buffer->charge_fds, 1, &charge);
	fa_fd_reaper_add_charged(buffer->importer->reaper, charge.tenant, fa_steal_fd(fd), &charge);
}

void fa_registered_buffer_close_fds(struct fa_registered_buffer *buffer)
{
	if (buffer->fd >= 0)
		close_fd(buffer, &buffer->fd);
	for (size_t i = 0; i < buffer->n_pieces; ++i)
		close_fd(buffer, &buffer->pieces[i].fd);
	free(fa_steal_ptr(buffer->pieces));
	buffer->n_pieces = 0;
	/* This covers missing pieces, and descriptors that a worker closed. */
	fa_charge_release(&buffer->charge_fds);
}

void fa_registered_buffer_end(struct fa_registered_buffer *buffer)
{
	buffer->ending = buffer->charge_count.tenant;
	if (buffer->ending)
		fa_tenant_ending(buffer->ending);
	fa_registered_buffer_unref(buffer);
}

void fa_registered_buffer_destroy(struct fa_registered_buffer *buffer)
{
	struct fa_tenant *ending = buffer->ending;

	fa_registered_buffer_close_fds(buffer);
	fa_charge_release(&buffer->charge_bytes);
	fa_charge_release(&buffer->charge_count);
	fa_charge_release(&buffer->charge_pieces);
	--buffer->importer->n_buffers;
	free(buffer);
	if (ending)
		fa_tenant_ended(ending);
}

struct fa_registered_buffer *fa_registered_buffer_unref(struct fa_registered_buffer *buffer)
{
	if (!buffer || --buffer->n_refs)
		return NULL;
	if (buffer->memory.address || buffer->memory.backend)
		fa_importer_release(buffer->importer, buffer);
	else
		fa_registered_buffer_destroy(buffer);
	return NULL;
}
