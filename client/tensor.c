/* Pure functions. */
#include "client/tensor.h"

#include "client/handle.h"
#include "client/last_error.h"
#include "client/registration.h"

#include <errno.h>
#include <string.h>

uint32_t fa_dtype_bytes(uint32_t dtype)
{
	switch (dtype) {
	case FA_F32:
	case FA_I32:
		return 4;
	case FA_F16:
	case FA_BF16:
		return 2;
	case FA_E4M3:
		return 1;
	case FA_I64:
		return 8;
	default:
		return 0;
	}
}

uint64_t fa_tensor_bytes(uint32_t dtype, uint32_t rank, const int64_t *shape)
{
	uint64_t bytes = fa_dtype_bytes(dtype);

	if (rank > FA_WIRE_RANK_MAX)
		return 0;
	for (uint32_t i = 0; i < rank; ++i)
		if (shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes))
			return 0;
	return bytes;
}

void fa_tensor_init(struct fa_tensor *ret_tensor, struct fa_buffer *buffer, uint64_t offset,
                    uint32_t dtype, uint32_t rank, const int64_t *shape)
{
	struct fa_tensor tensor = {
		.buffer = buffer,
		.offset = offset,
		.dtype = dtype,
		.rank = rank,
	};

	/* fa_attention() refuses a wrong rank. @shape may be ret_tensor->shape. */
	if (rank <= FA_WIRE_RANK_MAX)
		memcpy(tensor.shape, shape, rank * sizeof(*shape));
	*ret_tensor = tensor;
}

/* Dimensions of 0 count as 1. */
static int dense_strides(const char *name, uint32_t rank, const int64_t *shape, int64_t *strides)
{
	int64_t stride = 1;

	for (uint32_t i = rank; i--;) {
		strides[i] = stride;
		if (__builtin_mul_overflow(stride, shape[i] ? shape[i] : 1, &stride))
			return fa_error_set(-EINVAL, "%s has more elements than fit into 63 bits",
			                    name);
	}
	return 0;
}

static int check_bounds(const char *name, const struct fa_wire_view *view, uint64_t buffer_bytes)
{
	uint32_t element = fa_dtype_bytes(view->dtype);
	uint64_t last = 0, step, end;

	for (uint32_t i = 0; i < view->rank; ++i)
		if (!view->shape[i])
			return 0;
	for (uint32_t i = 0; i < view->rank; ++i)
		if (__builtin_mul_overflow((uint64_t)view->shape[i] - 1, (uint64_t)view->strides[i],
		                           &step) ||
		    __builtin_add_overflow(last, step, &last))
			goto outside;
	if (__builtin_add_overflow(last, 1, &end) || __builtin_mul_overflow(end, element, &end) ||
	    __builtin_add_overflow(end, view->offset, &end) || end > buffer_bytes)
		goto outside;
	return 0;
outside:
	return fa_error_set(-EINVAL,
	                    "%s reaches beyond the end of its buffer, which has %llu bytes", name,
	                    (unsigned long long)buffer_bytes);
}

int fa_tensor_view(const char *name, struct fa_client *client, const struct fa_tensor *tensor,
                   uint32_t rank, struct fa_wire_view *ret_view,
                   const struct fa_client_registration **ret_registration)
{
	const struct fa_buffer *buffer = fa_buffer_of(tensor->buffer);
	uint32_t element = fa_dtype_bytes(tensor->dtype);
	bool dense = true;
	int r;

	if (!tensor->buffer)
		return fa_error_set(-EINVAL, "%s.buffer is NULL", name);
	if (!buffer)
		return fa_error_set(-EINVAL, "%s.buffer was freed, or never was a buffer", name);
	if (buffer->client != client)
		return fa_error_set(-EINVAL, "%s.buffer belongs to another client", name);
	if (!element)
		return fa_error_set(-EINVAL, "%s.dtype is %u, which is unknown", name,
		                    tensor->dtype);
	if (tensor->rank != rank)
		return fa_error_set(-EINVAL, "%s.rank is %u; expected %u", name, tensor->rank,
		                    rank);
	if (tensor->offset % element)
		return fa_error_set(-EINVAL,
		                    "%s.offset is %llu; expected a multiple of %u, the element's "
		                    "size",
		                    name, (unsigned long long)tensor->offset, element);

	*ret_view = (struct fa_wire_view){ .offset = tensor->offset,
		                           .buffer = buffer->registration->id,
		                           .dtype = (uint8_t)tensor->dtype,
		                           .rank = (uint8_t)rank };
	for (uint32_t i = 0; i < rank; ++i) {
		if (tensor->shape[i] < 0 || tensor->strides[i] < 0)
			return fa_error_set(-EINVAL, "%s.%s[%u] is %lld; expected 0 or more", name,
			                    tensor->shape[i] < 0 ? "shape" : "strides", i,
			                    (long long)(tensor->shape[i] < 0 ? tensor->shape[i]
			                                                     : tensor->strides[i]));
		ret_view->shape[i] = tensor->shape[i];
		ret_view->strides[i] = tensor->strides[i];
		dense = dense && !tensor->strides[i];
	}
	if (dense) {
		r = dense_strides(name, rank, tensor->shape, ret_view->strides);
		if (r < 0)
			return r;
	}
	r = check_bounds(name, ret_view, buffer->bytes);
	if (r < 0)
		return r;
	if (__builtin_add_overflow(ret_view->offset, buffer->offset, &ret_view->offset))
		return fa_error_set(-EINVAL, "%s.offset is %llu, which is beyond its buffer", name,
		                    (unsigned long long)tensor->offset);
	*ret_registration = buffer->registration;
	return 0;
}

int fa_tensor_check(const char *name, const struct fa_client_registration *registration)
{
	if (!registration->missing)
		return 0;
	return fa_error_set(registration->missing,
	                    "%s.buffer is lost since the daemon was restarted: %.200s", name,
	                    registration->missing_error.text);
}
