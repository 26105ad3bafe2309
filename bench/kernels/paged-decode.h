/* Decode in time-paged: few new tokens of each sequence attend to many. */
#pragma once

#include <stdbool.h>

/* By time_options; also against peers. */
void time_decode(void);
/* Every kind of codes, against bf16. */
void time_codes(void);
/* With a common prefix. */
void time_shared(void);
void time_deterministic(void);

/* Kernels for time_decode() to compare. False: cannot be opened. */
bool time_peer_open(const char *text);
bool time_has_peers(void);
void time_peers_close(void);
