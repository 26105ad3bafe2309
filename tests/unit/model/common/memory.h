/*
 * Replaces common/memory.h: the same calls, performed by the model (tests/unit/model/model.h).
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

uint64_t fa_memory_load64(const _Atomic uint64_t *word);
void fa_memory_store64(_Atomic uint64_t *word, uint64_t value);
uint32_t fa_memory_load32(const _Atomic uint32_t *word);
void fa_memory_store32(_Atomic uint32_t *word, uint32_t value);
uint32_t fa_memory_exchange32(_Atomic uint32_t *word, uint32_t value);
void fa_memory_write(void *shared, const void *from, size_t bytes);
void fa_memory_read(void *to, const void *shared, size_t bytes);
