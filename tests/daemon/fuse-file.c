#include "tests/daemon/fuse-file.h"

#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NODE 2
#define REQUEST_BYTES (FUSE_MIN_READ_BUFFER * 32)

static int device;

static void answer(const struct fuse_in_header *in, int error, const void *data, size_t n)
{
	static char bytes[4096];
	struct fuse_out_header out = { .len = (uint32_t)(sizeof(out) + n),
		                       .error = error,
		                       .unique = in->unique };

	memcpy(bytes, &out, sizeof(out));
	if (n)
		memcpy(bytes + sizeof(out), data, n);
	(void)!write(device, bytes, out.len);
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){
		.ino = node,
		.mode = node == FILE_NODE ? S_IFREG | 0666 : S_IFDIR | 0777,
		.nlink = 1,
	};
}

static void serve(const struct fuse_in_header *in)
{
	const struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION,
		                            .minor = 31,
		                            .max_write = 4096 };
	const struct fuse_entry_out entry = { .nodeid = FILE_NODE, .attr = attributes(FILE_NODE) };
	const struct fuse_attr_out attr = { .attr = attributes(in->nodeid) };
	const struct fuse_open_out open = {};

	switch (in->opcode) {
	case FUSE_INIT:
		answer(in, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		answer(in, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		answer(in, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer(in, 0, &open, sizeof(open));
		break;
	/* The kernel expects no answer to these. */
	case FUSE_FLUSH:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	default:
		answer(in, -ENOSYS, NULL, 0);
	}
}

static int run(void *userdata)
{
	static _Alignas(8) char request[REQUEST_BYTES];
	ssize_t n;

	for (;;) {
		n = read(device, request, sizeof(request));
		if (n < 0 && errno != EINTR)
			return errno != ENODEV;
		if (n >= (ssize_t)sizeof(struct fuse_in_header))
			serve((const struct fuse_in_header *)request);
	}
}

static bool mount_at(const char *directory)
{
	char options[128];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%d,group_id=%d", device,
	         geteuid(), getegid());
	return mount("fad-test", directory, "fuse", MS_NOSUID | MS_NODEV, options) == 0;
}

bool fuse_file_start(struct fuse_file *file)
{
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return false;
	fa_test_dir_make(file->directory, sizeof(file->directory));
	/* The mount ends with this process and its children. */
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    !mount_at(file->directory)) {
		close(device);
		fa_test_dir_remove(file->directory);
		return false;
	}
	snprintf(file->path, sizeof(file->path), "%s/file", file->directory);
	file->server = fa_test_fork(run, NULL);
	close(device);
	return true;
}

void fuse_file_stop(struct fuse_file *file)
{
	fa_check_eq(kill(file->server, SIGKILL), 0);
	(void)fa_test_reap(file->server);
	fa_check_eq(umount2(file->directory, MNT_DETACH), 0);
	fa_test_dir_remove(file->directory);
}
