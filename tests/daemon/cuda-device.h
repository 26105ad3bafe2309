/*
 * The CUDA backend alone over the tests' driver: an open device, memory of every kind, and requests
 * checked against fp64. Device pointers are valid in the test's process.
 */
#pragma once

#include "daemon/backend/device.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"
#include "tests/lib/device-memory.h"

#include <stdatomic.h>

struct cuda_device {
	struct fa_device *device;
	struct fa_test_cuda_page *page; /* the counters of this process */
	atomic_uint n_notified;
	struct fa_list refused; /* jobs, in order */
};

/* All processes' counters; main() makes it first and frees it last. */
extern struct fa_test_cuda cuda_dir;

/* @name: which GPU, or NULL. */
void cuda_device_open(struct cuda_device *cuda, const char *name);
/* Returns the error if the device cannot be opened. */
int cuda_device_try(struct cuda_device *cuda, const char *name, struct fa_error *error);
/* Also checks that the driver has everything back. */
void cuda_device_close(struct cuda_device *cuda);

bool cuda_page_is_clean(const struct fa_test_cuda_page *page);

/* Runs @function in a child, which may set the driver's environment; it must succeed. */
void cuda_in_child(void (*function)(void));

/*
 * Another process with memory on GPU @device: an allocation with an IPC handle, and two with
 * descriptors.
 */
struct cuda_exporter {
	pid_t pid;
	int socket; /* closing it ends the exporter */
	uint8_t handle[64];
	uint64_t bytes; /* of the allocation with the IPC handle */
	struct fa_device_piece pieces[2];
};

#define CUDA_EXPORTER_BYTES 300000 /* deliberately odd */
#define CUDA_EXPORTER_PIECE (2ull << 20)

/* Byte @i of the exporter's memory. */
static inline uint8_t cuda_exporter_byte(unsigned int piece, uint64_t i)
{
	return (uint8_t)(i * 7 + piece * 101 + i / 4096);
}

/* To be called before this process uses the driver. */
void cuda_exporter_start(struct cuda_exporter *exporter, int device);
/* The exporter frees its memory and lives on. */
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
	char *data; /* as the test sees the buffer */
	int fd;
	struct fa_wire_message message;
	struct fa_attention_params params;
	struct fa_device_work work;
	struct fa_device_queue *queue;
	struct fa_list refused_link; /* cuda_device.refused */
	int refusal;                 /* -EAGAIN or -EBUSY */
	bool reaped;
	unsigned int order; /* among the reaped jobs, from 1 */
};

/* Derives memory and parameters from job->attention and job->place. */
int cuda_job_try(struct cuda_job *job, struct cuda_device *cuda, struct fa_error *error);
/* Fails the test if there is no memory. */
void cuda_job_init(struct cuda_job *job, struct cuda_device *cuda);
/* To be called after a change of job->message. */
void cuda_job_bind(struct cuda_job *job);
void cuda_job_deinit(struct cuda_job *job, struct cuda_device *cuda);

/* If the device refuses the job, a later cuda_reap() launches it, in order. */
void cuda_job_launch(struct cuda_job *job, struct cuda_device *cuda, struct fa_device_queue *queue);
/* Reaps once, sets the jobs' order, and launches refused works. */
void cuda_reap(struct cuda_device *cuda);
void cuda_job_wait(struct cuda_job *job, struct cuda_device *cuda);
void cuda_job_check(const struct cuda_job *job);
/* init, launch, wait, check and deinit */
void cuda_job_run(struct cuda_device *cuda, struct fa_device_queue *queue,
                  const struct fa_case *attention, enum cuda_place place);

struct fa_device_group *cuda_group(struct cuda_device *cuda);
struct fa_device_queue *cuda_queue(struct cuda_device *cuda, struct fa_device_group *group,
                                   int priority);
