/* What makes the lossy device of fad-lossy be lost: a request's scale. */
#pragma once

#define FA_LOSSY_LOSE 1234.5f
#define FA_LOSSY_HANG 2345.5f
