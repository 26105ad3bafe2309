#include "daemon/base/trace.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECORDS 16384 /* a power of two */
#define PAUSE_MS 20
#define THREADS_MAX 16

/* In the file these are processes, whose tracks do not mix. */
#define TRACK_THREADS 1
#define TRACK_REQUESTS 2
#define TRACK_DEVICE 3

struct record {
	/* i: free for record i; i + 1: holds it. */
	_Atomic uint64_t turn;
	const char *name;
	uint64_t session, value; /* a slice's value: the message's id */
	uint64_t queued_ns;
	uint64_t started_ns, finished_ns, ended_ns;
	uint32_t stream;
	int status;
	pid_t thread; /* slice; 0: a request */
};

struct fa_trace {
	FILE *file;
	uint64_t bytes_max, bytes;
	uint64_t n_written;
	_Atomic uint64_t n_dropped;
	int error;
	pid_t threads[THREADS_MAX]; /* named in the file */
	unsigned int n_threads;

	_Alignas(64) _Atomic uint64_t next; /* next record to take */
	/* The next record to write. Used by the writer. */
	_Alignas(64) uint64_t first;
	struct record records[RECORDS];

	pthread_t writer;
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	bool stop; /* under the mutex */
};

struct fa_trace *fa_trace_active;

/* ---- recording */

/* NULL: the queue is full. */
static struct record *take(struct fa_trace *trace, uint64_t *ret_number)
{
	uint64_t number = atomic_load_explicit(&trace->next, memory_order_relaxed);

	for (;;) {
		struct record *record = &trace->records[number % RECORDS];
		const uint64_t turn = atomic_load_explicit(&record->turn, memory_order_acquire);

		if (turn < number) {
			atomic_fetch_add_explicit(&trace->n_dropped, 1, memory_order_relaxed);
			return NULL;
		}
		if (turn > number) {
			number = atomic_load_explicit(&trace->next, memory_order_relaxed);
			continue;
		}
		if (atomic_compare_exchange_weak_explicit(&trace->next, &number, number + 1,
		                                          memory_order_relaxed,
		                                          memory_order_relaxed)) {
			*ret_number = number;
			return record;
		}
	}
}

static void give(struct record *record, uint64_t number)
{
	atomic_store_explicit(&record->turn, number + 1, memory_order_release);
}

static pid_t own_thread(void)
{
	static _Thread_local pid_t thread;

	if (!thread)
		thread = (pid_t)syscall(SYS_gettid);
	return thread;
}

void fa_trace_slice(const char *name, uint64_t begin_ns, uint64_t session, uint64_t id)
{
	struct record *record;
	uint64_t number;

	record = fa_trace_on() ? take(fa_trace_active, &number) : NULL;
	if (!record)
		return;
	record->name = name;
	record->session = session;
	record->value = id;
	record->queued_ns = begin_ns;
	record->ended_ns = fa_now_ns();
	record->thread = own_thread();
	give(record, number);
}

void fa_trace_request(const struct fa_trace_request *request)
{
	struct record *record;
	uint64_t number;

	record = fa_trace_on() ? take(fa_trace_active, &number) : NULL;
	if (!record)
		return;
	record->name = request->name;
	record->session = request->session;
	record->value = request->value;
	record->stream = request->stream;
	record->status = request->status;
	record->queued_ns = request->queued_ns;
	record->started_ns = request->started_ns;
	record->finished_ns = request->finished_ns;
	record->ended_ns = fa_now_ns();
	record->thread = 0;
	give(record, number);
}

/* ---- writing; on the writer's thread, or the one that opens and closes */

static void put(struct fa_trace *trace, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void put(struct fa_trace *trace, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vfprintf(trace->file, format, args);
	va_end(args);
	if (n < 0 && !trace->error)
		trace->error = -errno;
	trace->bytes += n > 0 ? (uint64_t)n : 0;
}

/* Chrome's times are microseconds. */
#define TIME "%" PRIu64 ".%03u"
#define TIME_OF(ns) (ns) / 1000, (unsigned int)((ns) % 1000)

static void put_process(struct fa_trace *trace, int process, const char *name)
{
	put(trace,
	    ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}",
	    process, name);
}

static void put_thread(struct fa_trace *trace, pid_t thread)
{
	char path[64], name[32] = "thread";
	FILE *file;

	for (unsigned int i = 0; i < trace->n_threads; ++i)
		if (trace->threads[i] == thread)
			return;
	if (trace->n_threads == THREADS_MAX)
		return;
	trace->threads[trace->n_threads++] = thread;
	snprintf(path, sizeof(path), "/proc/self/task/%d/comm", (int)thread);
	file = fopen(path, "re");
	if (file && fgets(name, sizeof(name), file))
		name[strcspn(name, "\n\"\\")] = 0;
	if (file)
		fclose(file);
	put(trace,
	    ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%"
	    "s\"}}",
	    TRACK_THREADS, (int)thread, name);
}

static void put_slice(struct fa_trace *trace, const struct record *record)
{
	put_thread(trace, record->thread);
	put(trace,
	    ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"thread\",\"pid\":%d,\"tid\":%d,\"ts\":" TIME
	    ",\"dur\":" TIME ",\"args\":{\"session\":%" PRIu64 ",\"id\":%" PRIu64 "}}",
	    record->name, TRACK_THREADS, (int)record->thread, TIME_OF(record->queued_ns),
	    TIME_OF(record->ended_ns - record->queued_ns), record->session, record->value);
}

/* Writes two events with one id. Spans may overlap. */
static void put_span(struct fa_trace *trace, const struct record *record, int process,
                     const char *name, uint64_t begin_ns, uint64_t end_ns)
{
	static const char *const categories[] = {
		[TRACK_REQUESTS] = "request", [TRACK_DEVICE] = "device"
	};

	for (int end = 0; end < 2; ++end)
		put(trace,
		    ",\n{\"ph\":\"%c\",\"name\":\"%s\",\"cat\":\"%s\",\"id\":\"%" PRIu64 ".%" PRIu32
		    ".%" PRIu64 "\",\"pid\":%d,\"tid\":%" PRIu64 ",\"ts\":" TIME "}",
		    end ? 'e' : 'b', name, categories[process], record->session, record->stream,
		    record->value, process, record->session, TIME_OF(end ? end_ns : begin_ns));
}

static void put_request(struct fa_trace *trace, const struct record *record)
{
	put(trace,
	    ",\n{\"ph\":\"b\",\"name\":\"%s\",\"cat\":\"request\",\"id\":\"%" PRIu64 ".%" PRIu32
	    ".%" PRIu64 "\",\"pid\":%d,\"tid\":%" PRIu64 ",\"ts\":" TIME
	    ",\"args\":{\"session\":%" PRIu64 ",\"stream\":%" PRIu32 ",\"value\":%" PRIu64
	    ",\"status\":%d}}",
	    record->name, record->session, record->stream, record->value, TRACK_REQUESTS,
	    record->session, TIME_OF(record->queued_ns), record->session, record->stream,
	    record->value, record->status);
	if (record->started_ns) {
		put_span(trace, record, TRACK_REQUESTS, "wait", record->queued_ns,
		         record->started_ns);
		put_span(trace, record, TRACK_REQUESTS, "run", record->started_ns,
		         record->finished_ns);
		put_span(trace, record, TRACK_DEVICE, record->name, record->started_ns,
		         record->finished_ns);
	}
	put(trace,
	    ",\n{\"ph\":\"e\",\"name\":\"%s\",\"cat\":\"request\",\"id\":\"%" PRIu64 ".%" PRIu32
	    ".%" PRIu64 "\",\"pid\":%d,\"tid\":%" PRIu64 ",\"ts\":" TIME "}",
	    record->name, record->session, record->stream, record->value, TRACK_REQUESTS,
	    record->session, TIME_OF(record->ended_ns));
}

static void write_record(struct fa_trace *trace, const struct record *record)
{
	if (trace->error || trace->bytes >= trace->bytes_max) {
		atomic_fetch_add_explicit(&trace->n_dropped, 1, memory_order_relaxed);
		return;
	}
	if (record->thread)
		put_slice(trace, record);
	else
		put_request(trace, record);
	++trace->n_written;
}

static void drain(struct fa_trace *trace)
{
	for (;; ++trace->first) {
		struct record *record = &trace->records[trace->first % RECORDS];

		if (atomic_load_explicit(&record->turn, memory_order_acquire) != trace->first + 1)
			break;
		write_record(trace, record);
		atomic_store_explicit(&record->turn, trace->first + RECORDS, memory_order_release);
	}
	/* A killed process leaves what was written. */
	if (fflush(trace->file) != 0 && !trace->error)
		trace->error = -errno;
}

static void *write_records(void *userdata)
{
	struct fa_trace *trace = userdata;
	struct timespec until;
	bool stop = false;

	while (!stop) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += PAUSE_MS * 1000000;
		if (until.tv_nsec >= 1000000000) {
			until.tv_nsec -= 1000000000;
			++until.tv_sec;
		}
		pthread_mutex_lock(&trace->mutex);
		if (!trace->stop)
			(void)pthread_cond_timedwait(&trace->wake, &trace->mutex, &until);
		stop = trace->stop;
		pthread_mutex_unlock(&trace->mutex);
		drain(trace);
	}
	return NULL;
}

/* ---- opening and closing */

static struct fa_trace *trace_free(struct fa_trace *trace)
{
	if (trace && trace->file)
		(void)fclose(trace->file);
	free(trace);
	return NULL;
}

static void trace_freep(struct fa_trace **trace)
{
	*trace = trace_free(*trace);
}

static int open_file(struct fa_trace *trace, const char *path, struct fa_error *error)
{
	_fa_cleanup_(fa_close_fdp) int fd = -1;

	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fa_fail(error, -errno, "the trace %s cannot be made: %m", path);
	trace->file = fdopen(fd, "w");
	if (!trace->file)
		return fa_fail(error, -errno, "the trace %s cannot be made: %m", path);
	(void)fa_steal_fd(&fd);
	return 0;
}

int fa_trace_open(const char *path, uint64_t bytes_max, struct fa_error *error)
{
	_fa_cleanup_(trace_freep) struct fa_trace *trace = NULL;
	int r;

	trace = aligned_alloc(_Alignof(struct fa_trace), sizeof(*trace));
	if (!trace)
		return fa_fail(error, -ENOMEM, "no memory for the trace");
	memset(trace, 0, sizeof(*trace));
	trace->bytes_max = bytes_max;
	for (uint64_t i = 0; i < RECORDS; ++i)
		atomic_init(&trace->records[i].turn, i);
	pthread_mutex_init(&trace->mutex, NULL);
	pthread_cond_init(&trace->wake, NULL);
	r = open_file(trace, path, error);
	if (r < 0)
		return r;
	put(trace,
	    "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"fad\"}}",
	    TRACK_THREADS);
	put_process(trace, TRACK_REQUESTS, "requests");
	put_process(trace, TRACK_DEVICE, "device");
	r = pthread_create(&trace->writer, NULL, write_records, trace);
	if (r)
		return fa_fail(error, -r, "no thread can be started for the trace: %s",
		               strerror(r));
	(void)pthread_setname_np(trace->writer, "fad-trace");
	fa_trace_active = fa_steal_ptr(trace);
	return 0;
}

void fa_trace_close(struct fa_trace_result *ret_result)
{
	struct fa_trace *trace = fa_steal_ptr(fa_trace_active);

	*ret_result = (struct fa_trace_result){};
	if (!trace)
		return;
	pthread_mutex_lock(&trace->mutex);
	trace->stop = true;
	pthread_cond_signal(&trace->wake);
	pthread_mutex_unlock(&trace->mutex);
	pthread_join(trace->writer, NULL);
	ret_result->n_written = trace->n_written;
	ret_result->n_dropped = atomic_load(&trace->n_dropped);
	put(trace,
	    ",\n{\"ph\":\"M\",\"name\":\"dropped\",\"pid\":%d,\"args\":{\"records\":%" PRIu64
	    "}}\n]\n",
	    TRACK_THREADS, ret_result->n_dropped);
	if (fflush(trace->file) != 0 && !trace->error)
		trace->error = -errno;
	ret_result->error = trace->error;
	pthread_mutex_destroy(&trace->mutex);
	pthread_cond_destroy(&trace->wake);
	trace_free(trace);
}
