/*
 * The tests' CUDA driver with the emulator. Decode over pages and the kernels that move tokens run
 * unchanged, with the daemon's plans, tables and scratch; kernels that load by TMA, and attention over
 * a client's own pages, are replaced by plain code.
 */
#include "tests/cuda-driver/emulate.h"
#include "tests/emulator/find.h"

#include <pthread.h>

bool fa_fake_emulate(struct fa_cuda_paged_launch *launch)
{
	/* Several threads (one per stream) share the one emulator. */
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct fa_cuda_done *const done = fa_cuda_paged_done(launch);
	const struct fa_cuda_paged_kernel *kernel = launch->kernel;
	const struct fa_cuda_done asked = *done;

	if (kernel->keys || kernel->kind == FA_CUDA_PAGED_LATENT ||
	    (kernel->kind >= FA_CUDA_PAGED_OWN_DECODE && kernel->kind <= FA_CUDA_PAGED_OWN_PLAN))
		return false;
	/* The driver signals completion instead of the kernel. */
	*done = (struct fa_cuda_done){};
	pthread_mutex_lock(&lock);
	fa_emulated_launch(launch->grid_x, launch->grid_y, (uint32_t)kernel->threads,
	                   (uint32_t)kernel->shared_bytes, fa_emulated_find(kernel)->run,
	                   &launch->args);
	pthread_mutex_unlock(&lock);
	*done = asked;
	return true;
}
