/*
 * common/'s small headers: lists, ownership, errors, time.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/list.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct item {
	int number;
	struct fa_list link;
};

/* The list holds exactly these numbers, in both directions. */
static void check_list(struct fa_list *head, const int *numbers, size_t n)
{
	struct fa_list *pos;
	size_t i = 0;

	fa_list_for_each(pos, head) {
		assert_true(i < n);
		assert_int_equal(fa_container_of(pos, struct item, link)->number, numbers[i++]);
	}
	assert_int_equal(i, n);
	for (pos = head->prev; pos != head; pos = pos->prev)
		assert_int_equal(fa_container_of(pos, struct item, link)->number, numbers[--i]);
	assert_int_equal(i, 0);
	assert_int_equal(fa_list_empty(head), n == 0);
}

static void test_list(void **state)
{
	struct item items[4] = {
		{ .number = 0 }, { .number = 1 }, { .number = 2 }, { .number = 3 }
	};
	struct fa_list head = FA_LIST_INIT(head), other, *pos, *tmp;

	check_list(&head, NULL, 0);
	for (size_t i = 0; i < 4; ++i)
		fa_list_append(&head, &items[i].link);
	check_list(&head, (const int[]){ 0, 1, 2, 3 }, 4);

	fa_list_remove(&items[1].link);
	fa_list_remove(&items[1].link); /* removing twice is harmless */
	check_list(&head, (const int[]){ 0, 2, 3 }, 3);
	fa_list_remove(&items[0].link);
	fa_list_remove(&items[3].link);
	check_list(&head, (const int[]){ 2 }, 1);

	fa_list_init(&other);
	fa_list_splice(&head, &other); /* an empty list */
	check_list(&head, (const int[]){ 2 }, 1);
	fa_list_append(&other, &items[3].link);
	fa_list_append(&other, &items[1].link);
	fa_list_splice(&head, &other);
	check_list(&head, (const int[]){ 2, 3, 1 }, 3);
	check_list(&other, NULL, 0);
	fa_list_splice(&other, &head); /* into an empty list */
	check_list(&other, (const int[]){ 2, 3, 1 }, 3);
	check_list(&head, NULL, 0);

	fa_list_for_each_safe(pos, tmp, &other) {
		fa_list_remove(pos);
	}
	check_list(&other, NULL, 0);
}

static int n_freed;

static void count_freep(char **text)
{
	n_freed += *text != NULL;
	free(*text);
}

static char *make_text(bool fail)
{
	_fa_cleanup_(count_freep) char *text = strdup("text");

	if (fail)
		return NULL;
	return fa_steal_ptr(text);
}

static void test_ownership(void **state)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC), taken;
	struct item *item;
	char *text;

	text = make_text(false);
	assert_string_equal(text, "text");
	assert_int_equal(n_freed, 0);
	free(text);
	assert_null(make_text(true));
	assert_int_equal(n_freed, 1);

	item = fa_new(struct item);
	assert_non_null(item);
	assert_null(item->link.next);
	fa_freep(&item);

	assert_true(fd >= 0);
	taken = fa_steal_fd(&fd);
	assert_int_equal(fd, -1);
	fa_close_fdp(&fd);
	assert_true(fcntl(taken, F_GETFD) >= 0);
	fd = taken;
	fa_close_fdp(&fd);
	assert_int_equal(fd, -1);
	assert_int_equal(fcntl(taken, F_GETFD), -1);
}

static void test_error(void **state)
{
	char text[2 * FA_ERROR_TEXT_BYTES];
	struct fa_error error;

	assert_int_equal(fa_fail(&error, -EINVAL, "rank %d, expected %s", 7, "3 or 4"), -EINVAL);
	assert_string_equal(error.text, "rank 7, expected 3 or 4");
	assert_int_equal(fa_fail(NULL, -ENOMEM, "%d", 1), -ENOMEM);
	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = 0;
	assert_int_equal(fa_fail(&error, -EPROTO, "%s", text), -EPROTO);
	assert_int_equal(strlen(error.text), FA_ERROR_TEXT_BYTES - 1);
}

static void test_clock(void **state)
{
	uint64_t before = fa_now_ns(), deadline = fa_deadline_ns(FA_NS_PER_SEC);

	assert_true(before > 0);
	assert_true(deadline >= before + FA_NS_PER_SEC);
	assert_true(deadline <= fa_now_ns() + FA_NS_PER_SEC);
	assert_true(fa_deadline_ns(FA_NS_NEVER) == FA_NS_NEVER);
	assert_true(fa_deadline_ns(FA_NS_NEVER - 1) == FA_NS_NEVER);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_ownership),
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
