/* Public structs that can grow: the first field is uint32_t size. */
#pragma once

#include <stddef.h>

/* Reads a caller's struct. *ret_struct is @given, or @padded (of @own_bytes, the library's size),
 * with zeros for what an older caller lacks. -EINVAL: size is not set; -E2BIG: a newer caller uses
 * an unknown field. */
int fa_struct_in(const char *what, const void *given, void *padded, size_t own_bytes,
                 const void **ret_struct);
/* -EINVAL: the size is not set. */
int fa_struct_out_check(const char *what, const void *given);
/* Copies @filled (@own_bytes, its size changes) to the caller's struct. */
void fa_struct_out(void *ret_given, void *filled, size_t own_bytes);
