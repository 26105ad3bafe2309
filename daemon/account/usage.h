/* Counters of a session or tenant. Loop thread only. */
#pragma once

#include <stdint.h>

/* Bucket i ends at 2^(10 + i) ns; the last has no end. */
#define FA_USAGE_LATENCY_BUCKETS 25
#define FA_USAGE_LATENCY_LOG2_MIN 10

/* Counts clients' requests that ran on the device. */
struct fa_usage_times {
	uint64_t sum_ns;
	uint64_t n[FA_USAGE_LATENCY_BUCKETS];
};

/* All fields are of uint64_t: fa_usage_add() adds them as an array. */
struct fa_usage {
	uint64_t finished;            /* with any result */
	uint64_t cancelled;           /* with -ECANCELED */
	uint64_t failed;              /* with another error */
	uint64_t busy_ns;             /* on the device, with steps' internal requests */
	struct fa_usage_times took;   /* reception to end */
	struct fa_usage_times waited; /* reception to start on the device */

	/* Tenants only: from the start on the device to the end. */
	struct fa_usage_times ran;
	/* Tenants only, of SequenceAttach and PrefixFind. */
	uint64_t prefix_lookups, prefix_hits; /* a hit: at least one token matches */
	uint64_t prefix_tokens, prefix_matched;
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

static inline void fa_usage_times_add(struct fa_usage_times *times, uint64_t ns)
{
	times->sum_ns += ns;
	++times->n[fa_usage_latency_bucket(ns)];
}

static inline void fa_usage_add(struct fa_usage *to, const struct fa_usage *from)
{
	for (unsigned int i = 0; i < sizeof(*to) / sizeof(uint64_t); ++i)
		((uint64_t *)to)[i] += ((const uint64_t *)from)[i];
}
