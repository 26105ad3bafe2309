/* Messages between the daemon and its filter: account/fd_filter.c and fd_filter_main.c. */
#pragma once

#include <stdint.h>

#define FA_FD_FILTER_CONTROL 3       /* the filter's descriptor of their socket */
#define FA_FD_FILTER_BYTES_MAX 65536 /* most bytes of a packet */

enum fa_fd_filter_command {
	FA_FD_FILTER_RECEIVE, /* sent with the connection; the filter replies */
	FA_FD_FILTER_CLOSE,
};

struct fa_fd_filter_request {
	enum fa_fd_filter_command command;
	uint32_t size;  /* of the packet at most */
	uint64_t batch; /* RECEIVE: the id of the batch, if the packet needs one */
};

/* The packet follows. If n_batch is not 0, a second message brings the end of a pipe. */
struct fa_fd_filter_reply {
	int64_t length; /* or a negative errno */
	uint32_t n_batch;
	uint32_t placeholders;
	uint32_t lost;
	uint32_t reserved;
};
