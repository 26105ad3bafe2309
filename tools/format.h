/* Numbers for people, with three significant digits. */
#pragma once

#include <stddef.h>

#define FA_FORMAT_BYTES 24 /* with the terminating zero */

/* These return @text. */

/* Writes @n exactly, or as "12.3M". */
const char *fa_format_count(long long n, char text[FA_FORMAT_BYTES]);

/* Writes "12.5 MiB". */
const char *fa_format_bytes(long long n, char text[FA_FORMAT_BYTES]);

/* Writes "35.1 us", "2 min 5 s" or "3 d 4 h". */
const char *fa_format_duration(long long ns, char text[FA_FORMAT_BYTES]);
