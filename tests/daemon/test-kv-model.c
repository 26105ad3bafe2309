/*
 * Random steps over few sequences against a model: planned on one another, committed, aborted and
 * kept in part, in any order and on two streams, while sequences are forked, truncated, dropped
 * from and freed, and another session reads them behind gates.
 */
#include "common/timeline.h"
#include "kv-client.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

enum {
	SEQUENCES = 6,
	STEPS = 4,
	ITEMS = 3,
	READS = 4,
	NEW_MAX = 20,
	LENGTH_MAX = 150,
	ROUNDS = 3000,
};

struct sequence {
	uint64_t id;
	uint32_t first, length, numbers[LENGTH_MAX + STEPS * NEW_MAX];
};

/* A sequence in a step, and the tokens that it has then. */
struct part {
	uint64_t id;
	uint32_t first, before, n;
	bool appends;
	uint32_t numbers[LENGTH_MAX + STEPS * NEW_MAX];
	uint32_t row;
};

struct step {
	uint32_t id;
	bool cancelled;
	uint32_t stream, n_parts;
	struct part parts[ITEMS];
	const float *out[KV_LAYERS];
};

/* A read in flight, with the contents that the sequence had when it was requested. */
struct reading {
	uint32_t n;
	uint32_t numbers[LENGTH_MAX + STEPS * NEW_MAX];
	float *k[KV_LAYERS], *v[KV_LAYERS];
	uint64_t value;
};

static struct fa_test_daemon daemon_process;
static struct fa_test_random random_state;
static struct kv_client client, reader;
static struct fa_timeline_in *in;
static uint64_t opened;
static struct reading readings[READS];
static struct sequence sequences[SEQUENCES];
static struct step steps[STEPS];
static uint32_t last_number, last_step, last_name;
static uint64_t cache;
static unsigned int n_committed, n_cancelled, n_kept, n_busy, n_checked, n_read;

static uint32_t below(uint32_t n)
{
	return (uint32_t)fa_test_random_below(&random_state, n);
}

static struct sequence *find(uint64_t id)
{
	for (int i = 0; i < SEQUENCES; i++)
		if (id && sequences[i].id == id)
			return &sequences[i];
	return NULL;
}

/* The newest part in flight, on which the next append builds, or NULL. */
static const struct part *newest(uint64_t id)
{
	const struct step *best = NULL;
	const struct part *found = NULL;

	for (int i = 0; i < STEPS; i++)
		for (uint32_t j = 0; steps[i].id && j < steps[i].n_parts; j++)
			if (steps[i].parts[j].id == id && steps[i].parts[j].appends &&
			    (!best || steps[i].id > best->id)) {
				best = &steps[i];
				found = &steps[i].parts[j];
			}
	return found;
}

/*
 * Returns true if a step begun before (or after) @step shares a sequence in which both must keep an
 * order; @cancel marks the later ones.
 */
static bool shares(const struct step *step, bool before, bool cancel)
{
	bool found = false;

	for (int i = 0; i < STEPS; i++) {
		struct step *other = &steps[i];

		if (!other->id || (before ? other->id >= step->id : other->id <= step->id))
			continue;
		for (uint32_t j = 0; j < step->n_parts; j++)
			for (uint32_t k = 0; k < other->n_parts; k++) {
				if (step->parts[j].id != other->parts[k].id ||
				    !step->parts[j].appends || !other->parts[k].appends)
					continue;
				found = true;
				if (cancel && step->parts[j].n)
					other->cancelled = true;
			}
	}
	return found;
}

static int try(struct fa_wire_message *message)
{
	fa_raw_call(&client.raw, message, NULL, 0);
	return client.raw.message.type == FA_WIRE_REPLY ? client.raw.message.reply.status : 0;
}

static void check(const struct sequence *sequence)
{
	kv_check(&client, sequence->id, sequence->numbers, sequence->first, sequence->length);
	n_checked++;
}

static void begin(struct step *step)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_BEGIN);
	struct fa_wire_step_item items[ITEMS] = { 0 };
	uint32_t numbers[ITEMS * NEW_MAX], n = 0;
	int r;

	*step = (struct step){ .stream = below(2) };
	for (int i = 0; i < SEQUENCES && step->n_parts < ITEMS; i++) {
		const struct sequence *sequence = &sequences[i];
		struct part *part = &step->parts[step->n_parts];
		const struct part *old;

		if (!sequence->id || below(2))
			continue;
		old = newest(sequence->id);
		part->id = sequence->id;
		part->first = sequence->first;
		part->before = old ? old->before + old->n : sequence->length;
		memcpy(part->numbers, old ? old->numbers : sequence->numbers,
		       part->before * sizeof(part->numbers[0]));
		part->n = part->before > LENGTH_MAX ? 0 : below(5) ? 1 + below(NEW_MAX) : 0;
		part->appends = part->n || old;
		part->row = n;
		for (uint32_t j = 0; j < part->n; j++)
			numbers[n++] = part->numbers[part->before + j] = ++last_number;
		items[step->n_parts++] = (struct fa_wire_step_item){ .sequence = part->id,
			                                             .n_new = part->n };
	}
	if (!step->n_parts)
		return;
	message.step_begin = (struct fa_wire_step_begin){ .step = last_step + 1,
		                                          .items = items,
		                                          .n_items = step->n_parts };
	r = try(&message);
	if (r < 0) {
		fa_check_eq(r, -EBUSY);
		n_busy++;
		return;
	}
	step->id = ++last_step;
	for (uint32_t layer = 0; layer < KV_LAYERS && n; layer++)
		kv_attend(&client, step->stream, step->id, layer, numbers, n, &step->out[layer]);
}

static void wait_for_stream(uint32_t stream)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_MARKER);

	message.marker.stream = stream;
	message.marker.value = ++client.values[stream];
	kv_wait(&client, stream, kv_send(&client, &message, stream));
}

static void check_outs(const struct step *step)
{
	for (uint32_t i = 0; i < step->n_parts; i++) {
		const struct part *part = &step->parts[i];

		for (uint32_t layer = 0; layer < KV_LAYERS && part->n && !part->first; layer++)
			kv_check_out(layer, part->numbers, part->before + part->n, part->n,
			             step->out[layer] + (size_t)part->row * KV_HEADS * KV_DIM_V);
	}
}

static uint32_t choose_kept(struct step *step, uint32_t *keep, uint32_t *cu_keep)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < step->n_parts; i++) {
		struct part *part = &step->parts[i];
		const bool all = below(2);
		uint32_t kept = 0;

		cu_keep[i] = n;
		for (uint32_t j = 0; j < part->n; j++)
			if (all || below(3)) {
				part->numbers[part->before + kept++] =
					part->numbers[part->before + j];
				keep[n++] = j;
			}
		part->n = kept;
	}
	cu_keep[step->n_parts] = n;
	return n;
}

static bool keeps_less(const struct step *step, const struct step *was)
{
	for (uint32_t i = 0; i < step->n_parts; i++)
		for (int j = 0; j < STEPS && step->parts[i].n < was->parts[i].n; j++)
			for (uint32_t k = 0; k < steps[j].n_parts; k++)
				if (steps[j].id > was->id && steps[j].parts[k].appends &&
				    steps[j].parts[k].id == was->parts[i].id)
					return true;
	return false;
}

static void end(struct step *step)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_STEP_END);
	const bool commits = below(8), keeps = commits && below(3) == 0;
	uint32_t keep[ITEMS * NEW_MAX], cu_keep[ITEMS + 1];
	struct fa_raw_completion completion;
	struct step after = *step;
	bool succeeds = commits && !step->cancelled && !shares(step, true, false);

	message.step_end.stream = below(2);
	message.step_end.value = ++client.values[message.step_end.stream];
	message.step_end.step = step->id;
	message.step_end.flags = commits ? FA_WIRE_STEP_COMMIT : 0;
	if (keeps) {
		message.step_end.n_keep = choose_kept(&after, keep, cu_keep);
		message.step_end.keep = keep;
		message.step_end.cu_keep = cu_keep;
		message.step_end.n_cu_keep = step->n_parts + 1;
		succeeds = succeeds && !keeps_less(&after, step);
		n_kept += succeeds;
	}
	(void)kv_send(&client, &message, message.step_end.stream);
	fa_raw_wait(&client.raw, message.step_end.stream, message.step_end.value, &completion);
	if (commits && succeeds)
		fa_check_eq(completion.status, 0);
	else if (commits)
		fa_check(completion.status == -EBUSY || completion.status == -ECANCELED);
	/* A refused StepEnd waits for nothing. */
	if (commits && !succeeds)
		wait_for_stream(step->stream);
	if (!step->cancelled)
		check_outs(step);
	for (uint32_t i = 0; i < step->n_parts && succeeds; i++) {
		const struct part *part = &after.parts[i];
		struct sequence *sequence = find(part->id);

		if (!part->n && !step->parts[i].n)
			continue;
		if (!sequence)
			continue;
		fa_check_eq(sequence->length, part->before);
		sequence->length += part->n;
		memcpy(sequence->numbers, part->numbers,
		       sequence->length * sizeof(part->numbers[0]));
	}
	if (!succeeds)
		(void)shares(step, false, true);
	n_committed += succeeds;
	n_cancelled += step->cancelled;
	step->id = 0;
}

static void name(const struct sequence *sequence)
{
	char text[32];

	snprintf(text, sizeof(text), "s%u", ++last_name);
	kv_set_name(&client, sequence->id, text, 0);
}

/* Reads all durable tokens, once the gate has its next value. */
static void begin_read(struct reading *reading, const struct sequence *sequence)
{
	const struct fa_wire_gate gate = { .slot = 0, .value = opened + 1 };

	if (sequence->length == sequence->first)
		return;
	reading->n = sequence->length - sequence->first;
	memcpy(reading->numbers, sequence->numbers + sequence->first,
	       reading->n * sizeof(reading->numbers[0]));
	for (uint32_t layer = 0; layer < KV_LAYERS; layer++) {
		struct fa_wire_message message = kv_copy_message(
			&reader, 0, sequence->id, layer, sequence->first, reading->n, false,
			&reading->k[layer], &reading->v[layer]);

		message.waits = &gate;
		message.n_waits = 1;
		reading->value = kv_send(&reader, &message, 0);
	}
	(void)kv_info(&reader, sequence->id);
}

static void end_reads(void)
{
	atomic_store(&in[0].value, ++opened);
	for (int i = 0; i < READS; i++) {
		struct reading *reading = &readings[i];
		float k[KV_KV_HEADS * KV_DIM], v[KV_KV_HEADS * KV_DIM_V];

		if (!reading->n)
			continue;
		kv_wait(&reader, 0, reading->value);
		for (uint32_t layer = 0; layer < KV_LAYERS; layer++)
			for (uint32_t j = 0; j < reading->n; j++) {
				kv_fill(layer, reading->numbers[j], k, v, NULL);
				fa_check(!memcmp(k, reading->k[layer] + j * KV_KV_HEADS * KV_DIM,
				                 sizeof(k)));
				fa_check(!memcmp(v, reading->v[layer] + j * KV_KV_HEADS * KV_DIM_V,
				                 sizeof(v)));
			}
		reading->n = 0;
		n_read++;
	}
}

static void change(void)
{
	struct sequence *sequence = &sequences[below(SEQUENCES)],
			*other = &sequences[below(SEQUENCES)];
	struct fa_wire_message message = fa_raw_message(FA_WIRE_SEQUENCE_TRUNCATE);
	uint32_t tokens;

	if (!sequence->id) {
		*sequence = (struct sequence){ .id = kv_sequence(&client, cache) };
		name(sequence);
		return;
	}
	tokens = sequence->first + below(sequence->length - sequence->first + 1);
	switch (below(6)) {
	case 0:
	case 1:
		message.sequence_truncate.sequence = sequence->id;
		message.sequence_truncate.tokens = tokens;
		if (newest(sequence->id)) {
			fa_check_eq(try(&message), -EBUSY);
		} else {
			fa_check_eq(try(&message), 0);
			sequence->length = tokens;
		}
		break;
	case 2:
	case 3:
		if (other->id)
			break;
		if (below(2))
			tokens = sequence->length;
		*other = *sequence;
		other->length = tokens;
		other->id = kv_fork(&client, sequence->id, tokens);
		name(other);
		break;
	case 4:
		if (below(3))
			break;
		kv_drop(&client, sequence->id, tokens);
		sequence->first = tokens - tokens % KV_PAGE > sequence->first
		                          ? tokens - tokens % KV_PAGE
		                          : sequence->first;
		break;
	case 5:
		if (below(2) && sequence->length < LENGTH_MAX)
			break;
		kv_free(&client, sequence->id);
		sequence->id = 0;
	}
}

static void test_random(void **state)
{
	const char *given = getenv("FAD_TEST_SEED");
	struct fa_wire_message message;

	random_state.state = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	printf("FAD_TEST_SEED=%" PRIu64 "\n", random_state.state);
	fflush(stdout);
	for (int i = 0; i < ROUNDS; i++) {
		struct step *step = &steps[below(STEPS)];
		const struct sequence *sequence = &sequences[below(SEQUENCES)];

		if (below(2))
			change();
		else if (step->id)
			end(step);
		else
			begin(step);
		if (sequence->id && below(4) == 0 && !newest(sequence->id))
			check(sequence);
		if (sequence->id && below(8) == 0 && !readings[i % READS].n)
			begin_read(&readings[i % READS], sequence);
		if (below(20) == 0)
			end_reads();
	}
	end_reads();
	for (int i = 0; i < STEPS; i++)
		if (steps[i].id)
			kv_wait(&client, 0, kv_end(&client, 0, steps[i].id, false));
	for (int i = 0; i < SEQUENCES; i++) {
		if (!sequences[i].id)
			continue;
		check(&sequences[i]);
		kv_free(&client, sequences[i].id);
	}
	message = fa_raw_message(FA_WIRE_CACHE_FIND);
	message.cache_find.cache = cache;
	kv_call(&client, &message, FA_WIRE_CACHE_REPLY);
	fa_check_eq(client.raw.message.cache_reply.used_pages, 0);
	fa_check_eq(client.raw.message.cache_reply.sequences, 0);
	printf("%u committed, %u kept in part, %u cancelled, %u busy, %u checked, %u read\n",
	       n_committed, n_kept, n_cancelled, n_busy, n_checked, n_read);
	fa_check(n_committed > 100 && n_kept > 10 && n_cancelled > 10 && n_busy > 10 &&
	         n_read > 10);
}

static int start(void **state)
{
	static const struct fa_test_daemon_options options = {
		.config = "[pool]\nbytes = 16M\nchunk_bytes = 2M\n",
	};

	struct fa_wire_message message = fa_raw_message(FA_WIRE_TIMELINE_SETUP);

	fa_test_daemon_start(&daemon_process, &options);
	kv_open(&client, daemon_process.socket);
	kv_open(&reader, daemon_process.socket);
	fa_raw_call(&reader.raw, &message, NULL, 0);
	fa_check_eq(reader.raw.message.type, FA_WIRE_TIMELINE_REPLY);
	in = mmap(NULL, FA_TIMELINE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, reader.raw.fds[0],
	          0);
	fa_check(in != MAP_FAILED);
	fa_raw_stream_create(&client.raw, 1, 0);
	cache = kv_cache(&client, "c", 0);
	return 0;
}

static int stop(void **state)
{
	munmap(in, FA_TIMELINE_BYTES);
	kv_close(&client);
	kv_close(&reader);
	fa_test_daemon_stop(&daemon_process);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
