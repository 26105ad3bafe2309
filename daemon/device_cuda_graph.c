/*
 * Launches of one kernel. The driver takes longer over cuLaunchKernel() than over a graph that
 * it has made ready before: one with a single node, whose params are set anew each time. On an
 * H200 that is 2 us against 3 for what decode is launched with, and the kernel is over 1.5 us
 * sooner; with another grid each time they take as long. So a stream has graphs for the kernels
 * that it was given lately.
 *
 * To make one takes 10 to 50 us and memory of the device, for which the driver may wait. It is
 * done for a kernel that comes again and again, and while the device has nothing to do; till
 * then, and wherever the driver refuses, the kernel is launched plainly. What is replaced is
 * what was not used for the longest time, as all of the stream has ended.
 */
#include "daemon/device_cuda.h"

/* Launches of a kernel on a stream after which it gets a graph. */
#define LAUNCHES_BEFORE 8

static void graph_free(struct fa_device *device, struct fa_cuda_graph *graph)
{
	if (graph->exec)
		(void)device->driver.cuGraphExecDestroy(graph->exec);
	if (graph->graph)
		(void)device->driver.cuGraphDestroy(graph->graph);
	*graph = (struct fa_cuda_graph){};
}

void fa_cuda_graphs_close(struct fa_device *device, struct fa_cuda_stream *stream)
{
	for (int i = 0; i < FA_CUDA_GRAPHS; ++i)
		graph_free(device, &stream->graphs[i]);
}

static CUresult graph_make(struct fa_device *device, struct fa_cuda_stream *stream,
                           struct fa_cuda_graph *graph, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	const struct fa_cudriver *driver = &device->driver;
	CUresult result;

	result = driver->cuGraphCreate(&graph->graph, 0);
	if (result != CUDA_SUCCESS) {
		graph->graph = NULL;
		return result;
	}
	result = driver->cuGraphAddKernelNode(&graph->node, graph->graph, NULL, 0, params);
	if (result == CUDA_SUCCESS)
		result = driver->cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0);
	if (result != CUDA_SUCCESS) {
		graph->exec = NULL;
		return result;
	}
	return driver->cuGraphUpload(graph->exec, stream->stream);
}

/* The stream's for @function; NULL: there is none, and no place for one. */
static struct fa_cuda_graph *find(struct fa_device *device, struct fa_cuda_stream *stream,
                                  CUfunction function)
{
	struct fa_cuda_graph *oldest = &stream->graphs[0];

	for (int i = 0; i < FA_CUDA_GRAPHS; ++i) {
		struct fa_cuda_graph *graph = &stream->graphs[i];

		if (graph->function == function)
			return graph;
		if (graph->used < oldest->used)
			oldest = graph;
	}
	if (oldest->exec && (stream->n_works || oldest->sequence == stream->sequence))
		return NULL;
	graph_free(device, oldest);
	oldest->function = function;
	return oldest;
}

CUresult fa_cuda_launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                               const struct fa_cuda_kernel_launch *launch, void **params)
{
	const CUDA_KERNEL_NODE_PARAMS_v2 node = {
		.func = launch->function,
		.gridDimX = launch->grid_x,
		.gridDimY = launch->grid_y,
		.gridDimZ = 1,
		.blockDimX = launch->threads,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = launch->shared_bytes,
		.kernelParams = params,
	};
	struct fa_cuda_graph *graph = device->no_graphs ? NULL
	                                                : find(device, stream, launch->function);
	CUresult result;

	if (graph) {
		graph->used = ++stream->n_launches;
		graph->sequence = stream->sequence;
		if (!graph->exec && graph->launches++ >= LAUNCHES_BEFORE && !device->n_works &&
		    graph_make(device, stream, graph, &node) != CUDA_SUCCESS) {
			/* If that is because the device is lost, the next call says so. */
			graph_free(device, graph);
			device->no_graphs = true;
		}
		if (graph->exec) {
			result = device->driver.cuGraphExecKernelNodeSetParams(graph->exec,
			                                                       graph->node, &node);
			return result == CUDA_SUCCESS
			               ? device->driver.cuGraphLaunch(graph->exec, stream->stream)
			               : result;
		}
	}
	return device->driver.cuLaunchKernel(launch->function, launch->grid_x, launch->grid_y, 1,
	                                     launch->threads, 1, 1, launch->shared_bytes,
	                                     stream->stream, params, NULL);
}
