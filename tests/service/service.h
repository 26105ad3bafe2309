/*
 * Clients of a daemon with a GPU, for tests: a case of tests/lib in memory of any
 * kind, asked for through the library. Whatever touches CUDA runs in a process of its
 * own, as a context does not survive fork(); checks that fail end that process.
 */
#pragma once

#include "demo/memory.h"
#include "tests/lib/attention.h"
#include "tests/lib/check.h"

#include "client/faclient.h"

struct fa_service {
	struct fa_client *client;
	struct demo_memory *memory;
	struct fa_case attention;
	struct fa_attention request; /* points into attention */
};

/* Connects. */
void fa_service_open(struct fa_service *service, const char *socket);
void fa_service_close(struct fa_service *service);

/* Plans @attention, makes memory of @kind and fills it (unless not @fill). */
void fa_service_make(struct fa_service *service, const struct fa_case *attention,
                     enum demo_memory_kind kind, bool fill);
void fa_service_drop(struct fa_service *service);

/* Asks, waits, and returns the error in units of what is allowed: at most 1 is right. */
double fa_service_error(struct fa_service *service);

/* Random within everything that attention can be, and small enough for the reference. */
struct fa_case fa_service_random_case(struct fa_test_random *random);

/* Says what it is. */
void fa_service_print(const struct fa_case *attention, enum demo_memory_kind kind);
