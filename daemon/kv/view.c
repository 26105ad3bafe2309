#include "daemon/kv/view.h"

#include "daemon/memory/tensor_view.h"

#include <errno.h>
#include <inttypes.h>

static int bind_view(struct fa_request *request, const struct fa_wire_view *view, const char *name,
                     bool output, unsigned int rank, enum fa_attention_dtype dtype,
                     const char *shape, void **ret_data, struct fa_error *error)
{
	const struct fa_device_memory *memory;
	int r;

	r = fa_request_buffer(request, view, name, &memory, error);
	if (r == 0)
		r = fa_tensor_view_check(view, name, output, memory, error);
	if (r < 0)
		return r;
	if (view->rank != rank)
		return fa_fail(error, -EINVAL, "%s.rank is %u; expected %u, %s", name, view->rank,
		               rank, shape);
	if (view->dtype != (uint8_t)dtype)
		return fa_fail(error, -ENOTSUP, "%s.dtype is %u; expected %d", name, view->dtype,
		               (int)dtype);
	*ret_data = (char *)memory->address + view->offset;
	return 0;
}

static int expect(const struct fa_wire_view *view, const char *name, unsigned int i,
                  int64_t expected, const char *meaning, struct fa_error *error)
{
	if (view->shape[i] == expected)
		return 0;
	return fa_fail(error, -EINVAL, "%s.shape[%u] is %" PRId64 "; expected %" PRId64 ", %s",
	               name, i, view->shape[i], expected, meaning);
}

int fa_kv_bind_tensor(struct fa_request *request, const struct fa_wire_view *view,
                      const struct fa_kv_tensor *expected, struct fa_attention_tensor *ret_tensor,
                      int32_t *ret_heads, struct fa_error *error)
{
	const char *name = expected->name;
	void *data = NULL;
	int r;

	r = bind_view(request, view, name, expected->output, 3, expected->dtype,
	              "[new tokens, heads, dim]", &data, error);
	if (r == 0)
		r = expect(view, name, 0, expected->tokens, "the tokens", error);
	if (r == 0 && expected->heads)
		r = expect(view, name, 1, expected->heads, "the heads", error);
	if (r == 0 && (view->shape[1] < 1 || view->shape[1] > FA_WIRE_HEADS_MAX))
		r = fa_fail(error, -EINVAL,
		            "%s.shape[1], the heads, is %" PRId64 "; expected 1 to %d", name,
		            view->shape[1], FA_WIRE_HEADS_MAX);
	if (r == 0)
		r = expect(view, name, 2, expected->dim, "the head dim", error);
	if (r < 0)
		return r;
	*ret_tensor = (struct fa_attention_tensor){
		.data = data,
		.stride_token = fa_tensor_view_stride(view, 0),
		.stride_head = fa_tensor_view_stride(view, 1),
	};
	if (ret_heads)
		*ret_heads = (int32_t)view->shape[1];
	return 0;
}

int fa_kv_bind_floats(struct fa_request *request, const struct fa_wire_view *view, const char *name,
                      bool output, int64_t rows, int64_t columns, float **ret_data,
                      struct fa_error *error)
{
	void *data = NULL;
	int r;

	r = bind_view(request, view, name, output, 2, FA_ATTENTION_F32, "[rows, columns]", &data,
	              error);
	if (r == 0 && rows >= 0)
		r = expect(view, name, 0, rows, "as many rows", error);
	if (r == 0)
		r = expect(view, name, 1, columns, "as many columns", error);
	if (r == 0)
		*ret_data = data;
	return r;
}
