/*
 * Turns the C structs of wire.h into FlatBuffers and back. The only file that includes FlatBuffers
 * and generated code. Any thread: there is no state. Nothing here allocates or throws, or needs a
 * run-time library of C++: see the end of this file and meson.build.
 */
#include "schema/wire.h"

#include "schema/fad_generated.h"

#include <cerrno>
#include <cstring>

namespace wire = fa::wire;

/* Parts of this file; they need the includes above. */
#include "schema/decode.h"
#include "schema/encode.h"
#include "schema/fast_path.h"
#include "schema/mirror.h"

namespace
{

static_assert(sizeof(enum fa_wire_type) == sizeof(uint32_t), "type is read and set as a number");

/* C may pass any number as a type, which a C++ enum need not hold: it is copied as a number. */
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

/* The identifier comes after the root's offset. */
constexpr size_t IDENTIFIER_OFFSET = sizeof(flatbuffers::uoffset_t);

bool is_aligned(const void *pointer)
{
	return reinterpret_cast<uintptr_t>(pointer) % alignof(uint64_t) == 0;
}

bool has_too_many_pieces(const struct fa_wire_message *message, uint32_t type)
{
	return (type == FA_WIRE_BUFFER_REGISTER &&
	        message->buffer_register.n_piece_bytes > FA_WIRE_FDS_MAX) ||
	       (type == FA_WIRE_BUFFER_PIECES &&
	        message->buffer_pieces.n_piece_bytes > FA_WIRE_FDS_MAX);
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

	/* The builder needs an aligned end; longer messages are refused in decoding. */
	size -= size % alignof(uint64_t);
	if (size > FA_WIRE_BYTES_MAX) {
		start += size - FA_WIRE_BYTES_MAX;
		size = FA_WIRE_BYTES_MAX;
	}
	if (encoded_bytes_max(message, type) > size)
		return -EMSGSIZE;

	if (is_fast_marker(message, type)) {
		*ret_length = fast_marker_write(message, start + size);
		*ret_bytes = start + size - *ret_length;
		return 0;
	}
	if (is_fast_step_attend(message, type)) {
		*ret_length = fast_step_attend_write(message, start + size);
		*ret_bytes = start + size - *ret_length;
		return 0;
	}

	BufferAllocator allocator(start, size);
	Builder builder(size, &allocator, false, alignof(uint64_t));

	builder.PreAlign(alignof(uint64_t), alignof(uint64_t));
	auto body = body_write(builder, message, type);
	auto waits = vector_write(builder, message->waits, message->n_waits);
	auto signals = vector_write(builder, message->signals, message->n_signals);
	wire::FinishMessageBuffer(builder,
	                          wire::CreateMessage(builder, message->id, message->timeout_ns,
	                                              message->fds, static_cast<wire::Body>(type),
	                                              body, waits, signals));
	*ret_bytes = builder.GetBufferPointer();
	*ret_length = builder.GetSize();
	return 0;
}

/* Flattened: the verifier's limits become constants, its state stays in registers. */
__attribute__((flatten)) int fa_wire_decode(const void *bytes, size_t length,
                                            struct fa_wire_message *ret_message)
{
	flatbuffers::Verifier::Options options;
	const wire::Message *message;
	Reader reader;
	uint32_t type;

	if (length > FA_WIRE_BYTES_MAX || !is_aligned(bytes))
		return -EBADMSG;
	if (fast_step_attend_read(static_cast<const uint8_t *>(bytes), length, ret_message))
		return 0;

	/* Message, body, nested table and one more. */
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

	reader.number(message->id(), &ret_message->id);
	reader.number(message->timeout_ns(), &ret_message->timeout_ns);
	reader.number(message->fds(), &ret_message->fds);
	reader.vector(message->waits(), FA_WIRE_GATES_MAX, &ret_message->waits,
	              &ret_message->n_waits);
	reader.vector(message->signals(), FA_WIRE_GATES_MAX, &ret_message->signals,
	              &ret_message->n_signals);
	type_set(ret_message, type);
	if (type >= _FA_WIRE_TYPE_N)
		return -ENOSYS;
	reader.body(message, ret_message);
	return reader.too_long() ? -EMSGSIZE : 0;
}

/*
 * FlatBuffers' headers refer to the run-time library of C++ in functions that are never called here
 * (default allocator, virtual destructors). These definitions replace it, local to this object
 * (meson.build).
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
