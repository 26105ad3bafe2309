#include "tools/status.h"

#include "tools/format.h"
#include "tools/histogram.h"
#include "tools/layout.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static long long number(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

static const char *string(const json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	return value ? value : "-";
}

/* ---- tables */

enum kind {
	NUMBER, /* a count */
	EXACT,  /* a name: never rounded */
	ID,     /* hexadecimal */
	ROW,    /* number of the row, joins tables */
	BYTES,
	TIME,
	SHARE, /* of the daemon's busy time */
	RING,  /* whether the daemon polls it */
};

struct column {
	const char *title, *key;
	enum kind kind;
	const char *limit; /* key of the limit; NULL: that of the column */
};

struct listing {
	const char *caption;
	struct column columns[FA_LAYOUT_CELLS_MAX];
	const char *text_title, *text_key; /* NULL: none */
};

/* packaging/man/factl.1 explains every caption and title. */
static const struct listing clients = {
	"Clients",
	{ { "session", "session", EXACT },
	  { "pid", "pid", EXACT },
	  { "uid", "uid", EXACT },
	  { "in flight", "requests" },
	  { "finished", "finished" },
	  { "failed", "failed" },
	  { "busy", "busy_ns", TIME },
	  { "share", "busy_ns", SHARE } },
	"name",
	"name",
};

static const struct listing client_resources = {
	"Resources of clients",
	{ { "session", "session", EXACT },
	  { "buffers", "buffers" },
	  { "memory", "buffer_bytes", BYTES },
	  { "streams", "streams" },
	  { "ring", "ring_asleep", RING },
	  { "by ring", "ring_requests" },
	  { "doorbells", "ring_doorbells" } },
	NULL,
	NULL,
};

static const struct listing tenants = {
	"Tenants",
	{ { "tenant", NULL, ROW },
	  { "uid", "uid", EXACT },
	  { "in flight", "requests" },
	  { "finished", "finished" },
	  { "failed", "failed" },
	  { "busy", "busy_ns", TIME },
	  { "share", "busy_ns", SHARE } },
	"cgroup",
	"cgroup",
};

static const struct listing tenant_resources = {
	"Resources of tenants",
	{ { "tenant", NULL, ROW },
	  { "sessions", "sessions" },
	  { "buffers", "buffers" },
	  { "memory", "buffer_bytes", BYTES },
	  { "on GPU", "device_bytes", BYTES },
	  { "fds", "fds" },
	  { "steps", "step_bytes", BYTES },
	  { "gates", "gates" } },
	NULL,
	NULL,
};

static const struct listing pool_tenants = {
	"Tenants of the pool",
	{ { "uid", "uid", EXACT },
	  { "used", "used_bytes", BYTES, "pool_bytes" },
	  { "idle", "idle_bytes", BYTES },
	  { "caches", "caches" },
	  { "sequences", "sequences" } },
	"cgroup",
	"cgroup",
};

static const struct listing caches = {
	"Caches",
	{ { "cache", "cache", ID },
	  { "uid", "uid", EXACT },
	  { "layers", "layers" },
	  { "sequences", "sequences" },
	  { "page", "page_bytes", BYTES },
	  { "used", "used_pages" },
	  { "idle", "idle_pages" } },
	"name",
	"name",
};

static const struct listing sequences = {
	"Sequences",
	{ { "sequence", "sequence", ID },
	  { "cache", "cache", ID },
	  { "uid", "uid", EXACT },
	  { "tokens", "length" },
	  { "planned", "planned" },
	  { "steps", "steps" },
	  { "states", "checkpoints" } },
	"name",
	"name",
};

/* Polled now, must be woken, or unknown. */
static const char *ring_state(const json_t *session)
{
	const json_t *asleep = json_object_get(session, "ring_asleep");

	if (!json_object_get(session, "ring_bytes"))
		return "-";
	return !asleep ? "yes" : json_is_true(asleep) ? "asleep" : "polled";
}

static void format_cell(const struct column *column, const json_t *object, size_t row,
                        long long all_ns, char cell[FA_LAYOUT_CELL_BYTES])
{
	const long long n = number(object, column->key);

	if (column->kind == ROW)
		snprintf(cell, FA_LAYOUT_CELL_BYTES, "%zu", row + 1);
	else if (column->kind == RING)
		snprintf(cell, FA_LAYOUT_CELL_BYTES, "%s", ring_state(object));
	else if (!json_object_get(object, column->key) || (column->kind == SHARE && all_ns <= 0))
		strcpy(cell, "-");
	else if (column->kind == EXACT)
		snprintf(cell, FA_LAYOUT_CELL_BYTES, "%lld", n);
	else if (column->kind == ID)
		snprintf(cell, FA_LAYOUT_CELL_BYTES, "%llx", n);
	else if (column->kind == BYTES)
		fa_format_bytes(n, cell);
	else if (column->kind == TIME)
		fa_format_duration(n, cell);
	else if (column->kind == SHARE)
		snprintf(cell, FA_LAYOUT_CELL_BYTES, "%.1f%%", 100 * (double)n / (double)all_ns);
	else
		fa_format_count(n, cell);
}

static void format_limit(const struct column *column, const json_t *limits,
                         char cell[FA_LAYOUT_CELL_BYTES])
{
	const char *key = column->limit ? column->limit : column->key;
	const json_t *limit = key ? json_object_get(limits, key) : NULL;
	const long long n = json_integer_value(limit);

	if (!limit || n < 0 || n == INT64_MAX)
		strcpy(cell, "-");
	else if (column->kind == BYTES)
		fa_format_bytes(n, cell);
	else
		fa_format_count(n, cell);
}

/* Prints nothing if the list is empty. @limits: the first row; NULL: none. */
static int print_list(const struct listing *listing, const json_t *root, const json_t *list,
                      const json_t *limits, FILE *file)
{
	const long long all_ns = number(json_object_get(root, "requests"), "busy_ns");
	struct fa_layout_table table = { .text_title = listing->text_title };
	struct fa_layout_row *row;
	json_t *object;
	size_t i;

	if (json_array_size(list) == 0)
		return 0;
	while (table.n_cells < FA_LAYOUT_CELLS_MAX && listing->columns[table.n_cells].title) {
		table.titles[table.n_cells] = listing->columns[table.n_cells].title;
		table.n_cells++;
	}
	if (limits && (row = fa_layout_add(&table))) {
		strcpy(row->cells[0], "limit");
		for (size_t j = 1; j < table.n_cells; ++j)
			format_limit(&listing->columns[j], limits, row->cells[j]);
	}
	json_array_foreach(list, i, object)
	{
		row = fa_layout_add(&table);
		if (!row)
			break;
		for (size_t j = 0; j < table.n_cells; ++j)
			format_cell(&listing->columns[j], object, i, all_ns, row->cells[j]);
		row->text = listing->text_key ? string(object, listing->text_key) : NULL;
	}
	fa_layout_print(&table, listing->caption, file);
	return i < json_array_size(list) ? -ENOMEM : 0;
}

/* A daemon with very many lists only some. */
static void print_rest(const json_t *root, const char *what, const json_t *listed, FILE *file)
{
	char key[32];
	long long rest;

	snprintf(key, sizeof(key), "%s_total", what);
	rest = number(root, key) - (long long)json_array_size(listed);
	if (rest > 0)
		fprintf(file, "and %lld more %s\n", rest, what);
}

static int print_tables(const json_t *root, FILE *file)
{
	const json_t *all_sessions = json_object_get(root, "sessions");
	const json_t *all_tenants = json_object_get(root, "tenants");
	const json_t *pool = json_object_get(root, "pool");
	const json_t *limits = json_object_get(json_array_get(all_tenants, 0), "limits");
	int r = 0;

	r |= print_list(&clients, root, all_sessions, NULL, file);
	r |= print_list(&client_resources, root, all_sessions, NULL, file);
	print_rest(root, "sessions", all_sessions, file);
	r |= print_list(&tenants, root, all_tenants, NULL, file);
	r |= print_list(&tenant_resources, root, all_tenants, limits, file);
	print_rest(root, "tenants", all_tenants, file);
	r |= print_list(&pool_tenants, root, json_object_get(pool, "tenants"),
	                json_object_get(root, "limits"), file);
	r |= print_list(&caches, root, json_object_get(root, "caches"), NULL, file);
	r |= print_list(&sequences, root, json_object_get(root, "sequences"), NULL, file);
	return r ? -ENOMEM : 0;
}

/* ---- the lines above the tables */

static void print_pool(const json_t *pool, FILE *file)
{
	char size[FA_LAYOUT_CELL_BYTES], used[FA_LAYOUT_CELL_BYTES], idle[FA_LAYOUT_CELL_BYTES];

	fa_format_bytes(number(pool, "chunk_bytes"), size);
	fa_format_bytes(number(pool, "used_bytes"), used);
	fa_format_bytes(number(pool, "idle_bytes"), idle);
	/* Others than administrators see their own part. */
	if (!json_object_get(pool, "chunks")) {
		fa_layout_paragraph(file, "pool", "at most %lld chunks of %s",
		                    number(pool, "chunks_max"), size);
		fa_layout_paragraph(file, "",
		                    "yours: %lld caches, %lld sequences; %s used, %s idle",
		                    number(pool, "caches"), number(pool, "sequences"), used, idle);
		return;
	}
	fa_layout_paragraph(file, "pool", "%lld of %lld chunks of %s, %lld free; %s used, %s idle",
	                    number(pool, "chunks"), number(pool, "chunks_max"), size,
	                    number(pool, "chunks_free"), used, idle);
	fa_layout_paragraph(file, "", "%lld caches, %lld sequences, %lld steps in flight",
	                    number(pool, "caches"), number(pool, "sequences"),
	                    number(pool, "steps"));
	fa_layout_paragraph(file, "", "%lld of %lld used pages are shared; %lld were evicted",
	                    number(pool, "shared_pages"), number(pool, "used_pages"),
	                    number(pool, "evicted_pages"));
	if (number(pool, "chunks_unkept") > 0)
		fa_layout_paragraph(file, "",
		                    "warning: %lld chunks cannot be kept; what is in them does not "
		                    "outlive the daemon (its log says why)",
		                    number(pool, "chunks_unkept"));
}

static void format_times(const json_t *requests, const char *key, const char *verb, char text[128])
{
	char median[FA_FORMAT_BYTES], most[FA_FORMAT_BYTES];
	struct fa_histogram times;

	fa_histogram_read(json_object_get(requests, key), &times);
	fa_format_duration((long long)fa_histogram_quantile(&times, 0.5), median);
	fa_format_duration((long long)fa_histogram_quantile(&times, 0.99), most);
	snprintf(text, 128, "half %s at most %s, 99%% %s", verb, median, most);
}

static void print_times(const json_t *requests, FILE *file)
{
	char waited[128], ran[128];

	if (json_array_size(json_object_get(requests, "waited")) == 0)
		return;
	format_times(requests, "waited", "waited", waited);
	format_times(requests, "ran", "ran", ran);
	fa_layout_paragraph(file, "times", "%s;", waited);
	fa_layout_paragraph(file, "", "%s", ran);
}

static void print_prefixes(const json_t *requests, FILE *file)
{
	const long long tokens = number(requests, "prefix_tokens");

	if (number(requests, "prefix_lookups") == 0)
		return;
	fa_layout_paragraph(
		file, "prefixes", "%lld of %lld lookups found one; %.1f%% of their tokens",
		number(requests, "prefix_hits"), number(requests, "prefix_lookups"),
		tokens ? 100.0 * (double)number(requests, "prefix_matched") / (double)tokens : 0.0);
}

/* Without MPS kernels of the daemon and others wait for each other. */
static void print_mps(const json_t *root, FILE *file)
{
	const char *mps = json_string_value(json_object_get(root, "mps"));
	unsigned int n_clients = 0;
	json_t *session;
	size_t i;

	if (!mps)
		return;
	json_array_foreach(json_object_get(root, "sessions"), i, session)
	{
		n_clients += number(session, "gpu_buffers") > 0 ||
		             json_is_true(json_object_get(session, "timeline"));
	}
	fa_layout_paragraph(file, "MPS", "%s", mps);
	if (n_clients > 0 && strcmp(mps, "on") != 0)
		fa_layout_paragraph(file, "",
		                    "warning: %u %s memory of the GPU or a timeline; without MPS "
		                    "kernels of one process wait for those of others, for "
		                    "milliseconds (docs/gpu.md, MPS)",
		                    n_clients, n_clients == 1 ? "client uses" : "clients use");
}

static void print_head(const json_t *root, FILE *file)
{
	const json_t *requests = json_object_get(root, "requests");
	char text[FA_LAYOUT_CELL_BYTES], all[FA_LAYOUT_CELL_BYTES];

	fprintf(file, "fad %s, process %lld, up %s%s\n", string(root, "version"),
	        number(root, "pid"), fa_format_duration(number(root, "uptime_ns"), text),
	        json_is_true(json_object_get(root, "draining")) ? ", draining" : "");
	fa_layout_paragraph(file, "backend", "%s: %s, %lld threads", string(root, "backend"),
	                    string(root, "device"), number(root, "threads"));
	if (json_object_get(root, "gpu_unused"))
		fa_layout_paragraph(file, "",
		                    "warning: there seems to be a GPU, which is not used: %s",
		                    string(root, "gpu_unused"));
	print_mps(root, file);
	if (json_object_get(root, "memory_bytes"))
		fa_layout_paragraph(
			file, "memory", "%s, at most %s of it for clients' buffers",
			fa_format_bytes(number(root, "memory_bytes"), text),
			fa_format_bytes(number(json_object_get(root, "limits"), "all_buffer_bytes"),
		                        all));
	fa_layout_paragraph(file, "requests", "%lld finished of %lld, %lld failed, %lld cancelled",
	                    number(requests, "finished"), number(requests, "submitted"),
	                    number(requests, "failed"), number(requests, "cancelled"));
	fa_layout_paragraph(file, "busy", "%s with requests since the start",
	                    fa_format_duration(number(requests, "busy_ns"), text));
	print_times(requests, file);
	if (json_is_object(json_object_get(root, "pool")))
		print_pool(json_object_get(root, "pool"), file);
	print_prefixes(requests, file);
	fa_layout_paragraph(file, "clients", "%lld connections", number(root, "connections"));
}

int fa_status_print(const char *json, FILE *file)
{
	json_t *root;
	int r = -EINVAL;

	root = json_loads(json, 0, NULL);
	if (json_is_object(json_object_get(root, "requests")) &&
	    json_is_array(json_object_get(root, "sessions")) &&
	    json_is_array(json_object_get(root, "tenants"))) {
		print_head(root, file);
		r = print_tables(root, file);
	}
	json_decref(root);
	return r;
}
