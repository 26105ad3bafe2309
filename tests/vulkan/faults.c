#include "tests/vulkan/faults.h"

#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void fa_test_vulkan_begin(struct fa_test_vulkan *vulkan)
{
	char path[64];
	int fd;

	fa_test_dir_make(vulkan->dir, sizeof(vulkan->dir));
	snprintf(path, sizeof(path), "%s/page", vulkan->dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	fa_check(fd >= 0 && !ftruncate(fd, sizeof(*vulkan->page)));
	vulkan->page = mmap(NULL, sizeof(*vulkan->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fa_check(vulkan->page != MAP_FAILED);
	close(fd);
	fa_check(!setenv("FAD_TEST_VULKAN_PAGE", path, 1));
}

void fa_test_vulkan_end(struct fa_test_vulkan *vulkan)
{
	(void)munmap(vulkan->page, sizeof(*vulkan->page));
	fa_check(!unsetenv("FAD_TEST_VULKAN_PAGE"));
	fa_test_dir_remove(vulkan->dir);
}

void fa_test_vulkan_fail(struct fa_test_vulkan *vulkan, enum fa_test_vulkan_call call,
                         uint64_t skip, uint64_t times, int32_t result)
{
	struct fa_test_vulkan_rule *rule = &vulkan->page->rules[call];

	atomic_store(&rule->times, 0);
	atomic_store(&rule->result, result);
	atomic_store(&rule->skip, skip);
	atomic_store(&rule->times, times);
}

uint64_t fa_test_vulkan_failed(const struct fa_test_vulkan *vulkan, enum fa_test_vulkan_call call)
{
	return atomic_load(&vulkan->page->rules[call].n_failed);
}
