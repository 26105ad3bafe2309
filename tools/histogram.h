/* Histograms of times in the daemon's status: entry i counts what took up to 2^(10 + i) ns. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#define FA_HISTOGRAM_BUCKETS 25
#define FA_HISTOGRAM_LOG2_MIN 10

struct fa_histogram {
	uint64_t n[FA_HISTOGRAM_BUCKETS];
};

/* Missing entries are 0. */
void fa_histogram_read(const json_t *list, struct fa_histogram *ret_histogram);

/* Subtracts what @before had counted. A counter that fell began anew. */
void fa_histogram_subtract(struct fa_histogram *histogram, const struct fa_histogram *before);

/* Estimates the time, in ns, that a part @share of all took at most, by a factor of 2; 0: there is
 * none. The last entry's has no bound. */
uint64_t fa_histogram_quantile(const struct fa_histogram *histogram, double share);
