/* Scales of requests that lose the device of fad-lossy. */
#pragma once

#define FA_LOSSY_LOSE 1234.5f
#define FA_LOSSY_HANG 2345.5f
