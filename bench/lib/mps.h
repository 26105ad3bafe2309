/* A private MPS control daemon, for this process and all that it starts later. One thread. */
#pragma once

struct fa_mps {
	char directory[40]; /* "": not running */
};

/* Starts MPS; must precede any use of CUDA. On an error nothing runs: nvidia-cuda-mps-control is
 * missing or fails. */
int fa_mps_start(struct fa_mps *ret_mps);
/* Stops MPS; all clients must have ended. */
void fa_mps_stop(struct fa_mps *mps);
