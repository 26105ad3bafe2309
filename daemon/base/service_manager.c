/* What both implementations share. */
#include "daemon/base/service_manager.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define TEXT_BYTES 4096

int fa_manager_notifyf(const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(text))
		return -EMSGSIZE;
	return fa_manager_notify(text);
}
