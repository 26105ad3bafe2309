#include "tools/histogram.h"

void fa_histogram_read(const json_t *list, struct fa_histogram *ret_histogram)
{
	for (size_t i = 0; i < FA_HISTOGRAM_BUCKETS; ++i)
		ret_histogram->n[i] = (uint64_t)json_integer_value(json_array_get(list, i));
}

void fa_histogram_subtract(struct fa_histogram *histogram, const struct fa_histogram *before)
{
	for (size_t i = 0; i < FA_HISTOGRAM_BUCKETS; ++i)
		if (histogram->n[i] >= before->n[i])
			histogram->n[i] -= before->n[i];
}

static uint64_t count(const struct fa_histogram *histogram)
{
	uint64_t n = 0;

	for (size_t i = 0; i < FA_HISTOGRAM_BUCKETS; ++i)
		n += histogram->n[i];
	return n;
}

uint64_t fa_histogram_quantile(const struct fa_histogram *histogram, double share)
{
	const double wanted = share * (double)count(histogram);
	double below = 0;

	for (size_t i = 0; i < FA_HISTOGRAM_BUCKETS; ++i) {
		const double in = (double)histogram->n[i];
		const uint64_t most = (uint64_t)1 << (FA_HISTOGRAM_LOG2_MIN + i);
		const uint64_t least = i ? most / 2 : 0;

		if (in > 0 && below + in >= wanted)
			return least + (uint64_t)((double)(most - least) * (wanted - below) / in);
		below += in;
	}
	return 0;
}
