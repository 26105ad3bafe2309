/* Graphs of one kernel, and their launches. */
#include "tests/cuda-driver/launch.h"

#include <stdlib.h>
#include <string.h>

/* A kernel with params of its own; what the driver calls a node, too. */
struct node {
	CUDA_KERNEL_NODE_PARAMS_v2 launch;
	void *params[FA_FAKE_PARAMS];
	size_t bytes[FA_FAKE_PARAMS];
};

/* A graph, or what was instantiated of one. */
struct graph {
	struct graph *next;
	struct fa_fake_context *context;
	struct node node; /* func NULL: there is none so far */
	bool executable;
	const struct node *of; /* if it is: the node that it was made of */
};

static struct graph *graphs;

/* ---- nodes */

static void node_free(struct node *node)
{
	for (int i = 0; i < FA_FAKE_PARAMS; ++i)
		free(node->params[i]);
	*node = (struct node){};
}

static CUresult node_make(const CUDA_KERNEL_NODE_PARAMS_v2 *launch, struct node *ret_node)
{
	struct node node = { .launch = *launch };
	CUresult result;

	if (launch->extra || launch->kern || launch->ctx)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = fa_fake_launch_bytes(launch, node.bytes);
	if (result != CUDA_SUCCESS)
		return result;
	for (int i = 0; i < FA_FAKE_PARAMS; ++i) {
		if (!node.bytes[i])
			continue;
		/* Maps are on 128 bytes. */
		node.params[i] = aligned_alloc(128, (node.bytes[i] + 127) & ~(size_t)127);
		if (!node.params[i]) {
			node_free(&node);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		memcpy(node.params[i], launch->kernelParams[i], node.bytes[i]);
	}
	*ret_node = node;
	return CUDA_SUCCESS;
}

/* ---- all with the lock held */

static struct graph *find(const void *value, bool executable)
{
	for (struct graph *graph = graphs; graph; graph = graph->next)
		if (graph == value && graph->executable == executable &&
		    graph->context == fa_fake_current())
			return graph;
	return NULL;
}

static void drop(struct graph *graph)
{
	struct graph **at = &graphs;

	while (*at != graph)
		at = &(*at)->next;
	*at = graph->next;
	node_free(&graph->node);
	free(graph);
}

void fa_fake_graphs_end(struct fa_fake_context *context)
{
	struct graph *graph = graphs;

	while (graph) {
		struct graph *next = graph->next;

		if (graph->context == context) {
			atomic_fetch_add(&fa_fake.page->abandoned, 1);
			drop(graph);
		}
		graph = next;
	}
}

/* ---- the driver's */

static CUresult graph_new(struct graph **ret_graph)
{
	struct graph *graph = calloc(1, sizeof(*graph));

	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fa_fake_lock();
	graph->context = fa_fake_current();
	graph->next = graphs;
	graphs = graph;
	fa_fake_unlock();
	*ret_graph = graph;
	return CUDA_SUCCESS;
}

static CUresult destroy(const void *value, bool executable)
{
	struct graph *graph;

	fa_fake_lock();
	graph = find(value, executable);
	if (graph)
		drop(graph);
	fa_fake_unlock();
	return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphCreate(CUgraph *ret_graph, unsigned int flags)
{
	FA_FAKE_ENTER(cuGraphCreate, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	return flags ? CUDA_ERROR_INVALID_VALUE : graph_new((struct graph **)ret_graph);
}

CUresult cuGraphDestroy(CUgraph value)
{
	FA_FAKE_ENTER(cuGraphDestroy, FA_FAKE_INIT | FA_FAKE_CURRENT);
	return destroy(value, false);
}

CUresult cuGraphExecDestroy(CUgraphExec value)
{
	FA_FAKE_ENTER(cuGraphExecDestroy, FA_FAKE_INIT | FA_FAKE_CURRENT);
	return destroy(value, true);
}

CUresult cuGraphAddKernelNode(CUgraphNode *ret_node, CUgraph value, const CUgraphNode *before,
                              size_t n_before, const CUDA_KERNEL_NODE_PARAMS_v2 *launch)
{
	struct graph *graph;
	struct node node;
	CUresult result;

	FA_FAKE_ENTER(cuGraphAddKernelNode, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	if (n_before)
		return CUDA_ERROR_NOT_SUPPORTED;
	result = node_make(launch, &node);
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	graph = find(value, false);
	if (!graph || graph->node.launch.func) {
		result = graph ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
		node_free(&node);
	} else {
		graph->node = node;
		*ret_node = (CUgraphNode)&graph->node;
	}
	fa_fake_unlock();
	return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *ret_exec, CUgraph value, unsigned long long flags)
{
	CUDA_KERNEL_NODE_PARAMS_v2 launch = { 0 };
	struct graph *graph, *exec = NULL;
	const struct node *of = NULL;
	struct node node;
	CUresult result;

	FA_FAKE_ENTER(cuGraphInstantiateWithFlags, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	graph = find(value, false);
	if (graph && graph->node.launch.func) {
		of = &graph->node;
		launch = of->launch;
		launch.kernelParams = graph->node.params;
	}
	fa_fake_unlock();
	if (!of || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = node_make(&launch, &node);
	if (result == CUDA_SUCCESS)
		result = graph_new(&exec);
	if (result != CUDA_SUCCESS)
		return result;
	exec->node = node;
	exec->of = of;
	exec->executable = true;
	*ret_exec = (CUgraphExec)exec;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec value, CUgraphNode of,
                                        const CUDA_KERNEL_NODE_PARAMS_v2 *launch)
{
	struct graph *exec;
	struct node node;
	CUresult result;

	FA_FAKE_ENTER(cuGraphExecKernelNodeSetParams,
	              FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	result = node_make(launch, &node);
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	exec = find(value, true);
	if (exec && (const void *)exec->of == (const void *)of) {
		node_free(&exec->node);
		exec->node = node;
	} else {
		result = CUDA_ERROR_INVALID_VALUE;
		node_free(&node);
	}
	fa_fake_unlock();
	return result;
}

CUresult cuGraphUpload(CUgraphExec value, CUstream stream)
{
	bool found;

	FA_FAKE_ENTER(cuGraphUpload, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	found = find(value, true);
	fa_fake_unlock();
	return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphLaunch(CUgraphExec value, CUstream stream)
{
	CUDA_KERNEL_NODE_PARAMS_v2 launch = { 0 };
	struct graph *exec;

	FA_FAKE_ENTER(cuGraphLaunch, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	exec = find(value, true);
	if (exec) {
		launch = exec->node.launch;
		launch.kernelParams = exec->node.params;
	}
	fa_fake_unlock();
	/* What it has is its own: nobody else may change or destroy it now. */
	return exec ? fa_fake_launch(&launch, stream) : CUDA_ERROR_INVALID_VALUE;
}
