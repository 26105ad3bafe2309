/* Messages between the daemon and its filter. */
#pragma once

#include <stdint.h>

#define FA_FD_FILTER_CONTROL 3 /* the filter's descriptor of their socket */
#define FA_FD_FILTER_BYTES_MAX 65536

enum fa_fd_filter_command {
	FA_FD_FILTER_RECEIVE, /* sent with the connection; answered */
	FA_FD_FILTER_CLOSE,
};

struct fa_fd_filter_request {
	enum fa_fd_filter_command command;
	uint32_t size;  /* of the packet, at most */
	uint64_t batch; /* RECEIVE: the batch's id, if there will be one */
};

/* The packet follows; with n_batch, then a message with the end of a pipe. */
struct fa_fd_filter_reply {
	int64_t length; /* or negative errno */
	uint32_t n_batch;
	uint32_t placeholders;
	uint32_t lost;
	uint32_t reserved;
};
