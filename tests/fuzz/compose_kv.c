/* The part of compose.h about caches, sequences and steps. */
#include "tests/fuzz/compose_private.h"

#include "tests/fuzz/choose.h"

#include <string.h>

/* Names that are in use often. */
#define NAMES 5

static struct fa_wire_step_item step_items[ITEMS];
static uint32_t words[ITEMS * TOKENS_MAX + 1], starts[ITEMS + 1], prefixes[ITEMS];
static float floats[64];

static struct cache *any_cache(const struct client *client, bool named)
{
	const uint32_t from = pick(CACHES);

	for (uint32_t i = 0; i < CACHES; ++i) {
		struct cache *cache = &world.caches[(from + i) % CACHES];

		if (cache->id && (named ? cache->name && cache->other == client->other
		                        : cache->owner == client->index))
			return cache;
	}
	return NULL;
}

/* A sequence of the client with at least @length tokens and, if @idle, without a step. */
static struct sequence *any_sequence(const struct client *client, uint64_t length, bool idle,
                                     bool named)
{
	const uint32_t from = pick(SEQUENCES);

	for (uint32_t i = 0; i < SEQUENCES; ++i) {
		struct sequence *sequence = &world.sequences[(from + i) % SEQUENCES];

		if (sequence->id && sequence->length >= length && !(idle && sequence->n_steps) &&
		    (named ? sequence->name && sequence->other == client->other
		           : sequence->owner == client->index && find_cache(sequence->cache)))
			return sequence;
	}
	return NULL;
}

/* The oldest step, or now and then another one. */
static struct step *any_step(struct client *client, bool whole)
{
	const uint32_t from = once_in(6) ? pick(STEPS) : 0;
	struct step *found = NULL;

	for (uint32_t i = 0; i < STEPS; ++i) {
		struct step *step = &client->steps[(from + i) % STEPS];
		const struct cache *cache = step->id ? find_cache(step->cache) : NULL;

		if (cache && !(whole && step->layer >= cache->layers) &&
		    (!found || (!from && step->id < found->id)))
			found = step;
	}
	return found;
}

/* ---- caches and sequences */

static const uint32_t state_bytes[] = { 96, 1000 };

static void compose_cache_create(struct client *client, struct parcel *parcel)
{
	struct fa_wire_cache_create *message = &parcel->message.cache_create;
	unsigned int n = 0;

	for (int i = 0; i < CACHES; ++i)
		n += world.caches[i].id != 0;
	if (n > 4 && any_cache(client, false)) {
		compose(client, FA_WIRE_CACHE_REMOVE, parcel);
		return;
	}
	*message = (struct fa_wire_cache_create){
		.dtype = (uint8_t)(1 + pick(3)),
		.layers = 1 + pick(3),
		.kv_heads = 1 + pick(2),
		.head_dim = once_in(8) ? 512 + 64 * pick(2) : 8u << pick(2),
		.head_dim_v = 8,
		.page_tokens = 16u << pick(2),
		.max_pages = once_in(4) ? 4 + pick(8) : 0,
	};
	if (once_in(5))
		message->flags = FA_WIRE_CACHE_V_IN_K;
	if (once_in(3)) {
		message->store = (uint8_t)(1 + pick(2));
		message->flags |= once_in(2) ? FA_WIRE_CACHE_TOKEN_SCALES : 0;
		for (int i = 0; i < 8; ++i)
			floats[i] = 0.5f;
		if (!(message->flags & FA_WIRE_CACHE_TOKEN_SCALES)) {
			message->k_scales = message->v_scales = floats;
			message->n_k_scales = (size_t)message->layers * message->kv_heads;
			if (!message->flags)
				message->n_v_scales = message->n_k_scales;
		}
	}
	if (once_in(3)) {
		message->state_bytes = state_bytes;
		message->n_state_bytes = 1 + pick(2);
		message->checkpoint_tokens = pick(3) * message->page_tokens;
	}
	if (pick(3)) {
		uint32_t number = 1 + pick(NAMES);

		for (int i = 0; i < CACHES; ++i)
			if (world.caches[i].id && world.caches[i].name == number &&
			    world.caches[i].other == client->other)
				return;
		parcel->step.id = number;
		message->name = compose_name(number);
		message->mode = pick(3) | pick(3) << 2 | pick(3) << 4;
		message->ttl_ns = once_in(6) ? 1000000ull << pick(16) : 0;
	}
}

static void compose_cache_find(struct client *client, struct parcel *parcel)
{
	const struct cache *named = any_cache(client, true), *own = any_cache(client, false);

	if (named && (!own || once_in(2)))
		parcel->message.cache_find.name = compose_name(named->name);
	else if (own)
		parcel->message.cache_find.cache = own->id;
	else
		compose(client, FA_WIRE_CACHE_CREATE, parcel);
}

static void compose_cache_remove(struct client *client, struct parcel *parcel)
{
	const struct cache *cache = any_cache(client, false);

	if (cache)
		parcel->message.cache_remove.cache = cache->id;
	else
		compose(client, FA_WIRE_CACHE_CREATE, parcel);
}

static void compose_sequence_create(struct client *client, struct parcel *parcel)
{
	const struct cache *cache = any_cache(client, false);
	unsigned int n = 0;

	for (int i = 0; i < SEQUENCES; ++i)
		n += world.sequences[i].id != 0;
	if (!cache)
		compose(client, FA_WIRE_CACHE_CREATE, parcel);
	else if (n > 18 && any_sequence(client, 0, true, false))
		compose(client, FA_WIRE_SEQUENCE_FREE, parcel);
	else
		parcel->message.sequence_create.cache = cache->id;
}

static void append(struct client *client, struct parcel *parcel)
{
	const bool step = any_step(client, false) != NULL;

	compose(client,
	        step ? pick(3) ? FA_WIRE_STEP_ATTEND : FA_WIRE_STEP_END : FA_WIRE_STEP_BEGIN,
	        parcel);
}

/* Requests about one sequence that exists. */
static void compose_of_sequence(struct client *client, enum fa_wire_type type,
                                struct parcel *parcel)
{
	const bool idle = type != FA_WIRE_SEQUENCE_INFO && type != FA_WIRE_SEQUENCE_SET_NAME;
	const struct sequence *sequence = any_sequence(client, 0, idle, false);
	struct fa_wire_message *message = &parcel->message;
	uint32_t number;

	/* A name needs a cache with a name. */
	for (int i = 0; i < SEQUENCES && type == FA_WIRE_SEQUENCE_SET_NAME; ++i) {
		const struct sequence *each = &world.sequences[i];
		const struct cache *cache = each->id && each->owner == client->index
		                                    ? find_cache(each->cache)
		                                    : NULL;

		if (cache && cache->name && !each->name)
			sequence = each;
	}
	if (!sequence) {
		compose(client,
		        any_sequence(client, 0, false, false) ? FA_WIRE_STEP_END
		                                              : FA_WIRE_SEQUENCE_CREATE,
		        parcel);
		return;
	}
	switch (type) {
	case FA_WIRE_SEQUENCE_FORK:
		message->sequence_fork.sequence = sequence->id;
		message->sequence_fork.tokens = UINT64_MAX;
		if (once_in(2))
			message->sequence_fork.tokens =
				sequence->first +
				pick((uint32_t)(sequence->length - sequence->first) + 1);
		break;
	case FA_WIRE_SEQUENCE_SET_NAME:
		number = 1 + pick(NAMES);
		for (int i = 0; i < SEQUENCES; ++i)
			if (world.sequences[i].id && world.sequences[i].name == number &&
			    world.sequences[i].other == client->other)
				number = 1 + NAMES + (number + 1) % 8;
		parcel->step.id = number;
		message->sequence_set_name.sequence = sequence->id;
		message->sequence_set_name.name = compose_name(number);
		message->sequence_set_name.mode = pick(3) | pick(3) << 2 | pick(3) << 4;
		break;
	case FA_WIRE_SEQUENCE_TRUNCATE:
		message->sequence_truncate.sequence = sequence->id;
		message->sequence_truncate.tokens =
			sequence->first + pick((uint32_t)(sequence->length - sequence->first) + 1);
		break;
	case FA_WIRE_SEQUENCE_DROP:
		message->sequence_drop.sequence = sequence->id;
		message->sequence_drop.first =
			sequence->first + pick((uint32_t)(sequence->length - sequence->first) + 1);
		break;
	case FA_WIRE_SEQUENCE_FREE:
		message->sequence_free.sequence = sequence->id;
		break;
	default:
		message->sequence_info.sequence = sequence->id;
		break;
	}
}

static void compose_sequence_find(struct client *client, struct parcel *parcel)
{
	const struct sequence *sequence = any_sequence(client, 0, false, true);

	if (sequence)
		parcel->message.sequence_find.name = compose_name(sequence->name);
	else
		compose(client, FA_WIRE_SEQUENCE_SET_NAME, parcel);
}

/* Tokens of all sequences are the same, so that prefixes are found. SequenceAttach and PrefixFind have
 * the same fields. */
static void compose_tokens(struct client *client, uint64_t n_tokens,
                           struct fa_wire_sequence_publish *message)
{
	struct buffer *buffer = any_buffer(client, false);

	for (uint32_t i = 0; i < sizeof(words) / sizeof(*words); ++i)
		words[i] = once_in(64) ? 1 : 0;
	message->flags = once_in(2) ? FA_WIRE_PREFIX_SHARED : 0;
	message->tokens = words;
	message->n_tokens = (size_t)n_tokens;
	if (message->n_tokens > sizeof(words) / sizeof(*words))
		message->n_tokens = sizeof(words) / sizeof(*words);
	if (buffer && buffer->host && once_in(3)) {
		const int64_t shape[] = { (int64_t)message->n_tokens };
		uint64_t at = 4096;

		message->tokens_view = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 1, shape);
		message->tokens_view.dtype = 0;
		message->tokens = NULL;
		message->n_tokens = 0;
	}
}

static void compose_prefix(struct client *client, enum fa_wire_type type, struct parcel *parcel)
{
	struct fa_wire_sequence_publish *message = &parcel->message.sequence_publish;
	const struct sequence *sequence = NULL;
	const uint32_t from = pick(SEQUENCES);

	for (uint32_t i = 0; i < SEQUENCES && !sequence; ++i) {
		const struct sequence *each = &world.sequences[(from + i) % SEQUENCES];

		if (each->id && each->owner == client->index && !each->n_steps && !each->first &&
		    (type == FA_WIRE_SEQUENCE_PUBLISH ? each->length >= 16 : !each->length))
			sequence = each;
	}
	if (!sequence) {
		if (type == FA_WIRE_SEQUENCE_PUBLISH)
			append(client, parcel);
		else
			compose(client, FA_WIRE_SEQUENCE_CREATE, parcel);
		return;
	}
	message->sequence = sequence->id;
	compose_tokens(client, type == FA_WIRE_SEQUENCE_PUBLISH ? sequence->length : 48, message);
}

static void compose_prefix_find(struct client *client, struct parcel *parcel)
{
	const struct cache *cache = any_cache(client, false);

	if (!cache) {
		compose(client, FA_WIRE_CACHE_CREATE, parcel);
		return;
	}
	parcel->message.prefix_find.cache = cache->id;
	compose_tokens(client, 1 + pick(64), &parcel->message.sequence_publish);
}

/* ---- steps */

static bool has_states(const struct sequence *sequence)
{
	const struct cache *cache = find_cache(sequence->cache);

	return cache && cache->states;
}

static void compose_begin(struct client *client, struct parcel *parcel)
{
	struct fa_wire_step_begin *message = &parcel->message.step_begin;
	struct step *step = &parcel->step;
	const struct sequence *sequence;
	unsigned int n_steps = 0;

	for (int i = 0; i < STEPS; ++i)
		n_steps += client->steps[i].id != 0;
	sequence = any_sequence(client, 0, !once_in(4), false);
	if (n_steps == STEPS || !sequence) {
		compose(client, n_steps ? FA_WIRE_STEP_END : FA_WIRE_SEQUENCE_CREATE, parcel);
		return;
	}
	step->cache = sequence->cache;
	step->stream = any_stream(client);
	for (uint32_t n = 1 + pick(ITEMS); sequence && n; --n) {
		const uint32_t tokens = sequence->length > 120 ? 0 : pick(TOKENS_MAX + 1);
		bool twice = false;

		for (uint32_t i = 0; i < step->n_items; ++i)
			twice = twice || step->items[i].sequence == sequence->id;
		if (!twice && (sequence->cache == step->cache || once_in(16))) {
			step_items[step->n_items] = (struct fa_wire_step_item){
				.sequence = sequence->id,
				.n_new = tokens,
				.flags = has_states(sequence) && once_in(2)
				                 ? FA_WIRE_ITEM_CHECKPOINT
				                 : 0,
			};
			step->items[step->n_items++] = (struct item){ .sequence = sequence->id,
				                                      .n = tokens,
				                                      .kept = tokens };
			step->n_tokens += tokens;
		}
		sequence = any_sequence(client, 0, true, false);
	}
	message->step = client->last_step = client->last_step + 1;
	message->items = step_items;
	message->n_items = step->n_items;
	if (once_in(4)) {
		uint32_t at = 0;

		for (uint32_t i = 0; i < step->n_items; ++i) {
			starts[i] = once_in(3) || !step->items[i].n ? UINT32_MAX : at;
			for (uint32_t j = 0; j < step->items[i].n && starts[i] != UINT32_MAX; ++j)
				words[at++] = (1u << j) | pick(256);
		}
		message->tree_start = starts;
		message->n_tree_start = step->n_items;
		message->tree = words;
		message->n_tree = at;
	}
}

static bool fill_attend(struct client *client, struct fa_wire_step_attend *message,
                        uint32_t n_layers, uint64_t *ret_bytes)
{
	const struct buffer *buffer = any_buffer(client, true);
	struct step *step = any_step(client, true);
	const struct cache *cache = step ? find_cache(step->cache) : NULL;
	uint64_t at = 64ull * pick(64);
	int64_t heads, n;

	if (!buffer || !cache)
		return false;
	n = step->n_tokens;
	heads = cache->kv_heads * (int64_t)(1 + pick(2));
	{
		const int64_t q[] = { n, heads, cache->head_dim },
			      k[] = { n, cache->kv_heads, cache->head_dim },
			      v[] = { n, cache->kv_heads, cache->head_dim_v },
			      out[] = { n, heads, cache->head_dim_v }, lse[] = { heads, n };

		message->q = compose_view(buffer, &at, cache->dtype, 3, q);
		message->k = compose_view(buffer, &at, cache->dtype, 3, k);
		if (!(cache->flags & FA_WIRE_CACHE_V_IN_K))
			message->v = compose_view(buffer, &at, cache->dtype, 3, v);
		message->out = compose_view(buffer, &at, cache->dtype, 3, out);
		if (once_in(4))
			message->lse = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 2, lse);
	}
	if (at > BUFFER_BYTES)
		message->q.rank = message->out.rank = message->lse.rank = 0;
	*ret_bytes = 0;
	if (n_layers > 1 && at < BUFFER_BYTES / 4)
		*ret_bytes = at;
	message->stream = once_in(4) ? any_stream(client) : step->stream;
	message->step = step->id;
	message->cache = once_in(2) ? step->cache : 0;
	message->layer = step->layer;
	message->flags = once_in(4) ? 0 : FA_WIRE_STEP_CAUSAL;
	message->window_left = once_in(6) ? (int64_t)pick(32) : -1;
	message->window_right = -1;
	if (once_in(5)) {
		message->pattern_block_tokens = once_in(9) ? pick(99) : 16u << pick(3);
		message->pattern_local_blocks = once_in(9) ? UINT32_MAX : pick(4);
		message->pattern_vert_stride = once_in(9) ? 0 : 1 + pick(5);
		message->pattern_head_step = (int32_t)pick(5) - 2;
		message->pattern_first_head = once_in(9) ? UINT32_MAX : pick(9);
	}
	message->chunk_tokens = once_in(5) ? 1 + pick(40) : 0;
	if (once_in(5)) {
		for (unsigned int i = 0; i < ITEMS; ++i)
			prefixes[i] = once_in(9) ? UINT32_MAX : pick(60);
		message->prefix_lengths = prefixes;
		message->n_prefix_lengths = once_in(9) ? 1 + pick(ITEMS) : step->n_items;
	}
	if (once_in(4)) {
		message->rotary_dim = 8;
		message->rotary_base = 10000;
		message->flags |= once_in(2) ? FA_WIRE_STEP_ROTARY_INTERLEAVED : 0;
		if (cache->head_dim > 8 && once_in(2)) {
			message->rotary_first = cache->head_dim - 8;
			message->flags |= FA_WIRE_STEP_ROTARY_FIRST;
		}
	}
	if (once_in(6))
		message->flags |= FA_WIRE_STEP_DETERMINISTIC;
	step->layer += n_layers > cache->layers - step->layer ? cache->layers - step->layer
	                                                      : n_layers;
	return true;
}

/* Composes a message that must come before a StepAttend. */
static void prepare_attend(struct client *client, struct parcel *parcel)
{
	if (!any_buffer(client, true))
		compose(client, FA_WIRE_BUFFER_REGISTER, parcel);
	else
		compose(client, any_step(client, false) ? FA_WIRE_STEP_END : FA_WIRE_STEP_BEGIN,
		        parcel);
}

static void compose_attend(struct client *client, struct parcel *parcel)
{
	uint64_t bytes;

	if (fill_attend(client, &parcel->message.step_attend, 1, &bytes))
		compose_gates(client, &parcel->message);
	else
		prepare_attend(client, parcel);
}

static void compose_layers(struct client *client, struct parcel *parcel)
{
	struct fa_wire_step_attend_layers *message = &parcel->message.step_attend_layers;
	const struct step *step = any_step(client, true);
	const struct cache *cache = step ? find_cache(step->cache) : NULL;
	uint32_t n = cache ? cache->layers - step->layer : 1;
	uint64_t bytes;

	if (!fill_attend(client, &message->attend, n, &bytes)) {
		prepare_attend(client, parcel);
		return;
	}
	message->n_layers = n;
	message->q_bytes = message->k_bytes = message->v_bytes = message->out_bytes = bytes;
	message->lse_bytes = bytes;
	compose_gates(client, &parcel->message);
	if (client->in && once_in(3)) {
		message->has_wait = true;
		message->wait = (struct fa_wire_gate){ .slot = 5 };
		message->wait.value = atomic_load(&client->in[5].value);
		message->wait_increment = pick(2);
		message->has_signal = true;
		message->signal = (struct fa_wire_gate){ .slot = 6 };
		message->signal.value = client->signalled[6] + 1;
		message->signal_increment = 1;
		client->signalled[6] += n;
	}
}

static void compose_end(struct client *client, struct parcel *parcel)
{
	struct fa_wire_step_end *message = &parcel->message.step_end;
	struct step *step = any_step(client, false);
	uint32_t n = 0;

	/* The cache of a step may be gone. */
	for (int i = 0; i < STEPS && !step; ++i)
		step = client->steps[i].id ? &client->steps[i] : NULL;
	if (!step) {
		compose(client, FA_WIRE_STEP_BEGIN, parcel);
		return;
	}
	message->stream = once_in(4) ? any_stream(client) : step->stream;
	message->step = step->id;
	message->flags = once_in(8) ? 0 : FA_WIRE_STEP_COMMIT;
	if (message->flags && once_in(4)) {
		for (uint32_t i = 0; i < step->n_items; ++i) {
			struct item *item = &step->items[i];

			starts[i] = n;
			item->kept = pick(item->n + 1);
			for (uint32_t j = 0; j < item->kept; ++j)
				words[n++] = j;
		}
		starts[step->n_items] = n;
		message->keep = words;
		message->n_keep = n;
		message->cu_keep = starts;
		message->n_cu_keep = step->n_items + 1;
	}
	parcel->step = *step;
	step->id = 0;
	compose_gates(client, &parcel->message);
}

static void compose_copy(struct client *client, struct parcel *parcel)
{
	struct fa_wire_sequence_copy *message = &parcel->message.sequence_copy;
	const struct buffer *buffer = any_buffer(client, true);
	const struct step *step = once_in(2) ? any_step(client, false) : NULL;
	const bool writes = step && step->items[0].n;
	const struct sequence *sequence = writes ? find_sequence(step->items[0].sequence)
	                                         : any_sequence(client, 1, false, false);
	const struct cache *cache = sequence ? find_cache(sequence->cache) : NULL;
	uint64_t at = 64ull * pick(64);
	uint32_t n;

	if (!buffer || !cache || sequence->first >= sequence->length + writes) {
		if (buffer)
			append(client, parcel);
		else
			compose(client, FA_WIRE_BUFFER_REGISTER, parcel);
		return;
	}
	n = writes ? step->items[0].n : (uint32_t)(sequence->length - sequence->first);
	n = 1 + pick(n < TOKENS_MAX ? n : TOKENS_MAX);
	{
		const int64_t k[] = { n, cache->kv_heads, cache->head_dim },
			      v[] = { n, cache->kv_heads, cache->head_dim_v };

		message->k = compose_view(buffer, &at, cache->dtype, 3, k);
		if (!(cache->flags & FA_WIRE_CACHE_V_IN_K))
			message->v = compose_view(buffer, &at, cache->dtype, 3, v);
	}
	message->stream = any_stream(client);
	message->sequence = sequence->id;
	message->flags = writes ? FA_WIRE_COPY_WRITE : 0;
	message->layer = pick(cache->layers);
	message->first = writes ? sequence->length : sequence->first;
	compose_gates(client, &parcel->message);
}

/* Makes a copy of one layer, and from that a copy of the same tokens in all layers. */
static void compose_pages(struct client *client, struct parcel *parcel)
{
	static struct fa_wire_place places[2][FA_WIRE_LAYERS_MAX];
	struct fa_wire_sequence_pages *message = &parcel->message.sequence_pages;
	struct parcel of_layer = { .message = { .type = FA_WIRE_SEQUENCE_COPY } };
	const struct fa_wire_sequence_copy *copy = &of_layer.message.sequence_copy;
	const uint32_t page_tokens = 1 + pick(20), offset = pick(page_tokens);
	const struct sequence *sequence;
	const struct buffer *buffer;
	const struct cache *cache;
	uint64_t at = 64ull * pick(64);
	uint32_t n_pages;

	compose_copy(client, &of_layer);
	sequence = of_layer.message.type == FA_WIRE_SEQUENCE_COPY ? find_sequence(copy->sequence)
	                                                          : NULL;
	cache = sequence ? find_cache(sequence->cache) : NULL;
	buffer = any_buffer(client, true);
	if (!cache || !buffer || cache->layers > FA_WIRE_LAYERS_MAX) {
		*parcel = of_layer;
		return;
	}
	n_pages = (offset + (uint32_t)copy->k.shape[0] - 1) / page_tokens + 1;
	message->stream = copy->stream;
	message->sequence = copy->sequence;
	message->flags = copy->flags;
	message->first = copy->first;
	message->n_tokens = (uint64_t)copy->k.shape[0];
	message->page_offset = offset;
	for (uint32_t layer = 0; layer < cache->layers; ++layer)
		for (int side = 0; side < 2; ++side) {
			const int64_t shape[] = { n_pages + 1, page_tokens, cache->kv_heads,
				                  side ? cache->head_dim_v : cache->head_dim };
			struct fa_wire_view *view = side ? &message->v : &message->k;

			if (side && cache->flags & FA_WIRE_CACHE_V_IN_K)
				continue;
			*view = compose_view(buffer, &at, cache->dtype, 4, shape);
			places[side][layer] = (struct fa_wire_place){ .offset = view->offset,
				                                      .buffer = view->buffer };
			view->offset = view->buffer = 0;
		}
	message->k_places = places[0];
	message->n_k_places = cache->layers;
	message->v_places = places[1];
	message->n_v_places = message->v.rank ? cache->layers : 0;
	message->n_pages = n_pages;
	for (uint32_t i = 0; i < message->n_pages; ++i)
		words[i] = n_pages - i;
	message->pages = words;
	compose_gates(client, &parcel->message);
}

static void compose_state(struct client *client, struct parcel *parcel)
{
	struct fa_wire_sequence_state *message = &parcel->message.sequence_state;
	const struct buffer *buffer = any_buffer(client, true);
	const struct step *step = once_in(2) ? any_step(client, false) : NULL;
	const struct sequence *sequence = step ? find_sequence(step->items[0].sequence)
	                                       : any_sequence(client, 1, false, false);
	uint64_t at = 64ull * pick(64);
	int64_t n;

	if (!buffer || !sequence || !has_states(sequence)) {
		compose(client, buffer ? FA_WIRE_STEP_BEGIN : FA_WIRE_BUFFER_REGISTER, parcel);
		return;
	}
	message->state = pick(2);
	n = state_bytes[message->state] / 4;
	message->data = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 1, &n);
	message->stream = any_stream(client);
	message->sequence = sequence->id;
	message->flags = step ? FA_WIRE_COPY_WRITE : 0;
	message->tokens = once_in(3) ? sequence->length : 0;
	compose_gates(client, &parcel->message);
}

void compose_kv(struct client *client, enum fa_wire_type type, struct parcel *ret_parcel)
{
	switch (type) {
	case FA_WIRE_CACHE_CREATE:
		return compose_cache_create(client, ret_parcel);
	case FA_WIRE_CACHE_FIND:
		return compose_cache_find(client, ret_parcel);
	case FA_WIRE_CACHE_REMOVE:
		return compose_cache_remove(client, ret_parcel);
	case FA_WIRE_SEQUENCE_CREATE:
		return compose_sequence_create(client, ret_parcel);
	case FA_WIRE_SEQUENCE_FIND:
		return compose_sequence_find(client, ret_parcel);
	case FA_WIRE_SEQUENCE_FORK:
	case FA_WIRE_SEQUENCE_SET_NAME:
	case FA_WIRE_SEQUENCE_TRUNCATE:
	case FA_WIRE_SEQUENCE_DROP:
	case FA_WIRE_SEQUENCE_FREE:
	case FA_WIRE_SEQUENCE_INFO:
		return compose_of_sequence(client, type, ret_parcel);
	case FA_WIRE_SEQUENCE_PUBLISH:
	case FA_WIRE_SEQUENCE_ATTACH:
		return compose_prefix(client, type, ret_parcel);
	case FA_WIRE_PREFIX_FIND:
		return compose_prefix_find(client, ret_parcel);
	case FA_WIRE_SEQUENCE_COPY:
		return compose_copy(client, ret_parcel);
	case FA_WIRE_SEQUENCE_PAGES:
		return compose_pages(client, ret_parcel);
	case FA_WIRE_SEQUENCE_STATE:
		return compose_state(client, ret_parcel);
	case FA_WIRE_STEP_BEGIN:
		return compose_begin(client, ret_parcel);
	case FA_WIRE_STEP_ATTEND:
		return compose_attend(client, ret_parcel);
	case FA_WIRE_STEP_ATTEND_LAYERS:
		return compose_layers(client, ret_parcel);
	case FA_WIRE_STEP_END:
		return compose_end(client, ret_parcel);
	default: /* no fields */
		return;
	}
}
