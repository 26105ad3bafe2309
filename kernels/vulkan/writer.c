#include "kernels/vulkan/writer.h"

#include <string.h>

#define ALIGNMENT 16

uint64_t fa_vulkan_reserve(struct fa_vulkan_writer *writer, size_t bytes, void **ret_host)
{
	size_t begin = (writer->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

	writer->used = begin + bytes;
	*ret_host = writer->host ? writer->host + begin : NULL;
	return writer->at + begin;
}

uint64_t fa_vulkan_put(struct fa_vulkan_writer *writer, const void *data, size_t bytes)
{
	uint64_t at;
	void *to;

	if (!data)
		return 0;
	at = fa_vulkan_reserve(writer, bytes, &to);
	if (to)
		memcpy(to, data, bytes);
	return at;
}

struct fa_vulkan_dispatch *fa_vulkan_add(struct fa_vulkan_writer *writer,
                                         enum fa_vulkan_kernel kernel, uint64_t arguments,
                                         uint64_t groups)
{
	struct fa_vulkan_dispatch *dispatch = &writer->dispatches[writer->n_dispatches++];

	*dispatch = (struct fa_vulkan_dispatch){
		.kernel = kernel,
		.arguments = arguments,
		.groups = groups,
	};
	return dispatch;
}
