#include "tests/fuzz/compose_private.h"

#include "tests/fuzz/choose.h"
#include "tests/fuzz/host.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static char name_text[16];
static uint32_t words[3], starts[3], prefixes[4];
static struct fa_wire_gate waits[2], signals[2];
static float floats[64];

struct fa_wire_string compose_name(uint32_t number)
{
	snprintf(name_text, sizeof(name_text), "n%u", number);
	return (struct fa_wire_string){ .text = name_text, .length = strlen(name_text) };
}

/* ---- what there is */

struct buffer *any_buffer(struct client *client, bool writable)
{
	const uint32_t from = pick(BUFFERS);

	for (uint32_t i = 0; i < BUFFERS; ++i) {
		struct buffer *buffer = &client->buffers[(from + i) % BUFFERS];

		if (buffer->id && buffer->bytes >= BUFFER_BYTES && !(writable && buffer->read_only))
			return buffer;
	}
	return NULL;
}

uint32_t any_stream(const struct client *client)
{
	const uint32_t from = pick(8);

	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		if (client->streams[(from + i) % FA_COMPLETION_SLOTS])
			return (from + i) % FA_COMPLETION_SLOTS;
	return 0;
}

/* ---- tensors */

static uint64_t element_bytes(uint8_t dtype)
{
	if (dtype == FA_WIRE_DTYPE_I64)
		return 8;
	return dtype == FA_WIRE_DTYPE_F32 || dtype == FA_WIRE_DTYPE_I32 ? 4 : 2;
}

/* A packed tensor at @at, which moves behind it. Of four dimensions the first is @batch. */
struct fa_wire_view compose_view(const struct buffer *buffer, uint64_t *at, uint8_t dtype, int rank,
                                 const int64_t *shape)
{
	struct fa_wire_view view = {
		.buffer = buffer->id, .dtype = dtype, .rank = (uint8_t)rank, .offset = *at
	};
	int64_t n = 1;

	for (int i = rank; i--;) {
		view.shape[i] = shape[i];
		view.strides[i] = n;
		n *= shape[i];
	}
	*at += ((uint64_t)n * element_bytes(dtype) + 63) / 64 * 64;
	return view;
}

void compose_gates(struct client *client, struct fa_wire_message *message)
{
	const uint32_t slot = pick(4);

	if (!client->in || pick(4))
		return;
	waits[0] = (struct fa_wire_gate){ .slot = slot,
		                          .value = atomic_load(&client->in[slot].value) + pick(3) };
	signals[0] = (struct fa_wire_gate){ .slot = slot,
		                            .value = client->signalled[slot] + 1 + pick(2) };
	client->signalled[slot] = signals[0].value;
	waits[1] = (struct fa_wire_gate){ .slot = slot | FA_WIRE_GATE_OUT,
		                          .value = client->signalled[slot] - 1 };
	message->n_waits = pick(3);
	message->waits = message->n_waits ? waits : NULL;
	message->n_signals = pick(2);
	message->signals = message->n_signals ? signals : NULL;
}

/* ---- sessions */

static void compose_hello(struct client *client, struct parcel *parcel)
{
	struct fa_wire_hello *hello = &parcel->message.hello;

	hello->version_min = hello->version_max = 1;
	hello->name = compose_name(client->index);
	if (!once_in(8))
		return;
	hello->has_resume = true;
	hello->resume_secret = world.clients[pick(CLIENTS)].secret;
	hello->resume_generation = world.clients[0].generation;
}

static void compose_stream_free(struct client *client, struct parcel *parcel)
{
	parcel->message.stream_free.stream = any_stream(client);
	if (parcel->message.stream_free.stream)
		return;
	for (uint32_t i = 1; i < FA_COMPLETION_SLOTS; ++i)
		if (client->streams[i]) {
			parcel->message.stream_free.stream = i;
			return;
		}
	compose(client, FA_WIRE_STREAM_CREATE, parcel);
}

static void compose_stream_create(struct client *client, struct parcel *parcel)
{
	uint32_t stream = 1 + pick(5), n = 0;

	for (uint32_t i = 0; i < FA_COMPLETION_SLOTS; ++i)
		n += client->streams[i];
	if (n > 4 || client->streams[stream]) {
		compose(client, n > 4 ? FA_WIRE_STREAM_FREE : FA_WIRE_PING, parcel);
		return;
	}
	parcel->message.stream_create.stream = stream;
	parcel->message.stream_create.priority = (int8_t)(pick(2));
}

/* ---- buffers */

static int memfd(uint64_t bytes, int seals)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	host_demand(fd >= 0 && !ftruncate(fd, (off_t)bytes), "no memfd");
	if (seals)
		host_demand(!fcntl(fd, F_ADD_SEALS, seals), "no seal");
	return fd;
}

static int wrong_fd(void)
{
	int pair[2];

	switch (pick(7)) {
	case 0:
		return memfd(BUFFER_BYTES, 0);
	case 1:
		return memfd(BUFFER_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
	case 2:
		return memfd(1ull << 40, F_SEAL_SHRINK);
	case 3:
		return memfd(0, F_SEAL_SHRINK);
	case 4:
		return memfd(BUFFER_BYTES - 4096, F_SEAL_SHRINK);
	case 5:
		return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	default:
		host_demand(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), "no socket");
		close(pair[1]);
		return pair[0];
	}
}

static void add_fds(struct parcel *parcel, size_t n)
{
	for (size_t i = 0; i < n; ++i)
		parcel->fds[parcel->n_fds++] = once_in(16) ? wrong_fd()
		                                           : memfd(BUFFER_BYTES, F_SEAL_SHRINK);
	parcel->message.fds = (uint8_t)parcel->n_fds;
}

/* The first pieces of a buffer; others follow. */
static void register_pieces(struct client *client, struct parcel *parcel)
{
	struct fa_wire_buffer_register *message = &parcel->message.buffer_register;

	message->kind = FA_WIRE_BUFFER_CUDA_FD;
	message->handle[0] = 0;
	message->n_pieces = 2 + pick(3);
	message->n_piece_bytes = 1 + pick(2);
	for (size_t i = 0; i < message->n_piece_bytes; ++i)
		message->piece_bytes[i] = BUFFER_BYTES;
	add_fds(parcel, message->n_piece_bytes);
	client->registering = message->buffer;
	client->n_pieces = message->n_pieces - (uint32_t)message->n_piece_bytes;
}

static void compose_register(struct client *client, struct parcel *parcel)
{
	struct fa_wire_buffer_register *message = &parcel->message.buffer_register;
	uint32_t id = 1, n = 0;

	for (int i = 0; i < BUFFERS; ++i) {
		n += client->buffers[i].id != 0;
		if (client->buffers[i].id >= id)
			id = client->buffers[i].id + 1;
	}
	if (client->registering) {
		compose(client, once_in(4) ? FA_WIRE_BUFFER_FREE : FA_WIRE_BUFFER_PIECES, parcel);
		return;
	}
	if (n == BUFFERS) {
		parcel->message.type = FA_WIRE_BUFFER_FREE;
		parcel->message.buffer_free.buffer = client->buffers[pick(BUFFERS)].id;
		return;
	}
	message->buffer = id;
	message->bytes = BUFFER_BYTES;
	switch (pick(6)) {
	case 0:
		message->kind = FA_WIRE_BUFFER_CUDA_IPC;
		message->handle[0] = 1;
		break;
	case 1:
		register_pieces(client, parcel);
		break;
	case 2:
		message->kind = FA_WIRE_BUFFER_ARENA;
		break;
	default:
		message->kind = FA_WIRE_BUFFER_HOST_FD;
		message->flags = once_in(6) ? FA_WIRE_BUFFER_READ_ONLY : 0;
		add_fds(parcel, 1);
		break;
	}
}

static void compose_pieces(struct client *client, struct parcel *parcel)
{
	struct fa_wire_buffer_pieces *message = &parcel->message.buffer_pieces;

	if (!client->registering) {
		compose(client, FA_WIRE_BUFFER_REGISTER, parcel);
		if (parcel->message.type == FA_WIRE_BUFFER_REGISTER && !parcel->n_fds)
			register_pieces(client, parcel);
		return;
	}
	if (!client->n_pieces) {
		compose(client, FA_WIRE_BUFFER_FREE, parcel);
		return;
	}
	message->buffer = client->registering;
	message->n_piece_bytes = 1 + pick(client->n_pieces);
	if (once_in(16))
		++message->n_piece_bytes;
	for (size_t i = 0; i < message->n_piece_bytes; ++i)
		message->piece_bytes[i] = BUFFER_BYTES;
	client->n_pieces -= message->n_piece_bytes > client->n_pieces
	                            ? client->n_pieces
	                            : (uint32_t)message->n_piece_bytes;
	add_fds(parcel, message->n_piece_bytes);
}

static void compose_buffer_free(struct client *client, struct parcel *parcel)
{
	const struct buffer *buffer = any_buffer(client, false);

	if (client->registering && (!buffer || once_in(2)))
		parcel->message.buffer_free.buffer = client->registering;
	else if (buffer)
		parcel->message.buffer_free.buffer = buffer->id;
	else
		compose(client, FA_WIRE_BUFFER_REGISTER, parcel);
}

/* ---- attention */

static void compose_attention(struct client *client, struct parcel *parcel)
{
	struct fa_wire_attention *message = &parcel->message.attention;
	const struct buffer *buffer = any_buffer(client, true);
	const int64_t kv_heads = 1 + pick(2), heads = kv_heads * (1 + pick(2)), dim = 8 << pick(3);
	const int64_t dim_v = once_in(3) ? 8 : dim, n_q = 1 + pick(12), n_k = n_q + pick(12);
	const bool ragged = once_in(3);
	const int64_t batch = 1 + pick(2);
	const uint8_t dtype = (uint8_t)(1 + pick(3));
	const bool e4m3 = once_in(4);
	const uint8_t input = e4m3 ? FA_WIRE_DTYPE_E4M3 : dtype;
	/* One array for both ranks: a ragged tensor begins at the second. */
	const int64_t q[] = { batch, n_q, heads, dim }, k[] = { batch, n_k, kv_heads, dim },
		      v[] = { batch, n_k, kv_heads, dim_v }, out[] = { batch, n_q, heads, dim_v },
		      lse[] = { batch, heads, n_q };
	const int rank = ragged ? 3 : 4;
	uint64_t at = 64ull * pick(64);

	if (!buffer) {
		compose(client, FA_WIRE_BUFFER_REGISTER, parcel);
		return;
	}
	message->q = compose_view(buffer, &at, input, rank, q + ragged);
	message->k = compose_view(buffer, &at, input, rank, k + ragged);
	message->v = compose_view(buffer, &at, input, rank, v + ragged);
	message->out = compose_view(buffer, &at, dtype, rank, out + ragged);
	if (once_in(3))
		message->lse = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, rank - 1, lse + ragged);
	if (once_in(9) || (e4m3 && once_in(2))) {
		const int64_t of_tokens[] = { 1, ragged ? n_q : 1, heads },
			      of_heads[] = { once_in(2) ? batch : 1, 1, kv_heads };

		message->q_scales = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 3, of_tokens);
		message->k_scales = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 3, of_heads);
		message->v_scales = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 3, of_heads);
	}
	message->stream = any_stream(client);
	message->window_left = once_in(4) ? (int64_t)pick(8) : -1;
	message->window_right = once_in(6) ? (int64_t)pick(8) : -1;
	message->flags = once_in(2) ? FA_WIRE_ATTENTION_CAUSAL : 0;
	message->softcap = once_in(4) ? 3 : 0;
	message->chunk_tokens = once_in(4) ? 1 + pick(16) : once_in(9) ? UINT64_MAX : 0;
	if (once_in(4)) {
		for (int i = 0; i < 4; ++i)
			prefixes[i] = once_in(9) ? UINT32_MAX : pick(30);
		message->prefix_lengths = prefixes;
		message->n_prefix_lengths = once_in(9) ? 4 : (size_t)(ragged ? 2 : batch);
	}
	if (once_in(5)) {
		message->pattern_block_tokens = once_in(9) ? pick(99) : 16u << pick(3);
		message->pattern_local_blocks = once_in(9) ? UINT32_MAX : pick(4);
		message->pattern_vert_stride = once_in(9) ? 0 : 1 + pick(5);
		message->pattern_head_step = (int32_t)pick(5) - 2;
		message->pattern_first_head = once_in(9) ? UINT32_MAX : pick(9);
	}
	if (once_in(5)) {
		const int64_t row_blocks = once_in(9) ? 3 : 2;
		const int64_t lists[] = { 1, once_in(2) ? heads : 1, row_blocks },
			      columns[] = { 1, 1, 5 };

		message->block_rows = once_in(9) ? pick(200) : 64;
		message->block_keys = 128;
		message->block_offsets = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 3, lists);
		message->block_columns = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 3, columns);
	}
	if (once_in(5)) {
		const int64_t bits[] = { once_in(2) ? (ragged ? 2 : batch) : 1, 1, n_q, 1 };

		message->mask = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 4, bits);
	}
	for (int i = 0; i < 8; ++i)
		floats[i] = (float)i / 8;
	if (once_in(4)) {
		message->alibi_slopes = floats;
		message->n_alibi_slopes = (size_t)heads;
	}
	if (once_in(4)) {
		message->sinks = floats;
		message->n_sinks = (size_t)heads;
	}
	if (ragged) {
		words[0] = starts[0] = 0;
		words[1] = pick((uint32_t)n_q + 1);
		starts[1] = pick((uint32_t)n_k + 1);
		words[2] = (uint32_t)n_q;
		starts[2] = (uint32_t)n_k;
		message->cu_seqlens_q = words;
		message->cu_seqlens_k = starts;
		message->n_cu_seqlens_q = message->n_cu_seqlens_k = 3;
	}
	compose_gates(client, &parcel->message);
}

/* The tables are what the buffer holds. */
static void compose_pages_attend(struct client *client, struct parcel *parcel)
{
	struct fa_wire_pages_attend *message = &parcel->message.pages_attend;
	const struct buffer *buffer = any_buffer(client, true);
	const int64_t kv_heads = 1 + pick(2), heads = kv_heads * (1 + pick(2)), dim = 8 << pick(3);
	const int64_t batch = 1 + pick(3), n_q = 1 + pick(5), tokens = 1 + pick(4);
	const int64_t q[] = { batch * n_q, heads, dim }, lse[] = { heads, batch * n_q };
	const int64_t k[] = { 1 + pick(8), 1 + pick(16), kv_heads, dim };
	const int64_t table[] = { batch, 1 + pick(4) }, lengths[] = { batch }, cu[] = { batch + 1 };
	const int64_t k_new[] = { tokens, kv_heads, dim }, slots[] = { tokens };
	const uint8_t dtype = (uint8_t)(1 + pick(3));
	uint64_t at = 64ull * pick(64);

	if (!buffer) {
		compose(client, FA_WIRE_BUFFER_REGISTER, parcel);
		return;
	}
	message->q = compose_view(buffer, &at, dtype, 3, q);
	message->k = compose_view(buffer, &at, dtype, 4, k);
	message->v = compose_view(buffer, &at, dtype, 4, k);
	message->out = compose_view(buffer, &at, dtype, 3, q);
	if (once_in(3))
		message->lse = compose_view(buffer, &at, FA_WIRE_DTYPE_F32, 2, lse);
	message->table = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 2, table);
	message->lengths = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 1, lengths);
	if (once_in(2))
		message->cu_q = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 1, cu);
	if (once_in(2)) {
		message->k_new = compose_view(buffer, &at, dtype, 3, k_new);
		message->v_new = compose_view(buffer, &at, dtype, 3, k_new);
		message->slots = compose_view(buffer, &at, FA_WIRE_DTYPE_I64, 1, slots);
	}
	message->stream = any_stream(client);
	message->max_q = (uint32_t)n_q;
	if (once_in(5)) {
		message->pattern_block_tokens = once_in(9) ? pick(99) : 16u << pick(3);
		message->pattern_local_blocks = once_in(9) ? UINT32_MAX : pick(4);
		message->pattern_vert_stride = once_in(9) ? 0 : 1 + pick(5);
		message->pattern_head_step = (int32_t)pick(5) - 2;
		message->pattern_first_head = once_in(9) ? UINT32_MAX : pick(9);
	}
	message->chunk_tokens = once_in(4) ? 1 + pick(16) : once_in(9) ? UINT64_MAX : 0;
	if (once_in(4))
		message->prefix_lengths = compose_view(buffer, &at, FA_WIRE_DTYPE_I32, 1, lengths);
	message->window_left = once_in(4) ? (int64_t)pick(8) : -1;
	message->window_right = -1;
	message->flags = pick(4);
	compose_gates(client, &parcel->message);
}

static void compose_marker(struct client *client, struct parcel *parcel)
{
	parcel->message.marker.stream = any_stream(client);
	compose_gates(client, &parcel->message);
}

static void compose_cancel(struct client *client, struct parcel *parcel)
{
	for (unsigned int i = 0; i < client->n_pending; ++i) {
		const struct pending *pending = &client->pending[i];

		if (pending->of_stream && pending->has_stream) {
			parcel->message.cancel.stream = pending->stream;
			parcel->message.cancel.value = pending->value + pick(pending->n);
			return;
		}
	}
	/* A marker that waits can be cancelled next. */
	compose(client, client->in ? FA_WIRE_MARKER : FA_WIRE_TIMELINE_SETUP, parcel);
	if (parcel->message.type == FA_WIRE_MARKER) {
		waits[0] = (struct fa_wire_gate){ .value = atomic_load(&client->in[0].value) + 1 };
		parcel->message.waits = waits;
		parcel->message.n_waits = 1;
	}
}

void compose(struct client *client, enum fa_wire_type type, struct parcel *ret_parcel)
{
	memset(&ret_parcel->message, 0, sizeof(ret_parcel->message));
	memset(&ret_parcel->step, 0, sizeof(ret_parcel->step));
	ret_parcel->message.type = type;
	switch (type) {
	case FA_WIRE_HELLO:
		return compose_hello(client, ret_parcel);
	case FA_WIRE_BUFFER_REGISTER:
		return compose_register(client, ret_parcel);
	case FA_WIRE_BUFFER_PIECES:
		return compose_pieces(client, ret_parcel);
	case FA_WIRE_BUFFER_FREE:
		return compose_buffer_free(client, ret_parcel);
	case FA_WIRE_STREAM_CREATE:
		return compose_stream_create(client, ret_parcel);
	case FA_WIRE_STREAM_FREE:
		return compose_stream_free(client, ret_parcel);
	case FA_WIRE_ATTENTION:
		return compose_attention(client, ret_parcel);
	case FA_WIRE_PAGES_ATTEND:
		return compose_pages_attend(client, ret_parcel);
	case FA_WIRE_MARKER:
		return compose_marker(client, ret_parcel);
	case FA_WIRE_CANCEL:
		return compose_cancel(client, ret_parcel);
	case FA_WIRE_RING_SETUP:
		if (client->ring_memory)
			compose(client, FA_WIRE_MARKER, ret_parcel);
		else
			ret_parcel->message.ring_setup.bytes = 4096ull << pick(4);
		return;
	case FA_WIRE_TIMELINE_SETUP:
		if (client->in)
			compose(client, FA_WIRE_MARKER, ret_parcel);
		return;
	default:
		compose_kv(client, type, ret_parcel);
		return;
	}
}
