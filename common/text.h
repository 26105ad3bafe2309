/* Text that came from elsewhere, made fit for logs and JSON. Pure functions. */
#pragma once

#include <stddef.h>

/*
 * Copies at most @size - 1 bytes of @text (@length bytes, which may hold zeros) and
 * ends them with a zero. Control characters and what is no UTF-8 become '?'.
 */
void fa_text_clean(const char *text, size_t length, char *ret_text, size_t size);

/*
 * The same, but what becomes '?' there becomes '?' and two hexadecimal digits for each byte, and
 * so does '?' itself: what is different stays so, for what is told apart by it. Three times
 * @length + 1 bytes hold all.
 */
void fa_text_escape(const char *text, size_t length, char *ret_text, size_t size);
