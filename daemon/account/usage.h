/* A session's or tenant's counters. Loop thread only. */
#pragma once

#include <stdint.h>

/* Bucket i ends at 2^(10 + i) ns; the last has no end. */
#define FA_USAGE_LATENCY_BUCKETS 25
#define FA_USAGE_LATENCY_LOG2_MIN 10

struct fa_usage {
	uint64_t finished;  /* requests with any result */
	uint64_t cancelled; /* requests that ended with -ECANCELED */
	uint64_t failed;    /* requests that ended with another error */
	uint64_t busy_ns;   /* time on the device, including steps' internal requests */
	/* time since reception, summed over client requests that ran on the device */
	uint64_t latency_ns;
	uint64_t latency[FA_USAGE_LATENCY_BUCKETS];
};

static inline unsigned int fa_usage_latency_bucket(uint64_t ns)
{
	const unsigned int log2 = ns > 1 ? 64 - (unsigned int)__builtin_clzll(ns - 1) : 0;

	if (log2 <= FA_USAGE_LATENCY_LOG2_MIN)
		return 0;
	return log2 - FA_USAGE_LATENCY_LOG2_MIN < FA_USAGE_LATENCY_BUCKETS
	               ? log2 - FA_USAGE_LATENCY_LOG2_MIN
	               : FA_USAGE_LATENCY_BUCKETS - 1;
}
