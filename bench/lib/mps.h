/* An MPS of the benchmark's own: a control daemon with directories of its own, which all
 * processes use that are started from then on, this one too. One thread. */
#pragma once

struct fa_mps {
	char directory[40]; /* empty: none runs */
};

/* Before this process has used CUDA. -errno: nvidia-cuda-mps-control is not there, or says
 * no; nothing is left behind then. */
int fa_mps_start(struct fa_mps *ret_mps);
/* When no client of it is left. */
void fa_mps_stop(struct fa_mps *mps);
