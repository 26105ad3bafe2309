/* Reads .npy files of numpy.save: version 1, little endian, C order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DEMO_NPY_RANK_MAX 4

struct demo_npy {
	char type[4]; /* "f2" or "f4" */
	unsigned int rank;
	int64_t shape[DEMO_NPY_RANK_MAX];
	void *data;
	size_t bytes;
};

/* Returns 0, or a negative errno and its @text; -EINVAL: no such file format. */
int demo_npy_read(const char *path, char *text, size_t text_bytes, struct demo_npy *ret_npy);
void demo_npy_free(struct demo_npy *npy);
