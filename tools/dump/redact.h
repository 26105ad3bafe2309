/*
 * Takes what belongs to people out of texts and JSON: names of users, programs, caches, sequences
 * and control groups, and paths below homes. A name has the same stand-in everywhere. One thread.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>

struct fa_redact_word {
	char *from, *to;
};

struct fa_redact {
	struct fa_redact_word *words; /* the longest first */
	size_t n_words;
	json_t *stand_ins; /* each original's stand-in, by "kind:original" */
};

int fa_redact_init(struct fa_redact *redact);
/* Takes a zeroed struct. */
void fa_redact_deinit(struct fa_redact *redact);

/*
 * Names in @status, users of this machine who are no services, and this user's home. -ENOMEM.
 */
int fa_redact_learn(struct fa_redact *redact, const json_t *status);

/* Replaces names, users and control groups in @value, and what was learned in all texts.
 * -ENOMEM. */
int fa_redact_json(struct fa_redact *redact, json_t *value);
