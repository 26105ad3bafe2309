/*
 * A file in a file system of its own (FUSE) whose flush is never answered: every close() of it blocks, and
 * a process that has it open cannot be reaped, until fuse_file_stop().
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct fuse_file {
	char directory[48], path[64];
	pid_t server;
};

/* False: nothing can be mounted here. */
bool fuse_file_start(struct fuse_file *file);

/* Ends the flushes, so that every process that waits for the file goes on. */
void fuse_file_stop(struct fuse_file *file);
