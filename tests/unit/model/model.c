#include "tests/unit/model/model.h"

#include "common/memory.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define HISTORY_MAX 160
#define BUFFER_MAX 16
/* The most words that threads may access. */
#define USED_MAX 24
#define VISITED_BITS 23

enum kind {
	LOAD,
	STORE,
	EXCHANGE,
	SIGNAL,
	WAIT,
	RETURNED,
};

struct access {
	enum kind kind;
	uint32_t where; /* an index in used[], or a signal */
	uint64_t value;
};

struct thread {
	uint64_t history[HISTORY_MAX];
	uint64_t history_hash;
	uint32_t n_history;
	uint32_t n_buffer;
	struct {
		uint64_t value;
		uint32_t where;
	} buffer[BUFFER_MAX];
	struct access next;
};

struct state {
	uint64_t memory[USED_MAX];
	bool signals[FA_MODEL_SIGNALS];
	struct thread threads[FA_MODEL_THREADS_MAX];
};

/* The modelled memory; structs in it start on cache lines. */
_Alignas(64) uint64_t fa_model_memory[FA_MODEL_WORDS];

static const struct fa_model *model;
static struct fa_model_result *result;
static uint32_t used[USED_MAX], n_used; /* indices of words in fa_model_memory */
static uint64_t *visited;

/* State of the running thread. */
static const struct thread *running;
static uint32_t position;
static struct access *found;
static jmp_buf leave;

/* ---- called by threads */

static uint32_t index_of(const volatile void *address)
{
	uint32_t word = (uint32_t)((const volatile uint64_t *)address - fa_model_memory);

	for (uint32_t i = 0; i < n_used; ++i)
		if (used[i] == word)
			return i;
	if (word >= FA_MODEL_WORDS || n_used == USED_MAX)
		abort();
	used[n_used] = word;
	return n_used++;
}

static uint64_t access(enum kind kind, uint32_t where, uint64_t value)
{
	if (position < running->n_history)
		return running->history[position++];
	*found = (struct access){ kind, where, value };
	longjmp(leave, 1);
}

uint64_t fa_memory_load64(const _Atomic uint64_t *word)
{
	return access(LOAD, index_of(word), 0);
}

void fa_memory_store64(_Atomic uint64_t *word, uint64_t value)
{
	(void)access(STORE, index_of(word), value);
}

uint32_t fa_memory_load32(const _Atomic uint32_t *word)
{
	return (uint32_t)access(LOAD, index_of(word), 0);
}

void fa_memory_store32(_Atomic uint32_t *word, uint32_t value)
{
	(void)access(STORE, index_of(word), value);
}

uint32_t fa_memory_exchange32(_Atomic uint32_t *word, uint32_t value)
{
	uint32_t before;

	if (!model->lax)
		return (uint32_t)access(EXCHANGE, index_of(word), value);
	before = fa_memory_load32(word);
	fa_memory_store32(word, value);
	return before;
}

void fa_memory_write(void *shared, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
		uint64_t value;

		memcpy(&value, (const char *)from + i, sizeof(value));
		(void)access(STORE, index_of((char *)shared + i), value);
	}
}

void fa_memory_read(void *to, const void *shared, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
		uint64_t value = access(LOAD, index_of((const char *)shared + i), 0);

		memcpy((char *)to + i, &value, sizeof(value));
	}
}

void fa_model_signal(int signal)
{
	(void)access(SIGNAL, (uint32_t)signal, 0);
}

void fa_model_wait(int signal)
{
	(void)access(WAIT, (uint32_t)signal, 0);
}

void fa_model_check(bool holds)
{
	/* Count a failure only at a new access, not when the thread replays earlier ones. */
	result->broken += !holds && position == running->n_history;
}

/* ---- states */

/* Runs the thread until its next access. */
static void look_ahead(struct state *state, size_t i)
{
	struct thread *thread = &state->threads[i];

	running = thread;
	position = 0;
	found = &thread->next;
	if (setjmp(leave))
		return;
	model->threads[i]();
	thread->next = (struct access){ .kind = RETURNED };
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15;
	return hash ^ hash >> 32;
}

static uint64_t state_hash(const struct state *state)
{
	uint64_t hash = 1;

	for (uint32_t i = 0; i < n_used; ++i)
		hash = mix(hash, state->memory[i]);
	for (size_t i = 0; i < FA_MODEL_SIGNALS; ++i)
		hash = mix(hash, state->signals[i]);
	for (size_t i = 0; i < model->n_threads; ++i) {
		const struct thread *thread = &state->threads[i];

		hash = mix(mix(hash, thread->history_hash), thread->n_history);
		hash = mix(hash, thread->n_buffer);
		for (uint32_t k = 0; k < thread->n_buffer; ++k)
			hash = mix(mix(hash, thread->buffer[k].where), thread->buffer[k].value);
	}
	return hash ? hash : 1;
}

/* Returns true if the state is new. */
static bool visit(const struct state *state)
{
	const uint64_t mask = (1ull << VISITED_BITS) - 1;
	uint64_t hash = state_hash(state);

	for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
		if (visited[i] == hash)
			return false;
		if (!visited[i]) {
			visited[i] = hash;
			if (++result->states > mask / 4 * 3)
				abort(); /* the table is too full: increase VISITED_BITS */
			return true;
		}
	}
}

static void flush(struct state *state, size_t i)
{
	struct thread *thread = &state->threads[i];

	state->memory[thread->buffer[0].where] = thread->buffer[0].value;
	memmove(thread->buffer, thread->buffer + 1, --thread->n_buffer * sizeof(*thread->buffer));
}

static uint64_t load(const struct state *state, size_t i, uint32_t where)
{
	const struct thread *thread = &state->threads[i];

	for (uint32_t k = thread->n_buffer; k > 0; --k)
		if (thread->buffer[k - 1].where == where)
			return thread->buffer[k - 1].value;
	return state->memory[where];
}

static bool can_step(const struct state *state, size_t i)
{
	const struct access *next = &state->threads[i].next;

	if (next->kind == RETURNED)
		return false;
	return next->kind != WAIT || state->signals[next->where];
}

static void step(struct state *state, size_t i)
{
	struct thread *thread = &state->threads[i];
	const struct access next = thread->next;
	uint64_t value = 0;

	switch (next.kind) {
	case LOAD:
		value = load(state, i, next.where);
		break;
	case STORE:
		if (thread->n_buffer == BUFFER_MAX)
			flush(state, i);
		thread->buffer[thread->n_buffer].where = next.where;
		thread->buffer[thread->n_buffer++].value = next.value;
		break;
	case EXCHANGE:
		while (thread->n_buffer)
			flush(state, i);
		value = state->memory[next.where];
		state->memory[next.where] = next.value;
		break;
	case SIGNAL:
		state->signals[next.where] = true;
		break;
	case WAIT:
		state->signals[next.where] = false;
		break;
	case RETURNED:
		break;
	}
	if (thread->n_history == HISTORY_MAX)
		abort();
	thread->history[thread->n_history++] = value;
	thread->history_hash = mix(thread->history_hash, value);
	look_ahead(state, i);
}

static void explore(const struct state *from)
{
	bool stuck = true, ended = true;
	struct state *state;

	if ((model->first && result->lost) || !visit(from))
		return;
	state = malloc(sizeof(*state));
	if (!state)
		abort();
	for (size_t i = 0; i < model->n_threads; ++i) {
		ended = ended && from->threads[i].next.kind == RETURNED;
		if (can_step(from, i)) {
			*state = *from;
			step(state, i);
			explore(state);
			stuck = false;
		}
		if (from->threads[i].n_buffer) {
			*state = *from;
			flush(state, i);
			explore(state);
			stuck = false;
		}
	}
	free(state);
	result->ends += stuck && ended;
	result->lost += stuck && !ended;
}

void fa_model_run(const struct fa_model *model_, struct fa_model_result *ret_result)
{
	struct state *state = calloc(1, sizeof(*state));

	model = model_;
	result = ret_result;
	*result = (struct fa_model_result){ 0 };
	n_used = 0;
	visited = calloc(1ull << VISITED_BITS, sizeof(*visited));
	if (!state || !visited)
		abort();
	for (size_t i = 0; i < model->n_threads; ++i)
		look_ahead(state, i);
	explore(state);
	free(visited);
	free(state);
}
