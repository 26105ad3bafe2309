#include "tools/top/frame.h"

#include "tools/format.h"
#include "tools/histogram.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 1024

const char *const fa_frame_sort_names[_FA_FRAME_SORT_N] = { "rate", "wait", "share", "memory",
	                                                    "name" };

struct row {
	long long id, uid, pid;
	const char *name;
	double rate, failed, share; /* per second; of the device */
	uint64_t wait_most;         /* 99th percentile */
	long long in_flight, memory;
	double hits; /* part of the tokens looked up; below 0: none were */
};

struct frame {
	const json_t *before, *after;
	double seconds;
};

/* ---- reading */

static long long number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

/* A counter that fell or is new grew from 0. */
static double growth(const json_t *before, const json_t *after, const char *key)
{
	const long long now = number(after, key), then = number(before, key);

	return (double)(now >= then ? now - then : now);
}

static double rate(const struct frame *frame, const json_t *before, const json_t *after,
                   const char *key)
{
	return growth(before, after, key) / frame->seconds;
}

static void times(const json_t *before, const json_t *after, const char *key,
                  struct fa_histogram *ret_times)
{
	struct fa_histogram then;

	fa_histogram_read(json_object_get(after, key), ret_times);
	fa_histogram_read(json_object_get(before, key), &then);
	fa_histogram_subtract(ret_times, &then);
}

/* The same client or tenant; NULL: it is new. */
static const json_t *find(const json_t *list, const json_t *object, bool by_tenant)
{
	json_t *entry;
	size_t i;

	json_array_foreach(list, i, entry)
	{
		if (by_tenant
		            ? number(entry, "uid") == number(object, "uid") &&
		                      strcmp(string(entry, "cgroup"), string(object, "cgroup")) == 0
		            : number(entry, "session") == number(object, "session"))
			return entry;
	}
	return NULL;
}

static void read_row(const struct frame *frame, const json_t *object, bool by_tenant,
                     struct row *ret_row)
{
	const json_t *list = json_object_get(frame->before, by_tenant ? "tenants" : "sessions");
	const json_t *before = find(list, object, by_tenant);
	const json_t *pool = json_object_get(json_object_get(frame->after, "pool"), "tenants");
	struct fa_histogram waited;
	double tokens;

	times(before, object, "waited", &waited);
	tokens = growth(before, object, "prefix_tokens");
	*ret_row = (struct row){
		.id = number(object, "session"),
		.uid = number(object, "uid"),
		.pid = number(object, "pid"),
		.name = string(object, by_tenant ? "cgroup" : "name"),
		.rate = rate(frame, before, object, "finished"),
		.failed = rate(frame, before, object, "failed"),
		.share = rate(frame, before, object, "busy_ns") / 1e9,
		.wait_most = fa_histogram_quantile(&waited, 0.99),
		.in_flight = number(object, "requests"),
		.memory = number(object, "buffer_bytes"),
		.hits = tokens > 0 ? growth(before, object, "prefix_matched") / tokens : -1,
	};
	/* A tenant's memory is that of its pages. */
	if (by_tenant)
		ret_row->memory = number(find(pool, object, true), "used_bytes") +
		                  number(find(pool, object, true), "idle_bytes");
}

static bool matches(const struct row *row, const char *filter)
{
	char text[LINE_BYTES];

	if (!filter || !*filter)
		return true;
	snprintf(text, sizeof(text), "%lld %lld %lld %s", row->id, row->pid, row->uid, row->name);
	return strstr(text, filter) != NULL;
}

/* ---- order: the largest first */

static int compare(double a, double b)
{
	return a < b ? 1 : a > b ? -1 : 0;
}

static int compare_names(const struct row *a, const struct row *b)
{
	int r = strcmp(a->name, b->name);

	r = r ? r : compare((double)b->uid, (double)a->uid);
	return r ? r : compare((double)b->id, (double)a->id);
}

static int compare_rows(const void *first, const void *second, void *userdata)
{
	const enum fa_frame_sort *sort = userdata;
	const struct row *a = first, *b = second;
	int r = 0;

	switch (*sort) {
	case FA_FRAME_BY_RATE:
		r = compare(a->rate, b->rate);
		break;
	case FA_FRAME_BY_WAIT:
		r = compare((double)a->wait_most, (double)b->wait_most);
		break;
	case FA_FRAME_BY_SHARE:
		r = compare(a->share, b->share);
		break;
	case FA_FRAME_BY_MEMORY:
		r = compare((double)a->memory, (double)b->memory);
		break;
	case FA_FRAME_BY_NAME:
	case _FA_FRAME_SORT_N:
		break;
	}
	return r ? r : compare_names(a, b);
}

/* ---- printing */

static bool starts_column(char byte)
{
	return ((unsigned char)byte & 0xc0) != 0x80;
}

static size_t bytes_of(const char *text, size_t columns)
{
	size_t n = 0;

	for (; text[n]; ++n)
		if (starts_column(text[n]) && columns-- == 0)
			break;
	return n;
}

static void print_line(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void print_line(FILE *file, const char *format, ...)
{
	char line[LINE_BYTES];
	size_t n;
	va_list args;

	va_start(args, format);
	(void)vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	n = bytes_of(line, FA_FRAME_COLUMNS);
	while (n && line[n - 1] == ' ')
		--n;
	fprintf(file, "%.*s\n", (int)n, line);
}

static const char *format_rate(double value, char text[FA_FORMAT_BYTES])
{
	if (value >= 99999.5)
		return fa_format_count((long long)value, text);
	snprintf(text, FA_FORMAT_BYTES, value == 0 || value >= 99.95 ? "%.0f" : "%.1f", value);
	return text;
}

static const char *format_share(double share, char text[FA_FORMAT_BYTES])
{
	if (share < 0)
		strcpy(text, "-");
	else
		snprintf(text, FA_FORMAT_BYTES, "%.*f%%", share < 0.9995 ? 1 : 0, 100 * share);
	return text;
}

static const char *format_time(uint64_t ns, char text[FA_FORMAT_BYTES])
{
	if (!ns)
		strcpy(text, "-");
	else
		fa_format_duration((long long)ns, text);
	return text;
}

static void print_times(const struct frame *frame, const json_t *before, const json_t *after,
                        FILE *file)
{
	static const char *const keys[] = { "waited", "ran" };
	char texts[4][FA_FORMAT_BYTES];

	for (size_t i = 0; i < 2; ++i) {
		struct fa_histogram histogram;

		times(before, after, keys[i], &histogram);
		format_time(fa_histogram_quantile(&histogram, 0.5), texts[2 * i]);
		format_time(fa_histogram_quantile(&histogram, 0.99), texts[2 * i + 1]);
	}
	print_line(file, "times     waited %s (p50), %s (p99); ran %s (p50), %s (p99)", texts[0],
	           texts[1], texts[2], texts[3]);
}

static void print_pool(const struct frame *frame, FILE *file)
{
	const json_t *pool = json_object_get(frame->after, "pool");
	const json_t *before = json_object_get(frame->before, "pool");
	const json_t *requests = json_object_get(frame->after, "requests");
	const json_t *requests_before = json_object_get(frame->before, "requests");
	const double tokens = growth(requests_before, requests, "prefix_tokens");
	char used[FA_FORMAT_BYTES], idle[FA_FORMAT_BYTES], most[FA_FORMAT_BYTES];
	char pages[FA_FORMAT_BYTES], shared[FA_FORMAT_BYTES];

	if (!json_is_object(pool))
		return;
	fa_format_bytes(number(pool, "used_bytes"), used);
	fa_format_bytes(number(pool, "idle_bytes"), idle);
	fa_format_bytes(number(pool, "chunk_bytes") * number(pool, "chunks_max"), most);
	/* Only administrators see pages. */
	if (json_object_get(pool, "used_pages"))
		print_line(file,
		           "pool      %s used, %s idle, of %s; %s pages used, %s of them shared",
		           used, idle, most, fa_format_count(number(pool, "used_pages"), pages),
		           fa_format_count(number(pool, "shared_pages"), shared));
	else
		print_line(file, "pool      %s used by you, %s idle, of %s", used, idle, most);
	format_rate(rate(frame, requests_before, requests, "prefix_lookups"), used);
	format_share(tokens > 0 ? growth(requests_before, requests, "prefix_matched") / tokens : -1,
	             idle);
	format_rate(rate(frame, before, pool, "evicted_pages"), most);
	print_line(file, "prefixes  %s lookups/s found %s of their tokens; %s pages/s evicted",
	           used, idle, most);
}

static void print_head(const struct frame *frame, FILE *file)
{
	const json_t *requests = json_object_get(frame->after, "requests");
	const json_t *before = json_object_get(frame->before, "requests");
	const long long in_flight = number(requests, "submitted") - number(requests, "finished");
	char up[FA_FORMAT_BYTES], done[FA_FORMAT_BYTES], failed[FA_FORMAT_BYTES];
	char flying[FA_FORMAT_BYTES], busy[FA_FORMAT_BYTES];

	print_line(file, "fad %s up %s, %lld clients%s; %s: %s", string(frame->after, "version"),
	           fa_format_duration(number(frame->after, "uptime_ns"), up),
	           number(frame->after, "connections"),
	           json_is_true(json_object_get(frame->after, "draining")) ? ", draining" : "",
	           string(frame->after, "backend"), string(frame->after, "device"));
	print_line(file, "requests  %s/s finished, %s/s failed, %s in flight; device busy %s",
	           format_rate(rate(frame, before, requests, "finished"), done),
	           format_rate(rate(frame, before, requests, "failed"), failed),
	           fa_format_count(in_flight > 0 ? in_flight : 0, flying),
	           format_share(rate(frame, before, requests, "busy_ns") / 1e9, busy));
	print_times(frame, before, requests, file);
	print_pool(frame, file);
}

static void print_titles(bool by_tenant, FILE *file)
{
	if (by_tenant)
		print_line(file, "%10s %7s %6s %8s %6s %9s %6s  %s", "uid", "req/s", "fail/s",
		           "wait p99", "share", "pages", "hits", "cgroup");
	else
		print_line(file, "%7s %7s %7s %6s %8s %6s %6s %9s  %s", "session", "pid", "req/s",
		           "fail/s", "wait p99", "share", "flying", "buffers", "name");
}

static void print_client(const struct row *row, FILE *file)
{
	char done[FA_FORMAT_BYTES], failed[FA_FORMAT_BYTES], share[FA_FORMAT_BYTES];
	char most[FA_FORMAT_BYTES], flying[FA_FORMAT_BYTES], memory[FA_FORMAT_BYTES];

	print_line(file, "%7lld %7lld %7s %6s %8s %6s %6s %9s  %s", row->id, row->pid,
	           format_rate(row->rate, done), format_rate(row->failed, failed),
	           format_time(row->wait_most, most), format_share(row->share, share),
	           fa_format_count(row->in_flight, flying), fa_format_bytes(row->memory, memory),
	           row->name);
}

static size_t columns_of(const char *text)
{
	size_t n = 0;

	for (; *text; ++text)
		n += starts_column(*text);
	return n;
}

static void print_tenant(const struct row *row, FILE *file)
{
	char done[FA_FORMAT_BYTES], failed[FA_FORMAT_BYTES], share[FA_FORMAT_BYTES];
	char most[FA_FORMAT_BYTES], memory[FA_FORMAT_BYTES], hits[FA_FORMAT_BYTES];
	const size_t name_columns = columns_of(row->name);
	char cells[FA_FRAME_COLUMNS + 1];
	const char *name = row->name;
	size_t used;

	snprintf(cells, sizeof(cells), "%10lld %7s %6s %8s %6s %9s %6s  ", row->uid,
	         format_rate(row->rate, done), format_rate(row->failed, failed),
	         format_time(row->wait_most, most), format_share(row->share, share),
	         fa_format_bytes(row->memory, memory), format_share(row->hits, hits));
	used = strlen(cells);
	if (used + name_columns <= FA_FRAME_COLUMNS) {
		print_line(file, "%s%s", cells, name);
		return;
	}
	/* The end of a long path tells most. */
	name += bytes_of(name, used + name_columns + 2 - FA_FRAME_COLUMNS);
	print_line(file, "%s..%s", cells, name);
}

static int print_table(const struct frame *frame, const struct fa_frame_options *options,
                       FILE *file)
{
	const bool by_tenant = options->by_tenant;
	const json_t *list = json_object_get(frame->after, by_tenant ? "tenants" : "sessions");
	const long long total = number(frame->after,
	                               by_tenant ? "tenants_total" : "sessions_total");
	enum fa_frame_sort sort = options->sort;
	struct row *rows;
	json_t *object;
	size_t n = 0, i;

	rows = calloc(json_array_size(list) + 1, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	json_array_foreach(list, i, object)
	{
		read_row(frame, object, by_tenant, &rows[n]);
		n += matches(&rows[n], options->filter);
	}
	qsort_r(rows, n, sizeof(*rows), compare_rows, &sort);
	fputc('\n', file);
	print_titles(by_tenant, file);
	for (i = 0; i < n && i < options->rows_max; ++i)
		(by_tenant ? print_tenant : print_client)(&rows[i], file);
	if (total > (long long)i && (!options->filter || !*options->filter))
		print_line(file, "and %lld more", total - (long long)i);
	else if (n > i)
		print_line(file, "and %zu more", n - i);
	free(rows);
	return 0;
}

int fa_frame_print(const json_t *before, const json_t *after,
                   const struct fa_frame_options *options, FILE *file)
{
	struct frame frame = { .before = before, .after = after };
	long long ns;

	if (!json_is_object(json_object_get(after, "requests")) ||
	    !json_is_array(json_object_get(after, "sessions")) ||
	    !json_is_array(json_object_get(after, "tenants")))
		return -EINVAL;
	if (before && number(before, "generation") != number(after, "generation"))
		frame.before = NULL;
	ns = number(after, "uptime_ns") - number(frame.before, "uptime_ns");
	frame.seconds = ns > 0 ? (double)ns / 1e9 : 1e-9;
	print_head(&frame, file);
	return print_table(&frame, options, file);
}
