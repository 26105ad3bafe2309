/* SequencePages: copies tokens of several layers between the pool and a client's own pages. */
#include "daemon/requests/kv.h"

#include "common/cleanup.h"
#include "daemon/memory/overlap.h"
#include "daemon/memory/tensor_view.h"
#include "daemon/requests/kv_copy_step.h"
#include "daemon/session/context.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* K and V of a layer may have their own buffers. */
#define TENSORS_MAX (2 * FA_WIRE_LAYERS_MAX)

_Static_assert(TENSORS_MAX <= FA_TENSOR_OUTPUTS_MAX, "all are compared with one another");

struct pages {
	struct fa_request request; /* must be first */
	struct fa_paged_request paged;
	struct fa_kv_copy_step step;
	/* [n_buffers], referenced. All arrays are in this memory. */
	struct fa_registered_buffer **buffers;
	uint32_t n_buffers;
	void **data;     /* [layers of K and of V] */
	uint32_t *pages; /* [n_pages] */
};

static struct pages *pages_of(struct fa_request *request)
{
	return fa_container_of(request, struct pages, request);
}

static void release(struct fa_request *request)
{
	struct fa_context *context = request->session->context;
	struct pages *pages = pages_of(request);

	if (request->job.work.paged)
		context->ops->paged_release(context->device, &request->job.work);
	while (pages->n_buffers)
		fa_registered_buffer_unref(fa_steal_ptr(pages->buffers[--pages->n_buffers]));
	free(fa_steal_ptr(pages->buffers));
}

/* K or V: one side of the message. */
struct side {
	const char *name;
	const struct fa_wire_view *view;
	const struct fa_wire_place *places;
	size_t n;
	int64_t dim; /* of the cache */
	void **data;
	struct fa_attention_tensor *tensor;
};

struct binding {
	struct pages *pages;
	const struct fa_wire_sequence_pages *message;
	struct side sides[2];
	uint32_t n_layers;
	bool writes;
	struct fa_error *error;
};

static int check_side(const struct binding *b, const struct side *side)
{
	if (!side->view->rank != !side->n)
		return fa_fail(b->error, -EINVAL,
		               "%s.rank is %u, and %s_places has %zu entries; expected rank 4 and "
		               "one a layer, or neither",
		               side->name, side->view->rank, side->name, side->n);
	if (!side->n)
		return 0;
	if (side->n != b->n_layers)
		return fa_fail(b->error, -EINVAL,
		               "v_places has %zu entries; expected %" PRIu32
		               ", as many as k_places",
		               side->n, b->n_layers);
	if (side->view->rank != 4)
		return fa_fail(b->error, -EINVAL,
		               "%s.rank is %u; expected 4, [pages, page_tokens, heads, dim]",
		               side->name, side->view->rank);
	if (side->view->offset || side->view->buffer)
		return fa_fail(b->error, -EINVAL,
		               "%s.buffer and %s.offset are not 0; expected them in %s_places",
		               side->name, side->name, side->name);
	if (side->view->shape[1] < 1 || side->view->shape[1] > FA_PAGED_LENGTH_MAX)
		return fa_fail(b->error, -EINVAL,
		               "%s.shape[1], a page's tokens, is %" PRId64 "; expected 1 to %u",
		               side->name, side->view->shape[1], FA_PAGED_LENGTH_MAX);
	return 0;
}

/* Checks what finding the step depends on. */
static int check_tokens(const struct binding *b)
{
	const struct fa_wire_sequence_pages *m = b->message;

	if (m->flags & ~FA_WIRE_COPY_WRITE)
		return fa_fail(b->error, -ENOTSUP,
		               "flags %#" PRIx32 " are not supported; expected none but %#x, write",
		               m->flags, FA_WIRE_COPY_WRITE);
	if (m->n_tokens > FA_KV_STEP_TOKENS_MAX || m->first > FA_POOL_SEQUENCE_TOKENS_MAX)
		return fa_fail(b->error, -EINVAL,
		               "%" PRIu64 " tokens from %" PRIu64
		               " on are to be copied; expected 0 to %u",
		               m->n_tokens, m->first, FA_KV_STEP_TOKENS_MAX);
	return 0;
}

/* Checks what does not depend on the cache. */
static int check(const struct binding *b)
{
	const struct fa_wire_sequence_pages *m = b->message;
	const struct fa_wire_view *view = m->k.rank ? &m->k : &m->v;
	uint64_t needed;
	int r;

	if (!view->rank && !b->n_layers)
		return fa_fail(b->error, -EINVAL, "k and v are absent: there is nothing to copy");
	r = check_side(b, &b->sides[0]);
	if (r == 0)
		r = check_side(b, &b->sides[1]);
	if (r < 0)
		return r;
	if (m->k.rank && m->v.rank &&
	    (m->k.shape[0] != m->v.shape[0] || m->k.shape[1] != m->v.shape[1]))
		return fa_fail(b->error, -EINVAL,
		               "v has %" PRId64 " pages of %" PRId64 " tokens; expected %" PRId64
		               " of %" PRId64 ", as k",
		               m->v.shape[0], m->v.shape[1], m->k.shape[0], m->k.shape[1]);
	if (m->page_offset >= (uint64_t)view->shape[1])
		return fa_fail(b->error, -EINVAL,
		               "page_offset is %" PRIu32 "; expected less than %" PRId64
		               ", the tokens of a page",
		               m->page_offset, view->shape[1]);
	needed = m->n_tokens ? (m->page_offset + m->n_tokens - 1) / (uint64_t)view->shape[1] + 1
	                     : 0;
	if (m->n_pages != needed)
		return fa_fail(b->error, -EINVAL,
		               "pages has %zu entries; expected %" PRIu64 ", for %" PRIu64
		               " tokens from place %" PRIu32 " on in pages of %" PRId64,
		               m->n_pages, needed, m->n_tokens, m->page_offset, view->shape[1]);
	return 0;
}

/* ---- page numbers */

static int check_numbers(const struct binding *b)
{
	const struct fa_wire_sequence_pages *m = b->message;
	const uint64_t n = (uint64_t)(m->k.rank ? &m->k : &m->v)->shape[0];

	for (size_t i = 0; i < m->n_pages; ++i)
		if (m->pages[i] >= n)
			return fa_fail(b->error, -EINVAL,
			               "pages[%zu] is %" PRIu32 "; expected less than %" PRIu64
			               ", the tensors' pages",
			               i, m->pages[i], n);
	return 0;
}

static int check_distinct(const struct binding *b)
{
	const struct fa_wire_sequence_pages *m = b->message;
	uint32_t n = 4, *table;
	int r = 0;

	while (n < 2 * m->n_pages)
		n *= 2;
	table = calloc(n, sizeof(*table)); /* index + 1; 0: free */
	if (!table)
		return fa_fail(b->error, -ENOMEM, "the daemon has no memory for a request's pages");
	for (uint32_t i = 0; i < m->n_pages && r == 0; ++i) {
		uint32_t at = (m->pages[i] * 2654435769u) & (n - 1);

		while (table[at] && m->pages[table[at] - 1] != m->pages[i])
			at = (at + 1) & (n - 1);
		if (table[at])
			r = fa_fail(b->error, -EINVAL,
			            "pages[%" PRIu32 "] is %" PRIu32 ", as is pages[%" PRIu32
			            "]; expected each page once, as it is written",
			            i, m->pages[i], table[at] - 1);
		table[at] = i + 1;
	}
	free(table);
	return r;
}

/* ---- tensors */

/* The request references the buffer. */
static int find_memory(struct binding *b, const struct fa_wire_view *view, const char *name,
                       const struct fa_device_memory **ret_memory)
{
	struct pages *pages = b->pages;
	struct fa_registered_buffer *buffer;

	/* Searches from the last: engines have one buffer for many layers, or one per layer. */
	for (uint32_t i = pages->n_buffers; i-- > 0;)
		if (pages->buffers[i]->id == view->buffer) {
			*ret_memory = &pages->buffers[i]->memory;
			return 0;
		}
	buffer = fa_id_table_find(&pages->request.session->buffers, view->buffer);
	if (!buffer)
		return fa_fail(b->error, -ENOENT,
		               "%s.buffer is %" PRIu32 ", which is not registered in this session",
		               name, view->buffer);
	pages->buffers[pages->n_buffers++] = fa_registered_buffer_ref(buffer);
	*ret_memory = &buffer->memory;
	return 0;
}

static int expect(const struct binding *b, const struct side *side, unsigned int i,
                  int64_t expected, const char *meaning)
{
	if (side->view->shape[i] == expected)
		return 0;
	return fa_fail(b->error, -EINVAL, "%s.shape[%u] is %" PRId64 "; expected %" PRId64 ", %s",
	               side->name, i, side->view->shape[i], expected, meaning);
}

/* @uses gets the tensors of K or V, which point to @views. */
static int bind_side(struct binding *b, struct side *side, const struct fa_paged_cache *cache,
                     struct fa_wire_view *views, struct fa_tensor_use *uses, size_t *n)
{
	char name[32];
	int r;

	if (side->view->dtype != (uint8_t)cache->dtype)
		return fa_fail(b->error, -ENOTSUP, "%s.dtype is %u; expected %d, the cache's",
		               side->name, side->view->dtype, (int)cache->dtype);
	r = expect(b, side, 2, cache->kv_heads, "the heads of the cache");
	if (r == 0)
		r = expect(b, side, 3, side->dim, "the head dim");
	for (uint32_t i = 0; i < b->n_layers && r == 0; ++i) {
		struct fa_wire_view *view = &views[*n];
		const struct fa_device_memory *memory = NULL;

		(void)snprintf(name, sizeof(name), "%s[%" PRIu32 "]", side->name, i);
		*view = *side->view;
		view->offset = side->places[i].offset;
		view->buffer = side->places[i].buffer;
		if (side->places[i].reserved)
			return fa_fail(b->error, -EINVAL, "%s.reserved is not 0", name);
		r = find_memory(b, view, name, &memory);
		if (r == 0)
			r = fa_tensor_view_check(view, name, !b->writes, memory, b->error);
		if (r < 0)
			return r;
		side->data[i] = (char *)memory->address + view->offset;
		uses[(*n)++] = (struct fa_tensor_use){ .name = side->name,
			                               .view = view,
			                               .memory = memory };
	}
	if (r < 0)
		return r;
	*side->tensor = (struct fa_attention_tensor){
		.stride_batch = fa_tensor_view_stride(side->view, 0),
		.stride_token = fa_tensor_view_stride(side->view, 1),
		.stride_head = fa_tensor_view_stride(side->view, 2),
	};
	return 0;
}

static int check_overlap(const struct binding *b, const struct fa_tensor_use *uses, size_t n)
{
	size_t first, second;

	if (b->writes || !n || !fa_tensor_outputs_overlap(uses, n, &first, &second))
		return 0;
	return fa_fail(b->error, -EINVAL,
	               "%s[%zu] overlaps %s[%zu]; expected memory of its own, as both are written",
	               uses[first].name, first % b->n_layers, uses[second].name,
	               second % b->n_layers);
}

static int bind_tensors(struct binding *b, const struct fa_kv_group *group)
{
	const struct fa_wire_sequence_pages *m = b->message;
	const struct fa_paged_cache *cache = &group->cache;
	struct fa_tensor_use uses[TENSORS_MAX];
	struct fa_wire_view *views;
	size_t n = 0;
	int r = 0;

	if (m->layer >= (uint32_t)cache->layers || b->n_layers > (uint32_t)cache->layers - m->layer)
		return fa_fail(b->error, -EINVAL,
		               "%" PRIu32 " layers from %" PRIu32 " on are to be copied; the cache "
		               "has %" PRId32,
		               b->n_layers, m->layer, cache->layers);
	if (group->v_in_k && m->v.rank && b->writes)
		return fa_fail(b->error, -EINVAL,
		               "v is the front of k in this cache; expected none");
	views = calloc(TENSORS_MAX, sizeof(*views));
	if (!views)
		return fa_fail(b->error, -ENOMEM,
		               "the daemon has no memory for a request's tensors");
	b->sides[0].dim = cache->head_dim;
	b->sides[1].dim = cache->head_dim_v;
	for (int i = 0; i < 2 && r == 0; ++i)
		if (b->sides[i].n)
			r = bind_side(b, &b->sides[i], cache, views, uses, &n);
	if (r == 0 && m->n_tokens)
		r = check_overlap(b, uses, n);
	free(views);
	return r;
}

/* ---- the request */

static int arrays_new(struct binding *b)
{
	const struct fa_wire_sequence_pages *m = b->message;
	const size_t n = m->n_k_places + m->n_v_places;
	struct pages *pages = b->pages;

	/* calloc() aligns for any type; the smallest type comes last. */
	pages->buffers = calloc(1, n * (sizeof(*pages->buffers) + sizeof(*pages->data)) +
	                                   m->n_pages * sizeof(*pages->pages));
	if (!pages->buffers)
		return fa_fail(b->error, -ENOMEM, "the daemon has no memory for a request's pages");
	pages->data = (void **)(pages->buffers + n);
	pages->pages = (uint32_t *)(pages->data + n);
	if (m->n_pages)
		memcpy(pages->pages, m->pages, m->n_pages * sizeof(*pages->pages));
	b->sides[0].data = pages->data;
	b->sides[1].data = pages->data + m->n_k_places;
	return 0;
}

static int submit(struct binding *b, const struct fa_kv_group *group)
{
	const struct fa_wire_sequence_pages *m = b->message;
	struct pages *pages = b->pages;
	struct fa_paged_own_copy *copy = &pages->paged.own_copy;
	struct fa_device_work *work = &pages->request.job.work;

	if (!m->n_tokens) {
		work->op = FA_DEVICE_NONE;
		return 0;
	}
	pages->paged.op = b->writes ? FA_PAGED_WRITE_OWN : FA_PAGED_READ_OWN;
	copy->cache = &group->cache;
	copy->step = &pages->step.step;
	copy->layer = (int32_t)m->layer;
	copy->n_layers = (int32_t)b->n_layers;
	copy->k_data = m->n_k_places ? b->sides[0].data : NULL;
	copy->v_data = m->n_v_places ? b->sides[1].data : NULL;
	copy->page_tokens = (int32_t)(m->k.rank ? &m->k : &m->v)->shape[1];
	copy->offset = m->page_offset;
	copy->pages = pages->pages;
	copy->n_pages = (uint32_t)m->n_pages;
	work->op = FA_DEVICE_PAGED;
	work->paged = &pages->paged;
	work->n_paged = 1;
	work->tables = pages->request.step->tables;
	return fa_request_prepare(&pages->request, b->error);
}

static int bind_pages(struct fa_request *request, const struct fa_wire_message *message,
                      struct fa_error *error)
{
	const struct fa_wire_sequence_pages *m = &message->sequence_pages;
	struct pages *pages = pages_of(request);
	struct binding b = {
		.pages = pages,
		.message = m,
		.sides = {
			{ .name = "k", .view = &m->k, .places = m->k_places, .n = m->n_k_places,
			  .tensor = &pages->paged.own_copy.k },
			{ .name = "v", .view = &m->v, .places = m->v_places, .n = m->n_v_places,
			  .tensor = &pages->paged.own_copy.v },
		},
		.n_layers = (uint32_t)(m->n_k_places ? m->n_k_places : m->n_v_places),
		.writes = m->flags & FA_WIRE_COPY_WRITE,
		.error = error,
	};
	const struct fa_kv_copy tokens = {
		.sequence = m->sequence,
		.first = m->first,
		.end = m->first + m->n_tokens,
		.writes = b.writes,
		.layer = m->layer,
		.n_layers = b.n_layers,
	};
	const struct fa_kv_group *group;
	int r;

	r = check_tokens(&b);
	/* Finds the step first: a refused write makes it fail. */
	if (r == 0)
		r = fa_kv_copy_step_join(request, &tokens, &pages->step, &group, error);
	if (r == 0)
		r = check(&b);
	if (r == 0)
		r = check_numbers(&b);
	if (r == 0 && !b.writes)
		r = check_distinct(&b);
	if (r == 0)
		r = arrays_new(&b);
	if (r == 0)
		r = bind_tensors(&b, group);
	return r == 0 ? submit(&b, group) : r;
}

static void refused(struct fa_request *request, const struct fa_wire_message *message)
{
	request->layer = message->sequence_pages.layer;
	fa_kv_step_request_refused(request);
}

const struct fa_request_kind fa_kv_pages_kind = {
	.name = "SequencePages",
	.bytes = sizeof(struct pages),
	.bind = bind_pages,
	.release = release,
	.refused = refused,
	.ended = fa_kv_step_request_ended,
};
