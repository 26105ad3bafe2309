/* Makes untrusted text safe for logs and JSON; lists. Pure functions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * Copies at most @size - 1 bytes of @text (@length bytes, perhaps with zeros) and terminates them.
 * Control characters and invalid UTF-8 become '?'.
 */
void fa_text_clean(const char *text, size_t length, char *ret_text, size_t size);

/*
 * The same, but such bytes, and '?' itself, become '?' and two hexadecimal digits: different texts
 * stay different. 3 * @length + 1 bytes are always enough.
 */
void fa_text_escape(const char *text, size_t length, char *ret_text, size_t size);

/* Returns true if the comma-separated @list contains @name. */
bool fa_text_list_has(const char *list, size_t length, const char *name);
