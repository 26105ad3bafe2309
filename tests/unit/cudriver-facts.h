/*
 * All constants and structs of common/cudriver.h, once from that header (cudriver-ours.c) and once
 * from <cuda.h> (cudriver-theirs.c); test-cudriver.c compares the lists.
 */
#pragma once

#include <stddef.h>

#define FA_CUDRIVER_NUMBERS(X)                                                                     \
	X(CUDA_SUCCESS)                                                                            \
	X(CUDA_ERROR_INVALID_VALUE)                                                                \
	X(CUDA_ERROR_OUT_OF_MEMORY)                                                                \
	X(CUDA_ERROR_NOT_INITIALIZED)                                                              \
	X(CUDA_ERROR_DEINITIALIZED)                                                                \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE)                                                           \
	X(CUDA_ERROR_NO_DEVICE)                                                                    \
	X(CUDA_ERROR_INVALID_DEVICE)                                                               \
	X(CUDA_ERROR_INVALID_IMAGE)                                                                \
	X(CUDA_ERROR_INVALID_CONTEXT)                                                              \
	X(CUDA_ERROR_MAP_FAILED)                                                                   \
	X(CUDA_ERROR_ALREADY_MAPPED)                                                               \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU)                                                            \
	X(CUDA_ERROR_ECC_UNCORRECTABLE)                                                            \
	X(CUDA_ERROR_INVALID_PTX)                                                                  \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE)                                                         \
	X(CUDA_ERROR_INVALID_HANDLE)                                                               \
	X(CUDA_ERROR_NOT_FOUND)                                                                    \
	X(CUDA_ERROR_NOT_READY)                                                                    \
	X(CUDA_ERROR_ILLEGAL_ADDRESS)                                                              \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)                                                      \
	X(CUDA_ERROR_LAUNCH_TIMEOUT)                                                               \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                                         \
	X(CUDA_ERROR_ASSERT)                                                                       \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)                                               \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)                                                   \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR)                                                         \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION)                                                          \
	X(CUDA_ERROR_MISALIGNED_ADDRESS)                                                           \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE)                                                        \
	X(CUDA_ERROR_INVALID_PC)                                                                   \
	X(CUDA_ERROR_LAUNCH_FAILED)                                                                \
	X(CUDA_ERROR_NOT_PERMITTED)                                                                \
	X(CUDA_ERROR_NOT_SUPPORTED)                                                                \
	X(CUDA_ERROR_SYSTEM_NOT_READY)                                                             \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)                                                       \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED)                                                        \
	X(CUDA_ERROR_MPS_RPC_FAILURE)                                                              \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY)                                                         \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED)                                                        \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)                                                   \
	X(CUDA_ERROR_UNKNOWN)                                                                      \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                                                \
	X(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)                                                          \
	X(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)                                                       \
	X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)                                                  \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                                            \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                                            \
	X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)                                   \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)                                 \
	X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)                         \
	X(CU_DEVICE_ATTRIBUTE_MPS_ENABLED)                                                         \
	X(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)                                                      \
	X(CU_FUNC_ATTRIBUTE_NUM_REGS)                                                              \
	X(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)                                         \
	X(CU_MEMORYTYPE_HOST)                                                                      \
	X(CU_MEMORYTYPE_DEVICE)                                                                    \
	X(CU_POINTER_ATTRIBUTE_CONTEXT)                                                            \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                                        \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID)                                                          \
	X(CU_POINTER_ATTRIBUTE_IS_MANAGED)                                                         \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                                     \
	X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)                                         \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                                                   \
	X(CU_POINTER_ATTRIBUTE_RANGE_SIZE)                                                         \
	X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)                                               \
	X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)                                                     \
	X(CU_STREAM_NON_BLOCKING)                                                                  \
	X(CU_STREAM_WRITE_VALUE_DEFAULT)                                                           \
	X(CU_STREAM_WAIT_VALUE_GEQ)                                                                \
	X(CU_STREAM_CAPTURE_MODE_GLOBAL)                                                           \
	X(CU_STREAM_CAPTURE_MODE_RELAXED)                                                          \
	X(CU_EVENT_DEFAULT)                                                                        \
	X(CU_EVENT_DISABLE_TIMING)                                                                 \
	X(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)                                   \
	X(CU_LAUNCH_ATTRIBUTE_PRIORITY)                                                            \
	X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)                                                      \
	X(CU_MEM_ALLOCATION_TYPE_PINNED)                                                           \
	X(CU_MEM_LOCATION_TYPE_DEVICE)                                                             \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                                                \
	X(CU_MEM_ACCESS_FLAGS_PROT_READ)                                                           \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                                                      \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM)                                                        \
	X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)                                                    \
	X(CU_TENSOR_MAP_DATA_TYPE_UINT16)                                                          \
	X(CU_TENSOR_MAP_INTERLEAVE_NONE)                                                           \
	X(CU_TENSOR_MAP_SWIZZLE_NONE)                                                              \
	X(CU_TENSOR_MAP_SWIZZLE_128B)                                                              \
	X(CU_TENSOR_MAP_L2_PROMOTION_L2_128B)                                                      \
	X(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)                                                       \
	X(CU_MEMHOSTALLOC_PORTABLE)                                                                \
	X(CU_MEMHOSTALLOC_DEVICEMAP)                                                               \
	X(CU_MEMHOSTREGISTER_PORTABLE)                                                             \
	X(CU_MEMHOSTREGISTER_DEVICEMAP)                                                            \
	X(CU_MEMHOSTREGISTER_READ_ONLY)

#define FA_CUDRIVER_MEMBERS(X)                                                                     \
	X(CUmemLocation, type)                                                                     \
	X(CUmemLocation, id)                                                                       \
	X(CUmemAllocationProp, type)                                                               \
	X(CUmemAllocationProp, requestedHandleTypes)                                               \
	X(CUmemAllocationProp, location)                                                           \
	X(CUmemAllocationProp, win32HandleMetaData)                                                \
	X(CUmemAllocationProp, allocFlags.compressionType)                                         \
	X(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)                                    \
	X(CUmemAllocationProp, allocFlags.usage)                                                   \
	X(CUmemAllocationProp, allocFlags.reserved)                                                \
	X(CUmemAccessDesc, location)                                                               \
	X(CUmemAccessDesc, flags)                                                                  \
	X(CUDA_KERNEL_NODE_PARAMS_v2, func)                                                        \
	X(CUDA_KERNEL_NODE_PARAMS_v2, gridDimX)                                                    \
	X(CUDA_KERNEL_NODE_PARAMS_v2, gridDimY)                                                    \
	X(CUDA_KERNEL_NODE_PARAMS_v2, gridDimZ)                                                    \
	X(CUDA_KERNEL_NODE_PARAMS_v2, blockDimX)                                                   \
	X(CUDA_KERNEL_NODE_PARAMS_v2, blockDimY)                                                   \
	X(CUDA_KERNEL_NODE_PARAMS_v2, blockDimZ)                                                   \
	X(CUDA_KERNEL_NODE_PARAMS_v2, sharedMemBytes)                                              \
	X(CUDA_KERNEL_NODE_PARAMS_v2, kernelParams)                                                \
	X(CUDA_KERNEL_NODE_PARAMS_v2, extra)                                                       \
	X(CUDA_KERNEL_NODE_PARAMS_v2, kern)                                                        \
	X(CUDA_KERNEL_NODE_PARAMS_v2, ctx)                                                         \
	X(CUlaunchAttributeValue, priority)                                                        \
	X(CUlaunchAttributeValue, programmaticStreamSerializationAllowed)                          \
	X(CUlaunchAttribute, id)                                                                   \
	X(CUlaunchAttribute, value)                                                                \
	X(CUlaunchConfig, gridDimX)                                                                \
	X(CUlaunchConfig, gridDimY)                                                                \
	X(CUlaunchConfig, gridDimZ)                                                                \
	X(CUlaunchConfig, blockDimX)                                                               \
	X(CUlaunchConfig, blockDimY)                                                               \
	X(CUlaunchConfig, blockDimZ)                                                               \
	X(CUlaunchConfig, sharedMemBytes)                                                          \
	X(CUlaunchConfig, hStream)                                                                 \
	X(CUlaunchConfig, attrs)                                                                   \
	X(CUlaunchConfig, numAttrs)                                                                \
	X(CUtensorMap, opaque)                                                                     \
	X(CUuuid, bytes)                                                                           \
	X(CUipcMemHandle, reserved)

#define FA_CUDRIVER_TYPES(X)                                                                       \
	X(CUresult)                                                                                \
	X(CUdevice)                                                                                \
	X(CUdeviceptr)                                                                             \
	X(CUmemGenericAllocationHandle)                                                            \
	X(CUcontext)                                                                               \
	X(CUmodule)                                                                                \
	X(CUfunction)                                                                              \
	X(CUstream)                                                                                \
	X(CUevent)                                                                                 \
	X(CUgraph)                                                                                 \
	X(CUgraphNode)                                                                             \
	X(CUgraphExec)                                                                             \
	X(CUkernel)                                                                                \
	X(CUlaunchAttributeID)                                                                     \
	X(CUlaunchAttributeValue)                                                                  \
	X(CUlaunchAttribute)                                                                       \
	X(CUlaunchConfig)                                                                          \
	X(CUDA_KERNEL_NODE_PARAMS_v2)                                                              \
	X(cuuint64_t)                                                                              \
	X(CUdevice_attribute)                                                                      \
	X(CUfunction_attribute)                                                                    \
	X(CUpointer_attribute)                                                                     \
	X(CUstreamCaptureMode)                                                                     \
	X(CUmemAllocationHandleType)                                                               \
	X(CUmemAllocationGranularity_flags)                                                        \
	X(cuuint32_t)                                                                              \
	X(CUtensorMapDataType)                                                                     \
	X(CUtensorMapInterleave)                                                                   \
	X(CUtensorMapSwizzle)                                                                      \
	X(CUtensorMapL2promotion)                                                                  \
	X(CUtensorMapFloatOOBfill)                                                                 \
	X(CUmemLocation)                                                                           \
	X(CUmemAllocationProp)                                                                     \
	X(CUmemAccessDesc)                                                                         \
	X(CUuuid)                                                                                  \
	X(CUipcMemHandle)

struct cudriver_fact {
	const char *name;
	long long value;
};

/* Constants, offsets and sizes of members, sizes of types; ended by NULL. */
#define CUDRIVER_NUMBER(name) { #name, (long long)(name) },
#define CUDRIVER_MEMBER(type, member)                                                              \
	{ "offset of " #type "." #member, offsetof(type, member) },                                \
		{ "size of " #type "." #member, sizeof(((type *)0)->member) },
#define CUDRIVER_TYPE(type)                                                                        \
	{ "size of " #type, sizeof(type) }, { "alignment of " #type, _Alignof(type) },
#define CUDRIVER_FACTS                                                                             \
	FA_CUDRIVER_NUMBERS(CUDRIVER_NUMBER)                                                       \
	FA_CUDRIVER_MEMBERS(CUDRIVER_MEMBER) FA_CUDRIVER_TYPES(CUDRIVER_TYPE)                      \
	{                                                                                          \
		NULL, 0                                                                            \
	}

extern const struct cudriver_fact cudriver_ours[];
/* NULL if compiled without <cuda.h>. */
extern const struct cudriver_fact *const cudriver_theirs;
