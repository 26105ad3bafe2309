/* Reads the header of a stored state without opening the pool. */
#pragma once

#include "common/error.h"
#include "daemon/pool/state.h"

/* -EBADMSG: no state, or damaged; -EPROTONOSUPPORT: another version. */
int fa_state_read_header(int fd, struct fa_error *error, struct fa_state_header *ret_header);
