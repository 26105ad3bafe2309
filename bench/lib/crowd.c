#include "bench/lib/crowd.h"

#include "client/faclient.h"
#include "common/clock.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIM 8
#define LINKS_PER_REQUEST 2 /* links per request in flight */
#define FIRST_REQUESTS 8    /* requests until a client is ready */
#define TOLERANCE 1e-5
/* The time in which a client must connect or stop. */
#define READY_NS (60 * FA_NS_PER_SEC)
/* A slower request counts as lost. */
#define LOST_NS (120 * FA_NS_PER_SEC)
#define GATED_REQUESTS 64
#define STOPPED_REQUESTS 512
#define NEVER 1000000 /* a value never signalled */

/* A request's input, as two tokens of K and V alike: the previous result and a fresh number. With a
 * query of zero the result is their mean. */
struct link {
	float sum[DIM];
	float fresh[DIM];
};

struct chain {
	float query[DIM];
	struct link links[LINKS_PER_REQUEST * FA_CROWD_DEPTH_MAX];
};

/* A client's state, in shared memory. */
struct member {
	_Atomic uint64_t done;
	uint64_t asked, wrong;
	int status;
	_Atomic bool ready;
	uint32_t n_samples[FA_CROWD_PHASES];
	uint32_t samples_ns[FA_CROWD_PHASES][FA_CROWD_SAMPLES];
};

struct shared {
	_Atomic bool go, end;
	_Atomic int phase;
	struct member members[FA_CROWD_CLIENTS_MAX];
};

struct fa_crowd {
	struct fa_crowd_options options;
	struct shared *shared;
	pid_t pids[FA_CROWD_CLIENTS_MAX];
	bool ended;
	struct fa_crowd_sum sum;
	int status;
};

/* ---- a client, in a process of its own */

struct client {
	const struct fa_crowd_options *options;
	struct shared *shared;
	struct member *member;
	struct fa_client *client;
	struct fa_buffer *buffer;
	struct chain *chain;
	uint32_t n_links;
	uint64_t random;
	double expected; /* column 0 of the last result */
	struct in_flight {
		struct fa_ticket ticket;
		double fresh;
		uint64_t asked_ns;
	} in_flight[FA_CROWD_DEPTH_MAX];
};

static uint64_t next_random(struct client *c)
{
	c->random ^= c->random << 13;
	c->random ^= c->random >> 7;
	c->random ^= c->random << 17;
	return c->random;
}

static int open_client(struct client *c)
{
	const struct fa_options options = { .size = sizeof(options),
		                            .socket = c->options->socket,
		                            .name = c->options->name,
		                            .flags = c->options->flags,
		                            .connect_ns = READY_NS };
	int r;

	r = fa_connect(&options, &c->client);
	if (r == 0)
		r = fa_buffer_new(c->client, sizeof(struct chain), 0, &c->buffer);
	if (r < 0)
		return r;
	c->chain = fa_buffer_data(c->buffer);
	c->n_links = LINKS_PER_REQUEST * c->options->depth;
	return 0;
}

/* Sends request @n, which reads link n and writes the sum of link n + 1. */
static int ask(struct client *c, uint64_t n)
{
	static const int64_t shape[4] = { 1, 1, 1, DIM }, shape_k[4] = { 1, 2, 1, DIM };
	struct fa_attention attention = { .size = sizeof(attention) };
	struct in_flight *f = &c->in_flight[n % c->options->depth];
	const uint64_t from = n % c->n_links, to = (n + 1) % c->n_links;
	const size_t at = offsetof(struct chain, links);
	int r;

	f->fresh = (double)(next_random(c) >> 40) / (1 << 23) - 1;
	for (int d = 0; d < DIM; d++)
		c->chain->links[from].fresh[d] = (float)f->fresh;
	fa_tensor_init(&attention.q, c->buffer, 0, FA_F32, 4, shape);
	fa_tensor_init(&attention.k, c->buffer, at + from * sizeof(struct link), FA_F32, 4,
	               shape_k);
	attention.v = attention.k;
	fa_tensor_init(&attention.out, c->buffer, at + to * sizeof(struct link), FA_F32, 4, shape);
	f->asked_ns = fa_now_ns();
	r = fa_attention(c->client, &attention, &f->ticket);
	if (r == 0)
		++c->member->asked;
	return r;
}

static void keep_sample(struct client *c, uint64_t ns)
{
	const int phase = atomic_load_explicit(&c->shared->phase, memory_order_relaxed);
	struct member *member = c->member;

	if (phase < 0 || member->n_samples[phase] == FA_CROWD_SAMPLES)
		return;
	member->samples_ns[phase][member->n_samples[phase]++] =
		(uint32_t)(ns < UINT32_MAX ? ns : UINT32_MAX);
}

/* Waits for request @n. Its ticket shows that no earlier request was skipped. */
static int await(struct client *c, uint64_t n)
{
	const struct in_flight *f = &c->in_flight[n % c->options->depth];
	const struct link *to = &c->chain->links[(n + 1) % c->n_links];
	bool correct = f->ticket.value == n + 1;
	int r;

	r = fa_wait(c->client, &f->ticket, LOST_NS, NULL);
	if (r < 0)
		return r;
	if (n >= FIRST_REQUESTS)
		keep_sample(c, fa_now_ns() - f->asked_ns);
	c->expected = (c->expected + f->fresh) / 2;
	for (int d = 0; d < DIM; d++)
		correct = correct && fabs((double)to->sum[d] - c->expected) < TOLERANCE;
	if (correct)
		atomic_fetch_add_explicit(&c->member->done, 1, memory_order_relaxed);
	else
		++c->member->wrong;
	return 0;
}

static void rest(struct client *c)
{
	const uint64_t ns = c->options->rest_ns;
	uint64_t time_ns;

	if (!ns)
		return;
	time_ns = ns / 2 + next_random(c) % ns;
	(void)clock_nanosleep(CLOCK_MONOTONIC, 0,
	                      &(struct timespec){ .tv_sec = (time_t)(time_ns / FA_NS_PER_SEC),
	                                          .tv_nsec = (long)(time_ns % FA_NS_PER_SEC) },
	                      NULL);
}

/* Checks that a client uses a ring if it gets one: it has the ring after the first answers. */
static int check_transport(struct client *c)
{
	struct fa_info info = { .size = sizeof(info) };
	const bool by_socket = c->options->flags & FA_CONNECT_NO_RING;
	const int r = fa_info(c->client, &info);

	if (r == 0 && by_socket != (info.ring_bytes == 0)) {
		fprintf(stderr, "a client has %s ring\n", by_socket ? "a" : "no");
		return -ENOTSUP;
	}
	return r;
}

static int work(struct client *c)
{
	const uint32_t depth = c->options->depth;
	uint64_t n = 0, ended = 0;
	int r = 0;

	while (r == 0 && !atomic_load_explicit(&c->shared->end, memory_order_relaxed)) {
		if (n == FIRST_REQUESTS) {
			for (; ended < n && r == 0; ended++)
				r = await(c, ended);
			if (r == 0)
				r = check_transport(c);
			if (r < 0)
				break;
			atomic_store(&c->member->ready, true);
			while (!atomic_load(&c->shared->go) && !atomic_load(&c->shared->end))
				(void)poll(NULL, 0, 1);
		}
		if (n >= FIRST_REQUESTS)
			rest(c);
		if (r == 0 && n - ended == depth)
			r = await(c, ended++);
		if (r == 0)
			r = ask(c, n++);
		/* A pausing client measures each request's latency. */
		if (r == 0 && c->options->rest_ns)
			r = await(c, ended++);
	}
	for (; ended < n && r == 0; ended++)
		r = await(c, ended);
	return r;
}

static int run_client(const struct fa_crowd *crowd, int i)
{
	struct client c = { .options = &crowd->options,
		            .shared = crowd->shared,
		            .member = &crowd->shared->members[i],
		            .random = 88172645463325252ull + (uint64_t)i * 7919 };
	int r;

	r = open_client(&c);
	if (r == 0)
		r = work(&c);
	if (r < 0)
		fprintf(stderr, "client %d: %s\n", i, fa_error());
	c.member->status = r;
	atomic_store(&c.member->ready, true);
	fa_buffer_free(c.buffer);
	fa_disconnect(c.client);
	return r < 0;
}

/* ---- the parent */

static int start_clients(struct fa_crowd *crowd)
{
	const uint64_t until_ns = fa_deadline_ns(READY_NS);
	int r = 0;

	fflush(NULL);
	for (int i = 0; i < crowd->options.clients && r == 0; i++) {
		crowd->pids[i] = fork();
		if (crowd->pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(run_client(crowd, i));
		}
		if (crowd->pids[i] < 0)
			r = -errno;
	}
	for (int i = 0; i < crowd->options.clients && r == 0; i++) {
		const struct member *member = &crowd->shared->members[i];

		while (!atomic_load(&member->ready) && fa_now_ns() < until_ns)
			(void)poll(NULL, 0, 1);
		r = atomic_load(&member->ready) ? member->status : -ETIMEDOUT;
	}
	if (r < 0)
		fprintf(stderr, "a crowd of %d clients: %s\n", crowd->options.clients,
		        strerror(-r));
	return r;
}

int fa_crowd_new(const struct fa_crowd_options *options, struct fa_crowd **ret_crowd)
{
	struct fa_crowd *crowd = calloc(1, sizeof(*crowd));
	int r;

	if (!crowd)
		return -ENOMEM;
	crowd->options = *options;
	crowd->shared = mmap(NULL, sizeof(*crowd->shared), PROT_READ | PROT_WRITE,
	                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (crowd->shared == MAP_FAILED) {
		free(crowd);
		return -ENOMEM;
	}
	atomic_store(&crowd->shared->phase, -1);
	r = start_clients(crowd);
	if (r < 0) {
		fa_crowd_free(crowd);
		return r;
	}
	*ret_crowd = crowd;
	return 0;
}

void fa_crowd_go(struct fa_crowd *crowd)
{
	atomic_store(&crowd->shared->go, true);
}

void fa_crowd_phase(struct fa_crowd *crowd, int phase)
{
	atomic_store(&crowd->shared->phase, phase);
}

uint64_t fa_crowd_done(const struct fa_crowd *crowd, int i)
{
	return atomic_load(&crowd->shared->members[i].done);
}

static void end(struct fa_crowd *crowd)
{
	struct fa_crowd_sum *sum = &crowd->sum;

	atomic_store(&crowd->shared->end, true);
	for (int i = 0; i < crowd->options.clients; i++) {
		struct member *member = &crowd->shared->members[i];
		int status = 0;

		if (crowd->pids[i] <= 0)
			continue;
		while (waitpid(crowd->pids[i], &status, 0) < 0 && errno == EINTR)
			;
		/* A killed client could not set its status. */
		if (status && member->status == 0)
			member->status = -ECHILD;
		if (crowd->status == 0)
			crowd->status = member->status;
		sum->asked += member->asked;
		sum->correct += member->done;
		sum->wrong += member->wrong;
	}
	sum->failed = sum->asked - sum->correct - sum->wrong;
	crowd->ended = true;
}

int fa_crowd_end(struct fa_crowd *crowd, struct fa_crowd_sum *ret_sum)
{
	if (!crowd->ended)
		end(crowd);
	if (ret_sum)
		*ret_sum = crowd->sum;
	return crowd->status;
}

size_t fa_crowd_samples(const struct fa_crowd *crowd, int phase, uint64_t **ret_ns)
{
	const struct member *members = crowd->shared->members;
	size_t n = 0, k = 0;
	uint64_t *ns;

	for (int i = 0; i < crowd->options.clients; i++)
		n += members[i].n_samples[phase];
	*ret_ns = ns = n ? malloc(n * sizeof(*ns)) : NULL;
	for (int i = 0; i < crowd->options.clients && ns; i++)
		for (uint32_t j = 0; j < members[i].n_samples[phase]; j++)
			ns[k++] = members[i].samples_ns[phase][j];
	return k;
}

struct fa_crowd *fa_crowd_free(struct fa_crowd *crowd)
{
	if (!crowd)
		return NULL;
	if (!crowd->ended)
		end(crowd);
	munmap(crowd->shared, sizeof(*crowd->shared));
	free(crowd);
	return NULL;
}

/* ---- misbehaving clients */

/* Sends a request that waits for a gate that never opens, and others behind it. */
static int run_gated(struct client *c)
{
	const struct fa_gate gate = { .slot = 0, .value = NEVER };
	const struct fa_gates gates = { .size = sizeof(gates), .n_waits = 1, .waits = &gate };
	struct fa_timeline *timeline;
	struct fa_ticket ticket;
	int r;

	r = fa_timeline_open(c->client, &timeline);
	if (r == 0)
		r = fa_marker(c->client, 0, &gates, &ticket);
	for (uint64_t n = 0; n < GATED_REQUESTS && r == 0; n++)
		r = ask(c, n);
	return r;
}

static int run_stopped(struct client *c)
{
	int r = 0;

	for (uint64_t n = 0; n < STOPPED_REQUESTS && r == 0; n++)
		r = ask(c, n);
	return r == -EAGAIN ? 0 : r; /* the ring is full */
}

/* Starts a misbehaving client, which stops itself (SIGSTOP) when it has sent all requests. The
 * gated client is then continued, and sleeps. */
static int start_burden(const struct fa_crowd_options *options, int (*misbehave)(struct client *c),
                        pid_t *ret_pid)
{
	struct member member = { 0 };
	struct client c = { .options = options, .member = &member, .random = 1 };
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (open_client(&c) < 0 || misbehave(&c) < 0) {
			fprintf(stderr, "%s: %s\n", options->name, fa_error());
			_exit(1);
		}
		raise(SIGSTOP);
		for (;;)
			pause();
	}
	if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
		return -EIO;
	*ret_pid = pid;
	return 0;
}

int fa_crowd_burden_start(const char *socket, uint32_t flags, struct fa_crowd_burden *ret_burden)
{
	struct fa_crowd_options options = {
		.socket = socket, .name = "gated", .flags = flags, .depth = FA_CROWD_DEPTH_MAX
	};
	struct fa_crowd_burden burden = { 0 };
	int r;

	r = start_burden(&options, run_gated, &burden.gated);
	if (r == 0)
		(void)kill(burden.gated, SIGCONT);
	options.name = "stopped";
	if (r == 0)
		r = start_burden(&options, run_stopped, &burden.stopped);
	if (r < 0) {
		fa_crowd_burden_end(&burden);
		return r;
	}
	*ret_burden = burden;
	return 0;
}

void fa_crowd_burden_end(struct fa_crowd_burden *burden)
{
	const pid_t pids[] = { burden->gated, burden->stopped };

	for (size_t i = 0; i < sizeof(pids) / sizeof(pids[0]); i++) {
		if (pids[i] <= 0)
			continue;
		(void)kill(pids[i], SIGKILL);
		(void)waitpid(pids[i], NULL, 0);
	}
	*burden = (struct fa_crowd_burden){ 0 };
}
