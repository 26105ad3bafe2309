#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>

int fa_fail(struct fa_error *error, int code, const char *format, ...)
{
	va_list args;

	if (error) {
		va_start(args, format);
		(void)vsnprintf(error->text, sizeof(error->text), format, args);
		va_end(args);
	}
	return code;
}
