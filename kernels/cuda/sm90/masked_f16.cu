#define FA_TYPE fa_f16
#define FA_TYPE_NAME f16
#include "kernels/cuda/sm90/masked_rows.h"
