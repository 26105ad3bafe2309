/*
 * factl dump: what a bug report needs, as JSON: versions, machine, configuration, doctor's findings
 * and the daemon's status, without names of users and programs or paths in homes.
 */
#include "tools/doctor/checks.h"
#include "tools/dump/redact.h"

#include "common/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define CONFIG_PATH "/etc/fad/fad.conf"
#define LINE_BYTES 1024

static int set_text(json_t *object, const char *key, const char *text)
{
	return json_object_set_new(object, key, json_string(text)) ? -ENOMEM : 0;
}

/* What follows @prefix and its separators in the first line of @path that has it. */
static void add_line(json_t *object, const char *key, const char *path, const char *prefix)
{
	char line[LINE_BYTES];
	FILE *file = fopen(path, "re");

	while (file && fgets(line, sizeof(line), file)) {
		char *value = line + strlen(prefix);

		if (strncmp(line, prefix, strlen(prefix)) != 0)
			continue;
		value += strspn(value, " \t:=\"");
		value[strcspn(value, "\n\"")] = 0;
		(void)set_text(object, key, value);
		break;
	}
	if (file)
		fclose(file);
}

static json_t *describe_machine(void)
{
	json_t *machine = json_object();
	struct utsname system = {};

	(void)uname(&system);
	(void)set_text(machine, "kernel", system.release);
	(void)set_text(machine, "architecture", system.machine);
	add_line(machine, "system", "/etc/os-release", "PRETTY_NAME");
	add_line(machine, "processor", "/proc/cpuinfo", "model name");
	add_line(machine, "memory", "/proc/meminfo", "MemTotal");
	add_line(machine, "nvidia_module", "/proc/driver/nvidia/version", "NVRM version");
	(void)json_object_set_new(machine, "processors",
	                          json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
	return machine;
}

/* Lines that set something. */
static json_t *describe_config(void)
{
	json_t *lines = json_array();
	FILE *file = fopen(CONFIG_PATH, "re");
	char line[LINE_BYTES];

	while (file && fgets(line, sizeof(line), file)) {
		const char *text = line + strspn(line, " \t");

		line[strcspn(line, "\n")] = 0;
		if (*text && *text != '#' && *text != ';')
			(void)json_array_append_new(lines, json_string(text));
	}
	if (file)
		fclose(file);
	return lines;
}

static json_t *describe_environment(void)
{
	static const char *const names[] = {
		"FAD_SOCKET",      "FAD_INSTANCE",         "FAD_DAEMON",
		"FAD_CONFIG",      "FAD_CPU_ISA",          "XDG_RUNTIME_DIR",
		"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"
	};
	json_t *environment = json_object();

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i)
		if (getenv(names[i]))
			(void)set_text(environment, names[i], getenv(names[i]));
	return environment;
}

/* NULL: there is no daemon; doctor says why. */
static json_t *ask(struct fa_tool *tool)
{
	const struct fa_options options = {
		.size = sizeof(options),
		.socket = tool->socket,
		.name = "factl dump",
		.reconnect_ns = UINT64_MAX,
	};
	struct fa_client *client;
	json_t *status = NULL;
	char *text;

	if (fa_connect(&options, &client) < 0)
		return NULL;
	if (fa_status(client, &text) == 0) {
		status = json_loads(text, 0, NULL);
		fa_free(text);
	}
	fa_disconnect(client);
	return status;
}

static json_t *make(struct fa_tool *tool, struct fa_redact *redact)
{
	json_t *dump = json_object(), *status = ask(tool);
	bool none;

	(void)set_text(dump, "factl", fa_version());
	(void)json_object_set_new(dump, "machine", describe_machine());
	(void)json_object_set_new(dump, "environment", describe_environment());
	(void)json_object_set_new(dump, "config", describe_config());
	(void)json_object_set_new(dump, "doctor", fa_doctor_examine(tool, &none));
	(void)json_object_set_new(dump, "status", status ? status : json_null());
	if (fa_redact_learn(redact, status) < 0 || fa_redact_json(redact, dump) < 0) {
		json_decref(dump);
		return NULL;
	}
	return dump;
}

int fa_tool_dump(struct fa_tool *tool)
{
	_fa_cleanup_(fa_redact_deinit) struct fa_redact redact = {};
	_fa_cleanup_(fa_freep) char *text = NULL;
	json_t *dump = NULL;

	if (fa_redact_init(&redact) == 0)
		dump = make(tool, &redact);
	if (dump)
		text = json_dumps(dump, JSON_INDENT(1));
	json_decref(dump);
	if (!text) {
		fprintf(stderr, "factl dump: no memory\n");
		return 1;
	}
	puts(text);
	return fa_tool_flush("dump");
}
