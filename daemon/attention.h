/* Stateless attention: a kind of work (work.h). Loop thread. */
#pragma once

#include "daemon/work.h"

extern const struct fa_work_kind fa_attention_kind;
