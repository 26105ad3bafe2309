/* Resources and limits. */
#pragma once

#include <stdint.h>

/* fa_config_resolve() replaces this value. */
#define FA_LIMIT_AUTO UINT64_MAX

/* Tenants are charged for these. The configuration uses these names. */
enum fa_resource {
	FA_RESOURCE_SESSIONS,
	FA_RESOURCE_BUFFERS,
	FA_RESOURCE_BUFFER_BYTES, /* host memory */
	FA_RESOURCE_DEVICE_BYTES,
	FA_RESOURCE_PIECES,
	FA_RESOURCE_FDS,
	FA_RESOURCE_REQUESTS,
	FA_RESOURCE_STEP_BYTES, /* tables of KV steps, tokens of prefix lookups */
	FA_RESOURCE_GATES,      /* waits and signals of requests */
	FA_RESOURCE_TIMELINES,  /* at most one per session */
	_FA_RESOURCE_N,
};

struct fa_limits {
	uint64_t tenant[_FA_RESOURCE_N];
	uint64_t uid_factor; /* all tenants of a uid together may have so many times tenant[] */

	/* Limits of each tenant, accounted by the KV pool, which outlives the daemon. */
	uint64_t pool_bytes; /* of pages */
	uint64_t sequences;
	uint64_t caches;

	uint64_t session_buffers;
	uint64_t session_streams; /* including stream 0 */
	uint64_t session_requests;
	uint64_t session_steps;     /* of the KV pool */
	uint64_t session_out_bytes; /* of answers not yet read */

	/* The smaller of the machine's memory and the cgroup's, when the limits were set. */
	uint64_t memory_bytes;
	uint64_t connections; /* of all clients */
	/* Limits of all clients together; 0: unlimited. */
	uint64_t all_fds;          /* descriptors */
	uint64_t all_buffers;      /* set by the server */
	uint64_t all_buffer_bytes; /* FA_RESOURCE_BUFFER_BYTES */
};
