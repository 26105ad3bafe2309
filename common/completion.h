/*
 * The completion page: a memfd of each session, mapped read-only by a client to learn without a
 * system call that requests have ended. Only the daemon writes it (it sets F_SEAL_FUTURE_WRITE once
 * mapped), and never reads it back. Slot i belongs to stream i.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FA_COMPLETION_SLOTS 64
#define FA_COMPLETION_PAGE_BYTES 4096
#define FA_COMPLETION_DEVICE_WORDS 8

/*
 * Requests of a stream finish in order. Request v is finished once completed >= v (acquire). If
 * failed < v at that time, it succeeded; otherwise the reply on the socket has its status. The
 * daemon stores failed first, then completed (release).
 *
 * The device itself may report that request v has succeeded, before there is a record: all
 * device_words are then the low half of v, which is not 0, whatever completed is. It does so only
 * after it has reported all other requests of the stream in flight, and is never obliged to. A
 * later report replaces an earlier one, perhaps before that has a record. Each word may be stored
 * by another thread of the device, so only all together count. Every 2^31 requests stale words are
 * made to differ, so that they never match a request 2^32 later.
 */
struct fa_completion_slot {
	_Atomic uint64_t completed; /* highest that finished */
	_Atomic uint64_t failed;    /* highest that failed; 0: none */
	_Atomic uint32_t device_words[FA_COMPLETION_DEVICE_WORDS];
	uint64_t reserved[2];
};

_Static_assert(sizeof(struct fa_completion_slot) == 64, "one cache line");
_Static_assert(FA_COMPLETION_SLOTS * sizeof(struct fa_completion_slot) == FA_COMPLETION_PAGE_BYTES,
               "the slots fill the page");

/* With acquire: all words say @value. */
static inline bool fa_completion_device_done(const struct fa_completion_slot *slot, uint64_t value)
{
	for (int i = 0; i < FA_COMPLETION_DEVICE_WORDS; i++)
		if (atomic_load_explicit(&slot->device_words[i], memory_order_acquire) !=
		    (uint32_t)value)
			return false;
	return (uint32_t)value != 0;
}

/* The device has reported @value or a later one (acquire). If completed is still below @value then,
 * it has reported @value, too. */
static inline bool fa_completion_device_passed(const struct fa_completion_slot *slot,
                                               uint64_t value)
{
	const uint32_t word = atomic_load_explicit(&slot->device_words[0], memory_order_acquire);

	return (int32_t)(word - (uint32_t)value) >= 0 && fa_completion_device_done(slot, word);
}

/* Stale words then match no request; nothing of the stream may be in flight. */
static inline void fa_completion_clear_device_words(struct fa_completion_slot *slot)
{
	for (uint32_t i = 0; i < FA_COMPLETION_DEVICE_WORDS; i++)
		atomic_store_explicit(&slot->device_words[i], i, memory_order_relaxed);
}
