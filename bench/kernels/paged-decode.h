/*
 * The parts of time-paged in which few tokens of each sequence attend to many: what time-paged.c
 * says of them.
 */
#pragma once

#include <stdbool.h>

/* Of pages as time_options say, against peers, too. */
void time_decode(void);
/* Of pages of codes, of every kind, beside the same step over bf16. */
void time_codes(void);
/* Of sequences that begin alike. */
void time_shared(void);
/* Of results that do not depend on the step, beside the usual ones. */
void time_deterministic(void);

/* LIBRARY[:NAME] of other kernels for time_decode(). False: it cannot be opened. */
bool time_peer_open(const char *text);
bool time_has_peers(void);
void time_peers_close(void);
