/* The CUDA backend alone over the tests' driver: an open device with the driver's counters, memory
 * of every kind, and requests that are checked against fp64. Device pointers are valid in the
 * test's process, so tests can look into the device's memory. */
#pragma once

#include "daemon/backend/device.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"

#include <stdatomic.h>

struct cuda_device {
	struct fa_device *device;
	struct fa_test_cuda_page *page; /* the counters of this process */
	atomic_uint n_notified;
	struct fa_list refused; /* jobs that the device refused, in order */
};

/* The directory of all processes' counters; main() makes it first and frees it last. */
extern struct fa_test_cuda cuda_dir;

/* Opens the device; fails the test if that is impossible. @name: which GPU, or NULL. */
void cuda_device_open(struct cuda_device *cuda, const char *name);
/* Opens the device, or returns the error. */
int cuda_device_try(struct cuda_device *cuda, const char *name, struct fa_error *error);
/* Closes the device, and checks that the driver got everything back. */
void cuda_device_close(struct cuda_device *cuda);

/* Returns whether the driver has everything back. */
bool cuda_page_is_clean(const struct fa_test_cuda_page *page);

/* Runs @function in a process of its own, which may set the driver's environment, and checks that
 * it succeeds. */
void cuda_in_child(void (*function)(void));

/* Another process with CUDA memory on GPU @device: an allocation with an IPC handle, and two with
 * descriptors. */
struct cuda_exporter {
	pid_t pid;
	int socket; /* closing it ends the exporter */
	uint8_t handle[64];
	uint64_t bytes; /* size of the allocation with the IPC handle */
	struct fa_device_piece pieces[2];
};

#define CUDA_EXPORTER_BYTES 300000 /* deliberately odd */
#define CUDA_EXPORTER_PIECE (2ull << 20)

/* Byte @i of memory that the exporter filled. */
static inline uint8_t cuda_exporter_byte(unsigned int piece, uint64_t i)
{
	return (uint8_t)(i * 7 + piece * 101 + i / 4096);
}

/* Starts the exporter. To be called before this process uses the driver. */
void cuda_exporter_start(struct cuda_exporter *exporter, int device);
/* Makes the exporter free its memory and live on. */
void cuda_exporter_free(struct cuda_exporter *exporter);
void cuda_exporter_stop(struct cuda_exporter *exporter);

/* ---- requests */

enum cuda_place {
	CUDA_ARENA,
	CUDA_HOST,
};

struct cuda_job {
	struct fa_case attention;
	enum cuda_place place;
	struct fa_device_memory memory;
	char *data; /* the buffer, as the test sees it */
	int fd;
	struct fa_wire_message message;
	struct fa_attention_params params;
	struct fa_device_work work;
	struct fa_device_queue *queue;
	struct fa_list refused_link; /* cuda_device.refused */
	int refusal;                 /* -EAGAIN or -EBUSY */
	bool reaped;
	unsigned int order; /* its place among the reaped jobs, from 1 */
};

/* Makes the job's memory and parameters from job->attention and job->place. */
int cuda_job_try(struct cuda_job *job, struct cuda_device *cuda, struct fa_error *error);
/* Like cuda_job_try(), but fails the test if there is no memory. */
void cuda_job_init(struct cuda_job *job, struct cuda_device *cuda);
/* Updates the parameters after a change of job->message. */
void cuda_job_bind(struct cuda_job *job);
void cuda_job_deinit(struct cuda_job *job, struct cuda_device *cuda);

/* Launches the job. If the device refuses it, a later cuda_reap() launches it, in order. */
void cuda_job_launch(struct cuda_job *job, struct cuda_device *cuda, struct fa_device_queue *queue);
/* Reaps once, sets the jobs' order, and launches refused works. */
void cuda_reap(struct cuda_device *cuda);
/* Reaps until the job is done. */
void cuda_job_wait(struct cuda_job *job, struct cuda_device *cuda);
/* Fails the test unless the job's result is right. */
void cuda_job_check(const struct cuda_job *job);
/* Does all of init, launch, wait, check and deinit. */
void cuda_job_run(struct cuda_device *cuda, struct fa_device_queue *queue,
                  const struct fa_case *attention, enum cuda_place place);

struct fa_device_group *cuda_group(struct cuda_device *cuda);
struct fa_device_queue *cuda_queue(struct cuda_device *cuda, struct fa_device_group *group,
                                   int priority);
