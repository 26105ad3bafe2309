/*
 * Clients of a daemon with a GPU. Each sends a request of tests/lib/attention.h, in memory of any
 * kind, through the library. CUDA is used only in child processes, as a context does not survive
 * fork(); a failed check ends its child.
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

void fa_service_open(struct fa_service *service, const char *socket);
void fa_service_close(struct fa_service *service);

/* Plans @attention and allocates memory of @kind; fills it with inputs if @fill. */
void fa_service_make(struct fa_service *service, const struct fa_case *attention,
                     enum demo_memory_kind kind, bool fill);
void fa_service_drop(struct fa_service *service);

/* Requests the attention, and returns the error in units of what is allowed: right if at most 1. */
double fa_service_error(struct fa_service *service);

/* Returns a random request of any kind that the reference can compute quickly. */
struct fa_case fa_service_random_case(struct fa_test_random *random);

void fa_service_print(const struct fa_case *attention, enum demo_memory_kind kind);
