#include "tests/cuda-driver/driver.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct fa_fake_process fa_fake = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
};

/* A forked child cannot use the parent's contexts. */
static void after_fork(void)
{
	const bool initialised = fa_fake.initialised || fa_fake.forked;
	const size_t page_bytes = sizeof(*fa_fake.page);

	if (fa_fake.page)
		munmap(fa_fake.page, page_bytes);
	fa_fake_memory_close_all();
	memset(&fa_fake, 0, sizeof(fa_fake));
	pthread_mutex_init(&fa_fake.lock, NULL);
	pthread_cond_init(&fa_fake.changed, NULL);
	fa_fake.forked = initialised;
}

__attribute__((constructor)) static void prepare(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

static long number(const char *variable, long otherwise)
{
	const char *text = getenv(variable);

	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static struct fa_test_cuda_page *page_new(void)
{
	struct fa_test_cuda_page *page;
	const char *dir = getenv("FAD_TEST_CUDA_DIR");
	char path[sizeof(fa_fake.dir) + 32];

	if (dir && *dir) {
		snprintf(fa_fake.dir, sizeof(fa_fake.dir), "%s", dir);
		snprintf(path, sizeof(path), "%s/process-%d", fa_fake.dir, getpid());
		unlink(path); /* an earlier process with this PID may have left it */
		page = fa_test_cuda_page_map(path, true);
		if (!page) {
			fprintf(stderr, "tests' CUDA driver: %s: %s\n", path, strerror(errno));
			abort();
		}
	} else {
		page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
		            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (page == MAP_FAILED)
			abort();
	}
	page->pid = getpid();
	page->started = fa_test_cuda_started(page->pid);
	return page;
}

/* Reads the faults for new processes; "": there are none. */
static void read_faults(char *ret_text, int size)
{
	const char *fail = getenv("FAD_TEST_CUDA_FAIL");
	char path[sizeof(fa_fake.dir) + 32];
	FILE *file = NULL;

	snprintf(ret_text, (size_t)size, "%s", fail ? fail : "");
	if (fa_fake.dir[0]) {
		snprintf(path, sizeof(path), "%s/fail", fa_fake.dir);
		file = fopen(path, "re");
	}
	if (!file)
		return;
	if (!fgets(ret_text, size, file))
		ret_text[0] = '\0';
	(void)fclose(file);
}

/* Sets up the driver in the process's first call. Called with the lock held. */
static void begin(void)
{
	struct fa_test_cuda_page *page = page_new();
	char fail[512];

	fa_fake.n_devices = (int)number("FAD_TEST_CUDA_DEVICES", 1);
	if (fa_fake.n_devices > FA_FAKE_DEVICES_MAX)
		fa_fake.n_devices = FA_FAKE_DEVICES_MAX;
	fa_fake.version = (int)number("FAD_TEST_CUDA_VERSION", 13000);
	fa_fake.memory_bytes = (size_t)number("FAD_TEST_CUDA_MEMORY_MIB", 16384) << 20;
	fa_fake.flops_max = 1e9 * (double)number("FAD_TEST_CUDA_GFLOP", 0);
	for (int i = 0; i < FA_FAKE_DEVICES_MAX; ++i)
		fa_fake.contexts[i].device = i;
	atomic_store(&page->kernel_us, (uint32_t)number("FAD_TEST_CUDA_KERNEL_US", 0));
	read_faults(fail, sizeof(fail));
	if (fail[0] && fa_test_cuda_page_fail(page, fail) < 0) {
		fprintf(stderr, "tests' CUDA driver: the faults \"%s\" say nothing\n", fail);
		abort();
	}
	__atomic_store_n(&page->magic, FA_TEST_CUDA_PAGE_MAGIC, __ATOMIC_RELEASE);
	__atomic_store_n(&fa_fake.page, page, __ATOMIC_RELEASE);
}

static struct fa_test_cuda_page *page_get(void)
{
	struct fa_test_cuda_page *page = __atomic_load_n(&fa_fake.page, __ATOMIC_ACQUIRE);

	if (page)
		return page;
	fa_fake_lock();
	if (!fa_fake.page)
		begin();
	page = fa_fake.page;
	fa_fake_unlock();
	return page;
}

/* Counts a call. Returns the code of the rule that applies to it; the caller then calls
 * count_failed(). */
static CUresult count_call(enum fa_test_cuda_call call, bool *ret_failed)
{
	struct fa_test_cuda_page *page = page_get();
	const uint64_t n = atomic_fetch_add(&page->calls[call], 1) + 1;
	uint64_t n_any = 0;

	*ret_failed = false;
	if (call != FA_TEST_CUDA_kernel)
		n_any = atomic_fetch_add(&page->calls[FA_TEST_CUDA_any], 1) + 1;
	for (size_t i = 0; i < FA_TEST_CUDA_RULES; ++i) {
		const struct fa_test_cuda_rule *rule = &page->rules[i];
		uint64_t at;

		if (atomic_load(&rule->state) != 2)
			continue;
		if (rule->call == call)
			at = n;
		else if (rule->call == FA_TEST_CUDA_any && n_any)
			at = n_any;
		else
			continue;
		if (rule->at && rule->at != at)
			continue;
		*ret_failed = true;
		return rule->code;
	}
	return CUDA_SUCCESS;
}

/* Counts an injected fault. Called after the fault's effects, such as a lost context. */
static void count_failed(enum fa_test_cuda_call call, bool failed)
{
	if (!failed)
		return;
	atomic_store(&fa_fake.page->failed_at, call);
	atomic_fetch_add(&fa_fake.page->failed, 1);
}

CUresult fa_fake_enter(enum fa_test_cuda_call call, unsigned int needs)
{
	bool failed;
	CUresult result = count_call(call, &failed), lost = CUDA_SUCCESS;
	struct fa_fake_context *current;

	if ((int)result == FA_TEST_CUDA_HANG) {
		count_failed(call, failed);
		for (;;)
			(void)pause();
	}
	if (needs & FA_FAKE_INIT) {
		fa_fake_lock();
		if (!fa_fake.initialised) {
			fa_fake_unlock();
			count_failed(call, failed);
			return result ? result : CUDA_ERROR_NOT_INITIALIZED;
		}
		current = fa_fake_current();
		if (current)
			lost = current->lost;
		else if (!(needs & FA_FAKE_CURRENT))
			for (int i = 0; i < fa_fake.n_devices && !lost; ++i)
				lost = fa_fake.contexts[i].lost;
		if (needs & (FA_FAKE_ALIVE | FA_FAKE_REPORTS_LOSS) && fa_fake_is_sticky(result))
			fa_fake_lose(current ? current : &fa_fake.contexts[0], result);
		fa_fake_unlock();
		if (result == CUDA_SUCCESS && needs & FA_FAKE_CURRENT && !current)
			result = CUDA_ERROR_INVALID_CONTEXT;
		if (result == CUDA_SUCCESS && needs & FA_FAKE_ALIVE)
			result = lost;
	}
	count_failed(call, failed);
	return result;
}

CUresult fa_fake_enter_kernel(void)
{
	bool failed;
	CUresult result = count_call(FA_TEST_CUDA_kernel, &failed);

	count_failed(FA_TEST_CUDA_kernel, failed);
	return result;
}

void fa_fake_count(enum fa_test_cuda_live what, int64_t change)
{
	atomic_fetch_add(&fa_fake.page->live[what], change);
}

CUresult fa_fake_misuse(CUresult result, const char *format, ...)
{
	char text[256];
	va_list list;

	atomic_fetch_add(&fa_fake.page->misuses, 1);
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	fprintf(stderr, "tests' CUDA driver: %s\n", text);
	return result;
}

void fa_fake_lock(void)
{
	pthread_mutex_lock(&fa_fake.lock);
}

void fa_fake_unlock(void)
{
	pthread_mutex_unlock(&fa_fake.lock);
}

/* ---- functions by name */

struct function {
	const char *name;
	void (*address)(void);
};

static const struct function functions[] = {
#define FUNCTION(name, params) { #name, (void (*)(void))name },
	FA_CUDRIVER_CLIENT(FUNCTION) FA_CUDRIVER_REST(FUNCTION)
#undef FUNCTION
};

FA_FAKE_API CUresult cuGetProcAddress_v2(const char *symbol, void **ret_function, int version,
                                         uint64_t flags, int *ret_status);

CUresult cuGetProcAddress_v2(const char *symbol, void **ret_function, int version, uint64_t flags,
                             int *ret_status)
{
	const char *lacks = getenv("FAD_TEST_CUDA_LACKS");
	int status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */

	*ret_function = NULL;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); ++i) {
		if (strcmp(functions[i].name, symbol) || (lacks && !strcmp(lacks, symbol)))
			continue;
		if (version > number("FAD_TEST_CUDA_VERSION", 13000)) {
			status = 2; /* CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT */
			break;
		}
		memcpy(ret_function, &functions[i].address, sizeof(*ret_function));
		status = 0;
	}
	if (ret_status)
		*ret_status = status;
	return status ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
