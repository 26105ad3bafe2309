/* Shared memory that cannot be pulled away from under its user. */
#pragma once

#include "common/error.h"

#include <stdint.h>

/*
 * Makes a close-on-exec memfd of @bytes, sealed against shrinking and growing
 * and against further seals if @seal_all, against shrinking only otherwise.
 * Returns 0 or a negative errno.
 */
int fa_memfd_new(const char *name, uint64_t bytes, int seal_all, int *ret_fd);

/*
 * Tells whether @fd can be mapped safely for [offset, offset + bytes): a memfd
 * (or shmem file) that carries F_SEAL_SHRINK, is not backed by huge pages and
 * is long enough. Returns 0 and the file's size and seals, or a negative errno
 * with a sentence: -EINVAL not a memfd, unsealed, too short or offset not
 * page-aligned; -ENOTSUP hugetlb.
 */
int fa_memfd_check(int fd, uint64_t offset, uint64_t bytes, struct fa_error *error,
                   uint64_t *ret_size, int *ret_seals);
