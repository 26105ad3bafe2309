/*
 * Attention over this program's own GPU memory, without a copy:
 *   cc cuda.c $(pkg-config --cflags --libs libfaclient) -lcuda
 * A pointer of cudaMalloc() works as well, cast to uint64_t.
 */
#include <cuda.h>
#include <faclient.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	TOKENS = 512,
	HEADS = 8,
	DIM = 64,
	NUMBERS = TOKENS * HEADS * DIM /* of each tensor */
};

static const int64_t shape[] = { 1, TOKENS, HEADS, DIM };

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, fa_error());
	return 1;
}

int main(void)
{
	struct fa_options options = { .size = sizeof(options), .flags = FA_CONNECT_SPAWN };
	struct fa_attention attention = { .size = sizeof(attention), .flags = FA_ATTENTION_CAUSAL };
	const uint64_t bytes = fa_tensor_bytes(FA_F32, 4, shape);
	static float numbers[3 * NUMBERS], out[NUMBERS];
	struct fa_client *client;
	struct fa_buffer *buffer;
	CUdeviceptr memory;
	CUcontext context;
	CUdevice device;

	if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
	    cuCtxSetCurrent(context) || cuMemAlloc(&memory, 4 * bytes))
		return fprintf(stderr, "no GPU, or no memory on it\n"), 1;
	for (size_t i = 0; i < 3 * NUMBERS; ++i)
		numbers[i] = (float)(rand() % 1000) / 1000 - 0.5f;
	/* This copy has finished when it returns. After kernels, or copies on a stream,
	 * synchronise: the daemon is not ordered with this program's streams. */
	if (cuMemcpyHtoD(memory, numbers, sizeof(numbers)))
		return fprintf(stderr, "the copy failed\n"), 1;

	if (fa_connect(&options, &client) < 0)
		return fail("connect");
	/* The daemon opens the whole allocation once; further buffers in it cost no round trip. */
	if (fa_buffer_import_cuda(client, memory, 4 * bytes, 0, &buffer) < 0)
		return fail("import");
	fa_tensor_init(&attention.q, buffer, 0 * bytes, FA_F32, 4, shape);
	fa_tensor_init(&attention.k, buffer, 1 * bytes, FA_F32, 4, shape);
	fa_tensor_init(&attention.v, buffer, 2 * bytes, FA_F32, 4, shape);
	fa_tensor_init(&attention.out, buffer, 3 * bytes, FA_F32, 4, shape);
	if (fa_attention(client, &attention, NULL) < 0)
		return fail("attention");

	/* The output is complete: any stream may read it. */
	if (cuMemcpyDtoH(out, memory + 3 * bytes, sizeof(out)))
		return fprintf(stderr, "the copy failed\n"), 1;
	printf("%f %f %f\n", out[0], out[1], out[2]); /* row 0 sees only itself: v's numbers */

	fa_buffer_free(buffer);
	fa_disconnect(client);
	cuMemFree(memory);
	return 0;
}
