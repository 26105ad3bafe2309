#include "bench/fabench/bench.h"

#include "commit.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fa_bench_result {
	char name[96];
	char unit[16];
	char peer[32]; /* "": no peer */
	double value, ratio;
};

static void read_cpu_model(char *ret_device, size_t size)
{
	char line[256], model[96] = "unknown processor";
	FILE *file;

	file = fopen("/proc/cpuinfo", "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", strlen("model name")) != 0 || !colon)
			continue;
		line[strcspn(line, "\n")] = '\0';
		snprintf(model, sizeof(model), "%.90s", colon + 2);
		break;
	}
	if (file)
		fclose(file);
	snprintf(ret_device, size, "%s, %ld processors", model, sysconf(_SC_NPROCESSORS_ONLN));
}

void fa_bench_init(struct fa_bench *bench)
{
	*bench = (struct fa_bench){ 0 };
	read_cpu_model(bench->device, sizeof(bench->device));
}

void fa_bench_set_gpu(struct fa_bench *bench, const char *gpu)
{
	char rest[sizeof(bench->device)];

	if (strncmp(bench->device, gpu, strlen(gpu)) == 0)
		return;
	snprintf(rest, sizeof(rest), "%s", bench->device);
	snprintf(bench->device, sizeof(bench->device), "%.60s; %.60s", gpu, rest);
}

void fa_bench_deinit(struct fa_bench *bench)
{
	free(bench->results);
	*bench = (struct fa_bench){ 0 };
}

int fa_bench_add(struct fa_bench *bench, const char *name, double value, const char *unit,
                 const char *peer, double ratio)
{
	struct fa_bench_result *results, *result;

	results = reallocarray(bench->results, bench->n_results + 1, sizeof(*results));
	if (!results)
		return -ENOMEM;
	bench->results = results;
	result = &results[bench->n_results++];
	*result = (struct fa_bench_result){ .value = value, .ratio = ratio };
	snprintf(result->name, sizeof(result->name), "%s", name);
	snprintf(result->unit, sizeof(result->unit), "%s", unit);
	snprintf(result->peer, sizeof(result->peer), "%s", peer ? peer : "");

	if (!bench->json) {
		printf("%-44s %12.4g %-8s", name, value, unit);
		if (peer)
			printf(" %6.3f of %s", ratio, peer);
		printf("\n");
		fflush(stdout);
	}
	return 0;
}

void fa_bench_log(const struct fa_bench *bench, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

int fa_bench_print_json(const struct fa_bench *bench)
{
	json_t *root, *list;
	int r;

	list = json_array();
	for (size_t i = 0; i < bench->n_results; i++) {
		const struct fa_bench_result *result = &bench->results[i];
		json_t *entry;

		entry = json_pack("{s:s, s:f, s:s, s:s*, s:o*, s:s, s:s}", "name", result->name,
		                  "value", result->value, "unit", result->unit, "peer",
		                  result->peer[0] ? result->peer : NULL, "ratio",
		                  result->peer[0] ? json_real(result->ratio) : NULL, "commit",
		                  FAD_COMMIT, "device", bench->device);
		json_array_append_new(list, entry);
	}
	root = json_pack("{s:o}", "results", list);
	if (!root)
		return -ENOMEM;
	r = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(root);
	return r < 0 || fflush(stdout) != 0 ? -EIO : 0;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

uint64_t fa_bench_percentile(uint64_t *values, size_t n_values, double percent)
{
	size_t index;

	if (n_values == 0)
		return 0;
	qsort(values, n_values, sizeof(*values), compare);
	index = (size_t)(percent / 100 * (double)n_values);
	return values[index < n_values ? index : n_values - 1];
}
