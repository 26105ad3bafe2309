#include "daemon/base/log.h"

#include "common/clock.h"
#include "common/text.h"
#include "daemon/base/service_manager.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define CLIENT_LINES_BURST 100
#define CLIENT_LINES_PER_SECOND 5

static struct {
	enum fa_log_target target;
	enum fa_log_level level;
	bool prefix; /* for the journal, which reads stderr: the level as "<6>" */
	bool time;   /* nothing else adds the time */
	uint64_t credit_ns;
	uint64_t refilled_ns;
	uint64_t n_suppressed;
} logger = { .target = FA_LOG_STDERR, .level = FA_LOG_INFO };

static const char *level_name(enum fa_log_level level)
{
	switch (level) {
	case FA_LOG_ERROR:
		return "error: ";
	case FA_LOG_WARNING:
		return "warning: ";
	case FA_LOG_DEBUG:
		return "debug: ";
	default:
		return "";
	}
}

/* True if stderr is the stream of JOURNAL_STREAM, which systemd connected; it may have been
 * redirected since. */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat status;
	int end = 0;

	return stream && sscanf(stream, "%llu:%llu%n", &device, &inode, &end) == 2 &&
	       !stream[end] && fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device &&
	       status.st_ino == inode;
}

enum fa_log_target fa_log_resolve(enum fa_log_target target)
{
	if (target != FA_LOG_AUTO)
		return target;
	return stderr_is_journal() ? FA_LOG_JOURNAL : FA_LOG_STDERR;
}

void fa_log_set(enum fa_log_target target, enum fa_log_level level)
{
	logger.target = fa_log_resolve(target);
	logger.level = level;
	logger.prefix = stderr_is_journal();
	logger.time = !logger.prefix;
}

/* Writes the level for the journal, or a time like "2026-01-31T23:59:59.999Z ". */
static void format_prefix(enum fa_log_level level, char ret_prefix[48])
{
	struct timespec now;
	struct tm utc;
	size_t n;

	*ret_prefix = '\0';
	if (logger.prefix)
		snprintf(ret_prefix, 48, "<%d>", (int)level);
	if (!logger.time || clock_gettime(CLOCK_REALTIME, &now) < 0 || !gmtime_r(&now.tv_sec, &utc))
		return;
	n = strftime(ret_prefix, 48, "%FT%T", &utc);
	snprintf(ret_prefix + n, 48 - n, ".%03ldZ ", now.tv_nsec / (long)FA_NS_PER_MS);
}

static int write_journal(const struct fa_log_subject *subject, enum fa_log_level level,
                         const char *text, const char *tenant)
{
	char message[LINE_BYTES + 16], priority[16], session[40], pid[32];
	char tenant_field[LINE_BYTES + 16];
	const char *const fields[] = { message, priority, session, pid, tenant_field };

	snprintf(message, sizeof(message), "MESSAGE=%s", text);
	snprintf(priority, sizeof(priority), "PRIORITY=%d", (int)level);
	if (!subject)
		return fa_manager_journal(fields, 2);
	snprintf(session, sizeof(session), "FAD_SESSION=%" PRIu64, subject->session);
	snprintf(pid, sizeof(pid), "FAD_CLIENT_PID=%d", (int)subject->pid);
	snprintf(tenant_field, sizeof(tenant_field), "FAD_TENANT=%s", tenant);
	return fa_manager_journal(fields, 5);
}

static void write_line(const struct fa_log_subject *subject, enum fa_log_level level,
                       const char *text)
{
	char tenant[LINE_BYTES] = "", line[3 * LINE_BYTES], prefix[48];
	int n;

	if (subject)
		snprintf(tenant, sizeof(tenant), "%u%s%s", (unsigned int)subject->uid,
		         subject->cgroup && *subject->cgroup ? ":" : "",
		         subject->cgroup ? subject->cgroup : "");

	if (logger.target == FA_LOG_JOURNAL && write_journal(subject, level, text, tenant) >= 0)
		return;

	format_prefix(level, prefix);
	if (subject)
		n = snprintf(line, sizeof(line),
		             "%sfad: %s%s [session %" PRIu64 " pid %d tenant %s]\n", prefix,
		             level_name(level), text, subject->session, (int)subject->pid, tenant);
	else
		n = snprintf(line, sizeof(line), "%sfad: %s%s\n", prefix, level_name(level), text);
	if (n >= (int)sizeof(line))
		n = sizeof(line) - 1;
	/* One write keeps lines of several processes apart. */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

__attribute__((format(printf, 3, 0))) static void write_format(const struct fa_log_subject *subject,
                                                               enum fa_log_level level,
                                                               const char *format, va_list args)
{
	char raw[LINE_BYTES], text[LINE_BYTES];

	(void)vsnprintf(raw, sizeof(raw), format, args);
	fa_text_clean(raw, strlen(raw), text, sizeof(text));
	write_line(subject, level, text);
}

void fa_log(enum fa_log_level level, const char *format, ...)
{
	va_list args;

	if (level > logger.level)
		return;
	va_start(args, format);
	write_format(NULL, level, format, args);
	va_end(args);
}

static bool rate_limit_allows(void)
{
	const uint64_t cost = FA_NS_PER_SEC / CLIENT_LINES_PER_SECOND;
	uint64_t now = fa_now_ns();

	logger.credit_ns += logger.refilled_ns ? now - logger.refilled_ns
	                                       : CLIENT_LINES_BURST * cost;
	if (logger.credit_ns > CLIENT_LINES_BURST * cost)
		logger.credit_ns = CLIENT_LINES_BURST * cost;
	logger.refilled_ns = now;
	if (logger.credit_ns < cost) {
		++logger.n_suppressed;
		return false;
	}
	logger.credit_ns -= cost;
	return true;
}

void fa_log_about(const struct fa_log_subject *subject, enum fa_log_level level, const char *format,
                  ...)
{
	va_list args;

	if (level > logger.level)
		return;
	if (logger.level < FA_LOG_DEBUG && !rate_limit_allows())
		return;
	if (logger.n_suppressed) {
		fa_log(FA_LOG_WARNING, "%" PRIu64 " lines about clients were suppressed",
		       logger.n_suppressed);
		logger.n_suppressed = 0;
	}
	va_start(args, format);
	write_format(subject, level, format, args);
	va_end(args);
}
