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
 * A descriptor of the same memory by which it cannot be written, whatever the one who gets
 * it may do, unless it is of this process's user. Unlike a memfd that is sealed against
 * writing it can be emptied by its owner (fa_memfd_give_back()).
 */
int fa_memfd_reopen_read_only(int fd, int *ret_fd);

/*
 * Gives the pages of a shared mapping of a memfd back, whoever else maps it; they are zeros
 * from then on, and those that somebody looks at again are new ones, of his.
 */
void fa_memfd_give_back(void *memory, uint64_t bytes);

/*
 * Tells whether @fd can be mapped safely for [offset, offset + bytes): a memfd
 * (or shmem file) that carries F_SEAL_SHRINK, is not backed by huge pages and
 * is long enough. Returns 0 and the file's size and seals, or a negative errno
 * with a sentence: -EINVAL not a memfd, unsealed, too short or offset not
 * page-aligned; -ENOTSUP hugetlb.
 */
int fa_memfd_check(int fd, uint64_t offset, uint64_t bytes, struct fa_error *error,
                   uint64_t *ret_size, int *ret_seals);
