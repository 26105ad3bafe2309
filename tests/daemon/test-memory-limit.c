/* The limit of memory that fake cgroups give: versions 1 and 2, parents, mounts of a part of the tree. */
#include "daemon/base/memory_limit.h"
#include "tests/lib/check.h"
#include "tests/lib/dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define V2(top) "30 23 0:26 " top " /cg rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1(top) "31 23 0:27 " top " /cg1 rw,relatime shared:1 master:2 - cgroup cgroup rw,memory\n"
#define OTHERS                                                                                     \
	"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"                                                    \
	"33 23 0:29 / /cpu rw - cgroup cgroup rw,cpu,cpuacct\n"                                    \
	"broken line\n34 23 0:29 / /x rw -\n"

struct file {
	const char *path, *text;
};

static void write_file(const char *root, const struct file *file)
{
	char path[256];
	FILE *stream;

	snprintf(path, sizeof(path), "%s%s", root, file->path);
	for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); ++slash) {
		*slash = '\0';
		(void)mkdir(path, 0700);
		*slash = '/';
	}
	stream = fopen(path, "we");
	fa_check(stream);
	fa_check(fputs(file->text, stream) >= 0);
	fa_check(!fclose(stream));
}

static void expect(uint64_t limit, const char *mounts, const char *cgroup, const struct file *files)
{
	char root[32];

	fa_test_dir_make(root, sizeof(root));
	write_file(root, &(struct file){ "/proc/self/mountinfo", mounts });
	write_file(root, &(struct file){ "/proc/self/cgroup", cgroup });
	for (; files && files->path; ++files)
		write_file(root, files);
	fa_check_eq(fa_memory_limit_of_cgroup(root), limit);
	fa_test_dir_remove(root);
}

#define FILES(...) ((const struct file[]){ __VA_ARGS__, { NULL, NULL } })

static void test_unified(void **state)
{
	expect(1000, OTHERS V2("/"), "0::/a/b\n", FILES({ "/cg/a/b/memory.max", "1000\n" }));
	expect(900, OTHERS V2("/"), "0::/a/b\n",
	       FILES({ "/cg/a/b/memory.max", "1000\n" }, { "/cg/a/b/memory.high", "900\n" }));
	expect(800, V2("/"), "0::/a/b\n",
	       FILES({ "/cg/a/b/memory.max", "max\n" }, { "/cg/a/memory.max", "800\n" },
	             { "/cg/a/c/memory.max", "7\n" }));
	/* A namespace hides the path but not the limit. */
	expect(700, V2("/"), "0::/\n", FILES({ "/cg/memory.max", "700\n" }));
	expect(UINT64_MAX, V2("/"), "0::/a\n", FILES({ "/cg/a/memory.max", "max\n" }));
	expect(0, V2("/"), "0::/a\n", FILES({ "/cg/a/memory.max", "0\n" }));
}

static void test_legacy(void **state)
{
	const struct file *files = FILES({ "/cg1/a/b/memory.limit_in_bytes", "500\n" },
	                                 { "/cg1/a/memory.limit_in_bytes", "400\n" },
	                                 { "/cg1/memory.limit_in_bytes", "9223372036854771712\n" });

	expect(400, OTHERS V1("/"), "9:name=systemd:/s\n4:cpu,memory:/a/b\n0::/u\n", files);
	/* hybrid: the smaller of both */
	expect(300, V1("/") V2("/"), "4:memory:/a/b\n0::/u:v\n",
	       FILES({ "/cg1/a/b/memory.limit_in_bytes", "500\n" },
	             { "/cg/u:v/memory.max", "300\n" }));
	expect(UINT64_MAX, V1("/"), "4:memoryx:/a/b\n0::/a\n", files);
}

static void test_part_of_tree(void **state)
{
	/* The mount shows a container's part, while the path is the host's. */
	expect(600, V1("/docker/1"), "4:memory:/docker/1/x\n",
	       FILES({ "/cg1/x/memory.limit_in_bytes", "600\n" }));
	expect(600, V1("/docker/1"), "4:memory:/docker/1\n",
	       FILES({ "/cg1/memory.limit_in_bytes", "600\n" }));
	/* The process is outside of what the mount shows. */
	expect(500, V1("/docker/1"), "4:memory:/docker/10/x\n",
	       FILES({ "/cg1/memory.limit_in_bytes", "500\n" }));
	expect(500, V2("/"), "0::/../other\n",
	       FILES({ "/cg/memory.max", "500\n" }, { "/other/memory.max", "1\n" }));
}

static void test_nonsense(void **state)
{
	expect(UINT64_MAX, "", "", NULL);
	expect(UINT64_MAX, V2("/"), "", NULL);
	expect(UINT64_MAX, V2("/"), "0::relative\n::\nx\n", NULL);
	expect(UINT64_MAX, V2("/"), "0::/a\n", FILES({ "/cg/a/memory.max", "12 apples\n" }));
	expect(UINT64_MAX, V2("/"), "0::/a\n", FILES({ "/cg/a/memory.max", "" }));
	fa_check_eq(fa_memory_limit_of_cgroup("/nowhere"), UINT64_MAX);
	fa_check(fa_memory_limit() > 1 << 20);
	fa_check(fa_memory_limit_free() <= fa_memory_limit());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unified),
		cmocka_unit_test(test_legacy),
		cmocka_unit_test(test_part_of_tree),
		cmocka_unit_test(test_nonsense),
	};

	return cmocka_run_group_tests_name("memory-limit", tests, NULL, NULL);
}
