#define FA_TYPE fa_f16
#define FA_TYPE_NAME f16
#include "kernels/cuda/sm80/forward_rows.h"
#include "kernels/cuda/sm80/masked_rows.h"
