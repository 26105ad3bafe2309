/*
 * The CUDA backend's tuning from the environment (FAD_TUNE_*), for tests and benchmarks. Programs
 * that link this file get it in place of daemon/backend/cuda/tuning.c, which the library has.
 */
#include "daemon/backend/cuda/tuning.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int read_number(const char *name, struct fa_error *error, uint64_t *number)
{
	const char *text = getenv(name);
	char *end;

	if (!text)
		return 0;
	errno = 0;
	*number = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno)
		return fa_fail(error, -EINVAL, "%s is \"%.40s\"; expected a number", name, text);
	return 0;
}

static int read_staging(struct fa_error *error, enum fa_cuda_staging_mode *mode)
{
	static const char *const modes[] = {
		[FA_CUDA_STAGE_AUTO] = "auto",
		[FA_CUDA_STAGE_ALWAYS] = "always",
		[FA_CUDA_STAGE_NEVER] = "never",
	};
	const char *text = getenv("FAD_TUNE_STAGING");

	for (unsigned int i = 0; text && i < sizeof(modes) / sizeof(*modes); ++i)
		if (strcmp(text, modes[i]) == 0) {
			*mode = (enum fa_cuda_staging_mode)i;
			return 0;
		}
	return text ? fa_fail(error, -EINVAL,
	                      "FAD_TUNE_STAGING is \"%.40s\"; expected auto, always or never", text)
	            : 0;
}

int fa_cuda_tuning_load(struct fa_error *error, struct fa_cuda_tuning *ret_tuning)
{
	struct fa_cuda_tuning tuning = fa_cuda_tuning_default();
	uint64_t share_early = 0;
	const struct {
		const char *name;
		uint64_t *number;
	} numbers[] = {
		{ "FAD_TUNE_PIN_PART_BYTES", &tuning.pin_part_bytes },
		{ "FAD_TUNE_PIN_PAUSE_NS", &tuning.pin_pause_ns },
		{ "FAD_TUNE_PREEMPT_WORK_NS", &tuning.preempt_work_ns },
		{ "FAD_TUNE_PREEMPT_RUN_NS", &tuning.preempt_run_ns },
		{ "FAD_TUNE_PREEMPT_STOP_NS", &tuning.preempt_stop_ns },
		{ "FAD_TUNE_LONG_NS", &tuning.long_ns },
		{ "FAD_TUNE_SHARE_EARLY", &share_early },
	};
	int r;

	r = read_staging(error, &tuning.staging);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers) && r == 0; ++i)
		r = read_number(numbers[i].name, error, numbers[i].number);
	if (r < 0)
		return r;
	if (!tuning.pin_part_bytes || tuning.pin_part_bytes % (1 << 20))
		return fa_fail(error, -EINVAL,
		               "FAD_TUNE_PIN_PART_BYTES is %" PRIu64 "; expected a multiple of %d",
		               tuning.pin_part_bytes, 1 << 20);
	tuning.share_early = share_early > 0;
	*ret_tuning = tuning;
	return 0;
}
