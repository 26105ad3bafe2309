/* What a client can make grow, and how far. Plain data; account/config.c fills it. */
#pragma once

#include <stdint.h>

/* A limit that the configuration leaves to the machine. */
#define FA_LIMIT_AUTO UINT64_MAX

/* What is charged to tenants. The names are those of the configuration. */
enum fa_resource {
	FA_RESOURCE_SESSIONS,
	FA_RESOURCE_BUFFERS,
	FA_RESOURCE_BUFFER_BYTES, /* of the machine's memory */
	FA_RESOURCE_DEVICE_BYTES, /* of the device's own */
	FA_RESOURCE_PIECES,       /* allocations that buffers are made of, if of several */
	FA_RESOURCE_FDS,
	FA_RESOURCE_REQUESTS,
	FA_RESOURCE_STEP_BYTES, /* tables of steps of the KV pool in flight, tokens looked up */
	FA_RESOURCE_GATES,      /* waits and signals of requests in flight */
	FA_RESOURCE_TIMELINES,  /* of sessions, one at most each */
	_FA_RESOURCE_N,
};

struct fa_limits {
	uint64_t tenant[_FA_RESOURCE_N];
	uint64_t uid_factor; /* how often all tenants of one uid may have that together */

	/* Of the KV pool, for a tenant; it keeps these accounts itself, as they outlive us. */
	uint64_t pool_bytes; /* pages */
	uint64_t sequences;
	uint64_t caches;

	uint64_t session_buffers;
	uint64_t session_streams; /* with stream 0 */
	uint64_t session_requests;
	uint64_t session_steps;     /* of the KV pool, in flight */
	uint64_t session_out_bytes; /* answers that the client has not read */

	uint64_t connections; /* of everybody */
	uint64_t all_fds;     /* the same; 0: nobody counts them */
};
