/* fad's main(): signals, the inherited socket, exit codes. Nothing else exits. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/text.h"
#include "daemon/account/config.h"
#include "daemon/account/fd_filter.h"
#include "daemon/base/fault_guard.h"
#include "daemon/base/log.h"
#include "daemon/base/service_manager.h"
#include "daemon/base/trace.h"
#include "daemon/persist/fd_store.h"
#include "daemon/service/drain.h"
#include "daemon/service/exec_supervisor.h"
#include "daemon/service/options.h"
#include "daemon/service/server.h"
#include "daemon/service/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sysexits.h>

/* The first signal drains, the second cancels requests, the third exits at once. */
#define STOP_SIGNALS_MAX 3
/* Time for the process to end after device loss; then it is killed, as the driver may hang. */
#define LOST_EXIT_S 5

/* Exit status for wrong options, as of the other programs. */
#define USAGE_STATUS 2

struct program {
	struct fa_service_options options;
	uv_loop_t loop;
	uv_signal_t signals[3];
	unsigned int n_stop_signals;
	struct fa_server *server;
	struct fa_watchdog watchdog;
	struct fa_fd_store fd_store;
};

/* A socket must not get one of these numbers. */
static void open_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static void raise_limit(__rlimit_resource_t resource)
{
	struct rlimit limit;

	if (getrlimit(resource, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(resource, &limit);
	}
}

static int activation_fd(struct fa_fd_store *fd_store)
{
	int fd = fa_fd_store_take(fd_store, NULL), more;
	unsigned int n = 1;

	while (fd >= 0 && (more = fa_fd_store_take(fd_store, NULL)) >= 0) {
		close(more);
		++n;
	}
	if (n > 1)
		fa_log(FA_LOG_WARNING, "%u sockets were handed over; only the first is served", n);
	return fd;
}

static int make_server(struct program *program, struct fa_server_options *options,
                       struct fa_error *error)
{
	struct fa_fd_store *fd_store = &program->fd_store;
	int r;

	if (options->listen_fd < 0)
		options->listen_fd = activation_fd(fd_store);
	if (options->listen_fd >= 0)
		return fa_server_new(options, error, &program->server);

	options->listen_fd = fa_fd_store_take(fd_store, FA_FD_STORE_LISTEN);
	options->listen_fd_kept = options->listen_fd >= 0;
	r = fa_server_new(options, error, &program->server);
	if (r == -ESTALE && options->listen_fd_kept) {
		fa_log(FA_LOG_WARNING, "%s; another is made", error->text);
		(void)fa_fd_store_remove(FA_FD_STORE_LISTEN);
		fa_close_fdp(&options->listen_fd);
		options->listen_fd_kept = false;
		r = fa_server_new(options, error, &program->server);
	}
	if (r < 0 || options->listen_fd_kept)
		return r;

	r = fa_fd_store_add(FA_FD_STORE_LISTEN, program->server->listener.fd);
	if (r < 0)
		fa_log(FA_LOG_WARNING, "the socket cannot be kept beyond this process: %s",
		       strerror(-r));
	return 0;
}

static void report_ready(struct program *program)
{
	static const char ready[] = "READY\n";
	const struct fa_server *server = program->server;
	int fd = fa_steal_fd(&program->options.ready_fd);
	char unused[sizeof(server->gpu_unused.text)];

	fa_log(FA_LOG_INFO, "fad " FAD_VERSION " serves %s on %s, %s",
	       *server->listener.path ? server->listener.path : "a socket without a path",
	       server->context.info.name, server->context.info.details);
	fa_text_clean(server->gpu_unused.text, strlen(server->gpu_unused.text), unused,
	              sizeof(unused));
	(void)fa_manager_notifyf("READY=1\nSTATUS=Serving on %s%s%s", server->context.info.name,
	                         *unused ? "; a GPU is not used: " : "", unused);
	if (fd >= 0) {
		if (write(fd, ready, sizeof(ready) - 1) < 0)
			fa_log(FA_LOG_WARNING, "the ready descriptor cannot be written: %m");
		close(fd);
	}
}

static void reload(struct program *program)
{
	struct fa_config config;
	struct fa_error error;

	(void)fa_manager_notifyf("RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
	                         (uint64_t)(fa_now_ns() / FA_NS_PER_US));
	if (fa_service_options_load_config(&program->options, &config, &error) < 0) {
		fa_log(FA_LOG_ERROR, "the configuration stays as it was: %s", error.text);
	} else {
		fa_server_reload(program->server, &config);
		fa_log(FA_LOG_INFO, "the configuration was read again");
	}
	(void)fa_manager_notify("READY=1");
}

static void on_signal(uv_signal_t *handle, int signal)
{
	struct program *program = handle->data;

	/* After a failed start the loop only closes handles. */
	if (!program->server)
		return;
	if (signal == SIGHUP) {
		reload(program);
		return;
	}
	++program->n_stop_signals;
	if (program->n_stop_signals >= STOP_SIGNALS_MAX) {
		fa_log(FA_LOG_ERROR, "exiting with work still in flight");
		_exit(EXIT_FAILURE);
	}
	if (program->n_stop_signals == 1 && program->server->context.state == FA_DAEMON_RUNNING)
		fa_drain_start(program->server);
	else
		fa_drain_force(program->server);
}

static const int signal_numbers[] = { SIGTERM, SIGINT, SIGHUP };

static int watch_signals(struct program *program)
{
	int r = 0;

	signal(SIGPIPE, SIG_IGN);
	for (unsigned int i = 0; i < 3; ++i) {
		program->signals[i].data = program;
		(void)uv_signal_init(&program->loop, &program->signals[i]);

		uv_unref((uv_handle_t *)&program->signals[i]);
		r = r ? r : uv_signal_start(&program->signals[i], on_signal, signal_numbers[i]);
	}
	return r;
}

static void on_draining(void *userdata)
{
	(void)fa_fd_store_remove(FA_FD_STORE_LISTEN);
	(void)fa_manager_notify("STOPPING=1");
}

static void on_lost_timeout(int signal)
{
	_exit(EX_TEMPFAIL);
}

static void on_lost(void *userdata)
{
	struct program *program = userdata;

	(void)fa_manager_notifyf("ERRNO=%d\nSTATUS=%s", ENODEV,
	                         program->server->context.lost_reason.text);
	(void)signal(SIGALRM, on_lost_timeout);
	(void)alarm(LOST_EXIT_S);
}

static void on_stopped(void *userdata)
{
	struct program *program = userdata;

	fa_watchdog_stop(&program->watchdog);
	for (unsigned int i = 0; i < 3; ++i) {
		uv_close((uv_handle_t *)&program->signals[i], NULL);
		/* A repeated signal must not turn the exit into a death by signal. */
		(void)signal(signal_numbers[i], SIG_IGN);
	}
}

static int serve(struct program *program, struct fa_config *config, struct fa_error *error)
{
	struct fa_service_options *options = &program->options;
	struct fa_server_options server_options = {
		.loop = &program->loop,
		.config = config,
		.listen_fd = options->listen_fd,
		.unlink_listen_fd = options->listen_fd >= 0,
		.exit_when_idle = options->exit_when_idle,
		/* A private daemon serves one user and needs no filter, which might remain as an
		 * orphan. */
		.filter_fds = !options->exit_when_idle,
		.draining = on_draining,
		.stopped = on_stopped,
		.lost = on_lost,
		.userdata = program,
	};
	int r;

	fa_fd_store_get_ops(&program->fd_store, &server_options.fd_store);
	r = watch_signals(program);
	if (r < 0)
		return fa_fail(error, r, "signals cannot be watched: %s", uv_strerror(r));
	r = make_server(program, &server_options, error);
	if (r < 0) {
		on_stopped(program);
		(void)uv_run(&program->loop, UV_RUN_DEFAULT);
		return r;
	}
	r = fa_watchdog_start(&program->watchdog, &program->loop, program->server->context.engine);
	if (r < 0)
		fa_log(FA_LOG_WARNING, "the watchdog will not be told anything: %s", strerror(-r));
	report_ready(program);
	(void)uv_run(&program->loop, UV_RUN_DEFAULT);
	r = program->server->context.is_lost ? EX_TEMPFAIL : EXIT_SUCCESS;
	program->server = fa_server_free(program->server);
	fa_log(FA_LOG_INFO, "bye");
	return r;
}

static void end_trace(const char *path)
{
	struct fa_trace_result result;

	if (!fa_trace_on())
		return;
	fa_trace_close(&result);
	if (result.error)
		fa_log(FA_LOG_WARNING, "the trace %s is not complete: %s", path,
		       strerror(-result.error));
	else if (result.n_dropped)
		fa_log(FA_LOG_WARNING, "the trace %s lacks %" PRIu64 " of %" PRIu64 " records",
		       path, result.n_dropped, result.n_dropped + result.n_written);
}

int main(int argc, char **argv)
{
	_fa_cleanup_(fa_config_deinit) struct fa_config config = {};
	_fa_cleanup_(fa_freep) char **child_argv = NULL;
	struct program program = {};
	struct fa_error error;
	int r;

	if (argc > 0 && strcmp(argv[0], FA_FD_FILTER_NAME) == 0)
		return fa_fd_filter_main();
	/* fad-supervise executes a descriptor, whose number would be the name. */
	(void)prctl(PR_SET_NAME, "fad");
	open_standard_fds();
	/* Reaching RLIMIT_FSIZE is then an error, -EFBIG, and no end. The supervisor inherits
	 * this. */
	signal(SIGXFSZ, SIG_IGN);
	fa_fault_guard_install();
	child_argv = calloc((size_t)argc + 1, sizeof(*child_argv));
	if (!child_argv)
		return EXIT_FAILURE;
	r = fa_service_options_parse(argc, argv, &program.options, child_argv);
	if (r <= 0)
		return r ? USAGE_STATUS : EXIT_SUCCESS;
	if (program.options.check_config) {
		if (fa_service_options_check_config(&program.options) < 0)
			return EXIT_FAILURE;
		puts("the configuration is ok");
		return EXIT_SUCCESS;
	}
	r = fa_service_options_load_config(&program.options, &config, &error);
	if (r < 0) {
		fa_log(FA_LOG_ERROR, "%s", error.text);
		return EXIT_FAILURE;
	}
	/* The supervisor's store needs it, too. */
	raise_limit(RLIMIT_NOFILE);
	/* The pool's memfds count as files. */
	raise_limit(RLIMIT_FSIZE);
	if (program.options.supervise) {
		(void)fa_exec_supervisor(child_argv, program.options.ready_fd, &error);
		fa_log(FA_LOG_ERROR, "%s", error.text);
		return EXIT_FAILURE;
	}
	fa_log_set(config.log, config.log_level);
	r = fa_fd_store_open(&program.fd_store);
	if (r < 0) {
		/* A start without the stored descriptors would replace them. */
		fa_log(FA_LOG_ERROR, "the stored descriptors cannot be taken, and stay stored: %s",
		       strerror(-r));
		return EX_TEMPFAIL;
	}

	r = uv_loop_init(&program.loop);
	if (r < 0) {
		fa_log(FA_LOG_ERROR, "the event loop cannot be made: %s", uv_strerror(r));
		return EXIT_FAILURE;
	}
	r = 0;
	if (program.options.trace)
		r = fa_trace_open(program.options.trace, FA_TRACE_BYTES_MAX, &error);
	if (r == 0)
		r = serve(&program, &config, &error);
	if (r < 0)
		fa_log(FA_LOG_ERROR, "%s", error.text);
	end_trace(program.options.trace);
	fa_fd_store_close(&program.fd_store);
	(void)uv_loop_close(&program.loop);
	uv_library_shutdown();
	if (r == -EAGAIN)
		return EX_TEMPFAIL;
	return r < 0 ? EXIT_FAILURE : r;
}
