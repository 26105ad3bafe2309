/*
 * Tensors of steps: checks views (memory/tensor_view.h) against what a cache and a step say they must be
 * like, for the kinds of work over pages. Loop thread.
 */
#pragma once

#include "daemon/kv/step.h"
#include "daemon/session/request.h"

/* What a tensor must be: rank 3, [tokens, heads, dim]. */
struct fa_kv_tensor {
	const char *name;
	bool output;
	enum fa_attention_dtype dtype;
	int64_t tokens;
	int64_t heads; /* 0: any number, which is told */
	int64_t dim;
};

/*
 * The tensor of @view, whose buffer @work keeps alive. *ret_heads may be NULL.
 * -EINVAL, -ENOENT, -ENOTSUP.
 */
int fa_kv_bind_tensor(struct fa_request *work, const struct fa_wire_view *view,
                      const struct fa_kv_tensor *expected, struct fa_attention_tensor *ret_tensor,
                      int32_t *ret_heads, struct fa_error *error);

/* One of fp32 of rank 2, with the shape [rows, columns]; -1: any number of rows. */
int fa_kv_bind_floats(struct fa_request *work, const struct fa_wire_view *view, const char *name,
                      bool output, int64_t rows, int64_t columns, float **ret_data,
                      struct fa_error *error);
