#include "tools/dump/redact.h"

#include "common/cleanup.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shorter names are replaced only as a whole value, not as words of a text. */
#define WORD_MIN 3
#define USER_UID_MIN 1000
#define USER_UID_MAX 60000

int fa_redact_init(struct fa_redact *redact)
{
	*redact = (struct fa_redact){ .stand_ins = json_object() };
	return redact->stand_ins ? 0 : -ENOMEM;
}

void fa_redact_deinit(struct fa_redact *redact)
{
	for (size_t i = 0; i < redact->n_words; ++i) {
		free(redact->words[i].from);
		free(redact->words[i].to);
	}
	free(redact->words);
	json_decref(redact->stand_ins);
	*redact = (struct fa_redact){};
}

/* ---- words */

static int add_word(struct fa_redact *redact, const char *from, const char *to)
{
	struct fa_redact_word *words, word;
	size_t at = 0;

	for (size_t i = 0; i < redact->n_words; ++i)
		if (strcmp(redact->words[i].from, from) == 0)
			return 0;
	words = realloc(redact->words, (redact->n_words + 1) * sizeof(*words));
	if (!words)
		return -ENOMEM;
	redact->words = words;
	word = (struct fa_redact_word){ strdup(from), strdup(to) };
	if (!word.from || !word.to) {
		free(word.from);
		free(word.to);
		return -ENOMEM;
	}
	while (at < redact->n_words && strlen(words[at].from) >= strlen(from))
		++at;
	memmove(&words[at + 1], &words[at], (redact->n_words - at) * sizeof(*words));
	words[at] = word;
	++redact->n_words;
	return 0;
}

/* A name such as "name3"; NULL: no memory. */
static const char *stand_in(struct fa_redact *redact, const char *kind, const char *original)
{
	_fa_cleanup_(fa_freep) char *key = NULL;
	json_t *known;
	char text[64];

	if (asprintf(&key, "%s:%s", kind, original) < 0) {
		key = NULL;
		return NULL;
	}
	known = json_object_get(redact->stand_ins, key);
	if (!known) {
		snprintf(text, sizeof(text), "%s%zu", kind,
		         json_object_size(redact->stand_ins) + 1);
		known = json_string(text);
		if (json_object_set_new(redact->stand_ins, key, known))
			return NULL;
	}
	return json_string_value(known);
}

static int learn(struct fa_redact *redact, const char *kind, const char *original)
{
	const char *text;

	if (!original || strlen(original) < WORD_MIN)
		return 0;
	text = stand_in(redact, kind, original);
	return text ? add_word(redact, original, text) : -ENOMEM;
}

static int learn_list(struct fa_redact *redact, const json_t *list)
{
	json_t *object;
	int r = 0;
	size_t i;

	json_array_foreach(list, i, object)
	{
		/* factl calls itself so. */
		const char *name = json_string_value(json_object_get(object, "name"));
		const char *cgroup = json_string_value(json_object_get(object, "cgroup"));

		if (name && strncmp(name, "factl", 5) != 0)
			r |= learn(redact, "name", name);
		if (cgroup && strcmp(cgroup, "/") != 0)
			r |= learn(redact, "cgroup", cgroup);
	}
	return r ? -ENOMEM : 0;
}

static int learn_users(struct fa_redact *redact)
{
	const struct passwd *user;
	int r = 0;

	setpwent();
	while (r == 0 && (user = getpwent())) {
		if (user->pw_uid < USER_UID_MIN || user->pw_uid > USER_UID_MAX)
			continue;
		r = learn(redact, "user", user->pw_name);
		if (r == 0 && strlen(user->pw_dir) > 1)
			r = add_word(redact, user->pw_dir, "~");
	}
	endpwent();
	return r;
}

int fa_redact_learn(struct fa_redact *redact, const json_t *status)
{
	static const char *const lists[] = { "sessions", "tenants", "caches", "sequences" };
	const char *home = getenv("HOME"), *user = getenv("USER");
	int r;

	r = learn_users(redact);
	if (r == 0 && home && strlen(home) > 1)
		r = add_word(redact, home, "~");
	if (r == 0 && user && strcmp(user, "root") != 0)
		r = learn(redact, "user", user);
	for (size_t i = 0; i < sizeof(lists) / sizeof(*lists) && r == 0; ++i)
		r = learn_list(redact, json_object_get(status, lists[i]));
	if (r == 0)
		r = learn_list(redact, json_object_get(json_object_get(status, "pool"), "tenants"));
	return r;
}

/* ---- texts */

static bool is_word_byte(char byte)
{
	return isalnum((unsigned char)byte) || byte == '_';
}

/* @text has @word at @at, and not as part of a longer word. */
static bool is_at(const char *text, size_t at, const char *word)
{
	const size_t length = strlen(word);

	return strncmp(text + at, word, length) == 0 &&
	       !(at && is_word_byte(word[0]) && is_word_byte(text[at - 1])) &&
	       !(is_word_byte(word[length - 1]) && is_word_byte(text[at + length]));
}

/* The bytes of a path "/home/NAME" or "/run/user/NUMBER" at @text; 0: none. */
static size_t home_bytes(const char *text, const char **ret_to)
{
	static const struct {
		const char *prefix, *to;
	} homes[] = { { "/home/", "/home/USER" },
		      { "/Users/", "/home/USER" },
		      { "/run/user/", "/run/user/UID" } };

	for (size_t i = 0; i < sizeof(homes) / sizeof(*homes); ++i) {
		const size_t prefix = strlen(homes[i].prefix);

		if (strncmp(text, homes[i].prefix, prefix) == 0) {
			*ret_to = homes[i].to;
			return prefix + strcspn(text + prefix, "/ \t:;,\"'");
		}
	}
	return 0;
}

/* Returns @text without what was learned and names of homes. The caller frees it; NULL: no
 * memory. */
static char *redact_text(const struct fa_redact *redact, const char *text)
{
	char *result = NULL;
	size_t bytes;
	FILE *file = open_memstream(&result, &bytes);

	if (!file)
		return NULL;
	for (size_t at = 0; text[at];) {
		const char *to = NULL;
		size_t length = 0;

		for (size_t i = 0; i < redact->n_words && !to; ++i)
			if (is_at(text, at, redact->words[i].from)) {
				to = redact->words[i].to;
				length = strlen(redact->words[i].from);
			}
		if (!to)
			length = home_bytes(text + at, &to);
		if (to) {
			fputs(to, file);
			at += length;
		} else {
			fputc(text[at++], file);
		}
	}
	if (fclose(file) != 0) {
		free(result);
		return NULL;
	}
	return result;
}

/* ---- JSON */

/* Root stays 0; others are numbered. */
static json_t *redact_uid(struct fa_redact *redact, const json_t *value)
{
	char text[32];

	if (!json_integer_value(value))
		return json_integer(0);
	snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
	return json_string(stand_in(redact, "uid", text));
}

static json_t *redact_string(struct fa_redact *redact, const char *key, const char *text)
{
	_fa_cleanup_(fa_freep) char *clean = NULL;
	const bool is_name = key && strcmp(key, "name") == 0 && strncmp(text, "factl", 5) != 0;
	const bool is_cgroup = key && strcmp(key, "cgroup") == 0 && strcmp(text, "/") != 0;

	if (*text && (is_name || is_cgroup))
		return json_string(stand_in(redact, is_name ? "name" : "cgroup", text));
	clean = redact_text(redact, text);
	return clean ? json_string(clean) : NULL;
}

/* For @value, an entry with this key; NULL: it stays, and was changed inside. */
static int replacement(struct fa_redact *redact, const char *key, json_t *value, json_t **ret_new)
{
	*ret_new = NULL;
	if (json_is_string(value))
		*ret_new = redact_string(redact, key, json_string_value(value));
	else if (json_is_integer(value) && key && strcmp(key, "uid") == 0)
		*ret_new = redact_uid(redact, value);
	else
		return fa_redact_json(redact, value);
	return *ret_new ? 0 : -ENOMEM;
}

int fa_redact_json(struct fa_redact *redact, json_t *value)
{
	json_t *entry, *changed;
	const char *key;
	size_t i;
	int r = 0;

	json_array_foreach(value, i, entry)
	{
		r = replacement(redact, NULL, entry, &changed);
		if (r == 0 && changed && json_array_set_new(value, i, changed))
			r = -ENOMEM;
		if (r < 0)
			return r;
	}
	json_object_foreach(value, key, entry)
	{
		r = replacement(redact, key, entry, &changed);
		if (r == 0 && changed && json_object_set_new(value, key, changed))
			r = -ENOMEM;
		if (r < 0)
			return r;
	}
	return 0;
}
