/* Reads the .npy files that numpy.save writes: version 1, little endian, C order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DEMO_NPY_RANK_MAX 4

struct demo_npy {
	char type[4]; /* "f2" or "f4" */
	unsigned int rank;
	int64_t shape[DEMO_NPY_RANK_MAX];
	void *data; /* bytes of it, malloc'ed */
	size_t bytes;
};

/*
 * Returns 0, a negative errno of the file, or -EINVAL for what is none of these
 * files, with a sentence in @text. demo_npy_free() takes what was read.
 */
int demo_npy_read(const char *path, char *text, size_t text_bytes, struct demo_npy *ret_npy);
void demo_npy_free(struct demo_npy *npy);
