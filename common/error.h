/* An error's text: what was wrong and what was expected. */
#pragma once

#define FA_ERROR_TEXT_BYTES 256

struct fa_error {
	char text[FA_ERROR_TEXT_BYTES];
};

/* Formats the text, cut to fit, and returns @code. @error may be NULL. */
int fa_fail(struct fa_error *error, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
