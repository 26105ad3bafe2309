#include "daemon/service/options.h"

#include "common/cleanup.h"
#include "daemon/account/config.h"
#include "daemon/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"Usage: fad [OPTION]...\n"
	"Serves attention to other processes over a socket.\n"
	"\n"
	"  --config FILE          read FILE instead of " FA_CONFIG_PATH "\n"
	"  --socket PATH          listen at PATH\n"
	"  --listen-fd N          serve the listening socket that is descriptor N, and remove\n"
	"                         its path at the end\n"
	"  --supervise            start fad as a child, and restart it when it dies or hangs\n"
	"  --exit-when-idle       exit when the last client has disconnected\n"
	"  --backend NAME         cuda, vulkan, cpu, or auto for the better of cuda and cpu\n"
	"  --device GPU           serve only this GPU: its number or GPU-... UUID\n"
	"  --threads N            threads of the CPU backend; 0: one per processor\n"
	"  --log TARGET           stderr or journal\n"
	"  --log-level LEVEL      error, warning, info or debug\n"
	"  --drain-timeout-ms N   how long work in flight may take when stopping\n"
	"  --ready-fd N           write READY to descriptor N when connections are accepted\n"
	"  --trace FILE           write a trace of all requests for Perfetto, up to 256 MiB\n"
	"  --check-config         say all that is wrong with the configuration, or ok, and exit\n"
	"  --version\n"
	"  -h, --help\n"
	"\n"
	"SIGTERM or SIGINT: finish the work in flight and exit; a second one cancels the work,\n"
	"a third one exits at once. SIGHUP: read the configuration again.\n"
	"Exit status: 0 stopped, 1 failure, 2 wrong usage; 75: the device was lost, or stored\n"
	"state cannot be taken back now, and a new start may help.\n";

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

/* getopt_long() parsed it last. */
static char *last_option(char **argv)
{
	return argv[optarg && optarg == argv[optind - 1] ? optind - 2 : optind - 1];
}

/* getopt_long() accepts them, but a new option could break such scripts. */
static bool is_abbreviated(const char *argument, const char *name)
{
	const size_t length = strlen(name);

	return strncmp(argument + 2, name, length) != 0 ||
	       (argument[2 + length] && argument[2 + length] != '=');
}

static int apply_overrides(const struct fa_service_options *options, struct fa_config *config,
                           struct fa_error *error)
{
	int r = 0;

	for (unsigned int i = 0; i < options->n_overrides && r == 0; ++i)
		r = fa_config_set(config, "daemon", options->overrides[i].name,
		                  options->overrides[i].value, error);
	return r;
}

/* A wrong value there is a usage error, whatever the file says. */
static int check_overrides(const struct fa_service_options *options)
{
	_fa_cleanup_(fa_config_deinit) struct fa_config config = {};
	struct fa_error error = { "no memory for the configuration" };
	int r;

	r = fa_config_init(&config);
	if (r == 0)
		r = apply_overrides(options, &config, &error);
	if (r < 0)
		fa_log(FA_LOG_ERROR, "%s", error.text);
	return r;
}

int fa_service_options_parse(int argc, char **argv, struct fa_service_options *ret_options,
                             char **ret_child_argv)
{
	enum {
		CONFIG = 256,
		LISTEN_FD,
		READY_FD,
		EXIT_WHEN_IDLE,
		SUPERVISE,
		TRACE,
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
		{ "trace", required_argument, NULL, TRACE },
		{ "check-config", no_argument, NULL, CHECK_CONFIG },
		{ "version", no_argument, NULL, VERSION },
		{ "help", no_argument, NULL, HELP },
		/* SET + i stands for overridden[i]. */
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
	struct fa_service_options options = { .listen_fd = -1, .ready_fd = -1 };
	const char *values[sizeof(overridden) / sizeof(*overridden)] = { NULL };
	int option, index, n_child = 0;

	ret_child_argv[n_child++] = argv[0];
	while ((option = getopt_long(argc, argv, "h", known, &index)) != -1) {
		char *argument = option == '?' || option == 'h' ? NULL : last_option(argv);

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
		case TRACE:
			options.trace = optarg;
			break;
		case CHECK_CONFIG:
			options.check_config = true;
			break;
		case VERSION:
			puts("fad " FAD_VERSION);
			return 0;
		case 'h':
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
	for (size_t i = 0; i < sizeof(values) / sizeof(*values); ++i) {
		if (!values[i])
			continue;
		options.overrides[options.n_overrides].name = overridden[i];
		options.overrides[options.n_overrides++].value = values[i];
	}
	if (check_overrides(&options) < 0)
		return -EINVAL;
	*ret_options = options;
	return 1;
}

int fa_service_options_load_config(const struct fa_service_options *options,
                                   struct fa_config *ret_config, struct fa_error *error)
{
	_fa_cleanup_(fa_config_deinit) struct fa_config config;
	int r;

	r = fa_config_init(&config);
	if (r < 0)
		return fa_fail(error, r, "no memory for the configuration");
	r = fa_config_load(&config, options->config ? options->config : FA_CONFIG_PATH, error);
	if (r < 0 && (options->config || r != -ENOENT))
		return r;
	r = apply_overrides(options, &config, error);
	if (r < 0)
		return r;
	*ret_config = config;
	config = (struct fa_config){}; /* consumed */
	return 0;
}

static void log_fault(void *userdata, const struct fa_error *fault)
{
	fa_log(FA_LOG_ERROR, "%s", fault->text);
}

int fa_service_options_check_config(const struct fa_service_options *options)
{
	_fa_cleanup_(fa_config_deinit) struct fa_config config = {};
	const char *path = options->config ? options->config : FA_CONFIG_PATH;
	struct fa_error error = { "no memory for the configuration" };
	int r;

	r = fa_config_init(&config);
	if (r == 0)
		r = fa_config_check(&config, path, log_fault, NULL, &error);
	if (!options->config && r == -ENOENT)
		return 0;
	if (r < 0 && r != -EINVAL)
		log_fault(NULL, &error);
	/* Only a server needs group and user. */
	if (config.group && !getgrnam(config.group)) {
		r = fa_fail(&error, -EINVAL, "%s: there is no group called \"%s\"", path,
		            config.group);
		log_fault(NULL, &error);
	}
	if (config.observer && strcmp(config.observer, FA_CONFIG_OBSERVER) != 0 &&
	    !getpwnam(config.observer)) {
		r = fa_fail(&error, -EINVAL, "%s: there is no user called \"%s\"", path,
		            config.observer);
		log_fault(NULL, &error);
	}
	return r;
}
