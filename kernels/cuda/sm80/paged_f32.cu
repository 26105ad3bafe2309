#define FA_TYPE float
#define FA_TYPE_NAME f32
#include "kernels/cuda/sm80/paged_decode_rows.h"

FA_SM80_PAGED_DECODE_F32(FA_PAGED_ROW_OF_TYPE)
FA_SM80_PAGED_DECODE_F32(FA_PAGED_SPLIT_OF_TYPE)
