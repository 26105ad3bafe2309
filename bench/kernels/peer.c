#include "bench/kernels/peer.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int fa_peer_open(const char *text, struct fa_peer *ret_peer)
{
	struct fa_peer peer = { .path = strdup(text), .name = "" };
	char *colon, *slash;

	if (!peer.path)
		abort();
	colon = strrchr(peer.path, ':');
	slash = strrchr(peer.path, '/');
	if (colon && colon > slash) {
		*colon = '\0';
		peer.name = colon + 1;
	}
	peer.title = peer.name[0] ? peer.name : slash ? slash + 1 : peer.path;
	peer.library = dlopen(peer.path, RTLD_NOW | RTLD_LOCAL);
	if (!peer.library) {
		fprintf(stderr, "%s\n", dlerror());
		free(peer.path);
		return -EINVAL;
	}
	/* POSIX allows a function in a data pointer; ISO C has no cast for it. */
	*(void **)&peer.decode = dlsym(peer.library, "fa_peer_decode");
	if (!peer.decode) {
		fprintf(stderr, "%s exports no fa_peer_decode\n", peer.path);
		fa_peer_close(&peer);
		return -EINVAL;
	}
	*ret_peer = peer;
	return 0;
}

void fa_peer_close(struct fa_peer *peer)
{
	if (peer->library)
		dlclose(peer->library);
	free(peer->path);
	*peer = (struct fa_peer){ 0 };
}

int32_t *fa_peer_table(const struct fa_paged_step *step, const uint32_t *table, int32_t page_tokens,
                       uint32_t slots_per_page, int32_t *ret_table_pages)
{
	const uint32_t tokens = (uint32_t)page_tokens;
	int32_t *pages, most = 1;

	for (int32_t b = 0; b < step->batch; b++) {
		const int32_t n = (int32_t)((step->lengths[b] + tokens - 1) / tokens);

		most = n > most ? n : most;
	}
	pages = calloc((size_t)step->batch * (size_t)most, sizeof(*pages));
	if (!pages)
		return NULL;
	for (int32_t b = 0; b < step->batch; b++)
		for (uint32_t i = 0; i * (uint64_t)tokens < step->lengths[b]; i++)
			pages[(size_t)b * (size_t)most + i] =
				(int32_t)(table[step->table_start[b] + i] / slots_per_page);
	*ret_table_pages = most;
	return pages;
}

static float widened(uint16_t bf16)
{
	const uint32_t bits = (uint32_t)bf16 << 16;
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

bool fa_peer_agrees(const uint16_t *ours, const uint16_t *theirs, size_t n, double *ret_worst)
{
	double greatest = 0, difference = 0;

	for (size_t i = 0; i < n; i++) {
		const double a = widened(ours[i]), b = widened(theirs[i]);

		if (!isfinite(a) || !isfinite(b)) {
			*ret_worst = INFINITY;
			return false;
		}
		greatest = fmax(greatest, fabs(a));
		difference = fmax(difference, fabs(a - b));
	}
	/* A reference of zeros would agree with a kernel that does nothing. */
	*ret_worst = greatest > 0 ? difference / greatest : INFINITY;
	return *ret_worst <= 1.0 / 64;
}
