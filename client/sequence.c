/* Calls on sequences. */
#include "client/cancel.h"
#include "client/gates.h"
#include "client/kv.h"
#include "client/last_error.h"
#include "client/registration.h"
#include "client/step_state.h"
#include "client/struct_size.h"
#include "client/submit.h"

#include <errno.h>
#include <string.h>

_Static_assert(FA_PREFIX_SHARED == FA_WIRE_PREFIX_SHARED, "flags travel as they are");

static int ask(struct fa_client *client, struct fa_wire_message *message,
               struct fa_wire_sequence_reply *ret_reply)
{
	struct fa_client_call call = { .expect = FA_WIRE_SEQUENCE_REPLY };
	int r;

	r = fa_kv_call(client, message, message->type != FA_WIRE_SEQUENCE_FIND, &call);
	if (r < 0)
		return r;
	*ret_reply = call.sequence;
	return 0;
}

static int ask_sequence(struct fa_client *client, struct fa_wire_message *message,
                        uint64_t *ret_sequence)
{
	struct fa_wire_sequence_reply reply;
	int r;

	if (!ret_sequence)
		return fa_error_set(-EINVAL, "ret_sequence is NULL");
	r = ask(client, message, &reply);
	if (r < 0)
		return r;
	*ret_sequence = reply.sequence;
	return 0;
}

/* ---- creating and finding */

int fa_sequence_create(struct fa_client *handle, uint64_t cache, uint64_t *ret_sequence)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_CREATE,
		                           .sequence_create.cache = cache };

	return ask_sequence(client, &message, ret_sequence);
}

static int find(struct fa_client *client, const char *name, uint64_t user, uint64_t *ret_sequence)
{
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_FIND,
		                           .sequence_find.user = user };
	int r;

	r = fa_kv_name(name, &message.sequence_find.name);
	return r < 0 ? r : ask_sequence(client, &message, ret_sequence);
}

int fa_sequence_find(struct fa_client *handle, const char *name, uint64_t *ret_sequence)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return find(client, name, 0, ret_sequence);
}

int fa_sequence_find_of(struct fa_client *handle, uint32_t uid, const char *name,
                        uint64_t *ret_sequence)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return find(client, name, (uint64_t)uid + 1, ret_sequence);
}

int fa_sequence_fork_to(struct fa_client *handle, uint64_t sequence, uint64_t tokens,
                        uint64_t *ret_sequence, uint64_t *ret_tokens)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_FORK,
		                           .sequence_fork = { .sequence = sequence,
		                                              .tokens = tokens } };
	struct fa_wire_sequence_reply reply;
	int r;

	if (!ret_sequence)
		return fa_error_set(-EINVAL, "ret_sequence is NULL");
	r = ask(client, &message, &reply);
	if (r < 0)
		return r;
	*ret_sequence = reply.sequence;
	if (ret_tokens)
		*ret_tokens = reply.length;
	return 0;
}

int fa_sequence_fork(struct fa_client *handle, uint64_t sequence, uint64_t tokens,
                     uint64_t *ret_sequence)
{
	fa_uncancelled();

	return fa_sequence_fork_to(handle, sequence, tokens, ret_sequence, NULL);
}

/* ---- changing */

int fa_sequence_set_name(struct fa_client *handle, uint64_t sequence, const char *name,
                         uint32_t mode, uint64_t ttl_ns)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = {
		.type = FA_WIRE_SEQUENCE_SET_NAME,
		.sequence_set_name = { .sequence = sequence, .mode = mode, .ttl_ns = ttl_ns }
	};
	struct fa_wire_sequence_reply reply;
	int r;

	r = fa_kv_name(name, &message.sequence_set_name.name);
	return r < 0 ? r : ask(client, &message, &reply);
}

int fa_sequence_truncate_to(struct fa_client *handle, uint64_t sequence, uint64_t tokens,
                            uint64_t *ret_tokens)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_TRUNCATE,
		                           .sequence_truncate = { .sequence = sequence,
		                                                  .tokens = tokens } };
	struct fa_wire_sequence_reply reply;
	int r;

	r = ask(client, &message, &reply);
	if (r == 0 && ret_tokens)
		*ret_tokens = reply.length;
	return r;
}

int fa_sequence_truncate(struct fa_client *handle, uint64_t sequence, uint64_t tokens)
{
	fa_uncancelled();

	return fa_sequence_truncate_to(handle, sequence, tokens, NULL);
}

int fa_sequence_drop_before(struct fa_client *handle, uint64_t sequence, uint64_t first,
                            uint64_t *ret_first)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_DROP,
		                           .sequence_drop = { .sequence = sequence,
		                                              .first = first } };
	struct fa_wire_sequence_reply reply;
	int r;

	r = ask(client, &message, &reply);
	if (r < 0)
		return r;
	if (ret_first)
		*ret_first = reply.first;
	return 0;
}

int fa_sequence_remove(struct fa_client *handle, uint64_t sequence)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_FREE,
		                           .sequence_free.sequence = sequence };
	struct fa_client_call call = { .expect = FA_WIRE_REPLY };

	return fa_kv_call(client, &message, true, &call);
}

int fa_sequence_info(struct fa_client *handle, uint64_t sequence, struct fa_sequence_info *ret_info)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_INFO,
		                           .sequence_info.sequence = sequence };
	struct fa_wire_sequence_reply reply;
	struct fa_sequence_info info;
	int r;

	r = fa_struct_out_check("fa_sequence_info", ret_info);
	if (r < 0)
		return r;
	r = ask(client, &message, &reply);
	if (r < 0)
		return r;
	info = (struct fa_sequence_info){ .mode = reply.mode,
		                          .cache = reply.cache,
		                          .length = reply.length,
		                          .planned = reply.planned,
		                          .first = reply.first,
		                          .step = reply.step,
		                          .uid = reply.uid,
		                          .checkpoints = reply.checkpoints,
		                          .checkpoint = reply.checkpoint };
	fa_struct_out(ret_info, &info, sizeof(info));
	return 0;
}

/* ---- prefixes */

/* @prefix points to @padded if an older library gave it. */
static int take_prefix(const struct fa_prefix **ret_prefix, struct fa_prefix *padded)
{
	const struct fa_prefix *prefix;
	const void *p;
	int r;

	r = fa_struct_in("fa_prefix", *ret_prefix, padded, sizeof(*padded), &p);
	if (r < 0)
		return r;
	prefix = *ret_prefix = p;
	if (prefix->n_tokens && !prefix->tokens)
		return fa_error_set(-EINVAL, "fa_prefix.tokens is NULL, and n_tokens %llu",
		                    (unsigned long long)prefix->n_tokens);
	if (prefix->n_tokens > UINT32_MAX)
		return fa_error_set(-EINVAL, "fa_prefix.n_tokens is %llu; expected less than 2^32",
		                    (unsigned long long)prefix->n_tokens);
	if (prefix->extra_bytes > FA_WIRE_EXTRA_MAX || (prefix->extra_bytes && !prefix->extra))
		return fa_error_set(
			-EINVAL, "fa_prefix has %llu extra_bytes at %p; expected at most %u",
			(unsigned long long)prefix->extra_bytes, prefix->extra, FA_WIRE_EXTRA_MAX);
	return 0;
}

/* Too many tokens for a message go in a temporary buffer. */
static int ask_with_tokens(struct fa_client *client, struct fa_wire_message *message,
                           const struct fa_prefix *prefix, const uint32_t **tokens,
                           size_t *n_tokens, struct fa_wire_view *view, struct fa_client_call *call)
{
	struct fa_buffer *buffer = NULL;
	int r;

	if (prefix->n_tokens <= FA_WIRE_TOKENS_MAX) {
		*tokens = prefix->n_tokens ? prefix->tokens : NULL;
		*n_tokens = (size_t)prefix->n_tokens;
	} else {
		r = fa_buffer_new(client->handle, prefix->n_tokens * sizeof(uint32_t), 0, &buffer);
		if (r == -ECONNRESET)
			r = fa_buffer_new(client->handle, prefix->n_tokens * sizeof(uint32_t), 0,
			                  &buffer);
		if (r < 0)
			return r;
		memcpy(fa_buffer_data(buffer), prefix->tokens, prefix->n_tokens * sizeof(uint32_t));
		*view = (struct fa_wire_view){ .buffer = fa_buffer_of(buffer)->registration->id,
			                       .rank = 1,
			                       .shape = { (int64_t)prefix->n_tokens },
			                       .strides = { 1 } };
	}
	r = fa_kv_call(client, message, true, call);
	fa_buffer_free(buffer);
	return r;
}

int fa_sequence_publish(struct fa_client *handle, uint64_t sequence, const struct fa_prefix *prefix,
                        uint64_t *ret_pages)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_PUBLISH };
	struct fa_wire_sequence_publish *wire = &message.sequence_publish;
	struct fa_client_call call = { .expect = FA_WIRE_SEQUENCE_REPLY };
	struct fa_prefix padded;
	int r;

	r = take_prefix(&prefix, &padded);
	if (r < 0)
		return r;
	wire->sequence = sequence;
	wire->flags = prefix->flags;
	wire->extra = prefix->extra;
	wire->n_extra = (size_t)prefix->extra_bytes;
	r = ask_with_tokens(client, &message, prefix, &wire->tokens, &wire->n_tokens,
	                    &wire->tokens_view, &call);
	if (r < 0)
		return r;
	if (ret_pages)
		*ret_pages = call.sequence.matched;
	return 0;
}

/*
 * A repeated SequenceAttach was refused because the first one was handled: then the sequence has
 * tokens, no step wrote to it, and the prefix is found at least as long. Returns the call's result,
 * @refused if it was not handled.
 */
static int recognise_attached(struct fa_client *client, uint64_t sequence,
                              const struct fa_prefix *prefix, int refused, uint64_t *ret_tokens)
{
	struct fa_sequence_info info = { .size = sizeof(info) };
	struct fa_error error;
	uint64_t found = 0;
	int r;

	(void)fa_fail(&error, refused, "%s", fa_error());
	r = fa_sequence_info(client->handle, sequence, &info);
	if (r == 0 && info.length && !info.step && !info.first && info.length <= prefix->n_tokens)
		r = fa_prefix_find(client->handle, info.cache, prefix, &found);
	if (r < 0 || !found || found < info.length)
		return fa_error_copy(refused, &error);
	*ret_tokens = info.length;
	return 0;
}

int fa_sequence_attach(struct fa_client *handle, uint64_t sequence, const struct fa_prefix *prefix,
                       uint64_t *ret_tokens)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_SEQUENCE_ATTACH };
	struct fa_wire_sequence_attach *wire = &message.sequence_attach;
	struct fa_client_call call = { .expect = FA_WIRE_SEQUENCE_REPLY };
	struct fa_prefix padded;
	int r;

	r = take_prefix(&prefix, &padded);
	if (r < 0)
		return r;
	wire->sequence = sequence;
	wire->flags = prefix->flags;
	wire->extra = prefix->extra;
	wire->n_extra = (size_t)prefix->extra_bytes;
	r = ask_with_tokens(client, &message, prefix, &wire->tokens, &wire->n_tokens,
	                    &wire->tokens_view, &call);
	if (r == -EINVAL && call.repeated)
		r = recognise_attached(client, sequence, prefix, r, &call.sequence.matched);
	if (r < 0)
		return r;
	if (ret_tokens)
		*ret_tokens = call.sequence.matched;
	return 0;
}

int fa_prefix_find(struct fa_client *handle, uint64_t cache, const struct fa_prefix *prefix,
                   uint64_t *ret_tokens)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	struct fa_wire_message message = { .type = FA_WIRE_PREFIX_FIND };
	struct fa_wire_prefix_find *wire = &message.prefix_find;
	struct fa_client_call call = { .expect = FA_WIRE_PREFIX_REPLY };
	struct fa_prefix padded;
	int r;

	if (!ret_tokens)
		return fa_error_set(-EINVAL, "ret_tokens is NULL");
	r = take_prefix(&prefix, &padded);
	if (r < 0)
		return r;
	wire->cache = cache;
	wire->flags = prefix->flags;
	wire->extra = prefix->extra;
	wire->n_extra = (size_t)prefix->extra_bytes;
	r = ask_with_tokens(client, &message, prefix, &wire->tokens, &wire->n_tokens,
	                    &wire->tokens_view, &call);
	if (r < 0)
		return r;
	*ret_tokens = call.prefix.tokens;
	return 0;
}

/* ---- reading and writing */

static int copy(struct fa_client *client, const struct fa_sequence_copy *copy, uint32_t flags,
                struct fa_ticket *ret_ticket)
{
	struct fa_client_request request = { .message.type = FA_WIRE_SEQUENCE_COPY };
	struct fa_wire_sequence_copy *wire = &request.message.sequence_copy;
	int (*const add)(struct fa_client_request *, const char *, struct fa_client *,
	                 const struct fa_tensor *, uint32_t,
	                 struct fa_wire_view *) = flags & FA_WIRE_COPY_WRITE ? fa_request_tensor
	                                                                     : fa_request_output;
	struct fa_sequence_copy padded;
	const void *c;
	int r;

	r = fa_struct_in("fa_sequence_copy", copy, &padded, sizeof(padded), &c);
	if (r < 0)
		return r;
	copy = c;
	if (copy->reserved)
		return fa_error_set(-EINVAL, "fa_sequence_copy.reserved is not 0");
	if (!copy->k.buffer && !copy->v.buffer)
		return fa_error_set(-EINVAL, "neither k nor v has a buffer");
	if (copy->k.buffer) {
		r = add(&request, "k", client, &copy->k, 3, &wire->k);
		if (r < 0)
			return r;
	}
	if (copy->v.buffer) {
		r = add(&request, "v", client, &copy->v, 3, &wire->v);
		if (r < 0)
			return r;
	}
	r = fa_request_check_overlap(&request);
	if (r < 0)
		return r;
	wire->stream = copy->stream;
	wire->sequence = copy->sequence;
	wire->flags = flags;
	wire->layer = copy->layer;
	wire->first = copy->first;
	r = fa_request_gates(&request, copy->gates);
	if (r < 0)
		return r;
	request.message.timeout_ns = copy->timeout_ns;
	return flags & FA_WIRE_COPY_WRITE
	               ? fa_request_submit_write(client, &request, copy->sequence, ret_ticket)
	               : fa_request_submit(client, &request, ret_ticket);
}

int fa_sequence_read(struct fa_client *handle, const struct fa_sequence_copy *options,
                     struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return copy(client, options, 0, ret_ticket);
}

int fa_sequence_write(struct fa_client *handle, const struct fa_sequence_copy *options,
                      struct fa_ticket *ret_ticket)
{
	fa_uncancelled();
	struct fa_client *client = fa_client_of(handle);
	return copy(client, options, FA_WIRE_COPY_WRITE, ret_ticket);
}
