/* Functions of modules. Each is a row in the tables of built kernels, or computes nothing. */
#pragma once

#include "kernels/attention.h"
#include "tests/cuda-driver/driver.h"
#include "tests/cuda-driver/text.h"

struct fa_fake_module;

struct fa_fake_function {
	struct fa_fake_function *next;
	struct fa_fake_module *module;
	struct fa_fake_context *context;
	const struct fa_cuda_kernel *kernel;
	const struct fa_cuda_paged_kernel *paged; /* set instead of kernel */
	bool plain; /* set instead of both: the function computes nothing */
	const struct fa_fake_text_kernel *text; /* set instead of all: of a module of text */
	int shared_bytes_max;
};

/* The CPU kernels that compute launches; NULL until a module was loaded. */
extern const struct fa_cpu_isa *fa_fake_isa;

/* Returns the function, or NULL. Called with the lock held. */
struct fa_fake_function *fa_fake_function_find(CUfunction value);
