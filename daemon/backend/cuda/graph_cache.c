/*
 * A kernel launched repeatedly goes through a graph of one node with new parameters, from the
 * stream's LRU cache. A gate is in its kernel's graph. A kernel that itself waits for the launch
 * ahead begins earlier, and has no graph.
 */
#include "daemon/backend/cuda/graph_cache.h"

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

/* @before: the node ahead, or NULL. Kernels of a graph do not inherit the stream's priority. */
static CUresult graph_add(struct fa_device *device, const struct fa_cuda_stream *stream,
                          struct fa_cuda_graph *graph, const CUgraphNode *before,
                          const CUDA_KERNEL_NODE_PARAMS_v2 *params, CUgraphNode *ret_node)
{
	const CUlaunchAttributeValue priority = { .priority = stream->priority };
	const struct fa_cudriver *driver = &device->driver;
	CUresult result;

	result = driver->cuGraphAddKernelNode(ret_node, graph->graph, before, before != NULL,
	                                      params);
	if (result == CUDA_SUCCESS)
		result = driver->cuGraphKernelNodeSetAttribute(
			*ret_node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority);
	return result;
}

static CUresult graph_make(struct fa_device *device, struct fa_cuda_stream *stream,
                           struct fa_cuda_graph *graph, const CUDA_KERNEL_NODE_PARAMS_v2 *gate,
                           const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	const struct fa_cudriver *driver = &device->driver;
	CUresult result;

	result = driver->cuGraphCreate(&graph->graph, 0);
	if (result != CUDA_SUCCESS) {
		graph->graph = NULL;
		return result;
	}
	if (gate)
		result = graph_add(device, stream, graph, NULL, gate, &graph->gate_node);
	if (result == CUDA_SUCCESS)
		result = graph_add(device, stream, graph, gate ? &graph->gate_node : NULL, params,
		                   &graph->node);
	if (result == CUDA_SUCCESS)
		result = driver->cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0);
	if (result != CUDA_SUCCESS) {
		graph->exec = NULL;
		return result;
	}
	return driver->cuGraphUpload(graph->exec, stream->stream);
}

static struct fa_cuda_graph *find(struct fa_device *device, struct fa_cuda_stream *stream,
                                  CUfunction function, bool gated)
{
	struct fa_cuda_graph *oldest = &stream->graphs[0];

	for (int i = 0; i < FA_CUDA_GRAPHS; ++i) {
		struct fa_cuda_graph *graph = &stream->graphs[i];

		if (graph->function == function && graph->gated == gated)
			return graph;
		if (graph->used < oldest->used)
			oldest = graph;
	}
	graph_free(device, oldest);
	oldest->function = function;
	oldest->gated = gated;
	return oldest;
}

static struct fa_cuda_graph *graph_for(struct fa_device *device, struct fa_cuda_stream *stream,
                                       const CUDA_KERNEL_NODE_PARAMS_v2 *gate,
                                       const CUDA_KERNEL_NODE_PARAMS_v2 *node)
{
	struct fa_cuda_graph *graph;

	if (device->no_graphs)
		return NULL;
	graph = find(device, stream, node->func, gate != NULL);
	graph->used = ++stream->n_launches;
	if (!graph->exec && graph->launches++ >= LAUNCHES_BEFORE &&
	    graph_make(device, stream, graph, gate, node) != CUDA_SUCCESS) {
		graph_free(device, graph);
		device->no_graphs = true;
	}
	return graph->exec ? graph : NULL;
}

static CUresult launch_plainly(struct fa_device *device, struct fa_cuda_stream *stream,
                               const CUDA_KERNEL_NODE_PARAMS_v2 *node)
{
	return device->driver.cuLaunchKernel(node->func, node->gridDimX, node->gridDimY, 1,
	                                     node->blockDimX, 1, 1, node->sharedMemBytes,
	                                     stream->stream, node->kernelParams, NULL);
}

/* It begins while blocks of the launch ahead still run. */
static CUresult launch_behind(struct fa_device *device, struct fa_cuda_stream *stream,
                              const CUDA_KERNEL_NODE_PARAMS_v2 *node)
{
	const CUlaunchAttribute attribute = {
		.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
		.value.programmaticStreamSerializationAllowed = 1,
	};
	const CUlaunchConfig config = {
		.gridDimX = node->gridDimX,
		.gridDimY = node->gridDimY,
		.gridDimZ = 1,
		.blockDimX = node->blockDimX,
		.blockDimY = 1,
		.blockDimZ = 1,
		.sharedMemBytes = node->sharedMemBytes,
		.hStream = stream->stream,
		.attrs = &attribute,
		.numAttrs = 1,
	};

	return device->driver.cuLaunchKernelEx(&config, node->func, node->kernelParams, NULL);
}

CUresult fa_cuda_launch_kernel(struct fa_device *device, struct fa_cuda_stream *stream,
                               const struct fa_cuda_kernel_launch *launch, void **params,
                               const struct fa_cuda_gate *gate)
{
	void *gate_params[] = { (void *)gate };
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
	}, gate_node = {
		.func = device->gate_function,
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = FA_CUDA_GATE_THREADS,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = gate_params,
	};
	const struct fa_cudriver *driver = &device->driver;
	const struct fa_cuda_graph *graph;
	CUresult result = CUDA_SUCCESS;

	if (launch->behind && !gate)
		return launch_behind(device, stream, &node);
	graph = graph_for(device, stream, gate ? &gate_node : NULL, &node);
	if (!graph) {
		if (gate)
			result = launch_plainly(device, stream, &gate_node);
		return result == CUDA_SUCCESS ? launch_plainly(device, stream, &node) : result;
	}
	if (gate)
		result = driver->cuGraphExecKernelNodeSetParams(graph->exec, graph->gate_node,
		                                                &gate_node);
	if (result == CUDA_SUCCESS)
		result = driver->cuGraphExecKernelNodeSetParams(graph->exec, graph->node, &node);
	return result == CUDA_SUCCESS ? driver->cuGraphLaunch(graph->exec, stream->stream) : result;
}
