/*
 * A view is a run of bytes, repeated along dimensions. To compare two, the dimension with the
 * largest stride is taken off, and only repetitions whose ranges meet are followed: mostly one or
 * two.
 */
#include "schema/overlap.h"

#define STEPS_MAX 4096

struct dim {
	int64_t stride, count; /* bytes; the strides ascend */
};

struct place {
	struct dim dims[FA_WIRE_RANK_MAX];
	unsigned int n;
	int64_t run, extent; /* bytes of a run; first byte to behind the last */
};

static int64_t element_bytes(unsigned int dtype)
{
	switch (dtype) {
	case FA_WIRE_DTYPE_F32:
	case FA_WIRE_DTYPE_I32:
		return 4;
	case FA_WIRE_DTYPE_E4M3:
		return 1;
	case FA_WIRE_DTYPE_I64:
		return 8;
	default:
		return 2;
	}
}

/* From the first element to behind the last; 0: no elements. */
static inline int64_t extent_of(const struct fa_wire_view *view)
{
	int64_t last = 0;

	for (unsigned int i = 0; i < view->rank; ++i) {
		if (!view->shape[i])
			return 0;
		last += (view->shape[i] - 1) * view->strides[i];
	}
	return (last + 1) * element_bytes(view->dtype);
}

/* False: the view has no elements. */
static bool place_init(struct place *place, const struct fa_wire_view *view)
{
	const int64_t bytes = element_bytes(view->dtype);

	place->n = 0;
	place->run = bytes;
	for (unsigned int i = 0; i < view->rank; ++i) {
		struct dim dim = { .count = view->shape[i] };
		unsigned int at;

		if (!dim.count)
			return false;
		/* The stride of a single element may be any number. */
		if (dim.count == 1 || !view->strides[i])
			continue;
		dim.stride = view->strides[i] * bytes;
		for (at = place->n++; at && place->dims[at - 1].stride > dim.stride; --at)
			place->dims[at] = place->dims[at - 1];
		place->dims[at] = dim;
	}
	/* Dense dimensions lengthen the run. */
	while (place->n && place->dims[0].stride == place->run) {
		place->run *= place->dims[0].count;
		--place->n;
		for (unsigned int i = 0; i < place->n; ++i)
			place->dims[i] = place->dims[i + 1];
	}
	place->extent = place->run;
	for (unsigned int i = 0; i < place->n; ++i)
		place->extent += place->dims[i].stride * (place->dims[i].count - 1);
	return true;
}

/* The dimension with the largest stride is taken off. */
static struct place without_top(const struct place *place)
{
	struct place rest = *place;

	--rest.n;
	rest.extent -= rest.dims[rest.n].stride * (rest.dims[rest.n].count - 1);
	return rest;
}

static int64_t floor_div(int64_t a, int64_t b)
{
	return a / b - (a % b < 0);
}

/* @a at 0 and @b at @delta share a byte. */
static bool meet(const struct place *a, const struct place *b, int64_t delta, int *steps)
{
	const struct dim *top_a = a->n ? &a->dims[a->n - 1] : NULL;
	const struct dim *top_b = b->n ? &b->dims[b->n - 1] : NULL;
	struct place rest_a = *a, rest_b = *b;
	int64_t stride, low = 0, high = 0, first, last;

	if (delta >= a->extent || -delta >= b->extent)
		return false;
	if ((!top_a && !top_b) || --*steps < 0)
		return true;
	/* Repetition i of a and j of b lie delta + (j - i) * stride apart. */
	stride = !top_b || (top_a && top_a->stride > top_b->stride) ? top_a->stride : top_b->stride;
	if (top_a && top_a->stride == stride) {
		rest_a = without_top(a);
		low = 1 - top_a->count;
	}
	if (top_b && top_b->stride == stride) {
		rest_b = without_top(b);
		high = top_b->count - 1;
	}
	first = floor_div(-rest_b.extent - delta, stride) + 1;
	last = floor_div(rest_a.extent - 1 - delta, stride);
	first = first < low ? low : first;
	last = last > high ? high : last;
	for (int64_t i = first; i <= last; ++i)
		if (meet(&rest_a, &rest_b, delta + i * stride, steps))
			return true;
	return false;
}

bool fa_wire_views_overlap_within(const struct fa_wire_view *a, uint64_t a_base,
                                  const struct fa_wire_view *b, uint64_t b_base, int *steps)
{
	const int64_t delta = (int64_t)(b_base + b->offset) - (int64_t)(a_base + a->offset);
	struct place place_a, place_b;

	/* A request's tensors mostly lie one behind the other. */
	if (delta >= extent_of(a) || -delta >= extent_of(b))
		return false;
	if (!place_init(&place_a, a) || !place_init(&place_b, b))
		return false;
	return meet(&place_a, &place_b, delta, steps);
}

bool fa_wire_views_overlap(const struct fa_wire_view *a, uint64_t a_base,
                           const struct fa_wire_view *b, uint64_t b_base)
{
	int steps = STEPS_MAX;

	return fa_wire_views_overlap_within(a, a_base, b, b_base, &steps);
}
