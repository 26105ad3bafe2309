/*
 * What tests of rings by hand begin with: a scene, and a connection with a ring. One of each
 * at a time.
 */
#pragma once

#include "tests/lib/check.h"
#include "tests/lib/ring.h"
#include "tests/lib/scene.h"

extern struct fa_scene scene;
extern struct fa_raw raw;
extern struct fa_raw_ring ring;
extern struct fa_raw_buffer buffer; /* of make_small() */
extern struct fa_case small;

/* Of a group of tests. */
int scene_start(void **state);
int scene_stop(void **state);

/* A connection with a ring of @bytes. */
void open_ring(uint64_t bytes);
void close_ring(void);
/* Attention over few tokens, in a buffer of the connection's, which is its buffer 1. */
void make_small(void);
