/*
 * What a session or a tenant has had done, since it is known: counted on the loop thread as
 * requests come back from the engine, with the times that they carry anyway.
 */
#pragma once

#include <stdint.h>

/* Of a histogram by powers of two: entry 0 counts what took up to 2^10 ns, each further one up to
 * twice as much as the one before, and the last one whatever took longer: more than 8.6 s. */
#define FA_USAGE_LATENCY_BUCKETS 25
#define FA_USAGE_LATENCY_LOG2_MIN 10

struct fa_usage {
	/* Requests of the client that ended; of those, the ones with -ECANCELED, and with any
	 * other error. */
	uint64_t finished, cancelled, failed;
	/* Started to finished on the device, with what the daemon adds to steps. */
	uint64_t busy_ns;
	/* Received to finished, of those requests of the client that the device had. */
	uint64_t latency_ns;
	uint64_t latency[FA_USAGE_LATENCY_BUCKETS];
};

/* Which entry of the histogram counts it. */
static inline unsigned int fa_usage_latency_bucket(uint64_t ns)
{
	const unsigned int log2 = ns > 1 ? 64 - (unsigned int)__builtin_clzll(ns - 1) : 0;

	if (log2 <= FA_USAGE_LATENCY_LOG2_MIN)
		return 0;
	return log2 - FA_USAGE_LATENCY_LOG2_MIN < FA_USAGE_LATENCY_BUCKETS
	               ? log2 - FA_USAGE_LATENCY_LOG2_MIN
	               : FA_USAGE_LATENCY_BUCKETS - 1;
}
