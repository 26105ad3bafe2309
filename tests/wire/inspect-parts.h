/* Functions that inspect.c and inspect-kv.c share. */
#pragma once

#include "tests/wire/inspect-kv.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIFFER_IF(condition, name)                                                                 \
	do {                                                                                       \
		if (condition)                                                                     \
			return name;                                                               \
	} while (0)

#define SAME(field) DIFFER_IF(a->field != b->field, #field)
#define SAME_STRING(field) DIFFER_IF(!string_equal(&a->field, &b->field), #field)
#define SAME_SECRET(field) DIFFER_IF(!secret_equal(&a->field, &b->field), #field)
#define SAME_VIEW(field) DIFFER_IF(!view_equal(&a->field, &b->field), #field)
#define SAME_FLOAT(field) DIFFER_IF(!float_equal(a->field, b->field), #field)
#define SAME_VECTOR(field)                                                                         \
	DIFFER_IF(                                                                                 \
		!vector_equal(a->field, a->n_##field, b->field, b->n_##field, sizeof(*a->field)),  \
		#field)

static inline bool string_equal(const struct fa_wire_string *a, const struct fa_wire_string *b)
{
	if (!a->text || !b->text)
		return !a->text && !b->text;
	return a->length == b->length && !memcmp(a->text, b->text, a->length);
}

static inline bool secret_equal(const struct fa_wire_secret *a, const struct fa_wire_secret *b)
{
	return a->lo == b->lo && a->hi == b->hi;
}

static inline bool view_equal(const struct fa_wire_view *a, const struct fa_wire_view *b)
{
	for (unsigned i = 0; i < FA_WIRE_RANK_MAX; ++i)
		if (a->shape[i] != b->shape[i] || a->strides[i] != b->strides[i])
			return false;
	return a->offset == b->offset && a->buffer == b->buffer && a->dtype == b->dtype &&
	       a->rank == b->rank && a->reserved == b->reserved;
}

static inline bool float_equal(double a, double b)
{
	return a == b || (a != a && b != b);
}

static inline bool vector_equal(const void *a, size_t n_a, const void *b, size_t n_b,
                                size_t element_bytes)
{
	return n_a == n_b && (!n_a || !memcmp(a, b, n_a * element_bytes));
}

/* ---- reading */

static inline void demand(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "a decoded message is wrong: %s\n", what);
	abort();
}

static inline uint64_t read_bytes(struct range range, const void *data, size_t length)
{
	const unsigned char *bytes = data;
	uintptr_t start = (uintptr_t)range.bytes;
	uintptr_t at = (uintptr_t)data;
	uint64_t sum = 0;

	demand(at >= start && at - start <= range.length && length <= range.length - (at - start),
	       "something lies outside of its bytes");
	for (size_t i = 0; i < length; ++i)
		sum += bytes[i];
	return sum;
}

static inline uint64_t read_string(struct range range, const struct fa_wire_string *string,
                                   size_t length_max)
{
	uint64_t sum;

	if (!string->text) {
		demand(!string->length, "an absent string has a length");
		return 0;
	}
	demand(string->length <= length_max, "a string is longer than allowed");
	sum = read_bytes(range, string->text, string->length + 1);
	demand(!string->text[string->length], "a string is not ended by a zero byte");
	return sum;
}

static inline uint64_t read_vector(struct range range, const void *data, size_t n, size_t n_max,
                                   size_t element_bytes)
{
	if (!n) {
		demand(!data, "an empty vector is not NULL");
		return 0;
	}
	demand(n <= n_max, "a vector is longer than allowed");
	demand((uintptr_t)data % (element_bytes > 8 ? 8 : element_bytes) == 0,
	       "a vector is misaligned");
	return read_bytes(range, data, n * element_bytes);
}

static inline uint64_t read_view(const struct fa_wire_view *view)
{
	uint64_t sum = view->offset + view->buffer + view->dtype + view->rank + view->reserved;

	for (unsigned i = 0; i < FA_WIRE_RANK_MAX; ++i)
		sum += (uint64_t)view->shape[i] + (uint64_t)view->strides[i];
	return sum;
}
