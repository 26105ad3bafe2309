/*
 * Turns the plain structs of wire.h into FlatBuffers and back. The only file
 * that sees FlatBuffers and generated code. No state, any thread.
 *
 * Nothing here allocates: the builder gets the caller's buffer as its one and
 * only piece of memory. It could grow when full, so encoding first computes an
 * upper bound of what the message takes; what passes that check cannot grow.
 * Nothing throws and no run-time library of C++ is needed: see the end of this
 * file and meson.build.
 */
#include "schema/wire.h"

#include "schema/fad_generated.h"

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

namespace wire = fa::wire;

namespace
{

/*
 * The structs of wire.h mirror those of fad.fbs. Generated members are private,
 * so layouts are compared by size and values are copied one by one.
 */
static_assert(sizeof(struct fa_wire_view) == sizeof(wire::View), "View");
static_assert(alignof(struct fa_wire_view) == alignof(wire::View), "View");
static_assert(offsetof(struct fa_wire_view, shape) == 8, "View.shape");
static_assert(offsetof(struct fa_wire_view, strides) == 40, "View.strides");
static_assert(offsetof(struct fa_wire_view, buffer) == 72, "View.buffer");
static_assert(offsetof(struct fa_wire_view, dtype) == 76, "View.dtype");
static_assert(offsetof(struct fa_wire_view, rank) == 77, "View.rank");
static_assert(offsetof(struct fa_wire_view, reserved) == 78, "View.reserved");
static_assert(sizeof(struct fa_wire_secret) == sizeof(wire::Secret), "Secret");
static_assert(alignof(struct fa_wire_secret) == alignof(wire::Secret), "Secret");
static_assert(offsetof(struct fa_wire_secret, hi) == 8, "Secret.hi");

#define MIRROR_TAG(NAME, Name)                                                                     \
	static_assert(FA_WIRE_##NAME == static_cast<int>(wire::Body::Name), #Name)

MIRROR_TAG(NONE, NONE);
MIRROR_TAG(HELLO, Hello);
MIRROR_TAG(PING, Ping);
MIRROR_TAG(BUFFER_REGISTER, BufferRegister);
MIRROR_TAG(BUFFER_FREE, BufferFree);
MIRROR_TAG(STREAM_CREATE, StreamCreate);
MIRROR_TAG(STREAM_FREE, StreamFree);
MIRROR_TAG(ATTENTION, Attention);
MIRROR_TAG(CANCEL, Cancel);
MIRROR_TAG(STATUS, Status);
MIRROR_TAG(DRAIN, Drain);
MIRROR_TAG(REPLY, Reply);
MIRROR_TAG(HELLO_REPLY, HelloReply);
MIRROR_TAG(BUFFER_REPLY, BufferReply);
MIRROR_TAG(COMPLETION, Completion);
MIRROR_TAG(STATUS_REPLY, StatusReply);
static_assert(_FA_WIRE_TYPE_N == static_cast<int>(wire::Body::MAX) + 1, "Body");

#undef MIRROR_TAG

/* Every field has the C type that its accessor returns. */
#define MIRROR_FIELD(Table, accessor, c_struct, member)                                            \
	static_assert(std::is_same<decltype(std::declval<const wire::Table &>().accessor()),       \
	                           decltype(fa_wire_##c_struct::member)>::value,                   \
	              #Table "." #accessor)

MIRROR_FIELD(Secret, lo, secret, lo);
MIRROR_FIELD(Secret, hi, secret, hi);
MIRROR_FIELD(View, offset, view, offset);
MIRROR_FIELD(View, buffer, view, buffer);
MIRROR_FIELD(View, dtype, view, dtype);
MIRROR_FIELD(View, rank, view, rank);
MIRROR_FIELD(View, reserved, view, reserved);
MIRROR_FIELD(Hello, version_min, hello, version_min);
MIRROR_FIELD(Hello, version_max, hello, version_max);
MIRROR_FIELD(Hello, features, hello, features);
MIRROR_FIELD(Hello, resume_generation, hello, resume_generation);
MIRROR_FIELD(BufferRegister, buffer, buffer_register, buffer);
MIRROR_FIELD(BufferRegister, kind, buffer_register, kind);
MIRROR_FIELD(BufferRegister, flags, buffer_register, flags);
MIRROR_FIELD(BufferRegister, offset, buffer_register, offset);
MIRROR_FIELD(BufferRegister, bytes, buffer_register, bytes);
MIRROR_FIELD(BufferFree, buffer, buffer_free, buffer);
MIRROR_FIELD(StreamCreate, stream, stream_create, stream);
MIRROR_FIELD(StreamCreate, priority, stream_create, priority);
MIRROR_FIELD(StreamFree, stream, stream_free, stream);
MIRROR_FIELD(Attention, stream, attention, stream);
MIRROR_FIELD(Attention, flags, attention, flags);
MIRROR_FIELD(Attention, value, attention, value);
MIRROR_FIELD(Attention, scale, attention, scale);
MIRROR_FIELD(Attention, softcap, attention, softcap);
MIRROR_FIELD(Attention, window_left, attention, window_left);
MIRROR_FIELD(Attention, window_right, attention, window_right);
MIRROR_FIELD(Cancel, stream, cancel, stream);
MIRROR_FIELD(Cancel, value, cancel, value);
MIRROR_FIELD(Reply, status, reply, status);
MIRROR_FIELD(Limits, message_bytes, limits, message_bytes);
MIRROR_FIELD(Limits, buffers, limits, buffers);
MIRROR_FIELD(Limits, buffer_bytes, limits, buffer_bytes);
MIRROR_FIELD(Limits, streams, limits, streams);
MIRROR_FIELD(Limits, requests, limits, requests);
MIRROR_FIELD(HelloReply, version, hello_reply, version);
MIRROR_FIELD(HelloReply, features, hello_reply, features);
MIRROR_FIELD(HelloReply, generation, hello_reply, generation);
MIRROR_FIELD(HelloReply, session, hello_reply, session);
MIRROR_FIELD(HelloReply, resumed, hello_reply, resumed);
MIRROR_FIELD(BufferReply, buffer, buffer_reply, buffer);
MIRROR_FIELD(BufferReply, bytes, buffer_reply, bytes);
MIRROR_FIELD(Completion, stream, completion, stream);
MIRROR_FIELD(Completion, status, completion, status);
MIRROR_FIELD(Completion, value, completion, value);
MIRROR_FIELD(Completion, queued_ns, completion, queued_ns);
MIRROR_FIELD(Completion, started_ns, completion, started_ns);
MIRROR_FIELD(Completion, finished_ns, completion, finished_ns);
MIRROR_FIELD(StatusReply, bytes, status_reply, bytes);
MIRROR_FIELD(Message, id, message, id);
MIRROR_FIELD(Message, timeout_ns, message, timeout_ns);
MIRROR_FIELD(Message, fds, message, fds);

#undef MIRROR_FIELD

/* Vectors and arrays are given and taken as they lie in the message. */
static_assert(FLATBUFFERS_LITTLEENDIAN, "little endian");

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

/* ---- encoding */

/*
 * Upper bounds of what the builder uses. A field: up to 8 bytes and as many of
 * padding, its entry in the vtable, and 8 bytes of notes that the builder keeps
 * at the other end of the buffer. A table: its offset to the vtable, the
 * vtable's head, padding, a note. A struct or vector: its bytes, the length and
 * padding at both ends.
 */
constexpr size_t tables_bytes(size_t n_tables, size_t n_fields)
{
	return n_tables * 24 + n_fields * 26;
}

constexpr size_t array_bytes(size_t bytes)
{
	return bytes + 24;
}

constexpr size_t FRAME_BYTES = tables_bytes(1, 5) + 24; /* Message, root offset, identifier */

constexpr size_t FIXED_BYTES[_FA_WIRE_TYPE_N] = {
	0,                                                                    /* NONE */
	FRAME_BYTES + tables_bytes(1, 6) + array_bytes(sizeof(wire::Secret)), /* HELLO */
	FRAME_BYTES + tables_bytes(1, 0),                                     /* PING */
	FRAME_BYTES + tables_bytes(1, 5),                                     /* BUFFER_REGISTER */
	FRAME_BYTES + tables_bytes(1, 1),                                     /* BUFFER_FREE */
	FRAME_BYTES + tables_bytes(1, 2),                                     /* STREAM_CREATE */
	FRAME_BYTES + tables_bytes(1, 1),                                     /* STREAM_FREE */
	FRAME_BYTES + tables_bytes(1, 16) + 5 * array_bytes(sizeof(wire::View)),   /* ATTENTION */
	FRAME_BYTES + tables_bytes(1, 2),                                          /* CANCEL */
	FRAME_BYTES + tables_bytes(1, 0),                                          /* STATUS */
	FRAME_BYTES + tables_bytes(1, 0),                                          /* DRAIN */
	FRAME_BYTES + tables_bytes(1, 2),                                          /* REPLY */
	FRAME_BYTES + tables_bytes(2, 16) + 2 * array_bytes(sizeof(wire::Secret)), /* HELLO_REPLY */
	FRAME_BYTES + tables_bytes(1, 2), /* BUFFER_REPLY */
	FRAME_BYTES + tables_bytes(1, 7), /* COMPLETION */
	FRAME_BYTES + tables_bytes(1, 1), /* STATUS_REPLY */
};

static_assert(FIXED_BYTES[FA_WIRE_ATTENTION] <= FA_WIRE_FIXED_BYTES_MAX, "longest");
static_assert(FIXED_BYTES[FA_WIRE_HELLO_REPLY] <= FA_WIRE_FIXED_BYTES_MAX, "second longest");

/* Adds up what a message needs; stays above every limit once it was above one. */
class Bound
{
      public:
	explicit Bound(size_t bytes) : bytes_(bytes)
	{
	}

	void array(const void *data, size_t n, size_t element_bytes)
	{
		if (!data)
			return;
		if (n > FA_WIRE_BYTES_MAX)
			n = FA_WIRE_BYTES_MAX;
		bytes_ += array_bytes(n * element_bytes);
	}

	void string(const struct fa_wire_string &string)
	{
		array(string.text, string.length, 1);
	}

	size_t bytes() const
	{
		return bytes_;
	}

      private:
	size_t bytes_;
};

size_t encoded_bytes_max(const struct fa_wire_message *message, uint32_t type)
{
	Bound bound(FIXED_BYTES[type]);

	switch (type) {
	case FA_WIRE_HELLO:
		bound.string(message->hello.name);
		break;
	case FA_WIRE_ATTENTION: {
		const auto &attention = message->attention;

		bound.array(attention.cu_seqlens_q, attention.n_cu_seqlens_q, sizeof(uint32_t));
		bound.array(attention.cu_seqlens_k, attention.n_cu_seqlens_k, sizeof(uint32_t));
		bound.array(attention.alibi_slopes, attention.n_alibi_slopes, sizeof(float));
		bound.array(attention.sinks, attention.n_sinks, sizeof(float));
		break;
	}
	case FA_WIRE_REPLY:
		bound.string(message->reply.text);
		break;
	case FA_WIRE_HELLO_REPLY:
		bound.string(message->hello_reply.daemon_version);
		bound.string(message->hello_reply.backend);
		bound.string(message->hello_reply.device_name);
		break;
	case FA_WIRE_COMPLETION:
		bound.string(message->completion.text);
		break;
	default:
		break;
	}
	return bound.bytes();
}

/* Gives the caller's buffer, once. */
class BufferAllocator final : public flatbuffers::Allocator
{
      public:
	BufferAllocator(uint8_t *buffer, size_t size) : buffer_(buffer), size_(size)
	{
	}

	uint8_t *allocate(size_t size) override
	{
		uint8_t *buffer = buffer_;

		/* The bound was wrong: our mistake, and no way back from here. */
		if (!buffer || size != size_)
			__builtin_trap();
		buffer_ = nullptr;
		return buffer;
	}

	void deallocate(uint8_t *, size_t) override
	{
	}

      private:
	uint8_t *buffer_;
	size_t size_;
};

using Builder = flatbuffers::FlatBufferBuilder;
using StringOffset = flatbuffers::Offset<flatbuffers::String>;

StringOffset string_write(Builder &builder, const struct fa_wire_string &string)
{
	return string.text ? builder.CreateString(string.text, string.length) : StringOffset();
}

template <typename T>
flatbuffers::Offset<flatbuffers::Vector<T>> vector_write(Builder &builder, const T *data, size_t n)
{
	if (!data || !n)
		return {};
	return builder.CreateVector(data, n);
}

wire::Secret secret_write(const struct fa_wire_secret &secret)
{
	return wire::Secret(secret.lo, secret.hi);
}

/* A view that stays away when it says nothing. */
class ViewWriter
{
      public:
	explicit ViewWriter(const struct fa_wire_view &view)
	    : present_(view.rank || !is_zero(view)),
	      view_(view.offset, flatbuffers::span<const int64_t, FA_WIRE_RANK_MAX>(view.shape),
	            flatbuffers::span<const int64_t, FA_WIRE_RANK_MAX>(view.strides), view.buffer,
	            view.dtype, view.rank, view.reserved)
	{
	}

	const wire::View *get() const
	{
		return present_ ? &view_ : nullptr;
	}

      private:
	static bool is_zero(const struct fa_wire_view &view)
	{
		static const struct fa_wire_view zero = {};

		return !memcmp(&view, &zero, sizeof(view));
	}

	bool present_;
	wire::View view_;
};

flatbuffers::Offset<wire::Attention> attention_write(Builder &builder,
                                                     const struct fa_wire_attention &attention)
{
	auto cu_seqlens_q = vector_write(builder, attention.cu_seqlens_q, attention.n_cu_seqlens_q);
	auto cu_seqlens_k = vector_write(builder, attention.cu_seqlens_k, attention.n_cu_seqlens_k);
	auto alibi_slopes = vector_write(builder, attention.alibi_slopes, attention.n_alibi_slopes);
	auto sinks = vector_write(builder, attention.sinks, attention.n_sinks);
	ViewWriter q(attention.q), k(attention.k), v(attention.v), out(attention.out),
		lse(attention.lse);

	return wire::CreateAttention(builder, attention.stream, attention.flags, attention.value,
	                             q.get(), k.get(), v.get(), out.get(), lse.get(),
	                             attention.scale, attention.softcap, attention.window_left,
	                             attention.window_right, cu_seqlens_q, cu_seqlens_k,
	                             alibi_slopes, sinks);
}

flatbuffers::Offset<wire::Hello> hello_write(Builder &builder, const struct fa_wire_hello &hello)
{
	auto name = string_write(builder, hello.name);
	auto secret = secret_write(hello.resume_secret);

	return wire::CreateHello(builder, hello.version_min, hello.version_max, hello.features,
	                         name, hello.has_resume ? &secret : nullptr,
	                         hello.has_resume ? hello.resume_generation : 0);
}

flatbuffers::Offset<wire::HelloReply> hello_reply_write(Builder &builder,
                                                        const struct fa_wire_hello_reply &reply)
{
	auto daemon_version = string_write(builder, reply.daemon_version);
	auto backend = string_write(builder, reply.backend);
	auto device_name = string_write(builder, reply.device_name);
	auto limits = wire::CreateLimits(builder, reply.limits.message_bytes, reply.limits.buffers,
	                                 reply.limits.buffer_bytes, reply.limits.streams,
	                                 reply.limits.requests);
	auto device_uuid = secret_write(reply.device_uuid);
	auto secret = secret_write(reply.secret);

	return wire::CreateHelloReply(builder, reply.version, reply.features, daemon_version,
	                              reply.generation, backend, device_name, &device_uuid,
	                              reply.session, &secret, reply.resumed, limits);
}

flatbuffers::Offset<void> body_write(Builder &builder, const struct fa_wire_message *message,
                                     uint32_t type)
{
	switch (type) {
	case FA_WIRE_HELLO:
		return hello_write(builder, message->hello).Union();
	case FA_WIRE_PING:
		return wire::CreatePing(builder).Union();
	case FA_WIRE_BUFFER_REGISTER: {
		const auto &body = message->buffer_register;

		return wire::CreateBufferRegister(builder, body.buffer, body.kind, body.flags,
		                                  body.offset, body.bytes)
		        .Union();
	}
	case FA_WIRE_BUFFER_FREE:
		return wire::CreateBufferFree(builder, message->buffer_free.buffer).Union();
	case FA_WIRE_STREAM_CREATE: {
		const auto &body = message->stream_create;

		return wire::CreateStreamCreate(builder, body.stream, body.priority).Union();
	}
	case FA_WIRE_STREAM_FREE:
		return wire::CreateStreamFree(builder, message->stream_free.stream).Union();
	case FA_WIRE_ATTENTION:
		return attention_write(builder, message->attention).Union();
	case FA_WIRE_CANCEL: {
		const auto &body = message->cancel;

		return wire::CreateCancel(builder, body.stream, body.value).Union();
	}
	case FA_WIRE_STATUS:
		return wire::CreateStatus(builder).Union();
	case FA_WIRE_DRAIN:
		return wire::CreateDrain(builder).Union();
	case FA_WIRE_REPLY: {
		const auto &body = message->reply;

		return wire::CreateReply(builder, body.status, string_write(builder, body.text))
		        .Union();
	}
	case FA_WIRE_HELLO_REPLY:
		return hello_reply_write(builder, message->hello_reply).Union();
	case FA_WIRE_BUFFER_REPLY: {
		const auto &body = message->buffer_reply;

		return wire::CreateBufferReply(builder, body.buffer, body.bytes).Union();
	}
	case FA_WIRE_COMPLETION: {
		const auto &body = message->completion;

		return wire::CreateCompletion(builder, body.stream, body.status, body.value,
		                              body.queued_ns, body.started_ns, body.finished_ns,
		                              string_write(builder, body.text))
		        .Union();
	}
	case FA_WIRE_STATUS_REPLY:
		return wire::CreateStatusReply(builder, message->status_reply.bytes).Union();
	default:
		__builtin_unreachable(); /* fa_wire_encode() has looked */
	}
}

/* ---- decoding */

/*
 * Reads what was verified; remembers whether anything was longer than allowed.
 * __restrict: what is written is never part of the message, whose tables then
 * need not be looked up anew after every store.
 */
class Reader
{
      public:
	bool too_long() const
	{
		return too_long_;
	}

	void string(const flatbuffers::String *string, size_t length_max,
	            struct fa_wire_string *ret_string)
	{
		*ret_string = {};
		if (!string)
			return;
		if (string->size() > length_max) {
			too_long_ = true;
			return;
		}
		ret_string->text = string->c_str();
		ret_string->length = string->size();
	}

	template <typename T>
	void vector(const flatbuffers::Vector<T> *vector, size_t n_max, const T **ret_data,
	            size_t *ret_n)
	{
		*ret_data = nullptr;
		*ret_n = 0;
		if (!vector || !vector->size())
			return;
		if (vector->size() > n_max) {
			too_long_ = true;
			return;
		}
		*ret_data = vector->data();
		*ret_n = vector->size();
	}

	void secret(const wire::Secret *secret, struct fa_wire_secret *ret_secret)
	{
		*ret_secret = {};
		if (!secret)
			return;
		ret_secret->lo = secret->lo();
		ret_secret->hi = secret->hi();
	}

	void view(const wire::View *view, struct fa_wire_view *__restrict ret_view)
	{
		if (!view) {
			*ret_view = {};
			return;
		}
		ret_view->offset = view->offset();
		memcpy(ret_view->shape, view->shape()->Data(), sizeof(ret_view->shape));
		memcpy(ret_view->strides, view->strides()->Data(), sizeof(ret_view->strides));
		ret_view->buffer = view->buffer();
		ret_view->dtype = view->dtype();
		ret_view->rank = view->rank();
		ret_view->reserved = view->reserved();
	}

	void hello(const wire::Hello *body, struct fa_wire_hello *ret_hello)
	{
		ret_hello->version_min = body->version_min();
		ret_hello->version_max = body->version_max();
		ret_hello->features = body->features();
		string(body->name(), FA_WIRE_NAME_BYTES_MAX, &ret_hello->name);
		ret_hello->has_resume = body->resume_secret();
		secret(body->resume_secret(), &ret_hello->resume_secret);
		ret_hello->resume_generation = ret_hello->has_resume ? body->resume_generation()
		                                                     : 0;
	}

	void attention(const wire::Attention *body,
	               struct fa_wire_attention *__restrict ret_attention)
	{
		ret_attention->stream = body->stream();
		ret_attention->flags = body->flags();
		ret_attention->value = body->value();
		view(body->q(), &ret_attention->q);
		view(body->k(), &ret_attention->k);
		view(body->v(), &ret_attention->v);
		view(body->out(), &ret_attention->out);
		view(body->lse(), &ret_attention->lse);
		ret_attention->scale = body->scale();
		ret_attention->softcap = body->softcap();
		ret_attention->window_left = body->window_left();
		ret_attention->window_right = body->window_right();
		vector(body->cu_seqlens_q(), FA_WIRE_SEQUENCES_MAX + 1,
		       &ret_attention->cu_seqlens_q, &ret_attention->n_cu_seqlens_q);
		vector(body->cu_seqlens_k(), FA_WIRE_SEQUENCES_MAX + 1,
		       &ret_attention->cu_seqlens_k, &ret_attention->n_cu_seqlens_k);
		vector(body->alibi_slopes(), FA_WIRE_HEADS_MAX, &ret_attention->alibi_slopes,
		       &ret_attention->n_alibi_slopes);
		vector(body->sinks(), FA_WIRE_HEADS_MAX, &ret_attention->sinks,
		       &ret_attention->n_sinks);
	}

	void limits(const wire::Limits *limits, struct fa_wire_limits *ret_limits)
	{
		*ret_limits = {};
		if (!limits)
			return;
		ret_limits->message_bytes = limits->message_bytes();
		ret_limits->buffers = limits->buffers();
		ret_limits->buffer_bytes = limits->buffer_bytes();
		ret_limits->streams = limits->streams();
		ret_limits->requests = limits->requests();
	}

	void hello_reply(const wire::HelloReply *body, struct fa_wire_hello_reply *ret_reply)
	{
		ret_reply->version = body->version();
		ret_reply->features = body->features();
		string(body->daemon_version(), FA_WIRE_NAME_BYTES_MAX, &ret_reply->daemon_version);
		ret_reply->generation = body->generation();
		string(body->backend(), FA_WIRE_NAME_BYTES_MAX, &ret_reply->backend);
		string(body->device_name(), FA_WIRE_NAME_BYTES_MAX, &ret_reply->device_name);
		secret(body->device_uuid(), &ret_reply->device_uuid);
		ret_reply->session = body->session();
		secret(body->secret(), &ret_reply->secret);
		ret_reply->resumed = body->resumed();
		limits(body->limits(), &ret_reply->limits);
	}

	void completion(const wire::Completion *body, struct fa_wire_completion *ret_completion)
	{
		ret_completion->stream = body->stream();
		ret_completion->status = body->status();
		ret_completion->value = body->value();
		ret_completion->queued_ns = body->queued_ns();
		ret_completion->started_ns = body->started_ns();
		ret_completion->finished_ns = body->finished_ns();
		string(body->text(), FA_WIRE_TEXT_BYTES_MAX, &ret_completion->text);
	}

	void body(const wire::Message *message, struct fa_wire_message *ret_message);

      private:
	bool too_long_ = false;
};

void Reader::body(const wire::Message *message, struct fa_wire_message *ret_message)
{
	switch (message->body_type()) {
	case wire::Body::Hello:
		hello(message->body_as_Hello(), &ret_message->hello);
		break;
	case wire::Body::BufferRegister: {
		auto body = message->body_as_BufferRegister();

		ret_message->buffer_register.buffer = body->buffer();
		ret_message->buffer_register.kind = body->kind();
		ret_message->buffer_register.flags = body->flags();
		ret_message->buffer_register.offset = body->offset();
		ret_message->buffer_register.bytes = body->bytes();
		break;
	}
	case wire::Body::BufferFree:
		ret_message->buffer_free.buffer = message->body_as_BufferFree()->buffer();
		break;
	case wire::Body::StreamCreate: {
		auto body = message->body_as_StreamCreate();

		ret_message->stream_create.stream = body->stream();
		ret_message->stream_create.priority = body->priority();
		break;
	}
	case wire::Body::StreamFree:
		ret_message->stream_free.stream = message->body_as_StreamFree()->stream();
		break;
	case wire::Body::Attention:
		attention(message->body_as_Attention(), &ret_message->attention);
		break;
	case wire::Body::Cancel: {
		auto body = message->body_as_Cancel();

		ret_message->cancel.stream = body->stream();
		ret_message->cancel.value = body->value();
		break;
	}
	case wire::Body::Reply: {
		auto body = message->body_as_Reply();

		ret_message->reply.status = body->status();
		string(body->text(), FA_WIRE_TEXT_BYTES_MAX, &ret_message->reply.text);
		break;
	}
	case wire::Body::HelloReply:
		hello_reply(message->body_as_HelloReply(), &ret_message->hello_reply);
		break;
	case wire::Body::BufferReply: {
		auto body = message->body_as_BufferReply();

		ret_message->buffer_reply.buffer = body->buffer();
		ret_message->buffer_reply.bytes = body->bytes();
		break;
	}
	case wire::Body::Completion:
		completion(message->body_as_Completion(), &ret_message->completion);
		break;
	case wire::Body::StatusReply:
		ret_message->status_reply.bytes = message->body_as_StatusReply()->bytes();
		break;
	case wire::Body::NONE:
	case wire::Body::Ping:
	case wire::Body::Status:
	case wire::Body::Drain:
		break;
	}
}

/* The file identifier comes after the offset of the root. */
constexpr size_t IDENTIFIER_OFFSET = sizeof(flatbuffers::uoffset_t);

bool is_aligned(const void *pointer)
{
	return reinterpret_cast<uintptr_t>(pointer) % alignof(uint64_t) == 0;
}

} // namespace

int fa_wire_encode(const struct fa_wire_message *message, void *buffer, size_t size,
                   const void **ret_bytes, size_t *ret_length)
{
	uint32_t type = type_get(message);
	uint8_t *start = static_cast<uint8_t *>(buffer);

	if (type == FA_WIRE_NONE || type >= _FA_WIRE_TYPE_N || !is_aligned(buffer))
		return -EINVAL;

	/* The end has to be aligned as well, and nobody takes longer messages. */
	size -= size % alignof(uint64_t);
	if (size > FA_WIRE_BYTES_MAX) {
		start += size - FA_WIRE_BYTES_MAX;
		size = FA_WIRE_BYTES_MAX;
	}
	if (encoded_bytes_max(message, type) > size)
		return -EMSGSIZE;

	BufferAllocator allocator(start, size);
	Builder builder(size, &allocator, false, alignof(uint64_t));

	builder.PreAlign(alignof(uint64_t), alignof(uint64_t)); /* whatever the message holds */
	auto body = body_write(builder, message, type);
	wire::FinishMessageBuffer(
		builder, wire::CreateMessage(builder, message->id, message->timeout_ns,
	                                     message->fds, static_cast<wire::Body>(type), body));
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
