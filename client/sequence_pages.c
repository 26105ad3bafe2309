/* Copies to and from the caller's own pages. */
#include "client/cancel.h"
#include "client/client.h"
#include "client/gates.h"
#include "client/last_error.h"
#include "client/reconnect.h"
#include "client/request.h"
#include "client/step_state.h"
#include "client/struct_size.h"
#include "client/submit.h"
#include "client/tensor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TENSORS_MAX (2 * FA_WIRE_LAYERS_MAX)

struct pages_request {
	struct fa_client_request request;
	struct fa_client_request_tensor tensors[TENSORS_MAX];
	struct fa_wire_place places[TENSORS_MAX];
};

static bool is_same_shape(const struct fa_wire_view *a, const struct fa_wire_view *b)
{
	return a->dtype == b->dtype && !memcmp(a->shape, b->shape, sizeof(a->shape)) &&
	       !memcmp(a->strides, b->strides, sizeof(a->strides));
}

/* @ret_view: what all layers have in common. */
static int add_tensors(struct pages_request *all, const char *side, struct fa_client *client,
                       const struct fa_tensor *tensors, uint32_t n, struct fa_wire_view *ret_view,
                       const struct fa_wire_place **ret_places, size_t *ret_n)
{
	struct fa_client_request *request = &all->request;
	struct fa_wire_place *places = &all->places[request->n_more];
	int r;

	if (!tensors)
		return 0;
	for (uint32_t i = 0; i < n; ++i) {
		struct fa_client_request_tensor *tensor = &all->tensors[request->n_more];
		struct fa_wire_view view;
		char name[16];

		(void)snprintf(name, sizeof(name), "%s[%u]", side, i);
		*tensor = (struct fa_client_request_tensor){ .name = side };
		r = fa_tensor_view(name, client, &tensors[i], 4, &view, &tensor->registration);
		if (r < 0)
			return r;
		places[i] = (struct fa_wire_place){ .offset = view.offset, .buffer = view.buffer };
		++request->n_more;
		view.offset = 0;
		view.buffer = 0;
		if (i && !is_same_shape(&view, ret_view))
			return fa_error_set(
				-EINVAL,
				"%s has another dtype, shape or stride than %s[0]; expected the "
				"same in all layers",
				name, side);
		*ret_view = view;
	}
	*ret_places = places;
	*ret_n = n;
	return 0;
}

static int check(const struct fa_sequence_pages *pages)
{
	if (!pages->k && !pages->v)
		return fa_error_set(-EINVAL, "k and v are NULL: there is nothing to copy");
	if (!pages->n_layers || pages->n_layers > FA_WIRE_LAYERS_MAX)
		return fa_error_set(-EINVAL, "n_layers is %u; expected 1 to %d", pages->n_layers,
		                    FA_WIRE_LAYERS_MAX);
	if (!pages->pages && pages->n_pages)
		return fa_error_set(-EINVAL, "pages is NULL, and n_pages is %u", pages->n_pages);
	if (pages->n_pages > FA_WIRE_PAGES_MAX)
		return fa_error_set(-EINVAL,
		                    "n_pages is %u; expected at most %d: copy more tokens by "
		                    "several calls",
		                    pages->n_pages, FA_WIRE_PAGES_MAX);
	return 0;
}

static int fill(struct pages_request *all, struct fa_client *client,
                const struct fa_sequence_pages *pages, uint32_t flags)
{
	struct fa_client_request *request = &all->request;
	struct fa_wire_sequence_pages *wire = &request->message.sequence_pages;
	int r;

	request->message.type = FA_WIRE_SEQUENCE_PAGES;
	request->message.timeout_ns = pages->timeout_ns;
	request->more = all->tensors;
	wire->stream = pages->stream;
	wire->sequence = pages->sequence;
	wire->flags = flags;
	wire->layer = pages->layer;
	wire->first = pages->first;
	wire->n_tokens = pages->n_tokens;
	wire->pages = pages->pages;
	wire->n_pages = pages->n_pages;
	wire->page_offset = pages->page_offset;
	r = add_tensors(all, "k", client, pages->k, pages->n_layers, &wire->k, &wire->k_places,
	                &wire->n_k_places);
	if (r == 0)
		r = add_tensors(all, "v", client, pages->v, pages->n_layers, &wire->v,
		                &wire->v_places, &wire->n_v_places);
	return r == 0 ? fa_request_gates(request, pages->gates) : r;
}

static int copy(struct fa_client *client, const struct fa_sequence_pages *pages, uint32_t flags,
                struct fa_ticket *ret_ticket)
{
	struct fa_sequence_pages padded;
	struct pages_request all;
	const void *p;
	int r;

	r = fa_struct_in("fa_sequence_pages", pages, &padded, sizeof(padded), &p);
	if (r == 0)
		r = check(p);
	if (r < 0)
		return r;
	all.request = (struct fa_client_request){};
	r = fill(&all, client, p, flags);
	if (r == 0)
		r = fa_client_require(client, FA_WIRE_FEATURE_SEQUENCE_PAGES,
		                      "copies of a client's pages");
	if (r < 0)
		return r;
	return flags & FA_WIRE_COPY_WRITE
	               ? fa_request_submit_write(client, &all.request,
	                                         all.request.message.sequence_pages.sequence,
	                                         ret_ticket)
	               : fa_request_submit(client, &all.request, ret_ticket);
}

int fa_sequence_read_pages(struct fa_client *handle, const struct fa_sequence_pages *pages,
                           struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return copy(client, pages, 0, ret_ticket);
}

int fa_sequence_write_pages(struct fa_client *handle, const struct fa_sequence_pages *pages,
                            struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return copy(client, pages, FA_WIRE_COPY_WRITE, ret_ticket);
}
