/*
 * Handles, which programs hold in place of pointers. Never reused, so a freed one is found out. One
 * table serves the process, without a lock. Any thread, also in a child of fork().
 */
#pragma once

struct fa_buffer;
struct fa_client;
struct fa_step;
struct fa_timeline;

/* Odd, so that no handle is the address of an object. */
enum fa_handle_kind {
	FA_HANDLE_CLIENT = 1,
	FA_HANDLE_BUFFER = 3,
	FA_HANDLE_STEP = 5,
	FA_HANDLE_TIMELINE = 7,
};

/* -ENOMEM. */
int fa_handle_new(enum fa_handle_kind kind, void *object, void **ret_handle);
/* NULL: @handle is NULL, freed, of another kind or none. */
void *fa_handle_find(enum fa_handle_kind kind, const void *handle);
/* Ends the handle and returns its object, to one caller; NULL as above. */
void *fa_handle_take(enum fa_handle_kind kind, const void *handle);

static inline struct fa_client *fa_client_of(const struct fa_client *handle)
{
	return fa_handle_find(FA_HANDLE_CLIENT, handle);
}

static inline struct fa_buffer *fa_buffer_of(const struct fa_buffer *handle)
{
	return fa_handle_find(FA_HANDLE_BUFFER, handle);
}

static inline struct fa_step *fa_step_of(const struct fa_step *handle)
{
	return fa_handle_find(FA_HANDLE_STEP, handle);
}

static inline struct fa_timeline *fa_timeline_of(const struct fa_timeline *handle)
{
	return fa_handle_find(FA_HANDLE_TIMELINE, handle);
}
