/* Part of wire.cc: from verified FlatBuffers to the plain structs. */
#pragma once

#include "schema/wire.h"

#include <cstring>

namespace
{

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

	/* Copied: FlatBuffers before 23 do not verify that a vector of longs is aligned. */
	void pieces(const flatbuffers::Vector<uint64_t> *vector, uint64_t *ret_piece_bytes,
	            size_t *ret_n)
	{
		size_t n = vector ? vector->size() : 0;

		if (n > FA_WIRE_FDS_MAX) {
			too_long_ = true;
			n = 0;
		}
		memset(ret_piece_bytes, 0, FA_WIRE_FDS_MAX * sizeof(*ret_piece_bytes));
		if (n)
			memcpy(ret_piece_bytes, vector->Data(), n * sizeof(*ret_piece_bytes));
		*ret_n = n;
	}

	void buffer_register(const wire::BufferRegister *body,
	                     struct fa_wire_buffer_register *__restrict ret_register)
	{
		ret_register->buffer = body->buffer();
		ret_register->kind = body->kind();
		ret_register->flags = body->flags();
		ret_register->offset = body->offset();
		ret_register->bytes = body->bytes();
		if (body->handle())
			memcpy(ret_register->handle, body->handle()->bytes()->Data(),
			       sizeof(ret_register->handle));
		else
			memset(ret_register->handle, 0, sizeof(ret_register->handle));
		ret_register->pid = body->pid();
		ret_register->n_pieces = body->n_pieces();
		pieces(body->piece_bytes(), ret_register->piece_bytes,
		       &ret_register->n_piece_bytes);
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

	/* FlatBuffers before 23 do not verify that a vector of structs is aligned. */
	void step_items(const flatbuffers::Vector<const wire::StepItem *> *vector,
	                const struct fa_wire_step_item **ret_items, size_t *ret_n)
	{
		*ret_items = nullptr;
		*ret_n = 0;
		if (!vector || !vector->size())
			return;
		if (vector->size() > FA_WIRE_STEP_MAX ||
		    reinterpret_cast<uintptr_t>(vector->Data()) %
		            alignof(struct fa_wire_step_item)) {
			too_long_ = true;
			return;
		}
		*ret_items = reinterpret_cast<const struct fa_wire_step_item *>(vector->Data());
		*ret_n = vector->size();
	}

	void cache_create(const wire::CacheCreate *body,
	                  struct fa_wire_cache_create *__restrict ret_cache_create)
	{
		string(body->name(), FA_WIRE_NAME_BYTES_MAX, &ret_cache_create->name);
		ret_cache_create->mode = body->mode();
		ret_cache_create->ttl_ns = body->ttl_ns();
		ret_cache_create->dtype = body->dtype();
		ret_cache_create->flags = body->flags();
		ret_cache_create->layers = body->layers();
		ret_cache_create->kv_heads = body->kv_heads();
		ret_cache_create->head_dim = body->head_dim();
		ret_cache_create->head_dim_v = body->head_dim_v();
		ret_cache_create->page_tokens = body->page_tokens();
		ret_cache_create->max_pages = body->max_pages();
		ret_cache_create->store = body->store();
		vector(body->k_scales(), FA_WIRE_SCALES_MAX, &ret_cache_create->k_scales,
		       &ret_cache_create->n_k_scales);
		vector(body->v_scales(), FA_WIRE_SCALES_MAX, &ret_cache_create->v_scales,
		       &ret_cache_create->n_v_scales);
	}

	void cache_find(const wire::CacheFind *body,
	                struct fa_wire_cache_find *__restrict ret_cache_find)
	{
		string(body->name(), FA_WIRE_NAME_BYTES_MAX, &ret_cache_find->name);
		ret_cache_find->cache = body->cache();
	}

	void cache_remove(const wire::CacheRemove *body,
	                  struct fa_wire_cache_remove *__restrict ret_cache_remove)
	{
		ret_cache_remove->cache = body->cache();
	}

	void cache_reply(const wire::CacheReply *body,
	                 struct fa_wire_cache_reply *__restrict ret_cache_reply)
	{
		ret_cache_reply->cache = body->cache();
		ret_cache_reply->mode = body->mode();
		ret_cache_reply->dtype = body->dtype();
		ret_cache_reply->flags = body->flags();
		ret_cache_reply->layers = body->layers();
		ret_cache_reply->kv_heads = body->kv_heads();
		ret_cache_reply->head_dim = body->head_dim();
		ret_cache_reply->head_dim_v = body->head_dim_v();
		ret_cache_reply->page_tokens = body->page_tokens();
		ret_cache_reply->page_bytes = body->page_bytes();
		ret_cache_reply->max_pages = body->max_pages();
		ret_cache_reply->used_pages = body->used_pages();
		ret_cache_reply->idle_pages = body->idle_pages();
		ret_cache_reply->sequences = body->sequences();
		ret_cache_reply->store = body->store();
	}

	void sequence_create(const wire::SequenceCreate *body,
	                     struct fa_wire_sequence_create *__restrict ret_sequence_create)
	{
		ret_sequence_create->cache = body->cache();
	}

	void sequence_find(const wire::SequenceFind *body,
	                   struct fa_wire_sequence_find *__restrict ret_sequence_find)
	{
		string(body->name(), FA_WIRE_NAME_BYTES_MAX, &ret_sequence_find->name);
	}

	void sequence_fork(const wire::SequenceFork *body,
	                   struct fa_wire_sequence_fork *__restrict ret_sequence_fork)
	{
		ret_sequence_fork->sequence = body->sequence();
		ret_sequence_fork->tokens = body->tokens();
	}

	void sequence_set_name(const wire::SequenceSetName *body,
	                       struct fa_wire_sequence_set_name *__restrict ret_sequence_set_name)
	{
		ret_sequence_set_name->sequence = body->sequence();
		string(body->name(), FA_WIRE_NAME_BYTES_MAX, &ret_sequence_set_name->name);
		ret_sequence_set_name->mode = body->mode();
		ret_sequence_set_name->ttl_ns = body->ttl_ns();
	}

	void sequence_truncate(const wire::SequenceTruncate *body,
	                       struct fa_wire_sequence_truncate *__restrict ret_sequence_truncate)
	{
		ret_sequence_truncate->sequence = body->sequence();
		ret_sequence_truncate->tokens = body->tokens();
	}

	void sequence_drop(const wire::SequenceDrop *body,
	                   struct fa_wire_sequence_drop *__restrict ret_sequence_drop)
	{
		ret_sequence_drop->sequence = body->sequence();
		ret_sequence_drop->first = body->first();
	}

	void sequence_free(const wire::SequenceFree *body,
	                   struct fa_wire_sequence_free *__restrict ret_sequence_free)
	{
		ret_sequence_free->sequence = body->sequence();
	}

	void sequence_info(const wire::SequenceInfo *body,
	                   struct fa_wire_sequence_info *__restrict ret_sequence_info)
	{
		ret_sequence_info->sequence = body->sequence();
	}

	void sequence_reply(const wire::SequenceReply *body,
	                    struct fa_wire_sequence_reply *__restrict ret_sequence_reply)
	{
		ret_sequence_reply->sequence = body->sequence();
		ret_sequence_reply->cache = body->cache();
		ret_sequence_reply->length = body->length();
		ret_sequence_reply->planned = body->planned();
		ret_sequence_reply->first = body->first();
		ret_sequence_reply->step = body->step();
		ret_sequence_reply->mode = body->mode();
		ret_sequence_reply->matched = body->matched();
	}

	void sequence_publish(const wire::SequencePublish *body,
	                      struct fa_wire_sequence_publish *__restrict ret_sequence_publish)
	{
		ret_sequence_publish->sequence = body->sequence();
		ret_sequence_publish->flags = body->flags();
		vector(body->extra(), FA_WIRE_EXTRA_MAX, &ret_sequence_publish->extra,
		       &ret_sequence_publish->n_extra);
		vector(body->tokens(), FA_WIRE_TOKENS_MAX, &ret_sequence_publish->tokens,
		       &ret_sequence_publish->n_tokens);
		view(body->tokens_view(), &ret_sequence_publish->tokens_view);
	}

	void sequence_attach(const wire::SequenceAttach *body,
	                     struct fa_wire_sequence_attach *__restrict ret_sequence_attach)
	{
		ret_sequence_attach->sequence = body->sequence();
		ret_sequence_attach->flags = body->flags();
		vector(body->extra(), FA_WIRE_EXTRA_MAX, &ret_sequence_attach->extra,
		       &ret_sequence_attach->n_extra);
		vector(body->tokens(), FA_WIRE_TOKENS_MAX, &ret_sequence_attach->tokens,
		       &ret_sequence_attach->n_tokens);
		view(body->tokens_view(), &ret_sequence_attach->tokens_view);
	}

	void sequence_copy(const wire::SequenceCopy *body,
	                   struct fa_wire_sequence_copy *__restrict ret_sequence_copy)
	{
		ret_sequence_copy->stream = body->stream();
		ret_sequence_copy->value = body->value();
		ret_sequence_copy->sequence = body->sequence();
		ret_sequence_copy->flags = body->flags();
		ret_sequence_copy->layer = body->layer();
		ret_sequence_copy->first = body->first();
		view(body->k(), &ret_sequence_copy->k);
		view(body->v(), &ret_sequence_copy->v);
	}

	void step_begin(const wire::StepBegin *body,
	                struct fa_wire_step_begin *__restrict ret_step_begin)
	{
		ret_step_begin->step = body->step();
		step_items(body->items(), &ret_step_begin->items, &ret_step_begin->n_items);
		vector(body->tree(), FA_WIRE_TOKENS_MAX, &ret_step_begin->tree,
		       &ret_step_begin->n_tree);
		vector(body->tree_start(), FA_WIRE_STEP_MAX, &ret_step_begin->tree_start,
		       &ret_step_begin->n_tree_start);
	}

	void step_reply(const wire::StepReply *body,
	                struct fa_wire_step_reply *__restrict ret_step_reply)
	{
		ret_step_reply->step = body->step();
		ret_step_reply->number = body->number();
	}

	void step_attend(const wire::StepAttend *body,
	                 struct fa_wire_step_attend *__restrict ret_step_attend)
	{
		ret_step_attend->stream = body->stream();
		ret_step_attend->value = body->value();
		ret_step_attend->step = body->step();
		ret_step_attend->cache = body->cache();
		ret_step_attend->layer = body->layer();
		ret_step_attend->flags = body->flags();
		view(body->q(), &ret_step_attend->q);
		view(body->k(), &ret_step_attend->k);
		view(body->v(), &ret_step_attend->v);
		view(body->out(), &ret_step_attend->out);
		view(body->lse(), &ret_step_attend->lse);
		ret_step_attend->scale = body->scale();
		ret_step_attend->softcap = body->softcap();
		ret_step_attend->window_left = body->window_left();
		ret_step_attend->window_right = body->window_right();
		vector(body->alibi_slopes(), FA_WIRE_HEADS_MAX, &ret_step_attend->alibi_slopes,
		       &ret_step_attend->n_alibi_slopes);
		vector(body->sinks(), FA_WIRE_HEADS_MAX, &ret_step_attend->sinks,
		       &ret_step_attend->n_sinks);
		ret_step_attend->rotary_dim = body->rotary_dim();
		ret_step_attend->rotary_base = body->rotary_base();
		ret_step_attend->rotary_scale = body->rotary_scale();
		view(body->cos(), &ret_step_attend->cos);
		view(body->sin(), &ret_step_attend->sin);
		vector(body->positions(), FA_WIRE_TOKENS_MAX, &ret_step_attend->positions,
		       &ret_step_attend->n_positions);
	}

	void step_end(const wire::StepEnd *body, struct fa_wire_step_end *__restrict ret_step_end)
	{
		ret_step_end->stream = body->stream();
		ret_step_end->value = body->value();
		ret_step_end->step = body->step();
		ret_step_end->flags = body->flags();
		vector(body->keep(), FA_WIRE_TOKENS_MAX, &ret_step_end->keep,
		       &ret_step_end->n_keep);
		vector(body->cu_keep(), FA_WIRE_STEP_MAX + 1, &ret_step_end->cu_keep,
		       &ret_step_end->n_cu_keep);
	}

	void gate(const wire::Gate *gate, bool *ret_has, struct fa_wire_gate *ret_gate)
	{
		*ret_has = gate;
		*ret_gate = {};
		if (!gate)
			return;
		ret_gate->slot = gate->slot();
		ret_gate->reserved = gate->reserved();
		ret_gate->value = gate->value();
	}

	/* FlatBuffers before 23 do not verify that a vector of structs is aligned. */
	void gates(const flatbuffers::Vector<const wire::Gate *> *vector,
	           const struct fa_wire_gate **ret_gates, size_t *ret_n)
	{
		*ret_gates = nullptr;
		*ret_n = 0;
		if (!vector || !vector->size())
			return;
		if (vector->size() > FA_WIRE_GATES_MAX ||
		    reinterpret_cast<uintptr_t>(vector->Data()) % alignof(struct fa_wire_gate)) {
			too_long_ = true;
			return;
		}
		*ret_gates = reinterpret_cast<const struct fa_wire_gate *>(vector->Data());
		*ret_n = vector->size();
	}

	void step_attend_layers(const wire::StepAttendLayers *body,
	                        struct fa_wire_step_attend_layers *__restrict ret_layers)
	{
		if (body->attend()) {
			step_attend(body->attend(), &ret_layers->attend);
		} else {
			ret_layers->attend = {};
			ret_layers->attend.window_left = ret_layers->attend.window_right = -1;
		}
		ret_layers->n_layers = body->n_layers();
		ret_layers->q_bytes = body->q_bytes();
		ret_layers->k_bytes = body->k_bytes();
		ret_layers->v_bytes = body->v_bytes();
		ret_layers->out_bytes = body->out_bytes();
		ret_layers->lse_bytes = body->lse_bytes();
		gate(body->wait(), &ret_layers->has_wait, &ret_layers->wait);
		ret_layers->wait_increment = body->wait_increment();
		gate(body->signal(), &ret_layers->has_signal, &ret_layers->signal);
		ret_layers->signal_increment = body->signal_increment();
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
	case wire::Body::BufferRegister:
		buffer_register(message->body_as_BufferRegister(), &ret_message->buffer_register);
		break;
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
		ret_message->buffer_reply.piece_bytes = body->piece_bytes();
		break;
	}
	case wire::Body::BufferPieces: {
		auto body = message->body_as_BufferPieces();

		ret_message->buffer_pieces.buffer = body->buffer();
		pieces(body->piece_bytes(), ret_message->buffer_pieces.piece_bytes,
		       &ret_message->buffer_pieces.n_piece_bytes);
		break;
	}
	case wire::Body::Completion:
		completion(message->body_as_Completion(), &ret_message->completion);
		break;
	case wire::Body::StatusReply:
		ret_message->status_reply.bytes = message->body_as_StatusReply()->bytes();
		break;
	case wire::Body::CacheCreate:
		cache_create(message->body_as_CacheCreate(), &ret_message->cache_create);
		break;
	case wire::Body::CacheFind:
		cache_find(message->body_as_CacheFind(), &ret_message->cache_find);
		break;
	case wire::Body::CacheRemove:
		cache_remove(message->body_as_CacheRemove(), &ret_message->cache_remove);
		break;
	case wire::Body::CacheReply:
		cache_reply(message->body_as_CacheReply(), &ret_message->cache_reply);
		break;
	case wire::Body::SequenceCreate:
		sequence_create(message->body_as_SequenceCreate(), &ret_message->sequence_create);
		break;
	case wire::Body::SequenceFind:
		sequence_find(message->body_as_SequenceFind(), &ret_message->sequence_find);
		break;
	case wire::Body::SequenceFork:
		sequence_fork(message->body_as_SequenceFork(), &ret_message->sequence_fork);
		break;
	case wire::Body::SequenceSetName:
		sequence_set_name(message->body_as_SequenceSetName(),
		                  &ret_message->sequence_set_name);
		break;
	case wire::Body::SequenceTruncate:
		sequence_truncate(message->body_as_SequenceTruncate(),
		                  &ret_message->sequence_truncate);
		break;
	case wire::Body::SequenceDrop:
		sequence_drop(message->body_as_SequenceDrop(), &ret_message->sequence_drop);
		break;
	case wire::Body::SequenceFree:
		sequence_free(message->body_as_SequenceFree(), &ret_message->sequence_free);
		break;
	case wire::Body::SequenceInfo:
		sequence_info(message->body_as_SequenceInfo(), &ret_message->sequence_info);
		break;
	case wire::Body::SequenceReply:
		sequence_reply(message->body_as_SequenceReply(), &ret_message->sequence_reply);
		break;
	case wire::Body::SequencePublish:
		sequence_publish(message->body_as_SequencePublish(),
		                 &ret_message->sequence_publish);
		break;
	case wire::Body::SequenceAttach:
		sequence_attach(message->body_as_SequenceAttach(), &ret_message->sequence_attach);
		break;
	case wire::Body::SequenceCopy:
		sequence_copy(message->body_as_SequenceCopy(), &ret_message->sequence_copy);
		break;
	case wire::Body::StepBegin:
		step_begin(message->body_as_StepBegin(), &ret_message->step_begin);
		break;
	case wire::Body::StepReply:
		step_reply(message->body_as_StepReply(), &ret_message->step_reply);
		break;
	case wire::Body::StepAttend:
		step_attend(message->body_as_StepAttend(), &ret_message->step_attend);
		break;
	case wire::Body::StepEnd:
		step_end(message->body_as_StepEnd(), &ret_message->step_end);
		break;
	case wire::Body::RingSetup:
		ret_message->ring_setup.bytes = message->body_as_RingSetup()->bytes();
		break;
	case wire::Body::RingReply: {
		auto body = message->body_as_RingReply();

		ret_message->ring_reply.bytes = body->bytes();
		ret_message->ring_reply.results_bytes = body->results_bytes();
		ret_message->ring_reply.records = body->records();
		break;
	}
	case wire::Body::Marker: {
		auto body = message->body_as_Marker();

		ret_message->marker.stream = body->stream();
		ret_message->marker.value = body->value();
		break;
	}
	case wire::Body::TimelineReply: {
		auto body = message->body_as_TimelineReply();

		ret_message->timeline_reply.slots = body->slots();
		ret_message->timeline_reply.in_bytes = body->in_bytes();
		ret_message->timeline_reply.out_bytes = body->out_bytes();
		break;
	}
	case wire::Body::StepAttendLayers:
		step_attend_layers(message->body_as_StepAttendLayers(),
		                   &ret_message->step_attend_layers);
		break;
	case wire::Body::TimelineSetup:
	case wire::Body::NONE:
	case wire::Body::Ping:
	case wire::Body::Status:
	case wire::Body::Drain:
		break;
	}
}

} // namespace
