/* The part of time-paged that copies from and to a client's own pages. */
#pragma once

void time_copies(void);
