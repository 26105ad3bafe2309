#include "cuda-client.h"

#include "common/cleanup.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUmemAccessDesc access_of(int device)
{
	return (CUmemAccessDesc){ { CU_MEM_LOCATION_TYPE_DEVICE, device },
		                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
}

void cuda_buffer_ipc(struct cuda_buffer *buffer, uint32_t id, uint64_t bytes)
{
	*buffer = (struct cuda_buffer){ .id = id, .kind = FA_WIRE_BUFFER_CUDA_IPC, .bytes = bytes };
	fa_cu(cuMemAlloc(&buffer->at, bytes));
	fa_cu(cuIpcGetMemHandle(&buffer->handle, buffer->at));
}

void cuda_buffer_vmm(struct cuda_buffer *buffer, uint32_t id, size_t n_pieces, int device)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
	const CUmemAccessDesc access = access_of(device);

	fa_check(n_pieces <= CUDA_PIECES_MAX);
	*buffer = (struct cuda_buffer){
		.id = id,
		.kind = FA_WIRE_BUFFER_CUDA_FD,
		.bytes = n_pieces * CUDA_CHUNK,
		.n_pieces = n_pieces,
	};
	fa_cu(cuMemAddressReserve(&buffer->at, buffer->bytes, 0, 0, 0));
	for (size_t i = 0; i < n_pieces; ++i) {
		fa_cu(cuMemCreate(&buffer->pieces[i], CUDA_CHUNK, &properties, 0));
		fa_cu(cuMemMap(buffer->at + i * CUDA_CHUNK, CUDA_CHUNK, 0, buffer->pieces[i], 0));
		fa_cu(cuMemExportToShareableHandle(&buffer->fds[i], buffer->pieces[i],
		                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	}
	fa_cu(cuMemSetAccess(buffer->at, buffer->bytes, &access, 1));
}

void cuda_buffer_end(struct cuda_buffer *buffer)
{
	if (buffer->kind == FA_WIRE_BUFFER_CUDA_IPC) {
		fa_cu(cuMemFree(buffer->at));
		return;
	}
	fa_cu(cuMemUnmap(buffer->at, buffer->bytes));
	fa_cu(cuMemAddressFree(buffer->at, buffer->bytes));
	for (size_t i = 0; i < buffer->n_pieces; ++i) {
		fa_cu(cuMemRelease(buffer->pieces[i]));
		close(buffer->fds[i]);
	}
}

struct fa_wire_message cuda_register_message(const struct cuda_buffer *buffer, uint64_t offset,
                                             uint64_t bytes, uint32_t flags)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_REGISTER);
	struct fa_wire_buffer_register *request = &message.buffer_register;

	request->buffer = buffer->id;
	request->kind = buffer->kind;
	request->flags = flags;
	request->offset = offset;
	request->bytes = bytes;
	request->pid = (uint32_t)getpid();
	if (buffer->kind == FA_WIRE_BUFFER_CUDA_IPC)
		memcpy(request->handle, &buffer->handle, sizeof(request->handle));
	request->n_pieces = (uint32_t)buffer->n_pieces;
	for (size_t i = 0; i < buffer->n_pieces && i < FA_WIRE_FDS_MAX; ++i)
		request->piece_bytes[request->n_piece_bytes++] = CUDA_CHUNK;
	return message;
}

/* Sends the pieces that did not fit into the first message; each message has a reply. */
static void send_pieces(struct fa_raw *raw, const struct cuda_buffer *buffer)
{
	for (size_t i = FA_WIRE_FDS_MAX; i < buffer->n_pieces; i += FA_WIRE_FDS_MAX) {
		struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_PIECES);
		struct fa_wire_buffer_pieces *request = &message.buffer_pieces;

		request->buffer = buffer->id;
		for (size_t j = i; j < buffer->n_pieces && j < i + FA_WIRE_FDS_MAX; ++j)
			request->piece_bytes[request->n_piece_bytes++] = CUDA_CHUNK;
		fa_raw_call_expect(raw, &message, buffer->fds + i, request->n_piece_bytes, 0, NULL);
	}
}

void cuda_register(struct fa_raw *raw, const struct cuda_buffer *buffer, uint64_t offset,
                   uint64_t bytes, uint32_t flags, int status, const char *part)
{
	struct fa_wire_message message = cuda_register_message(buffer, offset, bytes, flags);
	const size_t n_fds = message.buffer_register.n_piece_bytes;

	if (buffer->n_pieces > n_fds) {
		message.id = ++raw->next_id;
		message.fds = (uint8_t)n_fds;
		fa_check_eq(fa_raw_send(raw, &message, buffer->fds, n_fds), 0);
		send_pieces(raw, buffer);
		fa_raw_receive_reply(raw);
		fa_check_eq(raw->message.id, message.id);
	} else {
		fa_raw_call(raw, &message, buffer->fds, n_fds);
	}
	if (raw->message.type == FA_WIRE_BUFFER_REPLY) {
		fa_check_eq(status, 0);
		fa_check_eq(raw->message.buffer_reply.bytes, bytes);
		return;
	}
	fa_check_eq(raw->message.type, FA_WIRE_REPLY);
	if (raw->message.reply.status != status)
		fa_test_fail(__FILE__, __LINE__, "the answer is %d (%s), not %d",
		             raw->message.reply.status, raw->message.reply.text.text, status);
	if (part)
		fa_check_contains(raw->message.reply.text.text, part);
}

void cuda_arena(struct fa_raw *raw, struct cuda_buffer *buffer, uint32_t id, uint64_t bytes)
{
	struct fa_wire_message message = fa_raw_register_message(id, bytes);
	const CUmemAccessDesc access = access_of(0);

	message.buffer_register.kind = FA_WIRE_BUFFER_ARENA;
	fa_raw_call(raw, &message, NULL, 0);
	fa_check_eq(raw->message.type, FA_WIRE_BUFFER_REPLY);
	fa_check_eq(raw->n_fds, 1);
	*buffer = (struct cuda_buffer){
		.id = id,
		.kind = FA_WIRE_BUFFER_ARENA,
		.bytes = raw->message.buffer_reply.piece_bytes,
		.n_pieces = 1,
	};
	fa_check(buffer->bytes >= bytes && buffer->bytes % CUDA_CHUNK == 0);
	buffer->fds[0] = fa_steal_fd(&raw->fds[0]);
	raw->n_fds = 0;
	fa_cu(cuMemImportFromShareableHandle(&buffer->pieces[0], (void *)(intptr_t)buffer->fds[0],
	                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	fa_cu(cuMemAddressReserve(&buffer->at, buffer->bytes, 0, 0, 0));
	fa_cu(cuMemMap(buffer->at, buffer->bytes, 0, buffer->pieces[0], 0));
	fa_cu(cuMemSetAccess(buffer->at, buffer->bytes, &access, 1));
}

void cuda_unregister(struct fa_raw *raw, uint32_t id)
{
	struct fa_wire_message message = fa_raw_message(FA_WIRE_BUFFER_FREE);

	message.buffer_free.buffer = id;
	fa_raw_call_expect(raw, &message, NULL, 0, 0, NULL);
}

void cuda_case_fill(const struct fa_case *attention, CUdeviceptr at)
{
	_fa_cleanup_(fa_freep) void *data = malloc(attention->bytes);

	fa_check(data);
	fa_case_fill(attention, data);
	fa_cu(cuMemcpyHtoD(at, data, attention->bytes));
}

double cuda_case_error(const struct fa_case *attention, CUdeviceptr at)
{
	_fa_cleanup_(fa_freep) void *data = malloc(attention->bytes);

	fa_check(data);
	fa_cu(cuMemcpyDtoH(data, at, attention->bytes));
	return fa_case_error(attention, data);
}

void cuda_attention(struct fa_raw *raw, struct fa_case *attention, uint32_t id, CUdeviceptr at,
                    uint64_t value)
{
	struct fa_wire_message message;
	double error;

	attention->seed++;
	cuda_case_fill(attention, at);
	message = fa_case_message(attention, id, 0, 0, value);
	fa_check_eq(fa_raw_send(raw, &message, NULL, 0), 0);
	fa_raw_wait_expect(raw, 0, value, 0, NULL);
	error = cuda_case_error(attention, at);
	if (!(error <= 1))
		fa_test_fail(__FILE__, __LINE__, "attention is wrong by %g", error);
}
