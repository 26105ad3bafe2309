#include "tests/client/cuda-scene.h"

#include "tests/lib/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void fa_cuda_scene_start(struct fa_cuda_scene *scene, const struct fa_test_daemon_options *options)
{
	fa_test_cuda_begin(&scene->cuda);
	fa_test_daemon_start(&scene->daemon, options);
	scene->page = fa_test_cuda_attach(&scene->cuda, scene->daemon.pid);
	fa_test_cuda_lives(scene->page, &scene->lives);
}

void fa_cuda_scene_stop(struct fa_cuda_scene *scene)
{
	fa_check_eventually(fa_test_cuda_lives_equal(scene->page, &scene->lives, false));
	fa_test_daemon_stop(&scene->daemon);
	fa_check_eq(fa_test_cuda_misuses(scene->page), 0);
	fa_test_cuda_detach(scene->page);
	fa_test_cuda_end(&scene->cuda);
}

/* ---- in a child */

void fa_cuda_check(int r, const char *file, int line)
{
	if (r < 0)
		fa_test_fail(file, line, "%d: %s", r, fa_error());
}

struct fa_client *fa_cuda_connect(const char *socket)
{
	struct fa_options options = { .size = sizeof(options),
		                      .socket = socket,
		                      .reconnect_ns = fa_test_patience_ns() };
	struct fa_client *client;

	fa_ok(fa_connect(&options, &client));
	return client;
}

static int64_t count_buffers(struct fa_client *client)
{
	json_t *status, *tenant;
	int64_t n = 0;
	size_t i;
	char *text;

	fa_ok(fa_status(client, &text));
	status = json_loads(text, 0, NULL);
	fa_check(status);
	json_array_foreach(json_object_get(status, "tenants"), i, tenant)
		n += json_integer_value(json_object_get(tenant, "buffers"));
	json_decref(status);
	free(text);
	return n;
}

void fa_cuda_expect_buffers(struct fa_client *client, int64_t n)
{
	/* The daemon drops a freed buffer after its last request has ended. */
	fa_check_eventually(count_buffers(client) <= n);
	fa_check_eq(count_buffers(client), n);
}

static void create(CUmemGenericAllocationHandle *ret_handle, unsigned int handle_types)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = handle_types,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};

	fa_cu(cuMemCreate(ret_handle, FA_CUDA_CHUNK, &properties, 0));
}

static void map(const struct fa_cuda_vmm *vmm, size_t i)
{
	const CUmemAccessDesc access = { .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		                         .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };

	fa_cu(cuMemMap(vmm->at + i * FA_CUDA_CHUNK, FA_CUDA_CHUNK, 0, vmm->handles[i], 0));
	fa_cu(cuMemSetAccess(vmm->at + i * FA_CUDA_CHUNK, FA_CUDA_CHUNK, &access, 1));
}

void fa_cuda_vmm_new(struct fa_cuda_vmm *vmm, size_t n, unsigned int handle_types)
{
	CUdeviceptr at;

	fa_check(n <= sizeof(vmm->handles) / sizeof(vmm->handles[0]));
	*vmm = (struct fa_cuda_vmm){ .n = n, .bytes = n * FA_CUDA_CHUNK };
	fa_cu(cuMemAddressReserve(&at, vmm->bytes, 0, 0, 0));
	vmm->at = at;
	for (size_t i = 0; i < n; ++i) {
		create(&vmm->handles[i], handle_types);
		map(vmm, i);
	}
}

void fa_cuda_vmm_replace(struct fa_cuda_vmm *vmm, size_t i)
{
	fa_cu(cuMemUnmap(vmm->at + i * FA_CUDA_CHUNK, FA_CUDA_CHUNK));
	fa_cu(cuMemRelease(vmm->handles[i]));
	create(&vmm->handles[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	map(vmm, i);
}

void fa_cuda_vmm_free(struct fa_cuda_vmm *vmm)
{
	for (size_t i = 0; i < vmm->n; ++i) {
		fa_cu(cuMemUnmap(vmm->at + i * FA_CUDA_CHUNK, FA_CUDA_CHUNK));
		fa_cu(cuMemRelease(vmm->handles[i]));
	}
	fa_cu(cuMemAddressFree(vmm->at, vmm->bytes));
}

static struct fa_case plan(uint64_t seed)
{
	struct fa_case attention = { .dtype = FA_WIRE_DTYPE_F16,
		                     .heads = 2,
		                     .seqlen_q = 20,
		                     .seqlen_k = 33,
		                     .causal = true,
		                     .lse = true,
		                     .seed = seed };

	fa_case_plan(&attention);
	return attention;
}

uint64_t fa_cuda_attend_bytes(void)
{
	return plan(0).bytes;
}

void fa_cuda_attend(struct fa_client *client, struct fa_buffer *buffer, uint64_t at, uint64_t seed)
{
	struct fa_case attention = plan(seed);
	struct fa_attention request = fa_case_attention(&attention, buffer);
	void *data = malloc(attention.bytes);
	double error;

	fa_check(data);
	fa_case_fill(&attention, data);
	fa_cu(cuMemcpyHtoD(at, data, attention.bytes));
	fa_ok(fa_attention(client, &request, NULL));
	fa_cu(cuMemcpyDtoH(data, at, attention.bytes));
	error = fa_case_error(&attention, data);
	if (!(error <= 1))
		fa_test_fail(__FILE__, __LINE__, "error %g", error);
	free(data);
}

void fa_cuda_attend_fails(struct fa_client *client, struct fa_buffer *buffer, int status,
                          const char *part)
{
	struct fa_case attention = plan(0);
	struct fa_attention request = fa_case_attention(&attention, buffer);

	fa_refused(fa_attention(client, &request, NULL), status, part);
}
