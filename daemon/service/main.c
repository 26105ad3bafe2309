/*
 * fad: options, configuration, signals, and the exit code. Everything else is the
 * server's. Nothing but this file exits.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/text.h"
#include "daemon/account/config.h"
#include "daemon/base/log.h"
#include "daemon/persist/fd_store.h"
#include "daemon/service/drain.h"
#include "daemon/service/exec_supervisor.h"
#include "daemon/service/server.h"
#include "daemon/service/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <systemd/sd-daemon.h>

/* How often the same signal may come until nothing is waited for. */
#define STOP_SIGNALS_MAX 3
/* How long the way out may take once the device is lost: its driver may hang. */
#define LOST_EXIT_S 5

struct override {
	const char *name, *value;
};

struct options {
	const char *config; /* NULL: the usual one, if there is one */
	/* Of [daemon]; they go before the file, also when it is read again. */
	struct override overrides[8];
	unsigned int n_overrides;
	int listen_fd, ready_fd;
	bool exit_when_idle, check_config, supervise;
};

struct program {
	struct options options;
	uv_loop_t loop;
	uv_signal_t signals[3];
	unsigned int n_stop_signals;
	struct fa_server *server;
	struct fa_watchdog watchdog;
	struct fa_fd_store fd_store;
};

static const char usage[] =
	"Usage: fad [OPTION]...\n"
	"Serves attention to other processes over a socket.\n"
	"\n"
	"  --config FILE          read FILE instead of " FA_CONFIG_PATH "\n"
	"  --socket PATH          listen at PATH\n"
	"  --listen-fd N          serve the listening socket that is descriptor N, and remove\n"
	"                         its path at the end\n"
	"  --supervise            start fad as a child, and restart it when it dies or hangs\n"
	"  --exit-when-idle       exit when the last client has gone\n"
	"  --backend NAME         cuda, cpu, or auto for the best that works\n"
	"  --device GPU           serve this GPU, by its number or GPU-... UUID, and none else\n"
	"  --threads N            threads of the CPU backend; 0: one a processor\n"
	"  --log TARGET           stderr or journal\n"
	"  --log-level LEVEL      error, warning, info or debug\n"
	"  --drain-timeout-ms N   how long work in flight may take when stopping\n"
	"  --ready-fd N           write READY to descriptor N when connections are accepted\n"
	"  --check-config         say what is wrong with the configuration, and exit\n"
	"  --version, --help\n"
	"\n"
	"SIGTERM and SIGINT finish what is in flight and exit, a second one exits at once;\n"
	"SIGHUP reads the configuration again. Exit status 75 says that the device was lost,\n"
	"or that what was kept cannot be taken back now, and that a new start may help.\n";

/* ---- options */

static int parse_fd(const char *text, int *ret_fd)
{
	char *end;
	long fd;

	errno = 0;
	fd = strtol(text, &end, 10);
	if (errno || end == text || *end || fd < 0 || fd > INT_MAX || fcntl((int)fd, F_GETFD) < 0)
		return -EINVAL;
	*ret_fd = (int)fd;
	return 0;
}

/* The argument that is the option which getopt_long() returned last, as it was written. */
static char *last_option(char **argv)
{
	return argv[optarg && optarg == argv[optind - 1] ? optind - 2 : optind - 1];
}

/* getopt_long() takes "--super" for "--supervise"; scripts would break with each new option. */
static bool is_abbreviated(const char *argument, const char *name)
{
	const size_t length = strlen(name);

	return strncmp(argument + 2, name, length) != 0 ||
	       (argument[2 + length] && argument[2 + length] != '=');
}

/*
 * @ret_child_argv, zeroes of [argc + 1], receives the options without --supervise and --ready-fd, for
 * the daemon under a supervisor. Returns 1 to go on, 0 if all is done, or a negative errno that was
 * explained.
 */
static int parse_options(int argc, char **argv, struct options *ret_options, char **ret_child_argv)
{
	enum {
		CONFIG = 256,
		LISTEN_FD,
		READY_FD,
		EXIT_WHEN_IDLE,
		SUPERVISE,
		CHECK_CONFIG,
		VERSION,
		HELP,
		SET
	};
	static const struct option known[] = {
		{ "config", required_argument, NULL, CONFIG },
		{ "listen-fd", required_argument, NULL, LISTEN_FD },
		{ "ready-fd", required_argument, NULL, READY_FD },
		{ "exit-when-idle", no_argument, NULL, EXIT_WHEN_IDLE },
		{ "supervise", no_argument, NULL, SUPERVISE },
		{ "check-config", no_argument, NULL, CHECK_CONFIG },
		{ "version", no_argument, NULL, VERSION },
		{ "help", no_argument, NULL, HELP },
		/* SET + i names overridden[i] */
		{ "socket", required_argument, NULL, SET },
		{ "backend", required_argument, NULL, SET + 1 },
		{ "threads", required_argument, NULL, SET + 2 },
		{ "log", required_argument, NULL, SET + 3 },
		{ "log-level", required_argument, NULL, SET + 4 },
		{ "drain-timeout-ms", required_argument, NULL, SET + 5 },
		{ "device", required_argument, NULL, SET + 6 },
		{ NULL, 0, NULL, 0 },
	};
	static const char *const overridden[] = { "socket",    "backend",          "threads", "log",
		                                  "log_level", "drain_timeout_ms", "device" };
	struct options options = { .listen_fd = -1, .ready_fd = -1 };
	const char *values[sizeof(overridden) / sizeof(*overridden)] = { NULL };
	int option, index, n_child = 0;

	ret_child_argv[n_child++] = argv[0];
	while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
		char *argument = option == '?' ? NULL : last_option(argv);

		if (argument && is_abbreviated(argument, known[index].name)) {
			fa_log(FA_LOG_ERROR, "unknown option \"%s\"; expected --%s in full",
			       argument, known[index].name);
			return -EINVAL;
		}
		if (argument && option != SUPERVISE && option != READY_FD) {
			ret_child_argv[n_child++] = argument;
			if (optarg && optarg == argv[optind - 1])
				ret_child_argv[n_child++] = optarg;
		}
		switch (option) {
		case CONFIG:
			options.config = optarg;
			break;
		case LISTEN_FD:
		case READY_FD:
			if (parse_fd(optarg, option == LISTEN_FD ? &options.listen_fd
			                                         : &options.ready_fd) < 0) {
				fa_log(FA_LOG_ERROR, "\"%s\" is no open descriptor", optarg);
				return -EINVAL;
			}
			break;
		case EXIT_WHEN_IDLE:
			options.exit_when_idle = true;
			break;
		case SUPERVISE:
			options.supervise = true;
			break;
		case CHECK_CONFIG:
			options.check_config = true;
			break;
		case VERSION:
			puts("fad " FAD_VERSION);
			return 0;
		case HELP:
			fputs(usage, stdout);
			return 0;
		case '?':
			return -EINVAL;
		default:
			values[option - SET] = optarg;
		}
	}
	if (optind < argc) {
		fa_log(FA_LOG_ERROR, "unknown argument \"%s\"; see fad --help", argv[optind]);
		return -EINVAL;
	}
	if (options.supervise && options.listen_fd >= 0) {
		fa_log(FA_LOG_ERROR, "--supervise does not go with --listen-fd");
		return -EINVAL;
	}
	for (size_t i = 0; i < sizeof(values) / sizeof(*values); ++i)
		if (values[i])
			options.overrides[options.n_overrides++] = (struct override){ overridden[i],
				                                                      values[i] };
	*ret_options = options;
	return 1;
}

static int load_config(const struct options *options, struct fa_config *ret_config,
                       struct fa_error *error)
{
	_fa_cleanup_(fa_config_deinit) struct fa_config config;
	int r;

	r = fa_config_init(&config);
	if (r < 0)
		return fa_fail(error, r, "no memory for the configuration");
	r = fa_config_load(&config, options->config ? options->config : FA_CONFIG_PATH, error);
	if (r < 0 && (options->config || r != -ENOENT))
		return r;
	for (unsigned int i = 0; i < options->n_overrides; ++i) {
		r = fa_config_set(&config, "daemon", options->overrides[i].name,
		                  options->overrides[i].value, error);
		if (r < 0)
			return r;
	}
	*ret_config = config;
	config = (struct fa_config){}; /* consumed */
	return 0;
}

/* ---- surroundings */

/* Descriptors 0 to 2 exist, so that no socket becomes somebody's stderr. */
static void open_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Each client takes descriptors; nothing here uses select(). */
static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* The socket that systemd hands over, or -1. */
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

/* Makes the server on the socket that it is given, has had, or makes itself. */
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
	/* Whoever connects while we are dead is served by who comes after. */
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
	(void)sd_notifyf(0, "READY=1\nSTATUS=Serving on %s%s%s", server->context.info.name,
	                 *unused ? "; a GPU is not used: " : "", unused);
	if (fd >= 0) {
		if (write(fd, ready, sizeof(ready) - 1) < 0)
			fa_log(FA_LOG_WARNING, "nobody waits at the ready descriptor: %m");
		close(fd);
	}
}

/* ---- signals */

static void reload(struct program *program)
{
	struct fa_config config;
	struct fa_error error;

	(void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
	                 (uint64_t)(fa_now_ns() / FA_NS_PER_US));
	if (load_config(&program->options, &config, &error) < 0) {
		fa_log(FA_LOG_ERROR, "the configuration stays as it was: %s", error.text);
	} else {
		fa_server_reload(program->server, &config);
		fa_log(FA_LOG_INFO, "the configuration was read again");
	}
	(void)sd_notify(0, "READY=1");
}

static void on_signal(uv_signal_t *handle, int signal)
{
	struct program *program = handle->data;

	/* The start failed, and the loop runs only to close its handles. */
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

static int watch_signals(struct program *program)
{
	static const int numbers[] = { SIGTERM, SIGINT, SIGHUP };
	int r = 0;

	signal(SIGPIPE, SIG_IGN);
	for (unsigned int i = 0; i < 3; ++i) {
		program->signals[i].data = program;
		(void)uv_signal_init(&program->loop, &program->signals[i]);
		/* The loop runs for the server, not for its signals. */
		uv_unref((uv_handle_t *)&program->signals[i]);
		r = r ? r : uv_signal_start(&program->signals[i], on_signal, numbers[i]);
	}
	return r;
}

static void on_draining(void *userdata)
{
	(void)fa_fd_store_remove(FA_FD_STORE_LISTEN);
	(void)sd_notify(0, "STOPPING=1");
}

static void on_lost_timeout(int signal)
{
	_exit(EX_TEMPFAIL);
}

static void on_lost(void *userdata)
{
	struct program *program = userdata;

	(void)sd_notifyf(0, "ERRNO=%d\nSTATUS=%s", ENODEV,
	                 program->server->context.lost_reason.text);
	(void)signal(SIGALRM, on_lost_timeout);
	(void)alarm(LOST_EXIT_S);
}

static void on_stopped(void *userdata)
{
	struct program *program = userdata;

	fa_watchdog_stop(&program->watchdog);
	for (unsigned int i = 0; i < 3; ++i)
		uv_close((uv_handle_t *)&program->signals[i], NULL);
}

/* ---- all together */

/* Returns the exit status, or a negative errno with a sentence. */
static int serve(struct program *program, struct fa_config *config, struct fa_error *error)
{
	struct options *options = &program->options;
	struct fa_server_options server_options = {
		.loop = &program->loop,
		.config = config,
		.listen_fd = options->listen_fd,
		.unlink_listen_fd = options->listen_fd >= 0,
		.exit_when_idle = options->exit_when_idle,
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

int main(int argc, char **argv)
{
	_fa_cleanup_(fa_config_deinit) struct fa_config config = {};
	_fa_cleanup_(fa_freep) char **child_argv = NULL;
	struct program program = {};
	struct fa_error error;
	int r;

	/* The supervisor starts this program by descriptor, whose number would be its name. */
	(void)prctl(PR_SET_NAME, "fad");
	open_standard_fds();
	child_argv = calloc((size_t)argc + 1, sizeof(*child_argv));
	if (!child_argv)
		return EXIT_FAILURE;
	r = parse_options(argc, argv, &program.options, child_argv);
	if (r <= 0)
		return r ? EXIT_FAILURE : EXIT_SUCCESS;
	r = load_config(&program.options, &config, &error);
	if (r < 0) {
		fa_log(FA_LOG_ERROR, "%s", error.text);
		return EXIT_FAILURE;
	}
	if (program.options.check_config)
		return EXIT_SUCCESS;
	/* Also for the supervisor, which stores as many descriptors as its child creates. */
	raise_fd_limit();
	if (program.options.supervise) {
		(void)fa_exec_supervisor(child_argv, program.options.ready_fd, &error);
		fa_log(FA_LOG_ERROR, "%s", error.text);
		return EXIT_FAILURE;
	}
	fa_log_set(config.log, config.log_level);
	r = fa_fd_store_open(&program.fd_store);
	if (r < 0) {
		/* What it made anew would be kept in place of that. */
		fa_log(FA_LOG_ERROR, "what was handed over cannot be taken, and stays kept: %s",
		       strerror(-r));
		return EX_TEMPFAIL;
	}

	r = uv_loop_init(&program.loop);
	if (r < 0) {
		fa_log(FA_LOG_ERROR, "the event loop cannot be made: %s", uv_strerror(r));
		return EXIT_FAILURE;
	}
	r = serve(&program, &config, &error);
	if (r < 0)
		fa_log(FA_LOG_ERROR, "%s", error.text);
	fa_fd_store_close(&program.fd_store);
	(void)uv_loop_close(&program.loop);
	uv_library_shutdown();
	if (r == -EAGAIN)
		return EX_TEMPFAIL;
	return r < 0 ? EXIT_FAILURE : r;
}
