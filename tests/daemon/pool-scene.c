#include "tests/daemon/pool-scene.h"

#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct fa_cache_geometry scene_geometry = {
	.layers = 1,
	.kv_heads = 1,
	.head_dim = 8,
	.head_dim_v = 8,
	.dtype = FA_ATTENTION_BF16,
	.page_tokens = SCENE_PAGE_TOKENS,
};

static const struct {
	uint32_t uid;
	const char *cgroup;
} tenants[SCENE_ACTORS] = {
	{ 1000, "/a" }, { 1000, "/a" }, { 1000, "/b" }, { 2000, "/a" }, { 0, "" },
};

void scene_hold_tenants(struct scene *scene)
{
	for (int i = 0; i < SCENE_ACTORS; i++)
		fa_check_eq(fa_pool_tenant_get(scene->pool, tenants[i].uid, tenants[i].cgroup,
		                               &scene->error, &scene->actors[i].tenant),
		            0);
}

void scene_init(struct scene *scene, uint32_t n_chunks)
{
	const struct fa_pool_config config = {
		.chunk_bytes = SCENE_CHUNK_BYTES,
		.max_chunks = SCENE_CHUNKS,
		.page_bytes_min = 512,
		.max_sequences = SCENE_SEQUENCES,
	};

	*scene = (struct scene){ .fd = -1, .now_ns = 1000 };
	device_init(&scene->device, SCENE_CHUNKS * SCENE_CHUNK_BYTES);
	fa_check_eq(fa_pool_format(&config, &scene->error, &scene->fd), 0);
	fa_check_eq(fa_pool_open(scene->fd, NULL, &scene->error, &scene->pool), 0);
	fa_pool_quarantine_end(scene->pool);
	for (uint32_t i = 0; i < n_chunks; i++)
		fa_check_eq(fa_pool_chunk_add(scene->pool, i, true, &scene->error), 0);
	for (int i = 0; i < SCENE_ACTORS; i++)
		scene->actors[i].owner = (uint64_t)i + 1;
	scene->actors[SCENE_ADMIN].admin = true;
	scene_hold_tenants(scene);
}

void scene_deinit(struct scene *scene)
{
	fa_pool_free(scene->pool);
	device_deinit(&scene->device);
	close(scene->fd);
}

void scene_reopen(struct scene *scene)
{
	struct fa_pool_report report = {};

	scene->pool = fa_pool_free(scene->pool);
	fa_check_eq(fa_pool_open(scene->fd, &report, &scene->error, &scene->pool), 0);
	for (size_t i = 0; i < report.n_lines; i++)
		fprintf(stderr, "%s\n", report.lines[i]);
	fa_check_eq(report.n_found, 0);
	fa_pool_report_deinit(&report);
	scene_hold_tenants(scene);
}

uint64_t scene_cache(struct scene *scene, enum scene_actor actor, const char *name, uint32_t mode)
{
	struct fa_pool_cache_config config = { .geometry = scene_geometry,
		                               .name = name,
		                               .mode = mode };
	uint64_t id;

	fa_check_eq(fa_pool_cache_new(scene->pool, &scene->actors[actor], &config, scene->now_ns,
	                              &scene->error, &id),
	            0);
	return id;
}

uint64_t scene_sequence(struct scene *scene, enum scene_actor actor, uint64_t cache)
{
	uint64_t id;

	fa_check_eq(
		fa_pool_sequence_new(scene->pool, &scene->actors[actor], cache, &scene->error, &id),
		0);
	return id;
}

struct fa_pool_step *scene_plan(struct scene *scene, enum scene_actor actor, uint64_t sequence,
                                uint32_t n_tokens)
{
	const struct fa_pool_step_item item = { sequence, n_tokens };
	struct fa_pool_step *step = NULL;
	int r;

	r = fa_pool_step_plan(scene->pool, &scene->actors[actor], &item, 1, ++scene->number,
	                      scene->now_ns, &scene->error, &step);
	if (r < 0)
		fprintf(stderr, "%s\n", scene->error.text);
	fa_check_eq(r, 0);
	device_begin(&scene->device, step);
	return step;
}

void scene_plan_fails(struct scene *scene, enum scene_actor actor, uint64_t sequence,
                      uint32_t n_tokens, int code)
{
	const struct fa_pool_step_item item = { sequence, n_tokens };
	struct fa_pool_step *step;

	scene->error.text[0] = '\0';
	fa_check_eq(fa_pool_step_plan(scene->pool, &scene->actors[actor], &item, 1,
	                              scene->number + 1, scene->now_ns, &scene->error, &step),
	            code);
	fa_check(scene->error.text[0] != '\0');
}

void scene_write(struct scene *scene, struct fa_pool_step *step, uint32_t base)
{
	for (uint32_t i = 0; i < step->n_entries; i++)
		for (uint64_t p = step->entries[i].before; p < step->entries[i].after; p++)
			*device_step_token(&scene->device, step, i, p) = base + (uint32_t)p;
}

void scene_commit(struct scene *scene, struct fa_pool_step *step)
{
	fa_check_eq(fa_pool_step_commit(scene->pool, step, &scene->error), 0);
	fa_pool_step_free(step);
}

void scene_abort(struct scene *scene, struct fa_pool_step *step)
{
	fa_pool_step_abort(scene->pool, step);
	fa_pool_step_free(step);
}

void scene_append(struct scene *scene, enum scene_actor actor, uint64_t sequence, uint32_t n_tokens,
                  uint32_t base)
{
	struct fa_pool_step *step = scene_plan(scene, actor, sequence, n_tokens);

	scene_write(scene, step, base);
	scene_commit(scene, step);
}

struct fa_pool_sequence_info scene_info(struct scene *scene, uint64_t sequence)
{
	struct fa_pool_sequence_info info = {};

	fa_check_eq(fa_pool_sequence_get_info(scene->pool, &scene->actors[SCENE_ADMIN], sequence,
	                                      &scene->error, &info),
	            0);
	return info;
}

struct fa_pool_cache_info scene_cache_info(struct scene *scene, uint64_t cache)
{
	struct fa_pool_cache_info info = {};

	fa_check_eq(fa_pool_cache_get_info(scene->pool, &scene->actors[SCENE_ADMIN], cache,
	                                   &scene->error, &info),
	            0);
	return info;
}

void scene_check(struct scene *scene, uint64_t sequence, uint64_t begin, uint64_t end,
                 uint32_t base)
{
	struct fa_pool_sequence_info info = scene_info(scene, sequence);

	fa_check_eq(info.length, end);
	fa_check(info.first <= begin);
	for (uint64_t p = begin; p < end; p++)
		fa_check_eq(device_read(&scene->device, scene->pool, &info, SCENE_PAGE_TOKENS, p),
		            base + (uint32_t)p);
}

uint64_t scene_tenant_bytes(struct scene *scene, enum scene_actor actor)
{
	struct fa_pool_tenant_info info;
	uint32_t cursor = 0;

	while (fa_pool_tenant_each(scene->pool, &cursor, &info))
		if (info.tag == scene->actors[actor].tenant)
			return info.bytes;
	return 0;
}

void scene_check_counts(struct scene *scene)
{
	uint64_t used_bytes = 0, idle_bytes = 0, tenants_bytes = 0, tenants_idle = 0;
	uint64_t n_shared = 0;
	struct fa_pool_tenant_info tenant;
	struct fa_pool_sequence_info sequence;
	struct fa_pool_cache_info cache;
	struct fa_pool_info info;
	uint32_t chunks = 0, caches = 0, sequences = 0, at = 0;
	uint8_t *seen = calloc(scene->device.n_slots, 1);
	uint32_t slots[4096];

	fa_check(seen);
	while (fa_pool_cache_each(scene->pool, &at, &cache)) {
		uint64_t n_used = 0;
		uint32_t cursor = 0, n_sequences = 0;

		while (fa_pool_sequence_each(scene->pool, &cursor, &sequence)) {
			size_t n;

			if (sequence.cache != cache.id)
				continue;
			n_sequences++;
			fa_check_eq(sequence.in_flight, 0);
			fa_check_eq(sequence.planned, sequence.length);
			n = pool_sequence_slots(scene->pool, sequence.id, slots, 4096);
			n += pool_checkpoint_slots(scene->pool, sequence.id, slots + n, 4096 - n);
			for (size_t i = 0; i < n; i++)
				switch (seen[slots[i]]++) {
				case 0:
					n_used++;
					break;
				case 1:
					n_shared++;
					break;
				}
		}
		fa_check_eq(cache.used_pages, n_used);
		fa_check_eq(cache.sequences, n_sequences);
		used_bytes += n_used * cache.layout.page_bytes;
		idle_bytes += cache.idle_pages * cache.layout.page_bytes;
		chunks += cache.chunks;
		sequences += n_sequences;
		caches++;
	}
	fa_pool_get_info(scene->pool, &info);
	fa_check_eq(info.used_bytes, used_bytes);
	fa_check_eq(info.idle_bytes, idle_bytes);
	fa_check_eq(info.chunks - info.chunks_free - info.chunks_held_back, chunks);
	fa_check_eq(info.sequences, sequences);
	fa_check_eq(info.caches, caches);
	fa_check_eq(info.steps, 0);
	fa_check_eq(info.shared_pages, n_shared);
	at = 0;
	while (fa_pool_tenant_each(scene->pool, &at, &tenant)) {
		tenants_bytes += tenant.bytes;
		tenants_idle += tenant.idle_bytes;
	}
	fa_check_eq(tenants_idle, idle_bytes);
	fa_check_eq(tenants_bytes, used_bytes + idle_bytes);
	free(seen);
}

void scene_check_same(const struct fa_pool_info *before, const struct fa_pool_info *after)
{
	fa_check_eq(before->chunk_bytes, after->chunk_bytes);
	fa_check_eq(before->chunks, after->chunks);
	fa_check_eq(before->chunks_free, after->chunks_free);
	fa_check_eq(before->chunks_held_back, after->chunks_held_back);
	fa_check_eq(before->caches, after->caches);
	fa_check_eq(before->sequences, after->sequences);
	fa_check_eq(before->tenants, after->tenants);
	fa_check_eq(before->steps, after->steps);
	fa_check_eq(before->generation, after->generation);
	fa_check_eq(before->used_bytes, after->used_bytes);
	fa_check_eq(before->idle_bytes, after->idle_bytes);
	fa_check_eq(before->quarantined_pages, after->quarantined_pages);
	fa_check_eq(before->evicted_pages, after->evicted_pages);
	fa_check_eq(before->shared_pages, after->shared_pages);
}
