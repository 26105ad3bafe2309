/* A private MPS control daemon, for this process and all that it starts later. One thread. */
#pragma once

struct fa_mps {
	char directory[40]; /* "": not running */
};

/* Before any use of CUDA. After an error nothing runs: nvidia-cuda-mps-control is missing or
 * fails. */
int fa_mps_start(struct fa_mps *ret_mps);
/* All clients have ended. */
void fa_mps_stop(struct fa_mps *mps);
