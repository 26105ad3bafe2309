#include "bench/lib/prefiller.h"

#include "bench/lib/decode-client.h"
#include "bench/lib/inproc-gpu.h"

#include "client/faclient.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HEADS 32
#define KV_HEADS 8
#define DIM 128
#define ELEMENT_BYTES 2
#define IN_FLIGHT 2
#define NONE (-1)
/* The tensors hold random data that repeats after this many bytes. */
#define PIECE_BYTES ((uint64_t)16 << 20)
/* The time in which the client must start, or follow an order; a CPU takes long for a long
 * prompt. */
#define TIMEOUT_NS (120 * FA_NS_PER_SEC)

/* Shared by parent and client in a memfd. */
struct shared {
	char sockets[FA_PREFILLER_DAEMONS][108];
	uint32_t n_daemons, tokens;
	_Atomic int target; /* the daemon to load, or NONE */
	_Atomic int active; /* the loaded daemon, or NONE */
	_Atomic bool ready, end;
	uint64_t n, ns; /* last run; valid when active is NONE again */
	/* status and error are written before ready and active. */
	_Atomic int status;
	struct fa_error error;
};

/* ---- the client */

struct prefill_client {
	struct shared *shared;
	struct fa_inproc_gpu *gpu;
	struct fa_error error;
	CUdeviceptr tensors; /* q, k, v, out */
	uint64_t q_bytes, kv_bytes;
	void *first, *last; /* results, first and latest */
	struct {
		struct fa_client *client;
		struct fa_attention request;
	} daemons[FA_PREFILLER_DAEMONS];
};

static int fail_gpu(struct prefill_client *p, CUresult result, const char *doing)
{
	return result == CUDA_SUCCESS ? 0
	                              : fa_cudriver_fail(&p->gpu->driver, &p->error, result, doing);
}

static int make_tensors(struct prefill_client *p)
{
	const struct fa_cudriver *driver = &p->gpu->driver;
	const uint64_t tokens = p->shared->tokens, bytes = PIECE_BYTES;
	uint16_t *values = malloc(bytes);
	uint64_t in_bytes;
	CUresult result;

	p->q_bytes = tokens * HEADS * DIM * ELEMENT_BYTES;
	p->kv_bytes = tokens * KV_HEADS * DIM * ELEMENT_BYTES;
	in_bytes = p->q_bytes + 2 * p->kv_bytes;
	p->first = malloc(p->q_bytes);
	p->last = malloc(p->q_bytes);
	if (!values || !p->first || !p->last) {
		free(values);
		return fa_fail(&p->error, -ENOMEM, "no memory");
	}
	fa_decode_random(values, bytes / ELEMENT_BYTES);
	result = driver->cuMemAlloc(&p->tensors, in_bytes + p->q_bytes);
	for (uint64_t at = 0; at < in_bytes && result == CUDA_SUCCESS; at += bytes)
		result = driver->cuMemcpyHtoD(p->tensors + at, values,
		                              in_bytes - at < bytes ? in_bytes - at : bytes);
	if (result == CUDA_SUCCESS)
		result = driver->cuCtxSynchronize();
	free(values);
	return fail_gpu(p, result, "making tensors");
}

static int connect_to(struct prefill_client *p, int daemon)
{
	const struct fa_options options = { .size = sizeof(options),
		                            .name = "fabench prefill",
		                            .socket = p->shared->sockets[daemon] };
	const int64_t q_shape[4] = { 1, p->shared->tokens, HEADS, DIM };
	const int64_t kv_shape[4] = { 1, p->shared->tokens, KV_HEADS, DIM };
	struct fa_attention *request = &p->daemons[daemon].request;
	const uint64_t k_at = p->q_bytes, out_at = k_at + 2 * p->kv_bytes;
	struct fa_client **client = &p->daemons[daemon].client;
	struct fa_buffer *buffer;
	int r;

	r = fa_connect(&options, client);
	if (r == 0)
		r = fa_buffer_import_cuda(*client, p->tensors, out_at + p->q_bytes, 0, &buffer);
	if (r < 0)
		return fa_fail(&p->error, r, "the prefill client: %s", fa_error());
	*request = (struct fa_attention){ .size = sizeof(*request), .flags = FA_ATTENTION_CAUSAL };
	fa_tensor_init(&request->q, buffer, 0, FA_BF16, 4, q_shape);
	fa_tensor_init(&request->k, buffer, k_at, FA_BF16, 4, kv_shape);
	fa_tensor_init(&request->v, buffer, k_at + p->kv_bytes, FA_BF16, 4, kv_shape);
	fa_tensor_init(&request->out, buffer, out_at, FA_BF16, 4, q_shape);
	return 0;
}

static CUdeviceptr out_of(const struct prefill_client *p)
{
	return p->tensors + p->q_bytes + 2 * p->kv_bytes;
}

static int poison(struct prefill_client *p)
{
	CUresult result = p->gpu->driver.cuMemsetD8(out_of(p), 0xff, p->q_bytes);

	if (result == CUDA_SUCCESS)
		result = p->gpu->driver.cuCtxSynchronize();
	return fail_gpu(p, result, "filling a tensor");
}

static int compare(struct prefill_client *p)
{
	const CUresult result = p->gpu->driver.cuMemcpyDtoH(p->last, out_of(p), p->q_bytes);

	if (result == CUDA_SUCCESS && memcmp(p->first, p->last, p->q_bytes) != 0)
		return fa_fail(&p->error, -EIO, "a prefill's result has changed");
	return fail_gpu(p, result, "reading a result");
}

static int open_all(struct prefill_client *p)
{
	CUresult result;
	int r;

	r = fa_inproc_gpu_open(&p->error, &p->gpu);
	if (r == 0)
		r = make_tensors(p);
	for (int daemon = 0; daemon < (int)p->shared->n_daemons && r == 0; daemon++) {
		r = connect_to(p, daemon);
		if (r == 0)
			r = poison(p);
		if (r == 0) {
			r = fa_attention(p->daemons[daemon].client, &p->daemons[daemon].request,
			                 NULL);
			if (r < 0)
				fa_fail(&p->error, r, "a prefill: %s", fa_error());
		}
		if (r == 0 && daemon == 0) {
			result = p->gpu->driver.cuMemcpyDtoH(p->first, out_of(p), p->q_bytes);
			r = fail_gpu(p, result, "reading a result");
		} else if (r == 0) {
			r = compare(p);
		}
	}
	return r;
}

/* Loads @daemon until it is no longer the target. */
static int run(struct prefill_client *p, int daemon)
{
	const struct fa_attention *request = &p->daemons[daemon].request;
	struct fa_client *client = p->daemons[daemon].client;
	struct shared *shared = p->shared;
	uint64_t asked = 0, ended = 0, first_ns = 0;
	struct fa_ticket tickets[IN_FLIGHT];
	int r;

	shared->n = shared->ns = 0;
	r = poison(p);
	if (r < 0)
		return r;
	for (;;) {
		const bool target = atomic_load(&shared->target) == daemon;

		while (r == 0 && target && asked - ended < IN_FLIGHT)
			r = fa_attention(client, request, &tickets[asked++ % IN_FLIGHT]);
		if (r < 0 || ended == asked)
			break;
		r = fa_wait(client, &tickets[ended++ % IN_FLIGHT], UINT64_MAX, NULL);
		if (r < 0)
			break;
		if (ended == 1) {
			first_ns = fa_now_ns();
			atomic_store(&shared->active, daemon);
		} else if (target) {
			/* Time counts from the first answer, so that one is not counted. */
			shared->n = ended - 1;
			shared->ns = fa_now_ns() - first_ns;
		}
	}
	if (r < 0)
		return fa_fail(&p->error, r, "a prefill: %s", fa_error());
	return compare(p);
}

static int serve(struct prefill_client *p)
{
	struct shared *shared = p->shared;
	int r;

	r = open_all(p);
	if (r == 0)
		atomic_store(&shared->ready, true);
	while (r == 0 && !atomic_load(&shared->end)) {
		const int daemon = atomic_load(&shared->target);

		if (daemon == NONE) {
			(void)poll(NULL, 0, 1);
			continue;
		}
		r = run(p, daemon);
		if (r == 0)
			atomic_store(&shared->active, NONE);
	}
	for (int daemon = 0; daemon < FA_PREFILLER_DAEMONS; daemon++)
		fa_disconnect(p->daemons[daemon].client);
	if (p->tensors)
		(void)p->gpu->driver.cuMemFree(p->tensors);
	(void)fa_inproc_gpu_close(p->gpu);
	free(p->first);
	free(p->last);
	return r;
}

int fa_prefiller_main(int fd)
{
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
	                             0);
	struct prefill_client p = { .shared = shared };
	int r;

	if (shared == MAP_FAILED)
		return 1;
	r = serve(&p);
	if (r < 0) {
		shared->error = p.error;
		atomic_store(&shared->status, r);
	}
	return r < 0;
}

/* ---- the parent */

struct fa_prefiller {
	struct shared *shared;
	pid_t pid;
};

/* exec(): a CUDA context does not survive fork(). */
static pid_t spawn(int fd)
{
	char number[16];
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fcntl(fd, F_SETFD, 0);
	snprintf(number, sizeof(number), "%d", fd);
	execl("/proc/self/exe", "fabench", "--prefiller", number, NULL);
	_exit(127);
}

static int await(struct fa_prefiller *prefiller,
                 bool (*said)(const struct shared *shared, int what), int what,
                 struct fa_error *error)
{
	const uint64_t until_ns = fa_deadline_ns(TIMEOUT_NS);
	struct shared *shared = prefiller->shared;

	while (!said(shared, what)) {
		const int status = atomic_load(&shared->status);

		if (status < 0)
			return fa_fail(error, status, "%s", shared->error.text);
		if (waitpid(prefiller->pid, NULL, WNOHANG) == prefiller->pid) {
			prefiller->pid = 0;
			/* The child may have set its status and ended between the two checks. */
			if (atomic_load(&shared->status) < 0)
				continue;
			return fa_fail(error, -ECHILD, "the prefill client has ended");
		}
		if (fa_now_ns() > until_ns)
			return fa_fail(error, -ETIMEDOUT, "the prefill client does not answer");
		(void)poll(NULL, 0, 1);
	}
	return 0;
}

static bool is_ready(const struct shared *shared, int what)
{
	return atomic_load(&shared->ready);
}

static bool is_active(const struct shared *shared, int what)
{
	return atomic_load(&shared->active) == what;
}

int fa_prefiller_start(const struct fa_prefiller_options *options, struct fa_error *error,
                       struct fa_prefiller **ret_prefiller)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;
	struct fa_prefiller *prefiller = calloc(1, sizeof(*prefiller));
	struct shared *shared;
	int r;

	if (!prefiller || fa_memfd_new("fabench", sizeof(*shared), true, &fd) < 0) {
		free(prefiller);
		return fa_fail(error, -ENOMEM, "no memory");
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED) {
		free(prefiller);
		return fa_fail(error, -ENOMEM, "no memory");
	}
	prefiller->shared = shared;
	shared->tokens = options->tokens;
	atomic_store(&shared->target, NONE);
	atomic_store(&shared->active, NONE);
	while (shared->n_daemons < FA_PREFILLER_DAEMONS && options->sockets[shared->n_daemons]) {
		snprintf(shared->sockets[shared->n_daemons], sizeof(shared->sockets[0]), "%s",
		         options->sockets[shared->n_daemons]);
		shared->n_daemons++;
	}
	prefiller->pid = spawn(fd);
	r = prefiller->pid < 0 ? fa_fail(error, -errno, "fork: %s", strerror(errno))
	                       : await(prefiller, is_ready, 0, error);
	if (r < 0) {
		fa_prefiller_free(prefiller);
		return r;
	}
	*ret_prefiller = prefiller;
	return 0;
}

struct fa_prefiller *fa_prefiller_free(struct fa_prefiller *prefiller)
{
	struct fa_error error;

	if (!prefiller)
		return NULL;
	if (prefiller->pid > 0) {
		atomic_store(&prefiller->shared->target, NONE);
		atomic_store(&prefiller->shared->end, true);
		/* Let requests in flight end first. */
		if (await(prefiller, is_active, NONE, &error) < 0 && prefiller->pid > 0)
			kill(prefiller->pid, SIGKILL);
		if (prefiller->pid > 0)
			waitpid(prefiller->pid, NULL, 0);
	}
	munmap(prefiller->shared, sizeof(*prefiller->shared));
	free(prefiller);
	return NULL;
}

int fa_prefiller_go(struct fa_prefiller *prefiller, int daemon, struct fa_error *error)
{
	atomic_store(&prefiller->shared->target, daemon);
	return await(prefiller, is_active, daemon, error);
}

int fa_prefiller_stop(struct fa_prefiller *prefiller, struct fa_error *error, double *ret_ns)
{
	struct shared *shared = prefiller->shared;
	int r;

	atomic_store(&shared->target, NONE);
	r = await(prefiller, is_active, NONE, error);
	if (r < 0)
		return r;
	*ret_ns = shared->n ? (double)shared->ns / (double)shared->n : 0;
	return 0;
}
