/* Many tensors that are written, compared with one another: exact on small ones, and in bounded
 * time on the worst. */
#include "common/clock.h"
#include "daemon/memory/overlap.h"
#include "tests/lib/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SPACE 4096

static struct fa_test_random dice = { .state = 7 };

static uint32_t below(uint32_t n)
{
	return (uint32_t)fa_test_random_below(&dice, n);
}

static struct fa_wire_view view(uint64_t offset, const int64_t *shape, const int64_t *strides)
{
	struct fa_wire_view v = { .offset = offset, .dtype = FA_WIRE_DTYPE_F32, .rank = 4 };

	memcpy(v.shape, shape, sizeof(v.shape));
	memcpy(v.strides, strides, sizeof(v.strides));
	return v;
}

/* Whether two views have an element in common: counts each element of the space. */
static bool share(const struct fa_wire_view *views, size_t n)
{
	static unsigned char used[SPACE];
	bool shared = false;

	memset(used, 0, sizeof(used));
	for (size_t i = 0; i < n; ++i) {
		const struct fa_wire_view *v = &views[i];

		for (int64_t a = 0; a < v->shape[0]; ++a)
			for (int64_t b = 0; b < v->shape[1]; ++b)
				for (int64_t c = 0; c < v->shape[2]; ++c)
					for (int64_t d = 0; d < v->shape[3]; ++d) {
						const int64_t at = (int64_t)v->offset / 4 +
						                   a * v->strides[0] +
						                   b * v->strides[1] +
						                   c * v->strides[2] + d;

						fa_check(at < SPACE);
						shared |= used[at % SPACE]++ != 0;
					}
	}
	return shared;
}

/* Tensors as engines have them: behind one another, K and V in turn, by page, token or head. */
static void test_exact(void **state)
{
	uint32_t n_shared = 0, n = 0;

	for (int round = 0; round < 4000; ++round) {
		const int64_t pages = 1 + below(4), tokens = 1 + below(4), heads = 1 + below(3);
		const int64_t dim = 1 + below(4), n_views = 2 + below(6);
		const int64_t shape[] = { pages, tokens, heads, dim };
		const int64_t page = tokens * heads * dim, turns = 1 + below(3);
		const int64_t strides[] = { turns * page, heads * dim, dim, 1 };
		const int64_t by_head[] = { turns * page, dim, tokens * dim, 1 };
		const int64_t by_token[] = { turns * page, turns * heads * dim, dim, 1 };
		struct fa_device_memory memory = { .address = &dice, .bytes = SPACE * 4 };
		struct fa_wire_view views[8];
		struct fa_tensor_use uses[8];
		size_t a = 0, b = 0;
		bool shared;

		for (int64_t i = 0; i < n_views; ++i) {
			const int64_t at = turns > 1 ? i / turns * turns * pages * page +
			                                       i % turns *
			                                               (round % 3 == 2 ? heads * dim
			                                                               : page)
			                             : i * pages * page;

			views[i] = view((uint64_t)(below(12) ? at : below(64)) * 4, shape,
			                round % 3 == 2   ? by_token
			                : round % 3 == 1 ? by_head
			                                 : strides);
			uses[i] = (struct fa_tensor_use){
				.name = "k", .view = &views[i], .memory = &memory, .written = true
			};
		}
		shared = share(views, (size_t)n_views);
		n_shared += shared;
		++n;
		fa_check_eq(fa_tensor_outputs_overlap(uses, (size_t)n_views, &a, &b), shared);
		if (!shared)
			continue;
		views[0] = views[a];
		views[1] = views[b];
		fa_check(a != b);
		fa_check(share(views, 2));
	}
	fa_check(n_shared > n / 10 && n_shared < n - n / 10);
}

/* Two buffers of one file, and two of other files or devices at the same offsets. */
static void test_files(void **state)
{
	const int64_t shape[] = { 2, 2, 2, 2 }, strides[] = { 8, 4, 2, 1 };
	struct fa_device_memory memories[2] = {
		{ .address = memories, .bytes = 4096, .inode = 5, .file_system = 1 },
		{ .address = memories + 1,
		  .bytes = 4096,
		  .inode = 5,
		  .file_system = 1,
		  .file_offset = 64 },
	};
	const struct fa_wire_view views[] = { view(64, shape, strides), view(0, shape, strides) };
	const struct fa_tensor_use uses[] = {
		{ .name = "k", .view = &views[0], .memory = &memories[0] },
		{ .name = "v", .view = &views[1], .memory = &memories[1] },
	};
	size_t a, b;

	fa_check(fa_tensor_outputs_overlap(uses, 2, &a, &b));
	memories[1].file_offset = 128;
	fa_check(!fa_tensor_outputs_overlap(uses, 2, &a, &b));
	memories[1].file_offset = 64;
	memories[1].file_system = 2;
	fa_check(!fa_tensor_outputs_overlap(uses, 2, &a, &b));
	memories[0].inode = memories[1].inode = 0;
	memories[1].address = (char *)memories[0].address + 64;
	fa_check(fa_tensor_outputs_overlap(uses, 2, &a, &b));
}

/* As many as there can be, each within all others: the answer comes at once. */
static void test_bounded(void **state)
{
	static struct fa_wire_view views[FA_TENSOR_OUTPUTS_MAX];
	static struct fa_tensor_use uses[FA_TENSOR_OUTPUTS_MAX];
	struct fa_device_memory memory = { .address = &dice, .bytes = UINT64_MAX / 2 };
	uint64_t worst_ns = 0;
	size_t a, b;

	for (int round = 0; round < 6; ++round) {
		uint64_t begin_ns;

		for (uint32_t i = 0; i < FA_TENSOR_OUTPUTS_MAX; ++i) {
			const int64_t shape[] = { 1000, 1000, 1000, 1 };
			const int64_t unlike[] = { 1000003 + (round % 2 ? i : 0), 2000029 + i % 7,
				                   3000017, 1 };
			const int64_t alike[] = { 4096ll * 2048, 2048, 2, 1 };

			views[i] = view(i * (round < 4 ? 4ull : 8192ull * 1024), shape,
			                round < 4 ? unlike : alike);
			uses[i] = (struct fa_tensor_use){ .name = "k",
				                          .view = &views[i],
				                          .memory = &memory };
		}
		begin_ns = fa_now_ns();
		(void)fa_tensor_outputs_overlap(uses, FA_TENSOR_OUTPUTS_MAX, &a, &b);
		begin_ns = fa_now_ns() - begin_ns;
		worst_ns = begin_ns > worst_ns ? begin_ns : worst_ns;
		/* Generous, for machines under load. */
		fa_check(begin_ns < 500 * FA_NS_PER_MS);
	}
	printf("at most %llu us\n", (unsigned long long)worst_ns / 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
