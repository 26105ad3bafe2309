/* Only memfds that cannot shrink are mapped, and only within bounds. */
#include "common/cleanup.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cmocka.h>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4u
#endif

/* Refused with this errno and a text with @word; outputs stay unset. */
static void check_refused(int fd, uint64_t offset, uint64_t bytes, int code, const char *word)
{
	struct fa_error error = {};
	uint64_t size = 77;
	int seals = 77;
	int r;

	r = fa_memfd_check(fd, offset, bytes, &error, &size, &seals);
	if (r != code || !strstr(error.text, word))
		fail_msg("%d \"%s\" instead of %d \"…%s…\"", r, error.text, code, word);
	assert_int_equal(size, 77);
	assert_int_equal(seals, 77);
	assert_int_equal(fa_memfd_check(fd, offset, bytes, NULL, &size, &seals), code);
}

static void check_good(int fd, uint64_t offset, uint64_t bytes, uint64_t expected_size)
{
	struct fa_error error = {};
	uint64_t size = 77;
	int seals = 0;
	int r;

	r = fa_memfd_check(fd, offset, bytes, &error, &size, &seals);
	if (r)
		fail_msg("%d \"%s\"", r, error.text);
	assert_int_equal(size, expected_size);
	assert_int_equal(seals, fcntl(fd, F_GET_SEALS));
}

static void test_new(void **state)
{
	_fa_cleanup_(fa_close_fdp) int open_fd = -1, sealed_fd = -1;
	struct stat st;

	assert_int_equal(fa_memfd_new("test", 12345, 0, &open_fd), 0);
	assert_true(fcntl(open_fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fstat(open_fd, &st), 0);
	assert_int_equal(st.st_size, 12345);
	assert_int_equal(ftruncate(open_fd, 100), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(open_fd, 20000), 0);
	assert_int_equal(fcntl(open_fd, F_ADD_SEALS, F_SEAL_GROW), 0);

	assert_int_equal(fa_memfd_new("test", 4096, 1, &sealed_fd), 0);
	assert_int_equal(ftruncate(sealed_fd, 100), -1);
	assert_int_equal(ftruncate(sealed_fd, 20000), -1);
	assert_int_equal(fcntl(sealed_fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
	assert_int_equal(errno, EPERM);
	check_good(sealed_fd, 0, 4096, 4096);
}

static void test_new_refuses(void **state)
{
	int fd = 77;

	assert_int_equal(fa_memfd_new("test", UINT64_MAX, 1, &fd), -EFBIG);
	assert_int_equal(fa_memfd_new("test", (uint64_t)INT64_MAX + 1, 1, &fd), -EFBIG);
	assert_int_equal(fd, 77);
}

static void test_bounds(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	assert_int_equal(fa_memfd_new("test", 4 * page, 1, &fd), 0);
	check_good(fd, 0, 1, 4 * page);
	check_good(fd, 0, 4 * page, 4 * page);
	check_good(fd, 3 * page, page, 4 * page);
	check_refused(fd, 0, 0, -EINVAL, "bytes is 0");
	check_refused(fd, 0, 4 * page + 1, -EINVAL, "outside the memfd");
	check_refused(fd, 3 * page, page + 1, -EINVAL, "outside the memfd");
	check_refused(fd, 4 * page, 1, -EINVAL, "outside the memfd");
	check_refused(fd, page, UINT64_MAX, -EINVAL, "outside the memfd");
	check_refused(fd, 0, UINT64_MAX, -EINVAL, "outside the memfd");
	check_refused(fd, UINT64_MAX - page + 1, page, -EINVAL, "outside the memfd");
	check_refused(fd, 1, 1, -EINVAL, "multiple of the page size");
	check_refused(fd, page - 1, 1, -EINVAL, "multiple of the page size");
	check_refused(fd, UINT64_MAX, 1, -EINVAL, "multiple of the page size");
}

static void test_unsealed(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	check_refused(fd, 0, 4096, -EINVAL, "F_SEAL_SHRINK");
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	check_refused(fd, 0, 4096, -EINVAL, "F_SEAL_SHRINK");
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	check_good(fd, 0, 4096, 4096);
}

static void test_unsealable(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = memfd_create("test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, 4096), 0);
	check_refused(fd, 0, 4096, -EINVAL, "F_SEAL_SHRINK");
}

static void test_other_files(void **state)
{
	_fa_cleanup_(fa_close_fdp) int directory = open("/", O_RDONLY | O_CLOEXEC);
	_fa_cleanup_(fa_close_fdp) int device = open("/dev/zero", O_RDWR | O_CLOEXEC);
	_fa_cleanup_(fa_close_fdp) int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	_fa_cleanup_(fa_close_fdp) int path = open("/proc/self/exe", O_PATH | O_CLOEXEC);
	int pipe_ends[2];

	assert_int_equal(pipe2(pipe_ends, O_CLOEXEC), 0);
	check_refused(pipe_ends[0], 0, 1, -EINVAL, "not a memfd");
	check_refused(pipe_ends[1], 0, 1, -EINVAL, "not a memfd");
	close(pipe_ends[0]);
	close(pipe_ends[1]);
	check_refused(directory, 0, 1, -EINVAL, "not a memfd");
	check_refused(device, 0, 1, -EINVAL, "not a memfd");
	check_refused(file, 0, 1, -EINVAL, "not a memfd");
	check_refused(path, 0, 1, -EINVAL, "not a memfd");
	check_refused(-1, 0, 1, -EINVAL, "not a memfd");
}

static void test_huge_pages(void **state)
{
	_fa_cleanup_(fa_close_fdp) int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING |
	                                                                 MFD_HUGETLB);

	if (fd < 0)
		skip(); /* the kernel lacks this feature */
	/* ftruncate() needs no reserved pages while nothing is mapped */
	assert_int_equal(ftruncate(fd, 2 << 20), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	check_refused(fd, 0, 4096, -ENOTSUP, "MFD_HUGETLB");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new),        cmocka_unit_test(test_new_refuses),
		cmocka_unit_test(test_bounds),     cmocka_unit_test(test_unsealed),
		cmocka_unit_test(test_unsealable), cmocka_unit_test(test_other_files),
		cmocka_unit_test(test_huge_pages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
