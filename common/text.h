/* Makes untrusted text safe for logs and JSON; lists. Pure functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * Copies at most @size - 1 bytes of @text (@length bytes, perhaps with zeros). Control characters
 * and invalid UTF-8 become '?'.
 */
void fa_text_clean(const char *text, size_t length, char *ret_text, size_t size);

/*
 * Such bytes, and '?' itself, become '?' and two hexadecimal digits: different texts stay
 * different. 3 * @length + 1 bytes are enough.
 */
void fa_text_escape(const char *text, size_t length, char *ret_text, size_t size);

/* @list is comma-separated. */
bool fa_text_list_has(const char *list, size_t length, const char *name);
