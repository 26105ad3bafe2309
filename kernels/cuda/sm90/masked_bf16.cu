#define FA_TYPE fa_bf16
#define FA_TYPE_NAME bf16
#include "kernels/cuda/sm90/masked_rows.h"
