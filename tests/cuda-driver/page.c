#include "tests/cuda-driver/page.h"

#include "common/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char *const names[] = {
#define NAME(name, params) #name,
	FA_CUDRIVER_CLIENT(NAME) FA_CUDRIVER_REST(NAME) "kernel",
	"any",
#undef NAME
};

const char *fa_test_cuda_call_name(enum fa_test_cuda_call call)
{
	return names[call];
}

static int rule_add(struct fa_test_cuda_page *page, const struct fa_test_cuda_rule *rule)
{
	for (size_t i = 0; i < FA_TEST_CUDA_RULES; ++i) {
		struct fa_test_cuda_rule *to = &page->rules[i];
		uint32_t state = 0;

		if (!atomic_compare_exchange_strong(&to->state, &state, 1))
			continue;
		to->call = rule->call;
		to->at = rule->at;
		to->code = rule->code;
		atomic_store(&to->state, 2);
		return 0;
	}
	return -ENOSPC;
}

static int rule_parse(struct fa_test_cuda_page *page, const char *text)
{
	struct fa_test_cuda_rule rule = { 0 };
	char name[64], nth[24];
	int end = 0, code_end = 0;

	if (sscanf(text, "%63[A-Za-z0-9]:%23[0-9*]=%n%d%n", name, nth, &end, &rule.code,
	           &code_end) < 2 ||
	    !end)
		return -EINVAL;
	if (!strcmp(text + end, "hang"))
		rule.code = FA_TEST_CUDA_HANG;
	else if (!code_end || text[code_end])
		return -EINVAL;
	while (rule.call < FA_TEST_CUDA_CALLS && strcmp(names[rule.call], name))
		++rule.call;
	if (rule.call == FA_TEST_CUDA_CALLS)
		return -EINVAL;
	if (strcmp(nth, "*")) {
		rule.at = strtoull(nth, NULL, 10);
		if (!rule.at)
			return -EINVAL;
		rule.at += atomic_load(&page->calls[rule.call]);
	}
	return rule_add(page, &rule);
}

int fa_test_cuda_page_fail(struct fa_test_cuda_page *page, const char *text)
{
	_fa_cleanup_(fa_freep) char *copy = strdup(text);
	char *saved = NULL;
	int r;

	if (!copy)
		return -ENOMEM;
	for (char *item = strtok_r(copy, ",", &saved); item; item = strtok_r(NULL, ",", &saved)) {
		r = rule_parse(page, item);
		if (r < 0)
			return r;
	}
	return 0;
}

uint64_t fa_test_cuda_started(int pid)
{
	unsigned long long started = 0;
	char path[40], text[1024], *at;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return 0;
	text[length] = 0;
	/* Behind "(NAME)" the line has the state, and 18 numbers before the start time. */
	at = strrchr(text, ')');
	if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
		return 0;
	at += 2;
	for (int field = 0; field < 19; ++field) {
		at = strchr(at, ' ');
		if (!at)
			return 0;
		++at;
	}
	sscanf(at, "%llu", &started);
	return started;
}

struct fa_test_cuda_page *fa_test_cuda_page_map(const char *path, bool create)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct fa_test_cuda_page *page;
	struct stat status;

	fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0666);
	if (fd < 0)
		return NULL;
	if (create && ftruncate(fd, sizeof(*page)) < 0)
		return NULL;
	/* Another process may still be creating the file. */
	if (fstat(fd, &status) < 0 || status.st_size < (off_t)sizeof(*page)) {
		errno = EAGAIN;
		return NULL;
	}
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return page == MAP_FAILED ? NULL : page;
}

/* ---- bytes of GPU memory that all processes hold together */

struct holds {
	struct {
		uint64_t id, bytes;
	} * items;
	size_t n, size;
};

static int compare(const void *a, const void *b)
{
	const uint64_t *left = a, *right = b;

	return *left < *right ? -1 : *left > *right;
}

static void collect(struct holds *holds, const struct fa_test_cuda_page *page, int device)
{
	const uint32_t end = atomic_load(&page->holds_end);

	for (size_t i = 0; i < end; ++i) {
		const struct fa_test_cuda_hold *hold = &page->holds[i];
		const uint64_t id = atomic_load(&hold->id);

		if (!id || (device >= 0 && hold->device != device))
			continue;
		if (holds->n == holds->size) {
			holds->size = holds->size * 2 + 64;
			holds->items = realloc(holds->items, holds->size * sizeof(*holds->items));
			if (!holds->items)
				abort();
		}
		holds->items[holds->n].id = id;
		holds->items[holds->n++].bytes = hold->bytes;
	}
}

uint64_t fa_test_cuda_dir_bytes(const char *dir, int device)
{
	struct holds holds = { 0 };
	struct dirent *entry;
	uint64_t bytes = 0;
	DIR *stream;

	stream = opendir(dir);
	if (!stream)
		return 0;
	while ((entry = readdir(stream))) {
		struct fa_test_cuda_page *page;
		char path[512];

		if (strncmp(entry->d_name, "process-", 8))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		page = fa_test_cuda_page_map(path, false);
		if (!page)
			continue;
		if (page->magic == FA_TEST_CUDA_PAGE_MAGIC && page->started &&
		    fa_test_cuda_started(page->pid) == page->started)
			collect(&holds, page, device);
		munmap(page, sizeof(*page));
	}
	closedir(stream);
	/* Several processes may hold the same memory, and one may hold it twice. */
	if (holds.n)
		qsort(holds.items, holds.n, sizeof(*holds.items), compare);
	for (size_t i = 0; i < holds.n; ++i)
		if (!i || holds.items[i].id != holds.items[i - 1].id)
			bytes += holds.items[i].bytes;
	free(holds.items);
	return bytes;
}
