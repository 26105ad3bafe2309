/* A private MPS control daemon, used by this process and all that it starts later. One thread. */
#pragma once

struct fa_mps {
	char directory[40]; /* "": not running */
};

/* Before any use of CUDA. A negative errno, with nothing left running: nvidia-cuda-mps-control
 * is missing or fails. */
int fa_mps_start(struct fa_mps *ret_mps);
/* When all clients have ended. */
void fa_mps_stop(struct fa_mps *mps);
