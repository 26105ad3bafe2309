#include "schema/wire.h"

const char *fa_wire_type_name(enum fa_wire_type type)
{
	static const char *const names[_FA_WIRE_TYPE_N] = {
		[FA_WIRE_NONE] = "unknown",
		[FA_WIRE_HELLO] = "Hello",
		[FA_WIRE_PING] = "Ping",
		[FA_WIRE_BUFFER_REGISTER] = "BufferRegister",
		[FA_WIRE_BUFFER_FREE] = "BufferFree",
		[FA_WIRE_STREAM_CREATE] = "StreamCreate",
		[FA_WIRE_STREAM_FREE] = "StreamFree",
		[FA_WIRE_ATTENTION] = "Attention",
		[FA_WIRE_CANCEL] = "Cancel",
		[FA_WIRE_STATUS] = "Status",
		[FA_WIRE_DRAIN] = "Drain",
		[FA_WIRE_REPLY] = "Reply",
		[FA_WIRE_HELLO_REPLY] = "HelloReply",
		[FA_WIRE_BUFFER_REPLY] = "BufferReply",
		[FA_WIRE_COMPLETION] = "Completion",
		[FA_WIRE_STATUS_REPLY] = "StatusReply",
		[FA_WIRE_BUFFER_PIECES] = "BufferPieces",
		[FA_WIRE_CACHE_CREATE] = "CacheCreate",
		[FA_WIRE_CACHE_FIND] = "CacheFind",
		[FA_WIRE_CACHE_REMOVE] = "CacheRemove",
		[FA_WIRE_CACHE_REPLY] = "CacheReply",
		[FA_WIRE_SEQUENCE_CREATE] = "SequenceCreate",
		[FA_WIRE_SEQUENCE_FIND] = "SequenceFind",
		[FA_WIRE_SEQUENCE_FORK] = "SequenceFork",
		[FA_WIRE_SEQUENCE_SET_NAME] = "SequenceSetName",
		[FA_WIRE_SEQUENCE_TRUNCATE] = "SequenceTruncate",
		[FA_WIRE_SEQUENCE_DROP] = "SequenceDrop",
		[FA_WIRE_SEQUENCE_FREE] = "SequenceFree",
		[FA_WIRE_SEQUENCE_INFO] = "SequenceInfo",
		[FA_WIRE_SEQUENCE_REPLY] = "SequenceReply",
		[FA_WIRE_SEQUENCE_PUBLISH] = "SequencePublish",
		[FA_WIRE_SEQUENCE_ATTACH] = "SequenceAttach",
		[FA_WIRE_SEQUENCE_COPY] = "SequenceCopy",
		[FA_WIRE_STEP_BEGIN] = "StepBegin",
		[FA_WIRE_STEP_REPLY] = "StepReply",
		[FA_WIRE_STEP_ATTEND] = "StepAttend",
		[FA_WIRE_STEP_END] = "StepEnd",
	};

	return (unsigned)type < _FA_WIRE_TYPE_N ? names[type] : "unknown";
}
