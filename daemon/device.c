/* The backends of this build, and the choice among them. */
#include "daemon/device.h"

#include <errno.h>
#include <string.h>

const struct fa_device_ops *const fa_device_backends[] = {
	&fa_device_cpu,
	NULL,
};

int fa_device_open(const char *name, const struct fa_device_config *config, struct fa_error *error,
                   const struct fa_device_ops **ret_ops, struct fa_device **ret_device)
{
	bool any = !name || strcmp(name, "auto") == 0;
	const struct fa_device_ops *const *ops;
	int r = -ENOENT;

	for (ops = fa_device_backends; *ops; ops++) {
		if (!any && strcmp(name, (*ops)->name) != 0)
			continue;
		r = (*ops)->open(config, error, ret_device);
		if (r == 0) {
			*ret_ops = *ops;
			return 0;
		}
	}
	if (r == -ENOENT && !any)
		return fa_fail(error, r, "there is no backend called \"%s\"", name);
	return r;
}
