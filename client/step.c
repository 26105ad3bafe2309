/*
 * Steps. One lives in the daemon as long as the connection over which it was begun: the
 * handle remembers which that was, and is good for nothing afterwards.
 */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>

#define FLAGS_ATTEND                                                                               \
	(FA_STEP_CAUSAL | FA_STEP_WINDOW | FA_STEP_ROTARY_INTERLEAVED | FA_STEP_DETERMINISTIC)

#define ROTARY_BASE_DEFAULT 10000.0

_Static_assert(FA_STEP_CAUSAL == FA_WIRE_STEP_CAUSAL, "flags travel as they are");
_Static_assert(sizeof(struct fa_step_item) == sizeof(struct fa_wire_step_item) &&
                       offsetof(struct fa_step_item, n_new) ==
                               offsetof(struct fa_wire_step_item, n_new) &&
                       offsetof(struct fa_step_item, reserved) ==
                               offsetof(struct fa_wire_step_item, reserved),
               "items travel as they are");

struct fa_step {
	/* Never change. */
	struct fa_client *client;
	uint64_t number;
	uint32_t id, epoch, n_items;
	/* With the client's mutex. */
	bool ended;          /* its end was sent */
	struct fa_list link; /* fa_client.abandoned */
};

/* ---- with the mutex */

int fa_step_check(struct fa_step *step)
{
	const struct fa_client *client = step->client;

	if (step->ended)
		return fa_error_set(-EINVAL, "the step was committed or aborted before");
	if (client->state == FA_CLIENT_LOST || client->epoch != step->epoch)
		return fa_error_set(-ECONNRESET, "the step is gone with the connection: %.200s",
		                    client->lost_error.text);
	return 0;
}

void fa_step_set_ended(struct fa_step *step)
{
	step->ended = true;
}

/* Whether the daemon has it, and was not asked to end it. */
static bool is_open(const struct fa_step *step)
{
	const struct fa_client *client = step->client;

	return !step->ended && client->state != FA_CLIENT_LOST && client->epoch == step->epoch;
}

void fa_step_forget_abandoned(struct fa_client *client)
{
	while (!fa_list_empty(&client->abandoned)) {
		struct fa_step *step = fa_container_of(client->abandoned.next, struct fa_step,
		                                       link);

		fa_list_remove(&step->link);
		free(step);
	}
}

/* Asks for the abort of @step (consumed), waiting for room. One that there is no room for is
 * abandoned, which is an error: its turn comes before another step is begun. */
static int end_step(struct fa_step *step, uint64_t until_ns, uint64_t *ret_value)
{
	struct fa_request request = { .message.type = FA_WIRE_STEP_END, .step = step };
	int r;

	request.message.step_end.step = step->id;
	r = fa_request_send(step->client, &request, until_ns, ret_value);
	if (r < 0 && is_open(step)) {
		fa_list_append(&step->client->abandoned, &step->link);
		return r;
	}
	free(step);
	return 0;
}

/* One that is begun before they have ended would stand behind them. @value 0: none was asked. */
static void wait_ended(struct fa_client *client, uint64_t value, uint64_t until_ns)
{
	const uint64_t now_ns = fa_now_ns();
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;

	if (until_ns == FA_NS_NEVER)
		left_ns = FA_NS_NEVER;
	if (value)
		(void)fa_result_wait(client, 0, value, left_ns, NULL);
}

static int end_abandoned(struct fa_client *client)
{
	const uint64_t until_ns = fa_deadline_ns(client->call_ns);
	uint64_t value = 0;
	int r = 0;

	while (client->ending_abandoned)
		pthread_cond_wait(&client->changed, &client->lock);
	if (fa_list_empty(&client->abandoned))
		return 0;
	client->ending_abandoned = true;
	/* Those of a connection that is lost go with it. */
	while (r == 0 && !fa_list_empty(&client->abandoned) && client->state != FA_CLIENT_LOST) {
		struct fa_step *step = fa_container_of(client->abandoned.next, struct fa_step,
		                                       link);

		fa_list_remove(&step->link);
		r = end_step(step, until_ns, &value);
	}
	wait_ended(client, value, until_ns);
	client->ending_abandoned = false;
	pthread_cond_broadcast(&client->changed);
	return r;
}

/* ---- beginning */

/* How many words of tree there are: up to the last that a mask needs. */
static int count_tree(const struct fa_step_options *options, size_t *ret_n_tree)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < options->n_items; ++i) {
		uint64_t rows = options->items[i].n_new, words = (rows + 31) / 32;

		if (options->tree_start[i] == FA_STEP_NO_TREE)
			continue;
		if (rows > FA_WIRE_TOKENS_MAX ||
		    options->tree_start[i] + rows * words > FA_WIRE_TOKENS_MAX)
			return fa_error_set(
				-EINVAL,
				"item %u has a tree of %llu tokens from word %u on; all "
				"trees together have at most %u words",
				i, (unsigned long long)rows, options->tree_start[i],
				FA_WIRE_TOKENS_MAX);
		if (options->tree_start[i] + rows * words > n)
			n = options->tree_start[i] + rows * words;
	}
	*ret_n_tree = (size_t)n;
	return 0;
}

static int fill_begin(const struct fa_step_options *options, struct fa_wire_step_begin *wire)
{
	int r;

	if (!options->n_items || !options->items)
		return fa_error_set(-EINVAL, "the step has no items");
	if (options->n_items > FA_WIRE_STEP_MAX)
		return fa_error_set(-EINVAL, "the step has %u items; at most %u are possible",
		                    options->n_items, FA_WIRE_STEP_MAX);
	for (uint32_t i = 0; i < options->n_items; ++i)
		if (options->items[i].reserved)
			return fa_error_set(-EINVAL, "items[%u].reserved is not 0", i);
	if (!options->tree != !options->tree_start)
		return fa_error_set(-EINVAL, "of tree and tree_start only one is given");
	wire->items = (const struct fa_wire_step_item *)options->items;
	wire->n_items = options->n_items;
	if (!options->tree)
		return 0;
	r = count_tree(options, &wire->n_tree);
	if (r < 0 || !wire->n_tree)
		return r;
	wire->tree = options->tree;
	wire->tree_start = options->tree_start;
	wire->n_tree_start = options->n_items;
	return 0;
}

int fa_step_begin(struct fa_client *client, const struct fa_step_options *options,
                  struct fa_step **ret_step)
{
	struct fa_wire_message message = { .type = FA_WIRE_STEP_BEGIN };
	struct fa_call call = { .expect = FA_WIRE_STEP_REPLY };
	_fa_cleanup_(fa_freep) struct fa_step *step = NULL;
	struct fa_step_options known;
	const void *o;
	int r;

	r = fa_struct_in("fa_step_options", options, &known, sizeof(known), &o);
	if (r < 0)
		return r;
	options = o;
	if (!ret_step)
		return fa_error_set(-EINVAL, "ret_step is NULL");
	r = fill_begin(options, &message.step_begin);
	if (r < 0)
		return r;
	step = fa_new(struct fa_step);
	if (!step)
		return fa_error_set(-ENOMEM, "no memory for a step");
	*step = (struct fa_step){ .client = client, .n_items = options->n_items };

	r = fa_client_enter(client);
	if (r < 0)
		return r;
	/* So many begin and do not end that this comes round to one in progress: never. */
	step->id = ++client->last_step ? client->last_step : ++client->last_step;
	r = end_abandoned(client);
	fa_client_leave(client);
	if (r < 0)
		return r;
	message.step_begin.step = step->id;
	r = fa_kv_call(client, &message, true, &call);
	if (r < 0)
		return r;
	step->number = call.step.number;
	step->epoch = call.epoch;
	*ret_step = fa_steal_ptr(step);
	return 0;
}

uint64_t fa_step_number(const struct fa_step *step)
{
	return step ? step->number : 0;
}

/* ---- a layer */

static int fill_heads(const struct fa_step_attend *attend, struct fa_wire_step_attend *wire)
{
	uint64_t heads = (uint64_t)wire->q.shape[1];

	if (!attend->alibi_slopes && !attend->sinks)
		return 0;
	if (!attend->out.buffer || heads > FA_WIRE_HEADS_MAX)
		return fa_error_set(-EINVAL,
		                    "q has %llu heads; expected 1 to %u with alibi_slopes or sinks",
		                    (unsigned long long)heads, FA_WIRE_HEADS_MAX);
	if (attend->alibi_slopes) {
		wire->alibi_slopes = attend->alibi_slopes;
		wire->n_alibi_slopes = heads;
	}
	if (attend->sinks) {
		wire->sinks = attend->sinks;
		wire->n_sinks = heads;
	}
	return 0;
}

static int fill_rotary(struct fa_request *request, struct fa_client *client,
                       const struct fa_step_attend *attend, struct fa_wire_step_attend *wire)
{
	int64_t rows = wire->q.rank ? wire->q.shape[0] : wire->k.shape[0];
	int r;

	if (attend->positions) {
		if (rows > FA_WIRE_TOKENS_MAX)
			return fa_error_set(-EINVAL,
			                    "positions are given for %lld tokens; at most %u are "
			                    "possible",
			                    (long long)rows, FA_WIRE_TOKENS_MAX);
		wire->positions = attend->positions;
		wire->n_positions = (size_t)rows;
	}
	if (!attend->rotary_dim)
		return 0;
	wire->rotary_dim = attend->rotary_dim;
	wire->rotary_base = attend->rotary_base ? attend->rotary_base : ROTARY_BASE_DEFAULT;
	wire->rotary_scale = attend->rotary_scale ? attend->rotary_scale : 1;
	if (!attend->cos.buffer != !attend->sin.buffer)
		return fa_error_set(-EINVAL, "of cos and sin only one has a buffer");
	if (!attend->cos.buffer)
		return 0;
	r = fa_request_tensor(request, "cos", client, &attend->cos, 2, &wire->cos);
	return r < 0 ? r : fa_request_tensor(request, "sin", client, &attend->sin, 2, &wire->sin);
}

static int fill_tensors(struct fa_request *request, struct fa_client *client,
                        const struct fa_step_attend *attend, struct fa_wire_step_attend *wire)
{
	int r = 0;

	if (!attend->out.buffer && !attend->k_new.buffer)
		return fa_error_set(-EINVAL,
		                    "neither out nor k_new has a buffer: nothing is asked");
	if (attend->v_new.buffer && !attend->k_new.buffer)
		return fa_error_set(-EINVAL, "v_new is given, but k_new.buffer is NULL");
	if (attend->out.buffer) {
		r = fa_request_tensor(request, "q", client, &attend->q, 3, &wire->q);
		if (r >= 0)
			r = fa_request_tensor(request, "out", client, &attend->out, 3, &wire->out);
		if (r >= 0 && attend->lse.buffer)
			r = fa_request_tensor(request, "lse", client, &attend->lse, 2, &wire->lse);
	} else if (attend->lse.buffer) {
		r = fa_error_set(-EINVAL, "lse is given, but out.buffer is NULL");
	}
	if (r >= 0 && attend->k_new.buffer)
		r = fa_request_tensor(request, "k_new", client, &attend->k_new, 3, &wire->k);
	if (r >= 0 && attend->v_new.buffer)
		r = fa_request_tensor(request, "v_new", client, &attend->v_new, 3, &wire->v);
	return r;
}

/* The message of one layer. What an older caller leaves out is in @known, which lives as
 * long as the request. */
static int fill_attend(struct fa_request *request, struct fa_step *step,
                       const struct fa_step_attend *attend, struct fa_step_attend *known,
                       struct fa_wire_step_attend *wire)
{
	bool window;
	const void *a;
	int r;

	r = fa_struct_in("fa_step_attend", attend, known, sizeof(*known), &a);
	if (r < 0)
		return r;
	attend = a;
	if (attend->flags & ~FLAGS_ATTEND)
		return fa_error_set(-EINVAL, "fa_step_attend.flags has unknown bits: 0x%x",
		                    attend->flags);
	if (attend->reserved)
		return fa_error_set(-EINVAL, "fa_step_attend.reserved is not 0");

	window = attend->flags & FA_STEP_WINDOW;
	wire->stream = attend->stream;
	wire->step = step->id;
	wire->cache = attend->cache;
	wire->layer = attend->layer;
	wire->flags = attend->flags & FA_STEP_CAUSAL;
	if (attend->flags & FA_STEP_ROTARY_INTERLEAVED)
		wire->flags |= FA_WIRE_STEP_ROTARY_INTERLEAVED;
	if (attend->flags & FA_STEP_DETERMINISTIC)
		wire->flags |= FA_WIRE_STEP_DETERMINISTIC;
	wire->scale = attend->scale;
	wire->softcap = attend->softcap;
	wire->window_left = window ? attend->window_left : -1;
	wire->window_right = window ? attend->window_right : -1;
	r = fill_tensors(request, step->client, attend, wire);
	if (r >= 0)
		r = fill_heads(attend, wire);
	if (r >= 0)
		r = fill_rotary(request, step->client, attend, wire);
	if (r >= 0)
		r = fa_request_gates(request, attend->gates);
	request->message.timeout_ns = attend->timeout_ns;
	return r;
}

int fa_step_attend(struct fa_step *step, const struct fa_step_attend *attend,
                   struct fa_ticket *ret_ticket)
{
	struct fa_request request = { .message.type = FA_WIRE_STEP_ATTEND, .step = step };
	struct fa_step_attend known;
	int r;

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL");
	r = fill_attend(&request, step, attend, &known, &request.message.step_attend);
	return r < 0 ? r : fa_request_submit(step->client, &request, ret_ticket);
}

static int fill_layer_gate(const char *what, const struct fa_gate *gate, bool may_be_out,
                           bool *ret_has, struct fa_wire_gate *ret_gate)
{
	if (!gate)
		return 0;
	*ret_has = true;
	*ret_gate = (struct fa_wire_gate){ .slot = gate->slot,
		                           .reserved = gate->reserved,
		                           .value = gate->value };
	return fa_gate_check(what, gate, may_be_out);
}

/* From the first layer to the last a slot's values only grow, and by less than half around;
 * those of signals with each. */
static int check_increment(const char *name, const struct fa_gate *gate, uint64_t increment,
                           uint64_t least, uint32_t n_layers)
{
	uint64_t most = n_layers > 1 ? INT64_MAX / (n_layers - 1) : UINT64_MAX;

	if (!gate || n_layers < 2 || (increment >= least && increment <= most))
		return 0;
	return fa_error_set(-EINVAL, "%s_increment is %llu; expected %llu to %llu with %u layers",
	                    name, (unsigned long long)increment, (unsigned long long)least,
	                    (unsigned long long)most, n_layers);
}

int fa_step_attend_layers(struct fa_step *step, const struct fa_step_attend_layers *layers,
                          struct fa_ticket *ret_ticket)
{
	struct fa_request request = { .message.type = FA_WIRE_STEP_ATTEND_LAYERS, .step = step };
	struct fa_wire_step_attend_layers *wire = &request.message.step_attend_layers;
	struct fa_step_attend_layers known;
	struct fa_step_attend attend;
	const void *l;
	int r;

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL");
	r = fa_struct_in("fa_step_attend_layers", layers, &known, sizeof(known), &l);
	if (r < 0)
		return r;
	layers = l;
	if (!layers->attend)
		return fa_error_set(-EINVAL, "fa_step_attend_layers.attend is NULL");
	if (!layers->n_layers || layers->n_layers > FA_WIRE_LAYERS_MAX)
		return fa_error_set(-EINVAL, "n_layers is %u; expected 1 to %d", layers->n_layers,
		                    FA_WIRE_LAYERS_MAX);
	r = fill_attend(&request, step, layers->attend, &attend, &wire->attend);
	if (r >= 0)
		r = fill_layer_gate("wait", layers->wait, true, &wire->has_wait, &wire->wait);
	if (r >= 0)
		r = fill_layer_gate("signal", layers->signal, false, &wire->has_signal,
		                    &wire->signal);
	if (r >= 0)
		r = check_increment("wait", layers->wait, layers->wait_increment, 0,
		                    layers->n_layers);
	if (r >= 0)
		r = check_increment("signal", layers->signal, layers->signal_increment, 1,
		                    layers->n_layers);
	if (r < 0)
		return r;
	wire->n_layers = layers->n_layers;
	wire->q_bytes = layers->q_bytes;
	wire->k_bytes = layers->k_bytes;
	wire->v_bytes = layers->v_bytes;
	wire->out_bytes = layers->out_bytes;
	wire->lse_bytes = layers->lse_bytes;
	wire->wait_increment = layers->wait_increment;
	wire->signal_increment = layers->signal_increment;
	return fa_request_submit(step->client, &request, ret_ticket);
}

/* ---- ending */

static int fill_keep(const struct fa_step *step, const struct fa_step_commit *commit,
                     struct fa_wire_step_end *wire)
{
	if (!commit->cu_keep) {
		if (commit->keep)
			return fa_error_set(-EINVAL, "keep is given, but cu_keep is NULL");
		return 0;
	}
	for (uint32_t i = 0; i < step->n_items; ++i)
		if (commit->cu_keep[i] > commit->cu_keep[i + 1])
			return fa_error_set(-EINVAL, "cu_keep[%u] is %u, and the entry before %u",
			                    i + 1, commit->cu_keep[i + 1], commit->cu_keep[i]);
	wire->n_keep = commit->cu_keep[step->n_items];
	if (commit->cu_keep[0] || wire->n_keep > FA_WIRE_TOKENS_MAX ||
	    (wire->n_keep && !commit->keep))
		return fa_error_set(-EINVAL,
		                    "keep is %p, and cu_keep goes from %u to %zu; expected 0 to at "
		                    "most %u",
		                    (const void *)commit->keep, commit->cu_keep[0], wire->n_keep,
		                    FA_WIRE_TOKENS_MAX);
	wire->keep = wire->n_keep ? commit->keep : NULL;
	wire->cu_keep = commit->cu_keep;
	wire->n_cu_keep = (size_t)step->n_items + 1;
	return 0;
}

int fa_step_commit(struct fa_step *step, const struct fa_step_commit *commit,
                   struct fa_ticket *ret_ticket)
{
	struct fa_request request = { .message.type = FA_WIRE_STEP_END, .step = step };
	struct fa_wire_step_end *wire = &request.message.step_end;
	struct fa_step_commit known = { .size = sizeof(known) };
	const void *c = &known;
	int r;

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL");
	if (commit) {
		r = fa_struct_in("fa_step_commit", commit, &known, sizeof(known), &c);
		if (r < 0)
			return r;
	}
	commit = c;
	r = fill_keep(step, commit, wire);
	if (r < 0)
		return r;
	wire->stream = commit->stream;
	wire->step = step->id;
	wire->flags = FA_WIRE_STEP_COMMIT;
	r = fa_request_gates(&request, commit->gates);
	if (r < 0)
		return r;
	request.message.timeout_ns = commit->timeout_ns;
	return fa_request_submit(step->client, &request, ret_ticket);
}

int fa_step_abort(struct fa_step *step, uint32_t stream, struct fa_ticket *ret_ticket)
{
	struct fa_request request = { .message = { .type = FA_WIRE_STEP_END }, .step = step };

	if (!step)
		return fa_error_set(-EINVAL, "the step is NULL");
	request.message.step_end.stream = stream;
	request.message.step_end.step = step->id;
	return fa_request_submit(step->client, &request, ret_ticket);
}

struct fa_step *fa_step_free(struct fa_step *step)
{
	struct fa_client *client;
	uint64_t value = 0;

	if (!step)
		return NULL;
	client = step->client;
	/* In a child of fork() the step is the parent's. */
	if (fa_client_forked(client) || fa_client_enter(client) < 0) {
		free(step);
		return NULL;
	}
	if (is_open(step)) {
		const uint64_t until_ns = fa_deadline_ns(client->call_ns);

		(void)end_step(step, until_ns, &value);
		wait_ended(client, value, until_ns);
	} else {
		free(step);
	}
	fa_client_leave(client);
	return NULL;
}
