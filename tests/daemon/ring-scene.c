#include "tests/daemon/ring-scene.h"

struct fa_scene scene;
struct fa_raw raw;
struct fa_raw_ring ring;
struct fa_raw_buffer buffer;
struct fa_case small;

int scene_start(void **state)
{
	fa_scene_start(&scene, NULL);
	return 0;
}

int scene_stop(void **state)
{
	fa_scene_stop(&scene);
	return 0;
}

void open_ring(uint64_t bytes)
{
	fa_raw_open(&raw, scene.daemon.socket);
	fa_raw_ring_open(&raw, &ring, bytes);
}

void close_ring(void)
{
	fa_raw_ring_close(&ring);
	fa_raw_close(&raw);
}

void make_small(void)
{
	small = (struct fa_case){ .seqlen_q = 4, .head_dim = 16 };
	fa_case_plan(&small);
	fa_raw_buffer_register(&raw, &buffer, 1, small.bytes, 0);
	fa_case_fill(&small, buffer.data);
}
