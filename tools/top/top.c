/* factl top: frames of the daemon's status, again and again on a terminal, or one for scripts. */
#include "tools/tool.h"
#include "tools/top/frame.h"
#include "tools/top/terminal.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define FILTER_BYTES 64
/* Beside the rows: head, titles, what is left out, keys. */
#define LINES_BESIDE 10

struct top {
	struct fa_tool *tool;
	struct fa_frame_options options;
	int interval_ms;
	char filter[FILTER_BYTES];
	bool typing; /* the filter is typed now */
	json_t *before, *after;
	char lost[256]; /* why there is no status; "": there is one */
	struct fa_terminal terminal;
};

/* ---- statuses */

/* The last status becomes the one before. */
static int ask(struct top *top)
{
	char *text;
	int r;

	if (fa_client_state(top->tool->client) != FA_CLIENT_CONNECTED) {
		r = fa_reconnect(top->tool->client);
		if (r < 0)
			return r;
	}
	r = fa_status(top->tool->client, &text);
	if (r < 0)
		return r;
	json_decref(top->before);
	top->before = top->after;
	top->after = json_loads(text, 0, NULL);
	fa_free(text);
	return 0;
}

static void ask_or_tell(struct top *top)
{
	top->lost[0] = 0;
	if (ask(top) < 0)
		snprintf(top->lost, sizeof(top->lost), "%s", fa_error());
}

/* ---- one frame */

static int print_once(struct top *top)
{
	int r;

	if (ask(top) < 0)
		return fa_tool_fail("top");
	if (top->interval_ms > 0) {
		poll(NULL, 0, top->interval_ms);
		if (ask(top) < 0)
			return fa_tool_fail("top");
	}
	top->options.rows_max = SIZE_MAX;
	r = fa_frame_print(top->before, top->after, &top->options, stdout);
	if (r < 0) {
		fprintf(stderr, "factl top: unexpected JSON in the daemon's status\n");
		return 1;
	}
	return fa_tool_flush("top");
}

/* ---- on a terminal */

static int show(struct top *top)
{
	const size_t rows = fa_terminal_rows();
	_fa_cleanup_(fa_freep) char *text = NULL;
	size_t bytes = 0;
	FILE *file;
	int r = 0;

	top->options.rows_max = rows > LINES_BESIDE ? rows - LINES_BESIDE : 1;
	top->options.filter = top->filter;
	file = open_memstream(&text, &bytes);
	if (!file)
		return -ENOMEM;
	if (top->typing)
		fprintf(file, "filter: %s_   (Enter: done, Escape: none)\n", top->filter);
	else
		fprintf(file, "q: quit  t: %s  s: order (%s)  /: filter%s%s\n",
		        top->options.by_tenant ? "clients" : "tenants",
		        fa_frame_sort_names[top->options.sort], top->filter[0] ? " " : "",
		        top->filter);
	if (top->lost[0])
		fprintf(file, "The daemon does not answer: %.60s\n", top->lost);
	if (top->after)
		r = fa_frame_print(top->before, top->after, &top->options, file);
	if (fclose(file) != 0)
		r = -ENOMEM;
	if (r == 0)
		fa_terminal_show(text);
	return r;
}

static void type(struct top *top, char key)
{
	const size_t length = strlen(top->filter);

	if (key == '\r' || key == '\n') {
		top->typing = false;
	} else if (key == '\033') {
		top->typing = false;
		top->filter[0] = 0;
	} else if ((key == '\b' || key == '\177') && length > 0) {
		top->filter[length - 1] = 0;
	} else if ((unsigned char)key >= ' ' && key != '\177' && length + 1 < FILTER_BYTES) {
		top->filter[length] = key;
		top->filter[length + 1] = 0;
	}
}

static bool handle_key(struct top *top, char key)
{
	if (top->typing) {
		type(top, key);
		return true;
	}
	switch (key) {
	case 'q':
		return false;
	case 't':
		top->options.by_tenant = !top->options.by_tenant;
		return true;
	case 's':
		top->options.sort = (top->options.sort + 1) % _FA_FRAME_SORT_N;
		return true;
	case '/':
		top->typing = true;
		top->filter[0] = 0;
		return true;
	default:
		return true;
	}
}

static int run_on_terminal(struct top *top)
{
	uint64_t next_ns;
	int r = 0;
	char key;

	r = fa_terminal_open(&top->terminal);
	if (r < 0) {
		fprintf(stderr, "factl top: stdin and stdout must be a terminal, or use --once\n");
		return 1;
	}
	/* The first frame shows all since the daemon started. */
	ask_or_tell(top);
	next_ns = fa_now_ns() + (uint64_t)top->interval_ms * FA_NS_PER_MS;
	while (r == 0) {
		const uint64_t now_ns = fa_now_ns();
		enum fa_terminal_event event;

		if (now_ns >= next_ns) {
			ask_or_tell(top);
			next_ns = now_ns + (uint64_t)top->interval_ms * FA_NS_PER_MS;
		}
		r = show(top);
		event = fa_terminal_wait(&top->terminal,
		                         (int)((next_ns - now_ns) / FA_NS_PER_MS) + 1, &key);
		if (event == FA_TERMINAL_QUIT ||
		    (event == FA_TERMINAL_KEY && !handle_key(top, key)))
			break;
	}
	fa_terminal_close(&top->terminal);
	if (r < 0)
		fprintf(stderr, "factl top: %s\n",
		        r == -EINVAL ? "unexpected JSON in the daemon's status" : strerror(-r));
	return r < 0;
}

/* ---- the command */

static int parse(const struct fa_tool *tool, struct top *top)
{
	const char *sort = tool->values[FA_TOOL_SORT], *by = tool->values[FA_TOOL_BY];
	const char *filter = tool->values[FA_TOOL_FILTER];
	size_t i = 0;

	if (by && strcmp(by, "client") != 0 && strcmp(by, "tenant") != 0)
		return fa_tool_wrong_usage("--by is client or tenant, not ", by);
	top->options.by_tenant = by && strcmp(by, "tenant") == 0;
	while (sort && i < _FA_FRAME_SORT_N && strcmp(sort, fa_frame_sort_names[i]) != 0)
		++i;
	if (i == _FA_FRAME_SORT_N)
		return fa_tool_wrong_usage("--sort is rate, wait, share, memory or name, not ",
		                           sort);
	top->options.sort = (enum fa_frame_sort)i;
	if (filter && strlen(filter) >= FILTER_BYTES)
		return fa_tool_wrong_usage("--filter has at most 63 bytes: ", filter);
	snprintf(top->filter, FILTER_BYTES, "%s", filter ? filter : "");
	top->options.filter = top->filter;
	top->interval_ms = (int)tool->numbers[FA_TOOL_INTERVAL];
	return 0;
}

int fa_tool_top(struct fa_tool *tool)
{
	struct top top = { .tool = tool };
	const bool once = fa_tool_given(tool, FA_TOOL_ONCE);
	int r;

	r = parse(tool, &top);
	if (r == 0 && !once && top.interval_ms < 100)
		r = fa_tool_wrong_usage("--interval is from 100 ms; 0, since the start, needs ",
		                        "--once");
	if (r == 0)
		r = fa_tool_connect(tool);
	if (r == 0)
		r = once ? print_once(&top) : run_on_terminal(&top);
	json_decref(top.before);
	json_decref(top.after);
	return r;
}
