/* This machine, whether a daemon runs or not. */
#include "tools/doctor/checks.h"

#include "common/cudriver.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NVIDIA_VENDOR 0x10de
#define DISPLAY_CLASS 0x03 /* GPUs without a monitor, too */

static unsigned int read_hex(const char *folder, const char *name, const char *file)
{
	char path[512];
	unsigned int number = 0;
	FILE *stream;

	snprintf(path, sizeof(path), "%s/%s/%s", folder, name, file);
	stream = fopen(path, "re");
	if (!stream)
		return 0;
	if (fscanf(stream, "%x", &number) != 1)
		number = 0;
	fclose(stream);
	return number;
}

static unsigned int count_gpus(void)
{
	static const char folder[] = "/sys/bus/pci/devices";
	DIR *directory = opendir(folder);
	const struct dirent *entry;
	unsigned int n = 0;

	while (directory && (entry = readdir(directory)))
		n += entry->d_name[0] != '.' &&
		     read_hex(folder, entry->d_name, "vendor") == NVIDIA_VENDOR &&
		     read_hex(folder, entry->d_name, "class") >> 16 == DISPLAY_CLASS;
	if (directory)
		closedir(directory);
	return n;
}

static bool check_driver(struct fa_report *report, unsigned int n_gpus)
{
	const bool module = access("/proc/driver/nvidia/version", F_OK) == 0;
	struct fa_cudriver driver;
	struct fa_error error;
	int version = 0, n = 0;

	if (fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &driver) < 0) {
		if (n_gpus == 0 && !module)
			fa_report_ok(report, "driver",
			             "none, and no NVIDIA GPU is in this machine");
		else
			fa_report_add(report, FA_REPORT_WARNING, "driver",
			              "Install NVIDIA's driver, 525 or later, with libcuda.so.1; "
			              "in a container, give it the GPU (--gpus).",
			              "%u NVIDIA GPUs, but %s", n_gpus, error.text);
		return false;
	}
	if (driver.cuInit(0) != CUDA_SUCCESS ||
	    driver.cuDriverGetVersion(&version) != CUDA_SUCCESS ||
	    driver.cuDeviceGetCount(&n) != CUDA_SUCCESS || n == 0) {
		fa_report_add(
			report, FA_REPORT_WARNING, "driver",
			"Load the kernel modules (nvidia-modprobe, or reboot after an upgrade "
			"of the driver); see dmesg for Xid errors.",
			"libcuda.so.1 finds no GPU that it can use");
		return false;
	}
	fa_report_ok(report, "driver", "CUDA %d.%d, %d GPU%s", version / 1000, version % 1000 / 10,
	             n, n == 1 ? "" : "s");
	return true;
}

static void check_device_file(struct fa_report *report, const char *path)
{
	const int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd >= 0) {
		close(fd);
		fa_report_ok(report, "device files", "%s can be opened", path);
		return;
	}
	fa_report_add(
		report, FA_REPORT_WARNING, "device files",
		errno == ENOENT
			? "Run nvidia-modprobe -c 0 -u; fad-devices.service does it before fad."
			: "Programs with GPU memory of their own need them: change their mode "
			  "or group, or in a container allow the devices.",
		"%s cannot be opened: %s", path, strerror(errno));
}

static void check_limits(struct fa_report *report)
{
	struct rlimit files = {}, size = {};

	(void)getrlimit(RLIMIT_NOFILE, &files);
	(void)getrlimit(RLIMIT_FSIZE, &size);
	if (size.rlim_cur != RLIM_INFINITY)
		fa_report_add(report, FA_REPORT_WARNING, "limits of programs",
		              "Shared memory counts as files: run ulimit -f unlimited.",
		              "files may have at most %llu bytes",
		              (unsigned long long)size.rlim_cur);
	if (files.rlim_cur < 256)
		fa_report_add(report, FA_REPORT_WARNING, "limits of programs",
		              "Each buffer takes a descriptor: run ulimit -n 1024.",
		              "a program may have at most %llu open files",
		              (unsigned long long)files.rlim_cur);
	if (size.rlim_cur == RLIM_INFINITY && files.rlim_cur >= 256)
		fa_report_ok(report, "limits of programs", "%llu open files",
		             (unsigned long long)files.rlim_cur);
}

void fa_doctor_machine(struct fa_report *report)
{
	const unsigned int n_gpus = count_gpus();
	struct utsname system = {};

	(void)uname(&system);
	fa_report_ok(report, "factl", "version %s; %s %s %s", fa_version(), system.sysname,
	             system.release, system.machine);
	if (check_driver(report, n_gpus) || n_gpus > 0) {
		check_device_file(report, "/dev/nvidiactl");
		check_device_file(report, "/dev/nvidia-uvm");
	}
	check_limits(report);
}
