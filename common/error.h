/* An errno and a sentence: what was wrong, and what was expected. */
#pragma once

#define FA_ERROR_TEXT_BYTES 256

struct fa_error {
	char text[FA_ERROR_TEXT_BYTES];
};

/*
 * Writes the sentence (cut to fit) and returns @code, so that a check reads
 * `return fa_fail(error, -EINVAL, "…", …);`. @error may be NULL.
 */
int fa_fail(struct fa_error *error, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
