#include "tools/format.h"

#include <stdio.h>

/* Larger counts are rounded, so that columns stay narrow. */
#define EXACT_MAX 9999999

/* As in "1.50", "23.5" or "512". */
static void significant(double value, char text[16])
{
	snprintf(text, 16, "%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

const char *fa_format_count(long long n, char text[FA_FORMAT_BYTES])
{
	static const char units[] = "kMGTPE";
	double value = (double)n;
	unsigned int unit = 0;
	char digits[16];

	if (n <= EXACT_MAX) {
		snprintf(text, FA_FORMAT_BYTES, "%lld", n);
		return text;
	}
	for (value /= 1000; value >= 999.5; value /= 1000)
		unit++;
	significant(value, digits);
	snprintf(text, FA_FORMAT_BYTES, "%s%c", digits, units[unit]);
	return text;
}

const char *fa_format_bytes(long long n, char text[FA_FORMAT_BYTES])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)n;
	unsigned int unit = 0;
	char digits[16];

	while (value >= 1023.5 && unit < 6) {
		value /= 1024;
		unit++;
	}
	if (unit)
		significant(value, digits);
	else
		snprintf(digits, sizeof(digits), "%lld", n);
	snprintf(text, FA_FORMAT_BYTES, "%s %s", digits, units[unit]);
	return text;
}

const char *fa_format_duration(long long ns, char text[FA_FORMAT_BYTES])
{
	static const char *const units[] = { "us", "ms", "s" };
	const long long s = ns / 1000000000;
	double value = (double)ns / 1000;
	unsigned int unit = 0;
	char digits[16];

	if (s >= 86400) {
		snprintf(text, FA_FORMAT_BYTES, "%lld d %lld h", s / 86400, s / 3600 % 24);
	} else if (s >= 3600) {
		snprintf(text, FA_FORMAT_BYTES, "%lld h %lld min", s / 3600, s / 60 % 60);
	} else if (s >= 60) {
		snprintf(text, FA_FORMAT_BYTES, "%lld min %lld s", s / 60, s % 60);
	} else {
		for (; value >= 999.5 && unit < 2; value /= 1000)
			unit++;
		significant(value, digits);
		snprintf(text, FA_FORMAT_BYTES, "%s %s", ns ? digits : "0", units[ns ? unit : 2]);
	}
	return text;
}
