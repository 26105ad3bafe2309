/*
 * Turns the plain structs of wire.h into FlatBuffers and back. The only file
 * that includes FlatBuffers and generated code. No state, any thread.
 *
 * Nothing here allocates or throws, and no run-time library of C++ is needed:
 * see the end of this file and meson.build.
 */
#include "schema/wire.h"

#include "schema/fad_generated.h"

#include <cerrno>
#include <cstring>

namespace wire = fa::wire;

/* The rest of this file, too long for one; these see what stands above. */
#include "schema/decode.h"
#include "schema/encode.h"
#include "schema/mirror.h"
#include "schema/plain.h"

namespace
{

static_assert(sizeof(enum fa_wire_type) == sizeof(uint32_t), "type is read and set as a number");

/* C hands in any number as a type; to C++ a number that is no enumerator's may
 * be no value of the enum at all, so it is never read as one. */
uint32_t type_get(const struct fa_wire_message *message)
{
	uint32_t type;

	memcpy(&type, &message->type, sizeof(type));
	return type;
}

void type_set(struct fa_wire_message *message, uint32_t type)
{
	memcpy(&message->type, &type, sizeof(type));
}

/* The file identifier comes after the offset of the root. */
constexpr size_t IDENTIFIER_OFFSET = sizeof(flatbuffers::uoffset_t);

bool is_aligned(const void *pointer)
{
	return reinterpret_cast<uintptr_t>(pointer) % alignof(uint64_t) == 0;
}

/*
 * A Marker without gates costs the daemon less than the builder takes: it is copied, with
 * its numbers, in the form that the builder gives it when none of them is 0.
 */
constexpr uint8_t MARKER[80] = {
	0x1c, 0x00, 0x00, 0x00, 0x46, 0x41, 0x44, 0x4d, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x0e, 0x00, 0x1c, 0x00, 0x0c, 0x00, 0x14, 0x00, 0x00, 0x00, 0x07, 0x00, 0x08, 0x00,
	0x0e, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x27, 0x1c, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x08, 0x00, 0x10, 0x00, 0x04, 0x00, 0x08, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
};
constexpr size_t MARKER_ID = 0x28, MARKER_TIMEOUT_NS = 0x30, MARKER_STREAM = 0x44,
		 MARKER_VALUE = 0x48;

static_assert(MARKER[0x23] == FA_WIRE_MARKER, "the tag of its body");

bool is_plain_marker(const struct fa_wire_message *message, uint32_t type)
{
	return type == FA_WIRE_MARKER && !message->fds && !message->n_waits && !message->n_signals;
}

void plain_marker_write(const struct fa_wire_message *message, uint8_t *bytes)
{
	memcpy(bytes, MARKER, sizeof(MARKER));
	memcpy(bytes + MARKER_ID, &message->id, sizeof(message->id));
	memcpy(bytes + MARKER_TIMEOUT_NS, &message->timeout_ns, sizeof(message->timeout_ns));
	memcpy(bytes + MARKER_STREAM, &message->marker.stream, sizeof(message->marker.stream));
	memcpy(bytes + MARKER_VALUE, &message->marker.value, sizeof(message->marker.value));
}

} // namespace

int fa_wire_encode(const struct fa_wire_message *message, void *buffer, size_t size,
                   const void **ret_bytes, size_t *ret_length)
{
	uint32_t type = type_get(message);
	uint8_t *start = static_cast<uint8_t *>(buffer);

	if (type == FA_WIRE_NONE || type >= _FA_WIRE_TYPE_N || !is_aligned(buffer) ||
	    has_too_many_pieces(message, type))
		return -EINVAL;

	/* The end has to be aligned as well, and nobody takes longer messages. */
	size -= size % alignof(uint64_t);
	if (size > FA_WIRE_BYTES_MAX) {
		start += size - FA_WIRE_BYTES_MAX;
		size = FA_WIRE_BYTES_MAX;
	}
	if (encoded_bytes_max(message, type) > size)
		return -EMSGSIZE;

	if (is_plain_marker(message, type)) {
		plain_marker_write(message, start + size - sizeof(MARKER));
		*ret_bytes = start + size - sizeof(MARKER);
		*ret_length = sizeof(MARKER);
		return 0;
	}
	if (is_plain_step_attend(message, type)) {
		*ret_length = plain_step_attend_write(message, start + size);
		*ret_bytes = start + size - *ret_length;
		return 0;
	}

	BufferAllocator allocator(start, size);
	Builder builder(size, &allocator, false, alignof(uint64_t));

	builder.PreAlign(alignof(uint64_t), alignof(uint64_t)); /* whatever the message holds */
	auto body = body_write(builder, message, type);
	auto waits = gates_write(builder, message->waits, message->n_waits);
	auto signals = gates_write(builder, message->signals, message->n_signals);
	wire::FinishMessageBuffer(builder,
	                          wire::CreateMessage(builder, message->id, message->timeout_ns,
	                                              message->fds, static_cast<wire::Body>(type),
	                                              body, waits, signals));
	*ret_bytes = builder.GetBufferPointer();
	*ret_length = builder.GetSize();
	return 0;
}

/* Flattened, so that the verifier's limits and state are constants and registers. */
__attribute__((flatten)) int fa_wire_decode(const void *bytes, size_t length,
                                            struct fa_wire_message *ret_message)
{
	flatbuffers::Verifier::Options options;
	const wire::Message *message;
	Reader reader;
	uint32_t type;

	if (length > FA_WIRE_BYTES_MAX || !is_aligned(bytes))
		return -EBADMSG;
	if (plain_step_attend_read(static_cast<const uint8_t *>(bytes), length, ret_message))
		return 0;

	/* Message, body and one below; nothing of what we know nests deeper. */
	options.max_depth = 4;
	options.max_tables = 8;
	flatbuffers::Verifier verifier(static_cast<const uint8_t *>(bytes), length, options);
	if (length < IDENTIFIER_OFFSET + flatbuffers::kFileIdentifierLength ||
	    memcmp(static_cast<const uint8_t *>(bytes) + IDENTIFIER_OFFSET,
	           wire::MessageIdentifier(), flatbuffers::kFileIdentifierLength) != 0 ||
	    !verifier.VerifyBuffer<wire::Message>(nullptr))
		return -EBADMSG;

	message = wire::GetMessage(bytes);
	type = static_cast<uint32_t>(message->body_type());
	if (type == FA_WIRE_NONE || !message->body())
		return -EBADMSG;

	ret_message->id = message->id();
	ret_message->timeout_ns = message->timeout_ns();
	ret_message->fds = message->fds();
	reader.gates(message->waits(), &ret_message->waits, &ret_message->n_waits);
	reader.gates(message->signals(), &ret_message->signals, &ret_message->n_signals);
	type_set(ret_message, type);
	if (type >= _FA_WIRE_TYPE_N)
		return -ENOSYS;
	reader.body(message, ret_message);
	return reader.too_long() ? -EMSGSIZE : 0;
}

/*
 * FlatBuffers' headers name the run-time library of C++ in functions that are
 * never called here (its default allocator, destructors through a pointer).
 * These definitions take its place; meson.build makes them local to this
 * object, so that no program that links it sees them.
 */
void *operator new(size_t)
{
	__builtin_trap();
}

void *operator new[](size_t)
{
	__builtin_trap();
}

void operator delete(void *) noexcept
{
	__builtin_trap();
}

void operator delete[](void *) noexcept
{
	__builtin_trap();
}

void operator delete(void *, size_t) noexcept
{
	__builtin_trap();
}

void operator delete[](void *, size_t) noexcept
{
	__builtin_trap();
}

extern "C" [[noreturn]] void __cxa_pure_virtual();

extern "C" void __cxa_pure_virtual()
{
	__builtin_trap();
}
