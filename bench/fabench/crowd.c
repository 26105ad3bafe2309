/*
 * crowd: many clients at once; each request depends on the previous result.
 *
 *   crowd/WAY/64-clients   64 saturating clients for a minute: throughput, lost and reordered
 *                          requests, slowest client against fastest, growth of the daemon's
 *                          memory after the first quarter
 *   crowd/WAY/62-clients   62 clients with pauses: latency while they are alone ("idle") and
 *                          while one more waits for a gate that never opens and another is
 *                          stopped in mid-work ("burdened"); both alternate
 */
#include "bench/lib/crowd.h"
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS 64
#define CLIENTS_QUICK 4
#define SECONDS 60
#define SECONDS_QUICK 1
#define DEPTH 16

#define BURDENED (CLIENTS - 2)
#define REST_NS (10 * FA_NS_PER_MS)
#define ROUNDS 10
#define ROUNDS_QUICK 2
#define SETTLE_MS 200 /* time to start or kill two clients */
#define PHASE_MS 1000
#define PHASE_MS_QUICK 100

enum {
	IDLE,
	BURDEN,
};

struct way {
	const char *name;
	uint32_t flags;
};

static const struct way ways[] = { { "ring", 0 }, { "socket", FA_CONNECT_NO_RING } };

static int clients_of(const struct fa_bench *bench, int clients)
{
	return bench->quick ? CLIENTS_QUICK : clients;
}

static void sleep_ms(uint64_t ms)
{
	const uint64_t until_ns = fa_deadline_ns(ms * FA_NS_PER_MS);

	for (uint64_t now; (now = fa_now_ns()) < until_ns;)
		(void)poll(NULL, 0, (int)((until_ns - now) / FA_NS_PER_MS) + 1);
}

static int add(struct fa_bench *bench, const char *prefix, const char *suffix, double value,
               const char *unit, const char *peer, double ratio)
{
	char name[96];

	snprintf(name, sizeof(name), "%s%s%s", prefix, suffix, bench->mps ? "-mps" : "");
	return fa_bench_add(bench, name, value, unit, peer, ratio);
}

/* ---- saturating load */

static int report_flood(struct fa_bench *bench, const char *prefix, int clients,
                        const uint64_t *done, double seconds, double growth_bytes,
                        const struct fa_crowd_sum *sum)
{
	uint64_t fewest = UINT64_MAX, most = 0, total = 0;
	int r;

	for (int i = 0; i < clients; i++) {
		fewest = done[i] < fewest ? done[i] : fewest;
		most = done[i] > most ? done[i] : most;
		total += done[i];
	}
	r = add(bench, prefix, "", (double)total / seconds, "req/s", NULL, 0);
	if (r == 0)
		r = add(bench, prefix, "/slowest-client", (double)fewest / seconds, "req/s",
		        "fastest", most ? (double)fewest / (double)most : 0);
	if (r == 0)
		r = add(bench, prefix, "/lost", (double)sum->failed, "requests", NULL, 0);
	if (r == 0)
		r = add(bench, prefix, "/out-of-order", (double)sum->wrong, "requests", NULL, 0);
	if (r == 0)
		r = add(bench, prefix, "/rss-growth", growth_bytes / 1024, "KiB", NULL, 0);
	if (r == 0 && sum->wrong + sum->failed > 0)
		r = -EIO;
	return r;
}

static int measure_flood(struct fa_bench *bench, const struct fa_bench_daemon *daemon,
                         const struct way *way)
{
	const struct fa_crowd_options options = {
		.socket = daemon->socket,
		.name = "fabench crowd",
		.clients = clients_of(bench, CLIENTS),
		.flags = way->flags,
		.depth = DEPTH,
	};
	const uint64_t ms = 1000 * (uint64_t)(bench->quick     ? SECONDS_QUICK
	                                      : bench->seconds ? bench->seconds
	                                                       : SECONDS);
	uint64_t done[CLIENTS], begin_ns, ns, quarter_bytes, end_bytes;
	struct fa_crowd_sum sum;
	struct fa_crowd *crowd;
	char prefix[64];
	int r;

	r = fa_crowd_new(&options, &crowd);
	if (r < 0)
		return r;
	fa_crowd_go(crowd);
	begin_ns = fa_now_ns();
	sleep_ms(ms / 4);
	quarter_bytes = fa_bench_daemon_rss_bytes(daemon);
	sleep_ms(ms - ms / 4);
	end_bytes = fa_bench_daemon_rss_bytes(daemon);
	for (int i = 0; i < options.clients; i++)
		done[i] = fa_crowd_done(crowd, i);
	ns = fa_now_ns() - begin_ns;
	r = fa_crowd_end(crowd, &sum);
	fa_crowd_free(crowd);
	snprintf(prefix, sizeof(prefix), "crowd/%s/%d-clients", way->name, options.clients);
	if (r == 0)
		r = report_flood(bench, prefix, options.clients, done, (double)ns / 1e9,
		                 (double)end_bytes - (double)quarter_bytes, &sum);
	return r;
}

/* ---- beside misbehaving clients */

static int report_burden(struct fa_bench *bench, const char *prefix, const struct fa_crowd *crowd)
{
	static const struct {
		const char *idle, *burdened;
		double percent;
	} points[] = { { "/idle", "/burdened", 50 }, { "/idle-p99", "/burdened-p99", 99 } };
	uint64_t *ns[FA_CROWD_PHASES];
	size_t n[FA_CROWD_PHASES];
	int r = 0;

	for (int phase = 0; phase < FA_CROWD_PHASES; phase++) {
		n[phase] = fa_crowd_samples(crowd, phase, &ns[phase]);
		if (n[phase] == 0)
			r = -ENODATA;
	}
	for (size_t i = 0; i < 2 && r == 0; i++) {
		const double percent = points[i].percent;
		const double idle = (double)fa_bench_percentile(ns[IDLE], n[IDLE], percent);
		const double burdened = (double)fa_bench_percentile(ns[BURDEN], n[BURDEN], percent);

		r = add(bench, prefix, points[i].idle, idle / 1e3, "us", NULL, 0);
		if (r == 0)
			r = add(bench, prefix, points[i].burdened, burdened / 1e3, "us", "idle",
			        idle / burdened);
	}
	for (int phase = 0; phase < FA_CROWD_PHASES; phase++)
		free(ns[phase]);
	return r;
}

static int measure_burden(struct fa_bench *bench, const struct fa_bench_daemon *daemon,
                          const struct way *way)
{
	const struct fa_crowd_options options = {
		.socket = daemon->socket,
		.name = "fabench crowd",
		.clients = clients_of(bench, BURDENED),
		.flags = way->flags,
		.depth = 1,
		.rest_ns = REST_NS,
	};
	const int rounds = bench->quick ? ROUNDS_QUICK : ROUNDS;
	const uint64_t phase_ms = bench->quick ? PHASE_MS_QUICK : PHASE_MS;
	struct fa_crowd *crowd;
	char prefix[64];
	int r, ended;

	r = fa_crowd_new(&options, &crowd);
	if (r < 0)
		return r;
	fa_crowd_go(crowd);
	for (int round = 0; round < rounds && r == 0; round++) {
		struct fa_crowd_burden burden;

		sleep_ms(SETTLE_MS);
		fa_crowd_phase(crowd, IDLE);
		sleep_ms(phase_ms);
		fa_crowd_phase(crowd, -1);
		r = fa_crowd_burden_start(daemon->socket, way->flags, &burden);
		if (r < 0)
			break;
		sleep_ms(SETTLE_MS);
		fa_crowd_phase(crowd, BURDEN);
		sleep_ms(phase_ms);
		fa_crowd_phase(crowd, -1);
		fa_crowd_burden_end(&burden);
	}
	ended = fa_crowd_end(crowd, NULL);
	snprintf(prefix, sizeof(prefix), "crowd/%s/%d-clients", way->name, options.clients);
	if (r == 0)
		r = ended;
	if (r == 0)
		r = report_burden(bench, prefix, crowd);
	fa_crowd_free(crowd);
	return r;
}

int fa_bench_crowd(struct fa_bench *bench)
{
	struct fa_bench_daemon daemon;
	int r, stopped;

	r = fa_bench_daemon_start(bench, &daemon);
	if (r < 0)
		return r;
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && r == 0; i++) {
		r = measure_flood(bench, &daemon, &ways[i]);
		if (r == 0)
			r = fa_bench_daemon_settle(&daemon);
		if (r == 0)
			r = measure_burden(bench, &daemon, &ways[i]);
		if (r == 0)
			r = fa_bench_daemon_settle(&daemon);
	}
	if (r < 0)
		fa_bench_log(bench, "fabench crowd: %s", strerror(-r));
	stopped = fa_bench_daemon_stop(&daemon);
	if (stopped < 0)
		fa_bench_log(bench, "fabench crowd: the daemon did not exit cleanly");
	return r < 0 ? r : stopped;
}
