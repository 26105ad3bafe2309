/*
 * Structs of the public interface that can grow: their first field is uint32_t size, set by the
 * caller to the size that it was compiled with.
 */
#pragma once

#include <stddef.h>

/*
 * Reads a struct that the caller filled. *ret_known is @given itself, or @known (@known_bytes, the
 * size this library was compiled with) with a copy and zeros for what an older caller lacks.
 * -EINVAL: size is not set; -E2BIG: a newer caller uses a field that is unknown here.
 */
int fa_struct_in(const char *what, const void *given, void *known, size_t known_bytes,
                 const void **ret_known);
/* Checks the size of a struct that the library is to fill; -EINVAL. */
int fa_struct_out_check(const char *what, const void *given);
/* Fills it from @known, which is changed. */
void fa_struct_out(void *ret_given, void *known, size_t known_bytes);
