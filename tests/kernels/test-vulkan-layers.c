/*
 * Shows that the validation layers see what the other tests of Vulkan would do wrong: a process that opens
 * the backend and makes a planted mistake dies of it, and one without the mistake does not.
 */
#include "daemon/backend/vulkan/device.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void on_notify(void *userdata)
{
}

/* Exits with 0, or 77 where there is no device. */
static void child(bool mistake)
{
	const struct fa_device_config config = { .notify = on_notify };
	/* A buffer cannot be empty. */
	const VkBufferCreateInfo info = {
		.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
		.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT,
		.size = mistake ? 0 : 256,
	};
	struct fa_device *device;
	VkBuffer buffer = VK_NULL_HANDLE;
	struct fa_error error;

	if (fa_device_vulkan.open(&config, &error, &device) < 0) {
		printf("skipped: %s\n", error.text);
		(void)fflush(stdout);
		_exit(77);
	}
	(void)device->driver.CreateBuffer(device->device, &info, NULL, &buffer);
	device->driver.DestroyBuffer(device->device, buffer, NULL);
	fa_device_vulkan.close(device);
	_exit(0);
}

static int run(bool mistake)
{
	const struct rlimit none = { 0, 0 };
	int status;
	pid_t pid;

	(void)fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)setrlimit(RLIMIT_CORE, &none);
		child(mistake);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void test_planted_mistake(void **state)
{
	int status = run(false);

	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
	status = run(true);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGTRAP)
		fail_msg("the mistake went unseen (status %#x); expected the layers that Debian "
		         "has in "
		         "vulkan-validationlayers",
		         (unsigned int)status);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_planted_mistake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
