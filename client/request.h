/* A request of a stream, while it is built and sent. */
#pragma once

#include "client/faclient.h"
#include "schema/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FA_REQUEST_TENSORS 14

struct fa_client_request {
	struct fa_wire_message message; /* the caller sets its type */
	struct fa_client_request_tensor {
		const char *name;
		const struct fa_client_registration *registration;
		const struct fa_wire_view *view; /* in the message */
		bool written;
	} tensors[FA_REQUEST_TENSORS];
	size_t n_tensors;
	/* Further tensors, in the caller's memory; their views are unused. */
	const struct fa_client_request_tensor *more;
	size_t n_more;
	struct fa_step *step;  /* or NULL */
	struct fa_gates gates; /* of an older caller's gates */
};

/* Adds a tensor of fp32, fp16 or bf16. Its buffer is checked again when the request is sent. */
int fa_request_tensor(struct fa_client_request *request, const char *name, struct fa_client *client,
                      const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view);
/* The same for any @dtype. */
int fa_request_tensor_of(struct fa_client_request *request, const char *name,
                         struct fa_client *client, const struct fa_tensor *tensor, uint32_t dtype,
                         uint32_t rank, struct fa_wire_view *ret_view);
/* The same for an output. */
int fa_request_output(struct fa_client_request *request, const char *name, struct fa_client *client,
                      const struct fa_tensor *tensor, uint32_t rank, struct fa_wire_view *ret_view);
/* -EINVAL: an output shares memory with another tensor. */
int fa_request_check_overlap(const struct fa_client_request *request);
/* Return the message's stream and value, and how many values it takes. */
uint32_t *fa_request_stream(struct fa_wire_message *message, uint64_t **ret_value);
uint64_t fa_request_values(const struct fa_wire_message *message);
