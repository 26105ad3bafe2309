/*
 * The results: how the last requests of each stream ended, request v in record v % records. The
 * daemon writes them and never reads them; the client maps them read-only. With the completion page
 * (completion.h) they replace answers on the socket. The daemon zeroes them after it has closed the
 * connection.
 *
 * A record is reused. Its value is cleared first and written last: a reader that sees the same
 * value before and after has read a consistent record.
 */
#pragma once

#include "common/completion.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fa_record {
	_Atomic uint64_t value; /* 0: being written, or unused */
	_Atomic uint64_t queued_ns, started_ns, finished_ns;
	_Atomic int32_t status;
	uint32_t reserved0;
	_Atomic uint64_t number; /* a StepBegin's step; else 0 */
	uint64_t reserved[2];
};

_Static_assert(sizeof(struct fa_record) == 64, "one cache line");

/* A consistent copy of a record. */
struct fa_outcome {
	int32_t status;
	uint64_t queued_ns, started_ns, finished_ns;
	uint64_t number;
};

/* @records: per stream, a power of two. */
static inline uint64_t fa_results_bytes(uint32_t records)
{
	return (uint64_t)FA_COMPLETION_SLOTS * records * sizeof(struct fa_record);
}

static inline uint64_t fa_record_index(uint32_t stream, uint32_t records, uint64_t value)
{
	return (uint64_t)stream * records + (value & (records - 1));
}

static inline void fa_record_write(struct fa_record *record, uint64_t value,
                                   const struct fa_outcome *outcome)
{
	atomic_store_explicit(&record->value, 0, memory_order_relaxed);
	/* Release: who sees one of these no longer sees the old value. */
	atomic_store_explicit(&record->status, outcome->status, memory_order_release);
	atomic_store_explicit(&record->queued_ns, outcome->queued_ns, memory_order_release);
	atomic_store_explicit(&record->started_ns, outcome->started_ns, memory_order_release);
	atomic_store_explicit(&record->finished_ns, outcome->finished_ns, memory_order_release);
	atomic_store_explicit(&record->number, outcome->number, memory_order_release);
	atomic_store_explicit(&record->value, value, memory_order_release);
}

/* False: @record is not, or no longer, that of request @value. */
static inline bool fa_record_read(const struct fa_record *record, uint64_t value,
                                  struct fa_outcome *ret_outcome)
{
	struct fa_outcome outcome;

	if (atomic_load_explicit(&record->value, memory_order_acquire) != value)
		return false;
	outcome.status = atomic_load_explicit(&record->status, memory_order_acquire);
	outcome.queued_ns = atomic_load_explicit(&record->queued_ns, memory_order_acquire);
	outcome.started_ns = atomic_load_explicit(&record->started_ns, memory_order_acquire);
	outcome.finished_ns = atomic_load_explicit(&record->finished_ns, memory_order_acquire);
	outcome.number = atomic_load_explicit(&record->number, memory_order_acquire);
	if (atomic_load_explicit(&record->value, memory_order_relaxed) != value)
		return false;
	*ret_outcome = outcome;
	return true;
}
