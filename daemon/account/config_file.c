/*
 * Reads a configuration file with inih, which tells only the line of the first fault that it finds
 * itself: the text is parsed again behind each.
 */
#include "daemon/account/config.h"

#include "common/cleanup.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define NOT_UNDERSTOOD "expected [section] or name = value"

struct parse {
	struct fa_config *config; /* NULL: only look for lines that inih rejects */
	const char *path, *next;  /* path of the text; its next line */
	int line;                 /* that inih parses now, from 1 */
	int skipped[FA_CONFIG_FAULTS_MAX];
	unsigned int n_skipped; /* lines that inih rejects, ascending */
	unsigned int n_faults;
	fa_config_fault_fn *report;
	void *userdata;
	bool no_memory;
};

static void report_fault(struct parse *parse, const char *text)
{
	struct fa_error error;

	if (parse->n_faults++ >= FA_CONFIG_FAULTS_MAX)
		return;
	(void)fa_fail(&error, 0, "%s, line %d: %s", parse->path, parse->line, text);
	parse->report(parse->userdata, &error);
}

static bool is_skipped(const struct parse *parse)
{
	for (unsigned int i = 0; i < parse->n_skipped; ++i)
		if (parse->skipped[i] == parse->line)
			return true;
	return false;
}

/* As fgets(), but a line never comes in parts. */
static char *read_line(char *ret_line, int size, void *userdata)
{
	struct parse *parse = userdata;
	const char *line = parse->next;
	const size_t n = strcspn(line, "\n");
	const char *fault = NULL;

	if (!*line)
		return NULL;
	parse->next += n + (line[n] == '\n');
	++parse->line;
	if (is_skipped(parse))
		fault = NOT_UNDERSTOOD;
	else if (n > (size_t)size - 2)
		fault = strchr("#;", line[strspn(line, " \t")]) ? "" : "the line is too long";
	if (fault && *fault && parse->config)
		report_fault(parse, fault);
	snprintf(ret_line, (size_t)size, "%.*s\n", fault ? 0 : (int)n, line);
	return ret_line;
}

static int on_entry(void *userdata, const char *section, const char *name, const char *value)
{
	struct parse *parse = userdata;
	struct fa_error error;
	int r;

	if (!parse->config)
		return true;
	r = fa_config_set(parse->config, section, name, value, &error);
	if (r == -ENOMEM)
		parse->no_memory = true;
	else if (r < 0)
		report_fault(parse, error.text);
	return true;
}

static int run(struct parse *parse, const char *text, struct fa_config *config)
{
	parse->config = config;
	parse->next = text;
	parse->line = 0;
	return ini_parse_stream(read_line, parse, on_entry, parse);
}

static int parse_text(struct fa_config *config, const char *path, const char *text,
                      fa_config_fault_fn *report, void *userdata, struct fa_error *error)
{
	struct parse parse = { .path = path, .report = report, .userdata = userdata };
	int line;

	while ((line = run(&parse, text, NULL)) > 0 && parse.n_skipped < FA_CONFIG_FAULTS_MAX)
		parse.skipped[parse.n_skipped++] = line;
	line = line < 0 ? line : run(&parse, text, config);
	if (line < 0 || parse.no_memory)
		return fa_fail(error, -ENOMEM, "no memory to read %s", path);
	if (parse.n_faults > FA_CONFIG_FAULTS_MAX || line > 0) {
		struct fa_error more;

		(void)fa_fail(&more, 0, "%s has more faults; these are the first %u", path,
		              FA_CONFIG_FAULTS_MAX);
		report(userdata, &more);
	}
	return parse.n_faults || line > 0 ? -EINVAL : 0;
}

static int read_stream(FILE *file, char **ret_text)
{
	_fa_cleanup_(fa_freep) char *text = malloc(FILE_BYTES_MAX + 1);
	size_t n;

	if (!text)
		return -ENOMEM;
	n = fread(text, 1, FILE_BYTES_MAX + 1, file);
	if (ferror(file))
		return -EIO;
	if (n > FILE_BYTES_MAX)
		return -EFBIG;
	text[n] = '\0';
	*ret_text = fa_steal_ptr(text);
	return 0;
}

static int read_text(const char *path, struct fa_error *error, char **ret_text)
{
	FILE *file;
	int r;

	file = fopen(path, "re");
	if (!file)
		return fa_fail(error, -errno, "%s cannot be opened: %m", path);
	r = read_stream(file, ret_text);
	fclose(file);
	if (r == -ENOMEM)
		return fa_fail(error, r, "no memory to read %s", path);
	if (r < 0)
		return fa_fail(error, r, "%s cannot be read%s", path,
		               r == -EFBIG ? ": it is larger than 1 MiB" : "");
	return 0;
}

int fa_config_check(struct fa_config *config, const char *path, fa_config_fault_fn *report,
                    void *userdata, struct fa_error *error)
{
	_fa_cleanup_(fa_freep) char *text = NULL;
	int r;

	r = read_text(path, error, &text);
	return r < 0 ? r : parse_text(config, path, text, report, userdata, error);
}

struct first {
	struct fa_error *error;
	bool found;
};

static void keep_first(void *userdata, const struct fa_error *fault)
{
	struct first *first = userdata;

	if (!first->found && first->error)
		*first->error = *fault;
	first->found = true;
}

int fa_config_parse(struct fa_config *config, const char *name, const char *text,
                    struct fa_error *error)
{
	struct first first = { .error = error };

	return parse_text(config, name, text, keep_first, &first, error);
}

int fa_config_load(struct fa_config *config, const char *path, struct fa_error *error)
{
	_fa_cleanup_(fa_freep) char *text = NULL;
	int r;

	r = read_text(path, error, &text);
	return r < 0 ? r : fa_config_parse(config, path, text, error);
}
