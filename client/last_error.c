/*
 * Each thread's sentence lies behind a pthread key, not in thread-local storage, so that the
 * library can be loaded with dlopen(). The shared library is never unloaded; a plugin with the
 * static one deletes the key when it is.
 */
#include "client/last_error.h"

#include "client/cancel.h"
#include "client/faclient.h"
#include "common/cleanup.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static atomic_bool have_key;

static void make_key(void)
{
	have_key = !pthread_key_create(&key, free);
}

/* Runs at exit(), too, when other threads may still call the library. */
__attribute__((destructor)) static void delete_key(void)
{
	if (!atomic_exchange(&have_key, false))
		return;
	free(pthread_getspecific(key));
	(void)pthread_key_delete(key);
}

/* NULL: no memory; fa_error() returns "". */
static struct fa_error *thread_error(void)
{
	struct fa_error *error;

	pthread_once(&once, make_key);
	if (!have_key)
		return NULL;
	error = pthread_getspecific(key);
	if (error)
		return error;
	error = fa_new(struct fa_error);
	if (error && pthread_setspecific(key, error)) {
		free(error);
		return NULL;
	}
	return error;
}

const char *fa_error(void)
{
	fa_uncancelled();
	struct fa_error *error = thread_error();

	return error ? error->text : "";
}

int fa_error_set(int code, const char *format, ...)
{
	struct fa_error *error = thread_error();
	va_list args;

	if (error) {
		va_start(args, format);
		(void)vsnprintf(error->text, sizeof(error->text), format, args);
		va_end(args);
	}
	return code;
}

int fa_error_copy(int code, const struct fa_error *from)
{
	struct fa_error *error = thread_error();

	if (error)
		*error = *from;
	return code;
}
