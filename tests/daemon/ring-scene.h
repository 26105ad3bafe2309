/* A daemon and one connection with a ring, written by hand. */
#pragma once

#include "tests/lib/check.h"
#include "tests/lib/ring.h"
#include "tests/lib/scene.h"

extern struct fa_scene scene;
extern struct fa_raw raw;
extern struct fa_raw_ring ring;
extern struct fa_raw_buffer buffer; /* set by make_small() */
extern struct fa_case small;

int scene_start(void **state);
int scene_stop(void **state);

void open_ring(uint64_t bytes);
void close_ring(void);
/* A small attention case in buffer 1. */
void make_small(void);
