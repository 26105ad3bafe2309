/*
 * The table of handles: numbers of freed ones never come back, also with many threads and after the
 * table has grown.
 */
#include "client/handle.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define THREADS 4
#define ROUNDS 400
#define LIVE 200

static void *handle_of(enum fa_handle_kind kind, void *object)
{
	void *handle = NULL;

	assert_int_equal(fa_handle_new(kind, object, &handle), 0);
	assert_non_null(handle);
	return handle;
}

static void test_kinds(void **state)
{
	int object;
	void *handle = handle_of(FA_HANDLE_BUFFER, &object), *next;

	assert_ptr_equal(fa_handle_find(FA_HANDLE_BUFFER, handle), &object);
	assert_null(fa_handle_find(FA_HANDLE_STEP, handle));
	assert_null(fa_handle_take(FA_HANDLE_CLIENT, handle));
	assert_null(fa_handle_find(FA_HANDLE_BUFFER, NULL));
	assert_null(fa_handle_find(FA_HANDLE_BUFFER, &object));
	assert_null(fa_handle_find(FA_HANDLE_TIMELINE, (void *)UINTPTR_MAX));
	/* The same entry with another serial number, and the same number in another entry */
	assert_null(fa_handle_find(FA_HANDLE_BUFFER,
	                           (void *)((uintptr_t)handle + ((uintptr_t)1 << 27))));
	assert_null(fa_handle_find(FA_HANDLE_BUFFER, (void *)((uintptr_t)handle + 8)));
	assert_ptr_equal(fa_handle_take(FA_HANDLE_BUFFER, handle), &object);
	assert_null(fa_handle_take(FA_HANDLE_BUFFER, handle));
	for (int i = 0; i < 1000; ++i) {
		next = handle_of(FA_HANDLE_BUFFER, &object);
		assert_ptr_not_equal(next, handle);
		assert_null(fa_handle_find(FA_HANDLE_BUFFER, handle));
		assert_ptr_equal(fa_handle_take(FA_HANDLE_BUFFER, next), &object);
	}
}

static void test_growth(void **state)
{
	enum {
		N = 10000
	};
	void **handles = calloc(N, sizeof(*handles));

	assert_non_null(handles);
	for (int i = 0; i < N; ++i)
		handles[i] = handle_of(FA_HANDLE_STEP, &handles[i]);
	for (int i = 0; i < N; ++i)
		assert_ptr_equal(fa_handle_find(FA_HANDLE_STEP, handles[i]), &handles[i]);
	for (int i = 0; i < N; ++i)
		assert_ptr_equal(fa_handle_take(FA_HANDLE_STEP, handles[i]), &handles[i]);
	for (int i = 0; i < N; ++i)
		assert_null(fa_handle_find(FA_HANDLE_STEP, handles[i]));
	free(handles);
}

static void *make_and_free(void *userdata)
{
	int objects[LIVE];
	void *handles[LIVE], *freed[LIVE] = { NULL };

	for (int round = 0; round < ROUNDS; ++round) {
		for (int i = 0; i < LIVE; ++i)
			if (fa_handle_new(FA_HANDLE_BUFFER, &objects[i], &handles[i]) < 0)
				return userdata;
		for (int i = 0; i < LIVE; ++i) {
			if (fa_handle_find(FA_HANDLE_BUFFER, handles[i]) != &objects[i] ||
			    fa_handle_find(FA_HANDLE_BUFFER, freed[i]) ||
			    fa_handle_take(FA_HANDLE_BUFFER, handles[i]) != &objects[i])
				return userdata;
			freed[i] = handles[i];
		}
	}
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t threads[THREADS];
	void *result;

	for (int i = 0; i < THREADS; ++i)
		assert_int_equal(pthread_create(&threads[i], NULL, make_and_free, threads), 0);
	for (int i = 0; i < THREADS; ++i) {
		pthread_join(threads[i], &result);
		assert_null(result);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_growth),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
