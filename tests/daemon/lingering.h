/* Connections whose close() blocks for LINGERING_S, as their peer does not read. One thread. */
#pragma once

#define LINGERING_S 60

void lingering_start(void);
/* Resets the connections, so that nobody waits any more. */
void lingering_stop(void);

/* A new connection with unsent data. */
int lingering_new(void);
/* A socket with such a connection unread in its queue. */
int lingering_new_wrapped(void);
