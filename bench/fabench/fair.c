/*
 * fair: what other users do to one. A victim of its own uid pings, computes and appends a token to a
 * sequence, again and again. Beside it runs an attack of another uid (bench/lib/attack.h), or a
 * control that burns as much processor time without talking to the daemon.
 *
 * Where the kernel puts the processes of a window changes its latencies by a factor of several, so a
 * run has many windows, of attack and control in turn, and its samples are those of all.
 *
 *   fair/ATTACK/WHAT/p50, p99, max   the victim's latency; peer: the control. The medians of five
 *                                    runs
 */
#include "bench/fabench/bench.h"
#include "bench/fabench/daemon.h"
#include "bench/lib/attack.h"

#include "client/faclient.h"
#include "client/faclient_kv.h"
#include "common/clock.h"

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ATTACKER_UID 54321
#define VICTIM_UID 54322
#define RUNS 5
#define WINDOWS 5 /* windows of each side in a run */
#define WINDOW_MS 200
#define WINDOW_MS_QUICK 60
#define SETTLE_MS 40
#define SETTLE_MS_QUICK 10
#define SAMPLES 4096 /* samples of a side in a run */
#define ATTACKS_MAX 16
#define REST_NS FA_NS_PER_MS

#define DIM 64
#define HEADS 2
#define KEYS 128
#define TOKENS_MAX 256

enum {
	PING,
	REQUEST,
	DECODE,
	KINDS
};
enum {
	CONTROL,
	ATTACK,
	SIDES
};

static const char *const kinds[KINDS] = { "ping", "request", "decode" };
static const char *const points[] = { "p50", "p99", "max" };
static const double percents[] = { 50, 99, 100 };

#define POINTS (sizeof(percents) / sizeof(percents[0]))

struct samples {
	_Atomic uint32_t n;
	uint64_t ns[KINDS][SAMPLES];
};

/* Shared with the victim. */
struct shared {
	_Atomic int window; /* the side whose window it is; -1: neither's */
	_Atomic bool ready, end;
	struct samples samples[SIDES];
};

struct fair {
	struct fa_bench *bench;
	struct fa_bench_daemon daemon;
	struct shared *shared;
	pid_t victim;
	double us[ATTACKS_MAX][SIDES][KINDS][POINTS][RUNS];
};

/* ---- the victim */

struct victim {
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct fa_attention attention;
	struct fa_step_attend attend;
	uint64_t sequence, tokens;
	float *values;
	uint64_t random;
};

enum {
	Q_AT = 0,
	OUT_AT = 4096,
	K_AT = 8192,
	NEW_AT = K_AT + KEYS * HEADS * DIM * 4
};
#define BUFFER_BYTES (NEW_AT + 8192)

static void wait_ns(uint64_t ns)
{
	(void)clock_nanosleep(CLOCK_MONOTONIC, 0,
	                      &(struct timespec){ .tv_sec = (time_t)(ns / FA_NS_PER_SEC),
	                                          .tv_nsec = (long)(ns % FA_NS_PER_SEC) },
	                      NULL);
}

static int open_victim(struct victim *v, const char *socket)
{
	static const int64_t q_shape[4] = { 1, 1, HEADS, DIM },
			     k_shape[4] = { 1, KEYS, HEADS, DIM };
	static const int64_t shape[3] = { 1, HEADS, DIM };
	const struct fa_options options = { .size = sizeof(options),
		                            .socket = socket,
		                            .name = "fabench fair" };
	const struct fa_cache_options cache_options = { .size = sizeof(cache_options),
		                                        .dtype = FA_F32,
		                                        .layers = 1,
		                                        .kv_heads = HEADS,
		                                        .head_dim = DIM,
		                                        .page_tokens = 16 };
	uint64_t cache;
	int r;

	r = fa_connect(&options, &v->client);
	if (r == 0)
		r = fa_buffer_new(v->client, BUFFER_BYTES, 0, &v->buffer);
	if (r == 0)
		r = fa_cache_create(v->client, &cache_options, &cache);
	if (r == 0)
		r = fa_sequence_create(v->client, cache, &v->sequence);
	if (r < 0)
		return r;
	v->values = fa_buffer_data(v->buffer);
	v->attention = (struct fa_attention){ .size = sizeof(v->attention) };
	fa_tensor_init(&v->attention.q, v->buffer, Q_AT, FA_F32, 4, q_shape);
	fa_tensor_init(&v->attention.out, v->buffer, OUT_AT, FA_F32, 4, q_shape);
	fa_tensor_init(&v->attention.k, v->buffer, K_AT, FA_F32, 4, k_shape);
	v->attention.v = v->attention.k;
	v->attend = (struct fa_step_attend){ .size = sizeof(v->attend) };
	fa_tensor_init(&v->attend.q, v->buffer, Q_AT, FA_F32, 3, shape);
	fa_tensor_init(&v->attend.out, v->buffer, OUT_AT, FA_F32, 3, shape);
	fa_tensor_init(&v->attend.k_new, v->buffer, NEW_AT, FA_F32, 3, shape);
	v->attend.v_new = v->attend.k_new;
	for (size_t i = 0; i < BUFFER_BYTES / sizeof(float); i++)
		v->values[i] = 0.5f;
	return 0;
}

/* All values are 0.5, and so is their mean; nothing else leaves it in the output. */
static int check_out(struct victim *v)
{
	float *out = v->values + OUT_AT / sizeof(float);

	for (int i = 0; i < HEADS * DIM; i++)
		if (fabsf(out[i] - 0.5f) > 1e-6f)
			return -EBADMSG;
	memset(out, 0, HEADS * DIM * sizeof(float));
	return 0;
}

static int compute(struct victim *v)
{
	struct fa_ticket ticket;
	int r;

	r = fa_attention(v->client, &v->attention, &ticket);
	if (r == 0)
		r = fa_wait(v->client, &ticket, UINT64_MAX, NULL);
	return r;
}

static int decode(struct victim *v)
{
	const struct fa_step_item item = { .sequence = v->sequence, .n_new = 1 };
	const struct fa_step_options options = { .size = sizeof(options),
		                                 .n_items = 1,
		                                 .items = &item };
	struct fa_step *step = NULL;
	int r;

	r = fa_step_begin(v->client, &options, &step);
	if (r == 0)
		r = fa_step_attend(step, &v->attend, NULL);
	if (r == 0)
		r = fa_step_commit(step, NULL, NULL);
	fa_step_free(step);
	return r;
}

static int do_one(struct victim *v, int kind)
{
	switch (kind) {
	case PING:
		return fa_ping(v->client);
	case REQUEST:
		return compute(v);
	default:
		return decode(v);
	}
}

static int one_round(struct victim *v, struct shared *shared)
{
	const int window = atomic_load(&shared->window);
	struct samples *to = window < 0 ? NULL : &shared->samples[window];
	const uint32_t n = to ? atomic_load(&to->n) : 0;
	uint64_t ns[KINDS];
	int r;

	for (int kind = 0; kind < KINDS; kind++) {
		const uint64_t begin_ns = fa_now_ns();

		r = do_one(v, kind);
		ns[kind] = fa_now_ns() - begin_ns;
		if (r == 0 && kind != PING)
			r = check_out(v);
		if (r < 0)
			return r;
	}
	if (++v->tokens == TOKENS_MAX) {
		r = fa_sequence_truncate(v->client, v->sequence, 0);
		if (r < 0)
			return r;
		v->tokens = 0;
	}
	if (!to || n == SAMPLES || atomic_load(&shared->window) != window)
		return 0;
	for (int kind = 0; kind < KINDS; kind++)
		to->ns[kind][n] = ns[kind];
	atomic_store(&to->n, n + 1);
	return 0;
}

static int be_victim(const char *socket, struct shared *shared)
{
	struct victim v = { .random = 88172645463325252u };
	int r;

	r = open_victim(&v, socket);
	while (r == 0 && !atomic_load(&shared->end)) {
		r = one_round(&v, shared);
		atomic_store(&shared->ready, true);
		/* Pauses have random lengths, so that rounds see all phases of an attack. */
		v.random ^= v.random << 13;
		v.random ^= v.random >> 7;
		v.random ^= v.random << 17;
		wait_ns(REST_NS / 2 + v.random % REST_NS);
	}
	if (r < 0)
		fprintf(stderr, "fabench fair: the victim: %s (%s)\n", strerror(-r), fa_error());
	fa_disconnect(v.client);
	return r < 0;
}

static int start_victim(struct fair *fair)
{
	const pid_t parent = getpid();

	fflush(NULL);
	fair->victim = fork();
	if (fair->victim < 0)
		return -errno;
	if (fair->victim == 0) {
		if (setresgid(VICTIM_UID, VICTIM_UID, VICTIM_UID) < 0 ||
		    setresuid(VICTIM_UID, VICTIM_UID, VICTIM_UID) < 0)
			_exit(1);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		_exit(be_victim(fair->daemon.socket, fair->shared));
	}
	while (!atomic_load(&fair->shared->ready)) {
		if (waitpid(fair->victim, NULL, WNOHANG) != 0) {
			fair->victim = 0;
			return -EIO;
		}
		wait_ns(FA_NS_PER_MS);
	}
	return 0;
}

static int end_victim(struct fair *fair)
{
	int status = 1;

	if (fair->victim <= 0)
		return 0;
	atomic_store(&fair->shared->end, true);
	if (waitpid(fair->victim, &status, 0) != fair->victim)
		return -EIO;
	return status ? -EIO : 0;
}

/* ---- windows */

static int measure(struct fair *fair, const struct fa_attack *attack, int side)
{
	const bool quick = fair->bench->quick;
	struct samples *samples = &fair->shared->samples[side];
	const uint32_t before = atomic_load(&samples->n);
	pid_t pid;
	int r, ended;

	r = fa_attack_start(attack, fair->daemon.socket, ATTACKER_UID, &pid);
	if (r < 0)
		return r;
	wait_ns((quick ? SETTLE_MS_QUICK : SETTLE_MS) * FA_NS_PER_MS);
	atomic_store(&fair->shared->window, side);
	wait_ns((quick ? WINDOW_MS_QUICK : WINDOW_MS) * FA_NS_PER_MS);
	/* A request that takes longer than the window must count. */
	while (atomic_load(&samples->n) == before && before < SAMPLES &&
	       waitpid(fair->victim, NULL, WNOHANG) == 0)
		wait_ns(FA_NS_PER_MS);
	atomic_store(&fair->shared->window, -1);
	ended = fa_attack_end(pid);
	wait_ns((quick ? SETTLE_MS_QUICK : SETTLE_MS) * FA_NS_PER_MS);
	return ended;
}

/* Windows of both sides, in turn. */
static int measure_both(struct fair *fair, const struct fa_attack *attack)
{
	const int windows = fair->bench->quick ? 1 : WINDOWS;
	int r = 0;

	for (int side = 0; side < SIDES; side++)
		atomic_store(&fair->shared->samples[side].n, 0);
	for (int i = 0; i < windows && r == 0; i++) {
		r = measure(fair, &fa_attack_none, CONTROL);
		if (r == 0)
			r = measure(fair, attack, ATTACK);
	}
	return r;
}

static void keep(struct fair *fair, int attack, int side, int run)
{
	struct samples *samples = &fair->shared->samples[side];
	const uint32_t n = atomic_load(&samples->n);

	for (int kind = 0; kind < KINDS; kind++)
		for (size_t point = 0; point < POINTS; point++)
			fair->us[attack][side][kind][point][run] =
				(double)fa_bench_percentile(samples->ns[kind], n, percents[point]) /
				1e3;
}

static int compare(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof(*values), compare);
	return values[n / 2];
}

static bool is_wanted(const struct fair *fair, const struct fa_attack *attack)
{
	char name[64];

	snprintf(name, sizeof(name), "fair/%s", attack->name);
	return !fair->bench->only || fnmatch(fair->bench->only, name, 0) == 0;
}

static int report(struct fair *fair, int runs)
{
	char name[96];
	int r = 0;

	for (int i = 0; fa_attacks[i].name; i++)
		for (int kind = 0; kind < KINDS && is_wanted(fair, &fa_attacks[i]); kind++)
			for (size_t point = 0; point < POINTS && r == 0; point++) {
				const double with = median(fair->us[i][ATTACK][kind][point], runs);
				const double without = median(fair->us[i][CONTROL][kind][point],
				                              runs);

				snprintf(name, sizeof(name), "fair/%s/%s/%s", fa_attacks[i].name,
				         kinds[kind], points[point]);
				r = fa_bench_add(fair->bench, name, with, "us", "control",
				                 with > 0 ? without / with : 0);
			}
	return r;
}

static int run_all(struct fair *fair)
{
	const int runs = fair->bench->quick ? 1 : RUNS;
	int r;

	r = start_victim(fair);
	for (int run = 0; run < runs && r == 0; run++)
		for (int i = 0; fa_attacks[i].name && r == 0; i++) {
			if (!is_wanted(fair, &fa_attacks[i]))
				continue;
			r = measure_both(fair, &fa_attacks[i]);
			if (r < 0) {
				fa_bench_log(fair->bench, "fabench fair: %s: %s",
				             fa_attacks[i].name, strerror(-r));
				break;
			}
			keep(fair, i, CONTROL, run);
			keep(fair, i, ATTACK, run);
		}
	if (r == 0)
		r = end_victim(fair);
	else if (fair->victim > 0)
		kill(fair->victim, SIGKILL);
	return r < 0 ? r : report(fair, runs);
}

int fa_bench_fair(struct fa_bench *bench)
{
	struct fair *fair;
	int r, stopped;

	if (geteuid() != 0) {
		fa_bench_log(bench, "fabench fair: needs root, as its processes belong to several "
		                    "users");
		return -ENODEV;
	}
	fair = calloc(1, sizeof(*fair));
	if (!fair)
		return -ENOMEM;
	fair->bench = bench;
	fair->shared = mmap(NULL, sizeof(*fair->shared), PROT_READ | PROT_WRITE,
	                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fair->shared == MAP_FAILED) {
		free(fair);
		return -ENOMEM;
	}
	atomic_store(&fair->shared->window, -1);
	r = fa_bench_daemon_start_for_all(bench, &fair->daemon);
	if (r == 0) {
		r = run_all(fair);
		stopped = fa_bench_daemon_stop(&fair->daemon);
		if (stopped < 0)
			fa_bench_log(bench, "fabench fair: the daemon did not exit cleanly");
		r = r < 0 ? r : stopped;
	}
	munmap(fair->shared, sizeof(*fair->shared));
	free(fair);
	return r;
}
