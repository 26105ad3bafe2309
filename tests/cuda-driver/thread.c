/*
 * What the driver keeps for a thread. Not _Thread_local: LeakSanitizer crashes now and then when it
 * reads that of a library that was loaded late.
 */
#include "tests/cuda-driver/driver.h"

#include <stdlib.h>

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_free(void *userdata)
{
	struct fa_fake_thread *thread = userdata;

	free(thread->scratch);
	free(thread);
}

static void init(void)
{
	if (pthread_key_create(&key, thread_free))
		abort();
}

struct fa_fake_thread *fa_fake_thread(void)
{
	struct fa_fake_thread *thread;

	pthread_once(&once, init);
	thread = pthread_getspecific(key);
	if (thread)
		return thread;
	thread = calloc(1, sizeof(*thread));
	if (!thread || pthread_setspecific(key, thread))
		abort();
	return thread;
}
