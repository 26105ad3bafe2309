/* Shared memory that the other side cannot shrink. */
#pragma once

#include "common/error.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Makes a close-on-exec memfd of @bytes, sealed against shrinking; with @seal_all also against
 * growing and further seals. Returns 0 or a negative errno. -EFBIG: above RLIMIT_FSIZE, without
 * SIGXFSZ.
 */
int fa_memfd_new(const char *name, uint64_t bytes, int seal_all, int *ret_fd);

#define FA_MEMFD_EXPLAIN_BYTES 112

/* Explains fa_memfd_new()'s failure. Returns @ret_text. */
const char *fa_memfd_explain(int code, char *ret_text, size_t size);

/*
 * Opens the same memory read-only; other users' processes cannot make the descriptor writable.
 * Unlike with a write seal, the owner can still call fa_memfd_discard().
 */
int fa_memfd_reopen_read_only(int fd, int *ret_fd);

/*
 * Frees pages of a mapped memfd for all processes. They then read as zeros; a process that touches
 * one is charged for a new page.
 */
void fa_memfd_discard(void *memory, uint64_t bytes);

/*
 * Checks that [offset, offset + bytes) of @fd can be mapped safely: a memfd (or shmem file) with
 * F_SEAL_SHRINK, without huge pages, and long enough. Returns 0, the file's size and seals, or a
 * negative errno with its text: -EINVAL not a memfd, unsealed, too short, or offset not
 * page-aligned; -ENOTSUP hugetlb.
 */
int fa_memfd_check(int fd, uint64_t offset, uint64_t bytes, struct fa_error *error,
                   uint64_t *ret_size, int *ret_seals);
