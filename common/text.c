#include "common/text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Returns the bytes of a printable character at @text, in valid UTF-8; or 0. */
static size_t character_length(const unsigned char *text, size_t length)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	uint32_t code;
	size_t n;

	if (text[0] < 0x80)
		return text[0] >= 0x20 && text[0] != 0x7f;
	if (text[0] < 0xc0)
		return 0;
	n = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : text[0] < 0xf8 ? 4 : 0;
	if (!n || n > length)
		return 0;
	code = text[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; ++i) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	if (code < smallest[n] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	/* C1 controls, and what changes the direction of text */
	if (code < 0xa0 || (code >= 0x200e && code <= 0x200f) ||
	    (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
		return 0;
	return n;
}

void fa_text_clean(const char *text, size_t length, char *ret_text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < length;) {
		size_t n = character_length((const unsigned char *)text + i, length - i);

		if (used + (n ? n : 1) + 1 > size)
			break;
		if (n) {
			for (size_t j = 0; j < n; ++j)
				ret_text[used++] = text[i + j];
			i += n;
		} else {
			ret_text[used++] = '?';
			++i;
		}
	}
	ret_text[used] = 0;
}

void fa_text_escape(const char *text, size_t length, char *ret_text, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < length;) {
		size_t n = text[i] == '?'
		                   ? 0
		                   : character_length((const unsigned char *)text + i, length - i);

		if (used + (n ? n : 3) + 1 > size)
			break;
		if (!n)
			used += (size_t)sprintf(ret_text + used, "?%02x", (unsigned char)text[i++]);
		for (; n; --n)
			ret_text[used++] = text[i++];
	}
	ret_text[used] = 0;
}

bool fa_text_list_has(const char *list, size_t length, const char *name)
{
	size_t n = strlen(name);

	while (length) {
		const char *comma = memchr(list, ',', length);
		size_t item = comma ? (size_t)(comma - list) : length;

		if (item == n && !memcmp(list, name, n))
			return true;
		if (!comma)
			break;
		list += item + 1;
		length -= item + 1;
	}
	return false;
}
