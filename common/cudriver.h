/*
 * The CUDA driver, opened at run time: functions, types and numbers, so that no CUDA header is
 * needed to build and no driver to run. Names and values are the driver's. If <cuda.h> is included
 * before, its types are used; a test compares them.
 */
#pragma once

#include "common/error.h"

#include <stddef.h>
#include <stdint.h>

/* Version of the driver's interface that is used here; drivers have it since 525. */
#define FA_CUDRIVER_VERSION 12000

#ifndef CUDA_VERSION
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUkern_st *CUkernel;
typedef uint64_t cuuint64_t;
typedef unsigned int CUdevice_attribute;
typedef unsigned int CUfunction_attribute;
typedef unsigned int CUpointer_attribute;
typedef unsigned int CUstreamCaptureMode;
typedef unsigned int CUmemAllocationHandleType;
typedef unsigned int CUmemAllocationGranularity_flags;
typedef uint32_t cuuint32_t;
typedef unsigned int CUtensorMapDataType;
typedef unsigned int CUtensorMapInterleave;
typedef unsigned int CUtensorMapSwizzle;
typedef unsigned int CUtensorMapL2promotion;
typedef unsigned int CUtensorMapFloatOOBfill;

typedef struct {
	char bytes[16];
} CUuuid;

typedef struct {
	char reserved[64];
} CUipcMemHandle;

typedef struct {
	unsigned int type;
	int id;
} CUmemLocation;

typedef struct {
	unsigned int type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	unsigned int flags;
} CUmemAccessDesc;

/* CUDA_KERNEL_NODE_PARAMS in a <cuda.h> of that version. */
typedef struct {
	CUfunction func;
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	void **kernelParams;
	void **extra;
	CUkernel kern;
	CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;

typedef unsigned int CUlaunchAttributeID;

typedef union {
	char pad[64];
	int priority;
	int programmaticStreamSerializationAllowed;
	uint64_t unused[8];
} CUlaunchAttributeValue;

typedef struct {
	CUlaunchAttributeID id;
	CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
	unsigned int gridDimX, gridDimY, gridDimZ;
	unsigned int blockDimX, blockDimY, blockDimZ;
	unsigned int sharedMemBytes;
	CUstream hStream;
	const CUlaunchAttribute *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

/* Aligned to 64 in older headers, to 128 in later ones. */
typedef struct {
	cuuint64_t opaque[16];
} __attribute__((aligned(128))) CUtensorMap;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_IMAGE = 200,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_MAP_FAILED = 205,
	CUDA_ERROR_ALREADY_MAPPED = 208,
	CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
	CUDA_ERROR_ECC_UNCORRECTABLE = 214,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
	CUDA_ERROR_LAUNCH_TIMEOUT = 702,
	CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
	CUDA_ERROR_ASSERT = 710,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
	CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
	CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
	CUDA_ERROR_MISALIGNED_ADDRESS = 716,
	CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
	CUDA_ERROR_INVALID_PC = 718,
	CUDA_ERROR_LAUNCH_FAILED = 719,
	CUDA_ERROR_NOT_PERMITTED = 800,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_SYSTEM_NOT_READY = 802,
	CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
	CUDA_ERROR_MPS_RPC_FAILURE = 806,
	CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
	CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_UNKNOWN = 999,
};

enum {
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
	CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
	CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
	CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
	CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133, /* unknown to drivers before 12.2 */
};

enum {
	CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = 3,
	CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};

enum {
	CU_MEMORYTYPE_HOST = 1,
	CU_MEMORYTYPE_DEVICE = 2,
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

enum {
	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_WRITE_VALUE_DEFAULT = 0,
	CU_STREAM_WAIT_VALUE_GEQ = 0,
	CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
	CU_STREAM_CAPTURE_MODE_RELAXED = 2,
	CU_EVENT_DEFAULT = 0,
	CU_EVENT_DISABLE_TIMING = 2,
	CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
	CU_LAUNCH_ATTRIBUTE_PRIORITY = 8,
	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
	CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1,
	CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
	CU_TENSOR_MAP_SWIZZLE_NONE = 0,
	CU_TENSOR_MAP_SWIZZLE_128B = 3,
	CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2,
	CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0,
};

#define CU_MEMHOSTALLOC_PORTABLE 0x01
#define CU_MEMHOSTALLOC_DEVICEMAP 0x02
#define CU_MEMHOSTREGISTER_PORTABLE 0x01
#define CU_MEMHOSTREGISTER_DEVICEMAP 0x02
#define CU_MEMHOSTREGISTER_READ_ONLY 0x08
#endif

/* Used by libfaclient: to export memory, and for timelines on CUDA streams. */
#define FA_CUDRIVER_CLIENT(X)                                                                      \
	X(cuGetErrorName, (CUresult error, const char **ret_name))                                 \
	X(cuGetErrorString, (CUresult error, const char **ret_text))                               \
	X(cuInit, (unsigned int flags))                                                            \
	X(cuDeviceGet, (CUdevice * ret_device, int ordinal))                                       \
	X(cuDeviceGetCount, (int *ret_count))                                                      \
	X(cuDeviceGetUuid, (CUuuid * ret_uuid, CUdevice device))                                   \
	X(cuDevicePrimaryCtxRetain, (CUcontext * ret_context, CUdevice device))                    \
	X(cuDevicePrimaryCtxRelease, (CUdevice device))                                            \
	X(cuCtxGetCurrent, (CUcontext * ret_context))                                              \
	X(cuCtxSetCurrent, (CUcontext context))                                                    \
	X(cuCtxGetDevice, (CUdevice * ret_device))                                                 \
	X(cuPointerGetAttribute, (void *ret_value, CUpointer_attribute attribute, CUdeviceptr at)) \
	X(cuMemGetAddressRange, (CUdeviceptr * ret_base, size_t * ret_bytes, CUdeviceptr at))      \
	X(cuIpcGetMemHandle, (CUipcMemHandle * ret_handle, CUdeviceptr at))                        \
	X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * ret_handle, void *at))      \
	X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                     \
	X(cuMemGetAllocationPropertiesFromHandle,                                                  \
	  (CUmemAllocationProp * ret_properties, CUmemGenericAllocationHandle handle))             \
	X(cuMemExportToShareableHandle,                                                            \
	  (void *ret_handle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,  \
	   unsigned long long flags))                                                              \
	X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * ret_handle,              \
	                                   void *os_handle, CUmemAllocationHandleType type))       \
	X(cuMemGetAllocationGranularity,                                                           \
	  (size_t * ret_bytes, const CUmemAllocationProp *properties,                              \
	   CUmemAllocationGranularity_flags option))                                               \
	X(cuMemAddressReserve, (CUdeviceptr * ret_at, size_t bytes, size_t alignment,              \
	                        CUdeviceptr wanted, unsigned long long flags))                     \
	X(cuMemAddressFree, (CUdeviceptr at, size_t bytes))                                        \
	X(cuMemMap, (CUdeviceptr at, size_t bytes, size_t offset,                                  \
	             CUmemGenericAllocationHandle handle, unsigned long long flags))               \
	X(cuMemUnmap, (CUdeviceptr at, size_t bytes))                                              \
	X(cuMemSetAccess,                                                                          \
	  (CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count))             \
	X(cuMemHostRegister, (void *at, size_t bytes, unsigned int flags))                         \
	X(cuMemHostUnregister, (void *at))                                                         \
	X(cuMemHostGetDevicePointer, (CUdeviceptr * ret_at, void *host, unsigned int flags))       \
	X(cuStreamWriteValue64,                                                                    \
	  (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags))                 \
	X(cuStreamWaitValue64,                                                                     \
	  (CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned int flags))                 \
	X(cuModuleLoadData, (CUmodule * ret_module, const void *image))                            \
	X(cuModuleUnload, (CUmodule module))                                                       \
	X(cuModuleGetFunction, (CUfunction * ret_function, CUmodule module, const char *name))     \
	X(cuLaunchKernel,                                                                          \
	  (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,     \
	   unsigned int block_x, unsigned int block_y, unsigned int block_z,                       \
	   unsigned int shared_bytes, CUstream stream, void **params, void **extra))               \
	X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))

/* Used only by the daemon and the tests. */
#define FA_CUDRIVER_REST(X)                                                                        \
	X(cuDriverGetVersion, (int *ret_version))                                                  \
	X(cuDeviceGetName, (char *ret_name, int bytes, CUdevice device))                           \
	X(cuDeviceGetAttribute, (int *ret_value, CUdevice_attribute attribute, CUdevice device))   \
	X(cuDeviceTotalMem, (size_t * ret_bytes, CUdevice device))                                 \
	X(cuCtxGetStreamPriorityRange, (int *ret_least, int *ret_greatest))                        \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuMemGetInfo, (size_t * ret_free, size_t * ret_total))                                   \
	X(cuMemAlloc, (CUdeviceptr * ret_at, size_t bytes))                                        \
	X(cuMemFree, (CUdeviceptr at))                                                             \
	X(cuMemAllocManaged, (CUdeviceptr * ret_at, size_t bytes, unsigned int flags))             \
	X(cuMemAllocAsync, (CUdeviceptr * ret_at, size_t bytes, CUstream stream))                  \
	X(cuMemFreeAsync, (CUdeviceptr at, CUstream stream))                                       \
	X(cuMemHostAlloc, (void **ret_at, size_t bytes, unsigned int flags))                       \
	X(cuMemFreeHost, (void *at))                                                               \
	X(cuIpcOpenMemHandle, (CUdeviceptr * ret_at, CUipcMemHandle handle, unsigned int flags))   \
	X(cuIpcCloseMemHandle, (CUdeviceptr at))                                                   \
	X(cuMemCreate, (CUmemGenericAllocationHandle * ret_handle, size_t bytes,                   \
	                const CUmemAllocationProp *properties, unsigned long long flags))          \
	X(cuMemcpyHtoD, (CUdeviceptr to, const void *from, size_t bytes))                          \
	X(cuMemcpyDtoH, (void *to, CUdeviceptr from, size_t bytes))                                \
	X(cuMemcpyHtoDAsync, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))    \
	X(cuMemcpyDtoHAsync, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))          \
	X(cuMemcpyDtoDAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))    \
	X(cuMemsetD8, (CUdeviceptr at, unsigned char value, size_t bytes))                         \
	X(cuMemsetD8Async, (CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream))   \
	X(cuStreamCreateWithPriority, (CUstream * ret_stream, unsigned int flags, int priority))   \
	X(cuStreamDestroy, (CUstream stream))                                                      \
	X(cuStreamQuery, (CUstream stream))                                                        \
	X(cuStreamSynchronize, (CUstream stream))                                                  \
	X(cuEventCreate, (CUevent * ret_event, unsigned int flags))                                \
	X(cuEventDestroy, (CUevent event))                                                         \
	X(cuEventRecord, (CUevent event, CUstream stream))                                         \
	X(cuEventQuery, (CUevent event))                                                           \
	X(cuEventSynchronize, (CUevent event))                                                     \
	X(cuEventElapsedTime, (float *ret_ms, CUevent start, CUevent end))                         \
	X(cuFuncGetAttribute,                                                                      \
	  (int *ret_value, CUfunction_attribute attribute, CUfunction function))                   \
	X(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))    \
	X(cuLaunchKernelEx,                                                                        \
	  (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))        \
	X(cuGraphCreate, (CUgraph * ret_graph, unsigned int flags))                                \
	X(cuGraphDestroy, (CUgraph graph))                                                         \
	X(cuGraphAddKernelNode, (CUgraphNode * ret_node, CUgraph graph, const CUgraphNode *before, \
	                         size_t n_before, const CUDA_KERNEL_NODE_PARAMS_v2 *params))       \
	X(cuGraphKernelNodeSetAttribute,                                                           \
	  (CUgraphNode node, CUlaunchAttributeID attribute, const CUlaunchAttributeValue *value))  \
	X(cuGraphInstantiateWithFlags,                                                             \
	  (CUgraphExec * ret_exec, CUgraph graph, unsigned long long flags))                       \
	X(cuGraphExecKernelNodeSetParams,                                                          \
	  (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params))          \
	X(cuStreamBeginCapture, (CUstream stream, CUstreamCaptureMode mode))                       \
	X(cuStreamEndCapture, (CUstream stream, CUgraph * ret_graph))                              \
	X(cuGraphUpload, (CUgraphExec exec, CUstream stream))                                      \
	X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                      \
	X(cuGraphExecDestroy, (CUgraphExec exec))                                                  \
	X(cuTensorMapEncodeTiled,                                                                  \
	  (CUtensorMap * ret_map, CUtensorMapDataType type, cuuint32_t rank, void *address,        \
	   const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,               \
	   const cuuint32_t *element_strides, CUtensorMapInterleave interleave,                    \
	   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,                           \
	   CUtensorMapFloatOOBfill fill))

struct fa_cudriver {
	void *library;
#define FA_CUDRIVER_MEMBER(name, params) CUresult(*name) params;
	FA_CUDRIVER_CLIENT(FA_CUDRIVER_MEMBER)
	FA_CUDRIVER_REST(FA_CUDRIVER_MEMBER)
#undef FA_CUDRIVER_MEMBER
};

enum fa_cudriver_use {
	FA_CUDRIVER_FOR_CLIENT, /* FA_CUDRIVER_CLIENT; the others stay NULL */
	FA_CUDRIVER_FOR_ALL,
};

/*
 * Opens libcuda.so.1 and fills the table through cuGetProcAddress; calls no other function, not
 * even cuInit. The library is never closed. Returns 0 or, with a text,
 *   -ENODEV  there is no driver
 *   -ENOSYS  the driver is too old; the text names the missing function
 */
int fa_cudriver_open(enum fa_cudriver_use use, struct fa_error *error,
                     struct fa_cudriver *ret_driver);

/* -ENODEV: the error is sticky, the context is lost. */
int fa_cudriver_errno(CUresult result);

/* Writes "DOING: NAME, description" and returns fa_cudriver_errno(@result). */
int fa_cudriver_fail(const struct fa_cudriver *driver, struct fa_error *error, CUresult result,
                     const char *doing);

/*
 * Encodes the tensor map (TMA) of a tensor with 16-bit elements and four dims: boxes of 128 bytes
 * by @box[1] rows, swizzled for wgmma; elements outside the tensor read as 0. @strides: bytes, of
 * dims 1 to 3. Uses no device. @ret_map: 128 bytes, aligned to 128.
 */
CUresult fa_cudriver_encode_tensor_map(const struct fa_cudriver *driver, const void *address,
                                       const uint64_t dims[4], const uint64_t strides[3],
                                       const uint32_t box[4], void *ret_map);

/* The same for boxes whose rows follow one another in shared memory, of up to 512 bytes. */
CUresult fa_cudriver_encode_rows_map(const struct fa_cudriver *driver, const void *address,
                                     const uint64_t dims[4], const uint64_t strides[3],
                                     const uint32_t box[4], void *ret_map);
