#define FA_TYPE fa_bf16
#define FA_TYPE_NAME bf16
#include "kernels/cuda/sm80/forward_rows.h"
#include "kernels/cuda/sm80/masked_rows.h"
