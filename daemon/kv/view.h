/* Checks tensors of paged requests against the cache and the step. Loop thread. */
#pragma once

#include "daemon/kv/step.h"
#include "daemon/session/request.h"

/* Required of a tensor: [tokens, heads, dim]. */
struct fa_kv_tensor {
	const char *name;
	bool output;
	enum fa_attention_dtype dtype;
	int64_t tokens;
	int64_t heads; /* 0: any number */
	int64_t dim;
};

/* @request keeps the buffer alive. @ret_heads may be NULL. -EINVAL, -ENOENT, -ENOTSUP. */
int fa_kv_bind_tensor(struct fa_request *request, const struct fa_wire_view *view,
                      const struct fa_kv_tensor *expected, struct fa_attention_tensor *ret_tensor,
                      int32_t *ret_heads, struct fa_error *error);

/* Binds an fp32 tensor [rows, columns]. rows -1: any number. */
int fa_kv_bind_floats(struct fa_request *request, const struct fa_wire_view *view, const char *name,
                      bool output, int64_t rows, int64_t columns, float **ret_data,
                      struct fa_error *error);
