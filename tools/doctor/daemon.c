/* The running daemon: its status, and its process in the kernel. */
#include "tools/doctor/checks.h"
#include "tools/format.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MIN 8192
#define MPS_CONTROL "/run/fad-mps/control" /* of fad-mps.service */

static long long number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

/* ---- backend */

static void check_backend(struct fa_report *report, const json_t *status)
{
	const long long modules = number(status, "gpu_modules");
	const char *unused = string(status, "gpu_unused");

	if (*unused)
		fa_report_add(
			report, FA_REPORT_WARNING, "backend",
			"The CPU computes instead. Solve that and restart fad; with backend = "
			"cuda it would not start at all.",
			"there seems to be a GPU, which is not used: %s", unused);
	else
		fa_report_ok(report, "backend", "%s: %s, %s", string(status, "backend"),
		             string(status, "device"), string(status, "details"));
	if (modules > 0 || strcmp(string(status, "backend"), "cpu") == 0)
		fa_report_ok(report, "kernels",
		             modules ? "%lld modules for GPUs, and those for the CPU"
		                     : "for the CPU only: this fad was built without GPU kernels",
		             modules);
}

static void check_mps(struct fa_report *report, const json_t *status)
{
	const char *mps = string(status, "mps");
	json_t *session;
	unsigned int n = 0;
	size_t i;

	if (!*mps)
		return;
	json_array_foreach(json_object_get(status, "sessions"), i, session)
	{
		n += number(session, "gpu_buffers") > 0 ||
		     json_is_true(json_object_get(session, "timeline"));
	}
	if (n > 0 && strcmp(mps, "on") != 0)
		fa_report_add(report, FA_REPORT_WARNING, "MPS",
		              "Kernels of one process wait for those of others, for milliseconds: "
		              "systemctl enable --now fad-mps, and see docs/gpu.md, MPS.",
		              "%s, and %u programs use the GPU themselves", mps, n);
	else if (strcmp(mps, "off") == 0 && access(MPS_CONTROL, F_OK) == 0)
		fa_report_add(
			report, FA_REPORT_WARNING, "MPS",
			"Give fad and the programs CUDA_MPS_PIPE_DIRECTORY=/run/fad-mps (for fad "
			"in a drop-in, with Wants= and After=fad-mps.service), or stop fad-mps.",
			"fad-mps.service runs, and fad does not use it");
	else
		fa_report_ok(report, "MPS", "%s; %u programs use the GPU themselves", mps, n);
}

/* ---- the process */

/* Reads the number after @key in a file of /proc or of a cgroup; -1: none, or "max". */
static long long read_number(const char *path, const char *key)
{
	const size_t length = strlen(key);
	long long found = -1;
	char line[512], *end;
	FILE *file = fopen(path, "re");

	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, key, length) != 0)
			continue;
		found = strtoll(line + length, &end, 10);
		if (end == line + length)
			found = -1;
		break;
	}
	if (file)
		fclose(file);
	return found;
}

static bool is_daemon(long long pid)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%lld/comm", pid);
	file = fopen(path, "re");
	if (file && !fgets(name, sizeof(name), file))
		name[0] = 0;
	if (file)
		fclose(file);
	return strncmp(name, "fad", 3) == 0;
}

static void check_limits(struct fa_report *report, long long pid, bool on_gpu)
{
	char path[64];
	long long files, locked;

	snprintf(path, sizeof(path), "/proc/%lld/limits", pid);
	files = read_number(path, "Max open files");
	locked = read_number(path, "Max locked memory");
	if (files >= 0 && files < FILES_MIN)
		fa_report_add(
			report, FA_REPORT_WARNING, "limits of fad",
			"Programs share three quarters of them. Raise LimitNOFILE in a drop-in, "
			"or ulimit -Hn before fad --supervise.",
			"%lld open files", files);
	else
		fa_report_ok(report, "limits of fad", "%lld open files", files);
	if (on_gpu && locked >= 0)
		fa_report_add(
			report, FA_REPORT_WARNING, "limits of fad",
			"Memory of programs is pinned for the GPU: set LimitMEMLOCK=infinity.",
			"%lld bytes of locked memory", locked);
}

/* Looks in the unified hierarchy. */
static bool find_cgroup(long long pid, char ret_folder[PATH_MAX])
{
	char path[64], line[PATH_MAX];
	bool found = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%lld/cgroup", pid);
	file = fopen(path, "re");
	while (file && !found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		if (strncmp(line, "0::", 3) != 0)
			continue;
		found = snprintf(ret_folder, PATH_MAX, "/sys/fs/cgroup%s", line + 3) < PATH_MAX &&
		        access(ret_folder, F_OK) == 0;
	}
	if (file)
		fclose(file);
	return found;
}

static long long cgroup_number(const char *folder, const char *name, const char *key)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return read_number(path, key);
}

static void check_cgroup(struct fa_report *report, long long pid)
{
	char folder[PATH_MAX], most[FA_FORMAT_BYTES], used[FA_FORMAT_BYTES];
	long long max, current, kills;

	if (!find_cgroup(pid, folder)) {
		fa_report_ok(report, "cgroup", "not visible from here");
		return;
	}
	max = cgroup_number(folder, "memory.max", "");
	current = cgroup_number(folder, "memory.current", "");
	kills = cgroup_number(folder, "memory.events", "oom_kill ");
	if (kills > 0)
		fa_report_add(report, FA_REPORT_WARNING, "cgroup",
		              "Raise MemoryMax of fad.service, or lower bytes in [pool] and "
		              "all_buffer_bytes in [limits].",
		              "the kernel killed %lld processes of it for lack of memory", kills);
	else if (max > 0 && current > max / 10 * 9)
		fa_report_add(report, FA_REPORT_WARNING, "cgroup",
		              "Raise MemoryMax of fad.service, or lower bytes in [pool].",
		              "%s of %s are used", fa_format_bytes(current, used),
		              fa_format_bytes(max, most));
	else
		fa_report_ok(report, "cgroup", "%s, memory limit %s",
		             folder + strlen("/sys/fs/cgroup"),
		             max > 0 ? fa_format_bytes(max, most) : "none");
}

static void check_process(struct fa_report *report, const json_t *status)
{
	const long long pid = number(status, "pid");
	char text[FA_FORMAT_BYTES];

	if (json_is_true(json_object_get(status, "draining")))
		fa_report_add(
			report, FA_REPORT_WARNING, "process",
			"It takes no new work and exits soon; systemd starts the next one after "
			"a restart, not after factl drain.",
			"it finishes its requests");
	else
		fa_report_ok(report, "process", "%lld, up %s", pid,
		             fa_format_duration(number(status, "uptime_ns"), text));
	if (!is_daemon(pid)) {
		fa_report_ok(report, "limits of fad",
		             "not visible: it runs in another namespace of processes");
		return;
	}
	check_limits(report, pid, strcmp(string(status, "backend"), "cuda") == 0);
	check_cgroup(report, pid);
}

/* ---- memory and limits */

static void check_pool(struct fa_report *report, const json_t *status)
{
	const json_t *pool = json_object_get(status, "pool");
	const long long most = number(pool, "chunks_max") * number(pool, "chunk_bytes");
	const long long used = number(pool, "used_bytes");
	const long long memory = number(status, "memory_bytes");
	const bool on_cpu = strcmp(string(status, "backend"), "cpu") == 0;
	char used_text[FA_FORMAT_BYTES], most_text[FA_FORMAT_BYTES];

	fa_format_bytes(used, used_text);
	fa_format_bytes(most, most_text);
	if (number(pool, "chunks_unkept") > 0)
		fa_report_add(
			report, FA_REPORT_WARNING, "KV pool",
			"The log says why: systemd's FileDescriptorStoreMax may be too low, or "
			"there is neither systemd nor fad --supervise.",
			"%lld chunks would not survive a restart of fad",
			number(pool, "chunks_unkept"));
	if (on_cpu && memory > 0 && most > memory)
		fa_report_add(report, FA_REPORT_WARNING, "KV pool",
		              "Lower bytes in [pool], or fad will be killed when the pool is full.",
		              "it may grow to %s, more than the memory that fad may use",
		              most_text);
	else if (used > most / 10 * 9)
		fa_report_add(report, FA_REPORT_WARNING, "KV pool",
		              "Raise bytes in [pool], or remove caches that nobody needs: factl "
		              "status lists them.",
		              "%s of %s are in use", used_text, most_text);
	else
		fa_report_ok(report, "KV pool", "%s of %s in use", used_text, most_text);
}

static void check_use(struct fa_report *report, const json_t *status)
{
	const json_t *limits = json_object_get(status, "limits");
	unsigned int n_full = 0;
	const char *full = "";
	json_t *tenant, *limit;
	const char *key;
	size_t i;

	json_array_foreach(json_object_get(status, "tenants"), i, tenant)
	{
		json_object_foreach(json_object_get(tenant, "limits"), key, limit)
		{
			const long long most = json_integer_value(limit);

			if (most > 0 && number(tenant, key) > most / 10 * 9) {
				++n_full;
				full = key;
			}
		}
	}
	if (number(status, "connections") > number(limits, "connections") / 10 * 9)
		fa_report_add(report, FA_REPORT_WARNING, "limits",
		              "Raise connections in [limits], or end programs.",
		              "%lld programs are connected, of at most %lld",
		              number(status, "connections"), number(limits, "connections"));
	else if (n_full > 0)
		fa_report_add(
			report, FA_REPORT_WARNING, "limits",
			"factl status shows use and limits; raise them in [limits] of fad.conf.",
			"%u limits of tenants are used by more than 90%%, such as %s", n_full,
			full);
	else
		fa_report_ok(report, "limits",
		             "no tenant that this user may see uses more than 90%%");
}

void fa_doctor_daemon(struct fa_report *report, struct fa_client *client, const json_t *status)
{
	check_process(report, status);
	check_backend(report, status);
	check_mps(report, status);
	if (json_is_object(json_object_get(status, "pool")))
		check_pool(report, status);
	else
		fa_report_add(
			report, FA_REPORT_WARNING, "KV pool",
			"If programs need a KV cache, set bytes in [pool]; if it is set, the log "
			"says what is wrong.",
			"there is none");
	check_use(report, status);
}
