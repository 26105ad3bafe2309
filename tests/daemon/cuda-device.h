/*
 * The CUDA backend alone, over the tests' CUDA driver: an open device with what the
 * driver counts, memory of every kind, and requests that are judged against fp64. The
 * driver's device memory is mapped where device pointers point, so tests look into it.
 */
#pragma once

#include "daemon/backend/device.h"
#include "tests/cuda-driver/control.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"

#include <stdatomic.h>

struct cuda_device {
	struct fa_device *device;
	struct fa_test_cuda_page *page; /* of this process */
	atomic_uint n_notified;
	struct fa_list refused; /* jobs that the device refused, in order */
};

/* Where processes show what they do; the first and the last thing in main(). */
extern struct fa_test_cuda cuda_dir;

/* Opens it and fails the test if that fails. @name: which GPU, or NULL. */
void cuda_device_open(struct cuda_device *cuda, const char *name);
/* The same, if it can be opened. */
int cuda_device_try(struct cuda_device *cuda, const char *name, struct fa_error *error);
/* Closes it, and checks that the driver has everything back. */
void cuda_device_close(struct cuda_device *cuda);

/* Whether nothing is left of what the driver counts. */
bool cuda_page_is_clean(const struct fa_test_cuda_page *page);

/* Runs @function in a process of its own, which may set the environment that the driver
 * reads, and checks that it succeeds. */
void cuda_in_child(void (*function)(void));

/*
 * Another process that has CUDA memory of its own on GPU @device: an allocation that it
 * has a handle for, and two that are descriptors.
 */
struct cuda_exporter {
	pid_t pid;
	int socket; /* its end is the exporter's end */
	uint8_t handle[64];
	uint64_t bytes; /* of the handle's allocation */
	struct fa_device_piece pieces[2];
};

#define CUDA_EXPORTER_BYTES 300000 /* not a multiple of anything */
#define CUDA_EXPORTER_PIECE (2ull << 20)

/* Byte i of a piece of memory that the exporter filled. */
static inline uint8_t cuda_exporter_byte(unsigned int piece, uint64_t i)
{
	return (uint8_t)(i * 7 + piece * 101 + i / 4096);
}

/* Starts it before this process uses the driver. */
void cuda_exporter_start(struct cuda_exporter *exporter, int device);
/* It frees its memory, and goes on living. */
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
	char *data; /* as the test sees the memory */
	int fd;
	struct fa_wire_message message;
	struct fa_attention_params params;
	struct fa_device_work work;
	struct fa_device_queue *queue;
	struct fa_list refused_link; /* cuda_device.refused */
	int refusal;                 /* -EAGAIN or -EBUSY */
	bool reaped;
	unsigned int order; /* of reaping, from 1 */
};

/* Memory and parameters of what job->attention and job->place say. */
int cuda_job_try(struct cuda_job *job, struct cuda_device *cuda, struct fa_error *error);
/* The same; fails the test if there is none. */
void cuda_job_init(struct cuda_job *job, struct cuda_device *cuda);
/* The same after job->message was changed. */
void cuda_job_bind(struct cuda_job *job);
void cuda_job_deinit(struct cuda_job *job, struct cuda_device *cuda);

/* What the device refuses is launched after a reap, in the order of these calls. */
void cuda_job_launch(struct cuda_job *job, struct cuda_device *cuda, struct fa_device_queue *queue);
/* Reaps once; whatever it was gets its order. Then launches what was refused. */
void cuda_reap(struct cuda_device *cuda);
/* Reaps until the job has come out. */
void cuda_job_wait(struct cuda_job *job, struct cuda_device *cuda);
/* Fails the test unless the result is right. */
void cuda_job_check(const struct cuda_job *job);
/* init, launch, wait, check, deinit. */
void cuda_job_run(struct cuda_device *cuda, struct fa_device_queue *queue,
                  const struct fa_case *attention, enum cuda_place place);

struct fa_device_group *cuda_group(struct cuda_device *cuda);
struct fa_device_queue *cuda_queue(struct cuda_device *cuda, struct fa_device_group *group,
                                   int priority);
