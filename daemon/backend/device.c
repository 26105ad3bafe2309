/* Lists this build's backends and chooses one at start. Loop thread. */
#include "daemon/backend/device.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* All backends of this build, best first. */
static const struct fa_device_ops *const backends[] = {
	&fa_device_cuda,
	&fa_device_cpu,
	&fa_device_vulkan,
	NULL,
};

/* Vulkan's backend is slower than the others, and opened only by its name. */
static bool is_automatic(const struct fa_device_ops *ops)
{
	return ops != &fa_device_vulkan;
}

/* True if a GPU seems to be there though opening it failed with @r: -ENXIO may mean that access was
 * denied. */
static bool has_gpu(int r)
{
	return r != -ENXIO || access("/proc/driver/nvidia", F_OK) == 0;
}

int fa_device_open(const char *name, const struct fa_device_config *config, struct fa_error *error,
                   const struct fa_device_ops **ret_ops, struct fa_device **ret_device)
{
	bool any = !name || strcmp(name, "auto") == 0;
	struct fa_error why, passed_over = { "" };
	const struct fa_device_ops *const *ops;
	int r = -ENOENT, passed = 0;

	for (ops = backends; *ops; ops++) {
		if (!any && strcmp(name, (*ops)->name) != 0)
			continue;
		if (any && ((config->device && *ops == &fa_device_cpu) || !is_automatic(*ops)))
			continue;
		why.text[0] = 0;
		r = (*ops)->open(config, &why, ret_device);
		if (r == 0) {
			if (error)
				*error = passed_over;
			*ret_ops = *ops;
			return passed && has_gpu(passed);
		}
		passed = r;
		passed_over = why;
	}
	if (r == -ENOENT && !any)
		return fa_fail(error, r, "there is no backend called \"%s\"", name);
	if (error)
		*error = passed_over;
	return r;
}
