#include "daemon/session/context.h"

#include "common/clock.h"
#include "daemon/base/log.h"

#include <errno.h>

#define NO_FDS_WARN_NS (10 * FA_NS_PER_SEC)

bool fa_context_device_lost(const struct fa_context *context)
{
	return context->ops->is_lost && context->ops->is_lost(context->device);
}

void fa_context_warn_no_fds(struct fa_context *context)
{
	const uint64_t now_ns = fa_now_ns();

	if (context->no_fds_warned_ns && now_ns - context->no_fds_warned_ns < NO_FDS_WARN_NS)
		return;
	context->no_fds_warned_ns = now_ns;
	fa_log(FA_LOG_WARNING, "no descriptors are left: new connections and requests that "
	                       "need some are refused");
}

int fa_context_explain_no_fds(struct fa_context *context, int code, struct fa_error *error)
{
	if (code != -EMFILE && code != -ENFILE)
		return code;
	fa_context_warn_no_fds(context);
	return fa_fail(error, -EDQUOT, FA_CONTEXT_NO_FDS);
}
