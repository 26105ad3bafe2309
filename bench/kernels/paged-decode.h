/* Times decode for time-paged: few new tokens of each sequence attend to many tokens. */
#pragma once

#include <stdbool.h>

/* Times decode as time_options says, against the portable kernel and peers. */
void time_decode(void);
/* Times decode over each kind of codes, against bf16. */
void time_codes(void);
void time_extend(void);
/* Times decode of sequences with a common prefix. */
void time_shared(void);
void time_deterministic(void);
/* Times attention over a client's own pages (paged-own.c). */
void time_own(void);

/* Opens a peer's kernels, for time_decode() to compare. False: they cannot be opened. */
bool time_peer_open(const char *text);
bool time_has_peers(void);
void time_peers_close(void);
