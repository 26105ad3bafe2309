/*
 * The scene of a hostile test: a private daemon, and a bystander, who is a
 * connection that computes exact attention before, while and after somebody else
 * misbehaves. The scene remembers what the daemon held when all was quiet, and
 * fa_scene_check() waits until that is so again.
 */
#pragma once

#include "tests/lib/attention.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"

/* What the daemon says it holds: its status. */
struct fa_test_accounts {
	int64_t connections, sessions;                                 /* of the whole daemon */
	int64_t tenant_sessions, buffers, buffer_bytes, fds, requests; /* of this uid */
	bool draining;
};

void fa_test_accounts(struct fa_raw *raw, struct fa_test_accounts *ret_accounts);

struct fa_scene {
	struct fa_test_daemon daemon;
	struct fa_raw bystander;
	struct fa_raw_buffer buffer;
	struct fa_case attention;
	uint64_t value;
	struct fa_test_usage usage;
	struct fa_test_accounts accounts;
};

void fa_scene_start(struct fa_scene *scene, const struct fa_test_daemon_options *options);

/* Without the bystander's check: that is what fa_scene_check() is for. */
void fa_scene_stop(struct fa_scene *scene);

/* The bystander asks for attention and compares it with the reference. */
void fa_scene_bystander(struct fa_scene *scene);

/* fa_scene_bystander(), and descriptors, mappings and accounts are back where
 * they were. */
void fa_scene_check(struct fa_scene *scene);

/* The same without the bystander's attention; true if all is back. */
bool fa_scene_is_quiet(struct fa_scene *scene);

/*
 * A request that takes seconds unless it is cancelled: the case, planned and not
 * filled. It needs .bytes of a buffer.
 */
struct fa_case fa_case_slow(void);
