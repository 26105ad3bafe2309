#include "schema/wire.h"

const char *fa_wire_type_name(enum fa_wire_type type)
{
	static const char *const names[_FA_WIRE_TYPE_N] = {
		[FA_WIRE_NONE] = "unknown",
#define MESSAGE(TAG, Table, member, fields) EMPTY(TAG, Table)
#define EMPTY(TAG, Table) [FA_WIRE_##TAG] = #Table,
#include "schema/messages.def"
	};

	return (unsigned)type < _FA_WIRE_TYPE_N ? names[type] : "unknown";
}
