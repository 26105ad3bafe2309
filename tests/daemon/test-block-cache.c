/* Blocks are zeroed, and the number of free ones is bounded. */
#include "daemon/base/block_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK 200
#define MANY 500

static void check_zeros(const unsigned char *block, size_t bytes)
{
	for (size_t i = 0; i < bytes; ++i)
		assert_int_equal(block[i], 0);
}

static void test_many(void **state)
{
	static const size_t sizes[] = { 8, 100, BLOCK - 1, BLOCK, BLOCK + 1, 5000 };
	static unsigned char *blocks[MANY];
	static size_t bytes[MANY];
	struct fa_block_cache cache;
	uint32_t random = 1;

	fa_block_cache_init(&cache, BLOCK);
	for (int round = 0; round < 20000; ++round) {
		size_t i;

		random = random * 1664525 + 1013904223;
		i = (random >> 8) % MANY;
		if (blocks[i]) {
			for (size_t at = 0; at < bytes[i]; ++at)
				assert_int_equal(blocks[i][at], i % 255 + 1);
			fa_block_cache_put(&cache, blocks[i], bytes[i]);
			blocks[i] = NULL;
			continue;
		}
		bytes[i] = sizes[(random >> 20) % 6];
		blocks[i] = fa_block_cache_get(&cache, bytes[i]);
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % _Alignof(max_align_t), 0);
		check_zeros(blocks[i], bytes[i]);
		memset(blocks[i], (int)(i % 255 + 1), bytes[i]);
	}
	for (size_t i = 0; i < MANY; ++i)
		if (blocks[i])
			fa_block_cache_put(&cache, blocks[i], bytes[i]);
	assert_in_range(cache.n, 0, 100);
	fa_block_cache_deinit(&cache);
	assert_int_equal(cache.n, 0);
}

/* A cache that is all zeros stores no blocks. */
static void test_zeroed(void **state)
{
	struct fa_block_cache cache = {};
	unsigned char *block = fa_block_cache_get(&cache, BLOCK);

	assert_non_null(block);
	check_zeros(block, BLOCK);
	fa_block_cache_put(&cache, block, BLOCK);
	assert_int_equal(cache.n, 0);
	fa_block_cache_deinit(&cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_zeroed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
