/*
 * Accesses to memory that a ring's ends share. A test replaces this header to try all interleavings
 * of two threads (tests/unit/model).
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t fa_memory_load64(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static inline void fa_memory_store64(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static inline uint32_t fa_memory_load32(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static inline void fa_memory_store32(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static inline uint32_t fa_memory_exchange32(_Atomic uint32_t *word, uint32_t value)
{
	return atomic_exchange(word, value);
}

/* Accesses to head and tail order these copies of messages. */
static inline void fa_memory_write(void *shared, const void *from, size_t bytes)
{
	memcpy(shared, from, bytes);
}

static inline void fa_memory_read(void *to, const void *shared, size_t bytes)
{
	memcpy(to, shared, bytes);
}
