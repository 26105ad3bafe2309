#include "tools/exporter/accept.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SPACE " \t"

/* Of an item with parameters [text, end): 1 without "q". */
static double weight(const char *text, const char *end)
{
	while (text < end) {
		text += strspn(text, "; \t");
		if (text < end && (*text == 'q' || *text == 'Q') && text[1] == '=')
			return strtod(text + 2, NULL);
		while (text < end && *text != ';')
			++text;
	}
	return 1;
}

static bool is_type(const char *text, size_t length, const char *type)
{
	return length == strlen(type) && strncasecmp(text, type, length) == 0;
}

bool fa_accept_open_metrics(const char *accept)
{
	double open_metrics = 0, plain = 0;

	for (const char *item = accept; item && *item;) {
		const char *end = item + strcspn(item, ",");
		size_t length;

		item += strspn(item, SPACE);
		length = strcspn(item, ";," SPACE);
		if (is_type(item, length, "application/openmetrics-text"))
			open_metrics = weight(item + length, end);
		else if (is_type(item, length, "text/plain"))
			plain = weight(item + length, end);
		item = *end ? end + 1 : end;
	}
	return open_metrics > 0 && open_metrics >= plain;
}
