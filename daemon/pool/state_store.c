#include "daemon/pool/state_store.h"

void (*fa_state_fault_hook)(void);
