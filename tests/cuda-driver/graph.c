/* Graphs of one kernel, or of two in order; and captured ones. */
#include "tests/cuda-driver/launch.h"

#include <stdlib.h>
#include <string.h>

#define NODES 2

/* A kernel node, with a copy of its params. */
struct node {
	CUDA_KERNEL_NODE_PARAMS_v2 launch;
	void *params[FA_FAKE_PARAMS];
	size_t bytes[FA_FAKE_PARAMS];
};

/* A graph, or an executable graph that was instantiated from one. */
struct graph {
	struct graph *next;
	struct fa_fake_context *context;
	struct node nodes[NODES];
	int n_nodes;
	bool executable;
	const struct graph *of; /* if executable: the graph it was instantiated from */
	struct fa_fake_op *captured;
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
		/* Tensor maps in params are aligned to 128 bytes. */
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

/* ---- called with the lock held */

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
	for (int i = 0; i < graph->n_nodes; ++i)
		node_free(&graph->nodes[i]);
	fa_fake_ops_free(graph->captured);
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

/* ---- functions of the driver */

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

CUresult fa_fake_graph_of(struct fa_fake_op *ops, CUgraph *ret_graph)
{
	struct graph *graph = NULL;
	CUresult result = graph_new(&graph);

	if (result != CUDA_SUCCESS) {
		fa_fake_ops_free(ops);
		return result;
	}
	graph->captured = ops;
	*ret_graph = (CUgraph)graph;
	return CUDA_SUCCESS;
}

static CUresult copy_captured(const struct fa_fake_op *op, struct fa_fake_op **ret_ops)
{
	for (; op; op = op->next, ret_ops = &(*ret_ops)->next) {
		*ret_ops = fa_fake_op_copy(op);
		if (!*ret_ops)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
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
	result = node_make(launch, &node);
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	graph = find(value, false);
	if (!graph)
		result = CUDA_ERROR_INVALID_VALUE;
	else if (graph->n_nodes == NODES || n_before != (size_t)graph->n_nodes ||
	         (n_before && before[0] != (CUgraphNode)&graph->nodes[0]))
		result = CUDA_ERROR_NOT_SUPPORTED;
	if (result == CUDA_SUCCESS) {
		graph->nodes[graph->n_nodes] = node;
		*ret_node = (CUgraphNode)&graph->nodes[graph->n_nodes++];
	} else {
		node_free(&node);
	}
	fa_fake_unlock();
	return result;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode value, CUlaunchAttributeID attribute,
                                       const CUlaunchAttributeValue *wanted)
{
	bool found = false;

	FA_FAKE_ENTER(cuGraphKernelNodeSetAttribute,
	              FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	for (const struct graph *graph = graphs; graph; graph = graph->next)
		for (int i = 0; i < graph->n_nodes && !graph->executable; ++i)
			found = found || (CUgraphNode)&graph->nodes[i] == value;
	fa_fake_unlock();
	if (!found || attribute != CU_LAUNCH_ATTRIBUTE_PRIORITY ||
	    wanted->priority > FA_FAKE_LEAST_PRIORITY ||
	    wanted->priority < FA_FAKE_GREATEST_PRIORITY)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *ret_exec, CUgraph value, unsigned long long flags)
{
	struct graph *exec = NULL;
	const struct graph *graph;
	CUresult result;

	FA_FAKE_ENTER(cuGraphInstantiateWithFlags, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	graph = find(value, false);
	fa_fake_unlock();
	if (!graph || flags)
		return CUDA_ERROR_INVALID_VALUE;
	result = graph_new(&exec);
	if (result != CUDA_SUCCESS)
		return result;
	/* The lock is not held: the caller must not change or destroy the graph meanwhile. */
	for (int i = 0; i < graph->n_nodes && result == CUDA_SUCCESS; ++i) {
		CUDA_KERNEL_NODE_PARAMS_v2 launch = graph->nodes[i].launch;

		launch.kernelParams = (void **)graph->nodes[i].params;
		result = node_make(&launch, &exec->nodes[i]);
		exec->n_nodes += result == CUDA_SUCCESS;
	}
	if (result == CUDA_SUCCESS)
		result = copy_captured(graph->captured, &exec->captured);
	exec->of = graph;
	exec->executable = true;
	if (result == CUDA_SUCCESS)
		*ret_exec = (CUgraphExec)exec;
	else
		(void)destroy(exec, true);
	return result;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec value, CUgraphNode of,
                                        const CUDA_KERNEL_NODE_PARAMS_v2 *launch)
{
	struct graph *exec;
	struct node node;
	CUresult result;
	int i = NODES;

	FA_FAKE_ENTER(cuGraphExecKernelNodeSetParams,
	              FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	result = node_make(launch, &node);
	if (result != CUDA_SUCCESS)
		return result;
	fa_fake_lock();
	exec = find(value, true);
	for (i = 0; exec && i < exec->n_nodes; ++i)
		if ((CUgraphNode)&exec->of->nodes[i] == of)
			break;
	if (exec && i < exec->n_nodes) {
		node_free(&exec->nodes[i]);
		exec->nodes[i] = node;
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
	CUresult result = CUDA_SUCCESS;
	struct graph *exec;

	FA_FAKE_ENTER(cuGraphLaunch, FA_FAKE_INIT | FA_FAKE_CURRENT | FA_FAKE_ALIVE);
	fa_fake_lock();
	exec = find(value, true);
	fa_fake_unlock();
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	/* The lock is not held: other threads must not change or destroy the graph meanwhile. */
	for (int i = 0; i < exec->n_nodes && result == CUDA_SUCCESS; ++i) {
		CUDA_KERNEL_NODE_PARAMS_v2 launch = exec->nodes[i].launch;

		launch.kernelParams = exec->nodes[i].params;
		result = fa_fake_launch(&launch, stream);
	}
	for (const struct fa_fake_op *op = exec->captured; op && result == CUDA_SUCCESS;
	     op = op->next)
		result = fa_fake_submit(stream, fa_fake_op_copy(op));
	return result;
}
