#include "tests/cuda-driver/emulate.h"

bool fa_fake_emulate(struct fa_cuda_paged_launch *launch)
{
	return false;
}
