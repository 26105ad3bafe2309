/*
 * The scene of a hostile test: a private daemon and a bystander, a connection that computes
 * attention while others misbehave. fa_scene_check() waits until the daemon holds no more than when
 * the scene was quiet.
 */
#pragma once

#include "tests/lib/attention.h"
#include "tests/lib/daemon.h"
#include "tests/lib/raw.h"

/* From the daemon's status. */
struct fa_test_accounts {
	int64_t connections, sessions;                                 /* of the whole daemon */
	int64_t tenant_sessions, buffers, buffer_bytes, fds, requests; /* of this uid's tenants */
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

/* Once no other client is there: makes what the daemon holds now the state that fa_scene_check()
 * expects. */
void fa_scene_calm(struct fa_scene *scene);

/* Without the check that fa_scene_check() makes. */
void fa_scene_stop(struct fa_scene *scene);

/* Computes attention and compares it with the reference. */
void fa_scene_bystander(struct fa_scene *scene);

/* Waits, after fa_scene_bystander(), until descriptors, mappings and accounts are as before. */
void fa_scene_check(struct fa_scene *scene);

/* Returns true if these are as before now; does not use the bystander. */
bool fa_scene_is_quiet(struct fa_scene *scene);

/*
 * A request that takes seconds unless cancelled; planned, not filled. It needs a buffer of .bytes.
 */
struct fa_case fa_case_slow(void);
