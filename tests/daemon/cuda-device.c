#include "tests/daemon/cuda-device.h"

#include "common/cudriver.h"
#include "common/memfd.h"
#include "common/packet.h"
#include "daemon/memory/tensor_view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct fa_device_ops *const ops = &fa_device_cuda;
struct fa_test_cuda cuda_dir;
static unsigned int n_reaped;

/* ---- the device */

static void on_notify(void *userdata)
{
	struct cuda_device *cuda = userdata;

	atomic_fetch_add(&cuda->n_notified, 1);
}

int cuda_device_try(struct cuda_device *cuda, const char *name, struct fa_error *error)
{
	struct fa_device_config config = { .device = name, .notify = on_notify, .userdata = cuda };
	int r;

	*cuda = (struct cuda_device){ NULL };
	fa_list_init(&cuda->refused);
	error->text[0] = 0;
	r = ops->open(&config, error, &cuda->device);
	if (r < 0)
		fa_check(error->text[0]);
	else
		cuda->page = fa_test_cuda_attach(&cuda_dir, getpid());
	return r;
}

void cuda_device_open(struct cuda_device *cuda, const char *name)
{
	struct fa_error error;

	if (cuda_device_try(cuda, name, &error) < 0)
		fa_test_fail(__FILE__, __LINE__, "the device cannot be opened: %s", error.text);
}

bool cuda_page_is_clean(const struct fa_test_cuda_page *page)
{
	static const struct fa_test_cuda_lives nothing;

	return fa_test_cuda_lives_equal(page, &nothing, true) && !fa_test_cuda_abandoned(page);
}

void cuda_device_close(struct cuda_device *cuda)
{
	fa_check(!ops->close(cuda->device));
	fa_check(cuda_page_is_clean(cuda->page));
	fa_check_eq(fa_test_cuda_misuses(cuda->page), 0);
	fa_test_cuda_detach(cuda->page);
}

struct child {
	void (*function)(void);
};

static int run_child(void *userdata)
{
	struct child *child = userdata;

	child->function();
	exit(0); /* exit() runs the sanitizer's checks */
}

void cuda_in_child(void (*function)(void))
{
	struct child child = { function };

	fa_check_eq(fa_test_reap(fa_test_fork(run_child, &child)), 0);
}

/* ---- the exporter */

struct exported {
	uint8_t handle[64];
};

static CUdeviceptr export_piece(const struct fa_cudriver *driver, int device, unsigned int piece,
                                int *ret_fd)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
	};
	const CUmemAccessDesc access = { properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle allocation;
	CUdeviceptr at;

	fa_check_eq(driver->cuMemCreate(&allocation, CUDA_EXPORTER_PIECE, &properties, 0), 0);
	fa_check_eq(driver->cuMemAddressReserve(&at, CUDA_EXPORTER_PIECE, 0, 0, 0), 0);
	fa_check_eq(driver->cuMemMap(at, CUDA_EXPORTER_PIECE, 0, allocation, 0), 0);
	fa_check_eq(driver->cuMemSetAccess(at, CUDA_EXPORTER_PIECE, &access, 1), 0);
	fa_check_eq(driver->cuMemExportToShareableHandle(
			    ret_fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	            0);
	fa_check_eq(driver->cuMemRelease(allocation), 0);
	for (uint64_t i = 0; i < CUDA_EXPORTER_PIECE; ++i)
		((uint8_t *)at)[i] = cuda_exporter_byte(piece, i);
	return at;
}

static int run_exporter(int socket, int ordinal)
{
	struct exported exported;
	struct fa_cudriver driver;
	struct fa_error error;
	CUipcMemHandle handle;
	CUdeviceptr at, ats[2];
	CUcontext context;
	CUdevice device;
	int fds[2];
	char byte;

	fa_check_eq(fa_cudriver_open(FA_CUDRIVER_FOR_ALL, &error, &driver), 0);
	fa_check_eq(driver.cuInit(0), 0);
	fa_check_eq(driver.cuDeviceGet(&device, ordinal), 0);
	fa_check_eq(driver.cuDevicePrimaryCtxRetain(&context, device), 0);
	fa_check_eq(driver.cuCtxSetCurrent(context), 0);
	fa_check_eq(driver.cuMemAlloc(&at, CUDA_EXPORTER_BYTES), 0);
	for (uint64_t i = 0; i < CUDA_EXPORTER_BYTES; ++i)
		((uint8_t *)at)[i] = cuda_exporter_byte(2, i);
	fa_check_eq(driver.cuIpcGetMemHandle(&handle, at), 0);
	memcpy(exported.handle, &handle, sizeof(handle));
	for (unsigned int i = 0; i < 2; ++i)
		ats[i] = export_piece(&driver, device, i, &fds[i]);
	fa_check_eq(fa_packet_send(socket, &exported, sizeof(exported), fds, 2, 0), 0);
	close(fds[0]);
	close(fds[1]);

	/* A byte means: free the memory. EOF: exit. */
	if (read(socket, &byte, 1) == 1) {
		fa_check_eq(driver.cuMemFree(at), 0);
		for (unsigned int i = 0; i < 2; ++i) {
			fa_check_eq(driver.cuMemUnmap(ats[i], CUDA_EXPORTER_PIECE), 0);
			fa_check_eq(driver.cuMemAddressFree(ats[i], CUDA_EXPORTER_PIECE), 0);
		}
		fa_check_eq(write(socket, &byte, 1), 1);
		(void)!read(socket, &byte, 1);
	}
	return 0;
}

void cuda_exporter_start(struct cuda_exporter *exporter, int device)
{
	struct exported exported;
	int sockets[2], fds[FA_PACKET_FDS_MAX];
	size_t n_fds;

	fa_check_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	fflush(NULL);
	exporter->pid = fork();
	fa_check(exporter->pid >= 0);
	if (!exporter->pid) {
		close(sockets[0]);
		_exit(run_exporter(sockets[1], device));
	}
	close(sockets[1]);
	exporter->socket = sockets[0];
	exporter->bytes = CUDA_EXPORTER_BYTES;
	fa_check_eq(fa_packet_receive(sockets[0], &exported, sizeof(exported), fds, &n_fds, 0),
	            sizeof(exported));
	fa_check_eq(n_fds, 2);
	memcpy(exporter->handle, exported.handle, sizeof(exporter->handle));
	for (int i = 0; i < 2; ++i)
		exporter->pieces[i] = (struct fa_device_piece){ fds[i], CUDA_EXPORTER_PIECE };
}

void cuda_exporter_free(struct cuda_exporter *exporter)
{
	char byte = 0;

	fa_check_eq(write(exporter->socket, &byte, 1), 1);
	fa_check_eq(read(exporter->socket, &byte, 1), 1);
}

void cuda_exporter_stop(struct cuda_exporter *exporter)
{
	close(exporter->socket);
	fa_check_eq(fa_test_reap(exporter->pid), 0);
	close(exporter->pieces[0].fd);
	close(exporter->pieces[1].fd);
}

/* ---- requests */

void cuda_job_bind(struct cuda_job *job)
{
	const struct fa_device_memory *memories[_FA_VIEW_N];
	struct fa_error error;

	for (int i = 0; i < _FA_VIEW_N; ++i)
		memories[i] = job->work.memories[i] = &job->memory;
	if (!job->attention.lse)
		job->work.memories[FA_DEVICE_LSE] = NULL;
	if (fa_attention_bind(&job->message.attention, memories, &job->params, &error) < 0)
		fa_test_fail(__FILE__, __LINE__, "%s", error.text);
	job->work.params = &job->params;
}

int cuda_job_try(struct cuda_job *job, struct cuda_device *cuda, struct fa_error *error)
{
	uint64_t piece_bytes;
	int r;

	fa_case_plan(&job->attention);
	job->memory = (struct fa_device_memory){};
	job->fd = -1;
	error->text[0] = 0;
	if (job->place == CUDA_ARENA) {
		r = ops->memory_new_arena(cuda->device, job->attention.bytes, error, &job->memory,
		                          &job->fd, &piece_bytes);
		if (r == 0)
			job->data = job->memory.address;
	} else {
		fa_check_eq(fa_memfd_new("test", job->attention.bytes, true, &job->fd), 0);
		r = ops->memory_import_host(cuda->device, job->fd, 0, job->attention.bytes, false,
		                            error, &job->memory);
		if (r == 0)
			job->data = mmap(NULL, job->attention.bytes, PROT_READ | PROT_WRITE,
			                 MAP_SHARED, job->fd, 0);
		else
			close(job->fd);
		fa_check(job->data != MAP_FAILED);
	}
	if (r < 0 && job->memory.backend)
		fa_test_memory_release(ops, cuda->device, &job->memory);
	if (r < 0)
		return r;
	fa_case_fill(&job->attention, job->data);
	job->message = fa_case_message(&job->attention, 1, 0, 0, 1);
	cuda_job_bind(job);
	return 0;
}

void cuda_job_init(struct cuda_job *job, struct cuda_device *cuda)
{
	struct fa_error error;

	if (cuda_job_try(job, cuda, &error) < 0)
		fa_test_fail(__FILE__, __LINE__, "no memory: %s", error.text);
}

void cuda_job_deinit(struct cuda_job *job, struct cuda_device *cuda)
{
	if (job->place == CUDA_HOST)
		munmap(job->data, job->attention.bytes);
	fa_test_memory_release(ops, cuda->device, &job->memory);
	fa_check(!job->memory.address);
	close(job->fd);
}

/*
 * As the engine does: launches a job unless an earlier work of its queue was refused, or others
 * wait for a slot.
 */
static void try_launch(struct cuda_job *job, struct cuda_device *cuda)
{
	struct fa_device_lane *lane = ops->queue_lane(job->queue);
	const struct fa_list *pos;

	job->refusal = lane->wanted ? -EAGAIN : 0;
	fa_list_for_each(pos, &cuda->refused) {
		const struct cuda_job *other = fa_container_of(pos, const struct cuda_job,
		                                               refused_link);

		if (other->queue == job->queue)
			job->refusal = other->refusal;
	}
	if (!job->refusal)
		job->refusal = ops->launch(cuda->device, job->queue, &job->work);
	if (!job->refusal)
		return;
	fa_check(job->refusal == -EAGAIN || job->refusal == -EBUSY);
	fa_list_append(&cuda->refused, &job->refused_link);
	if (job->refusal == -EAGAIN)
		lane->wanted = true;
	else
		++lane->n_deferred;
}

static void launch_refused(struct cuda_device *cuda)
{
	struct fa_list refused, *pos;

	fa_list_init(&refused);
	fa_list_splice(&refused, &cuda->refused);
	fa_list_for_each(pos, &refused) {
		struct fa_device_lane *lane = ops->queue_lane(
			fa_container_of(pos, struct cuda_job, refused_link)->queue);

		lane->wanted = false;
		lane->n_deferred = 0;
	}
	while (!fa_list_empty(&refused)) {
		struct cuda_job *job = fa_container_of(refused.next, struct cuda_job, refused_link);

		fa_list_remove(&job->refused_link);
		try_launch(job, cuda);
	}
}

void cuda_job_launch(struct cuda_job *job, struct cuda_device *cuda, struct fa_device_queue *queue)
{
	struct fa_error error;

	if (ops->check(cuda->device, &job->params, &error) < 0)
		fa_test_fail(__FILE__, __LINE__, "refused: %s", error.text);
	job->reaped = false;
	job->queue = queue;
	fa_list_init(&job->refused_link);
	try_launch(job, cuda);
}

void cuda_reap(struct cuda_device *cuda)
{
	struct fa_list done;

	fa_list_init(&done);
	ops->reap(cuda->device, &done);
	while (!fa_list_empty(&done)) {
		struct cuda_job *job = fa_container_of(done.next, struct cuda_job, work.link);

		fa_list_remove(&job->work.link);
		fa_check(!job->reaped);
		job->reaped = true;
		job->order = ++n_reaped;
		fa_check(job->work.finished_ns >= job->work.started_ns);
		if (job->work.status)
			fa_check(job->work.error.text[0]);
	}
	launch_refused(cuda);
}

void cuda_job_wait(struct cuda_job *job, struct cuda_device *cuda)
{
	const uint64_t until_ns = fa_deadline_ns(fa_test_patience_ns());
	uint64_t pause_ns = 0;

	while (!job->reaped) {
		cuda_reap(cuda);
		/* Asks for the health; the test judges it. */
		(void)ops->health(cuda->device, NULL);
		fa_check(fa_now_ns() < until_ns);
		fa_test_poll_pause(&pause_ns);
	}
}

void cuda_job_check(const struct cuda_job *job)
{
	double error;

	if (job->work.status)
		fa_test_fail(__FILE__, __LINE__, "the work failed with %d: %s", job->work.status,
		             job->work.error.text);
	error = fa_case_error(&job->attention, job->data);
	if (!(error <= 1))
		fa_test_fail(__FILE__, __LINE__, "the error is %g of what is allowed", error);
}

void cuda_job_run(struct cuda_device *cuda, struct fa_device_queue *queue,
                  const struct fa_case *attention, enum cuda_place place)
{
	struct cuda_job job = { .attention = *attention, .place = place };

	cuda_job_init(&job, cuda);
	cuda_job_launch(&job, cuda, queue);
	cuda_job_wait(&job, cuda);
	cuda_job_check(&job);
	cuda_job_deinit(&job, cuda);
}

struct fa_device_group *cuda_group(struct cuda_device *cuda)
{
	struct fa_device_group *group;
	struct fa_error error;

	fa_check_eq(ops->group_new(cuda->device, &error, &group), 0);
	return group;
}

struct fa_device_queue *cuda_queue(struct cuda_device *cuda, struct fa_device_group *group,
                                   int priority)
{
	struct fa_device_queue *queue;
	struct fa_error error;

	fa_check_eq(ops->queue_new(cuda->device, group, priority, &error, &queue), 0);
	return queue;
}
