/* Public structs that can grow. Their first field is uint32_t size. */
#pragma once

#include <stddef.h>

/* Reads a caller's struct. *ret_known is @given, or @known (the library's size, @known_bytes) with
 * zeros for what an older caller lacks. -EINVAL: size is not set; -E2BIG: a newer caller uses an
 * unknown field. */
int fa_struct_in(const char *what, const void *given, void *known, size_t known_bytes,
                 const void **ret_known);
/* -EINVAL: the size is not set. */
int fa_struct_out_check(const char *what, const void *given);
/* @known is changed. */
void fa_struct_out(void *ret_given, void *known, size_t known_bytes);
