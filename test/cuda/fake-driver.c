/*
 * A stand-in for libcuda.so.1. Compiled with WITH_CUDA_H it takes the prototypes and structs from NVIDIA's header,
 * and does not compile if those written here differ.
 */
#include "fake.h"
#include <sys/mman.h>

#ifdef WITH_CUDA_H
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#else
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUlinkState_st *CUlinkState;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUkern_st *CUkernel;
typedef int CUdevice_attribute, CUfunction_attribute, CUlimit, CUmoduleLoadingMode, CUjitInputType, CUjit_option, CUstreamCaptureMode, CUgraphNodeType;
typedef struct {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void **kernelParams, **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;
typedef struct {
    int id;
    char pad[4];
    union { char pad[64]; int cooperative; int priority; } value;
} CUlaunchAttribute;
typedef struct {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;
#define CUDAAPI
#endif

#define N(handle) ((unsigned long long)(uintptr_t)(handle))
#define H(type, number) ((type)(uintptr_t)(number))

CUresult CUDAAPI cuInit(unsigned int flags) { return note("cuInit", " %u", flags); }

CUresult CUDAAPI cuDriverGetVersion(int *version) {
    *version = value_of("cuda", 13000);
    return note("cuDriverGetVersion", "");
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) {
    switch ((int)error) {
    case 1: *text = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case 2: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 500: *text = "CUDA_ERROR_NOT_FOUND"; return 0;
    case 700: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
    default: *text = NULL; return 1;
    }
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
    *text = (int)error == 500 ? "named symbol not found" : NULL;
    return *text == NULL;
}

CUresult CUDAAPI cuDeviceGetCount(int *count) {
    *count = value_of("devices", 1);
    return note("cuDeviceGetCount", "");
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    *device = 40 + ordinal;
    return note("cuDeviceGet", " %d", ordinal);
}

CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, length, "Fake GPU %d", device - 40);
    return note("cuDeviceGetName", " %d %d", length, device);
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    char name[32];
    snprintf(name, sizeof name, "attribute%d", (int)attribute);
    *value = value_of(name, (int)attribute == 75 ? 9 : (int)attribute == 76 || (int)attribute == 17 || (int)attribute == 20 ? 0 : 100 + (int)attribute);
    return note("cuDeviceGetAttribute", " %d %d", (int)attribute, device);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = 150000000000;
    return note("cuDeviceTotalMem_v2", " %d", device);
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    snprintf(id, length, "0000:%02x:00.0", device);
    return note("cuDeviceGetPCIBusId", " %d %d", length, device);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = H(CUcontext, 0x7f0000001000);
    return note("cuDevicePrimaryCtxRetain", " %d", device);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) { return note("cuDevicePrimaryCtxRelease_v2", " %d", device); }
CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { return note("cuCtxSetCurrent", " %llx", N(context)); }
CUresult CUDAAPI cuCtxSynchronize(void) { return note("cuCtxSynchronize", ""); }
CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) { return note("cuCtxSetLimit", " %d %zu", (int)limit, value); }

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return note("cuCtxGetStreamPriorityRange", "");
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    *mode = value_of("loading", 1);
    return note("cuModuleGetLoadingMode", "");
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) {
    *module = H(CUmodule, 0x7f0000002000);
    return note("cuModuleLoadData", " %.4s", (const char *)image);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module) { return note("cuModuleUnload", " %llx", N(module)); }

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = H(CUfunction, 0x7f0000003000);
    return note("cuModuleGetFunction", " %llx %s", N(module), name);
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name) {
    *address = 0x1fffffffffff0; /* 49 bits */
    *bytes = 24;
    return note("cuModuleGetGlobal_v2", " %llx %s", N(module), name);
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = 126;
    return note("cuFuncGetAttribute", " %d %llx", (int)attribute, N(function));
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    return note("cuFuncSetAttribute", " %llx %d %d", N(function), (int)attribute, value);
}

/* The kernel of the tests is (uint64_t, uint32_t, int32_t, float, struct of 12 bytes). */
static void arguments(void **parameters, char *text, size_t size) {
    uint64_t a;
    uint32_t b, e[3];
    int32_t c;
    float d;
    if (parameters[0] == NULL) {
        snprintf(text, size, "none");
        return;
    }
    memcpy(&a, parameters[0], sizeof a);
    memcpy(&b, parameters[1], sizeof b);
    memcpy(&c, parameters[2], sizeof c);
    memcpy(&d, parameters[3], sizeof d);
    memcpy(e, parameters[4], sizeof e);
    snprintf(text, size, "%llx %u %d %g {%u %u %u}", (unsigned long long)a, b, c, d, e[0], e[1], e[2]);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                                unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra) {
    char text[200];
    arguments(parameters, text, sizeof text);
    return note("cuLaunchKernel", " %llx (%u %u %u) (%u %u %u) %u %llx: %s; %llx", N(f), gx, gy, gz, bx, by, bz, shared, N(stream), text, N(extra));
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra) {
    char text[200], list[100] = "";
    arguments(parameters, text, sizeof text);
    for (unsigned int i = 0; i < c->numAttrs; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), " %d=%d", (int)c->attrs[i].id,
                 (int)c->attrs[i].id == 2 ? c->attrs[i].value.cooperative : c->attrs[i].value.priority);
    return note("cuLaunchKernelEx", " %llx (%u %u %u) (%u %u %u) %u %llx%s: %s; %llx", N(f), c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                c->blockDimY, c->blockDimZ, c->sharedMemBytes, N(c->hStream), list, text, N(extra));
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    *stream = H(CUstream, 0x7f0000004000);
    return note("cuStreamCreateWithPriority", " %u %d", flags, priority);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) { return note("cuStreamDestroy_v2", " %llx", N(stream)); }
CUresult CUDAAPI cuStreamSynchronize(CUstream stream) { return note("cuStreamSynchronize", " %llx", N(stream)); }
CUresult CUDAAPI cuStreamQuery(CUstream stream) { return note("cuStreamQuery", " %llx", N(stream)); }
CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    return note("cuStreamWaitEvent", " %llx %llx %u", N(stream), N(event), flags);
}

/* What is captured is a kernel, a fill, and a kernel that has no function yet. */
CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return note("cuStreamBeginCapture_v2", " %llx %d", N(stream), (int)mode);
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    *graph = H(CUgraph, 0x7f0000007000);
    return note("cuStreamEndCapture", " %llx", N(stream));
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    const size_t there = value_of("nodes", 3);
    for (size_t i = 0; nodes != NULL && i < there && i < *count; i++) nodes[i] = H(CUgraphNode, 0x7f0000008000 + i);
    *count = there;
    return note("cuGraphGetNodes", " %llx %s", N(graph), nodes == NULL ? "how many" : "which");
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    *type = (CUgraphNodeType)((N(node) & 15) == 1 ? 2 : 0);
    return note("cuGraphNodeGetType", " %llx", N(node));
}

CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    const int second = (N(node) & 15) == 2;
    memset(params, 0xff, sizeof *params);
    params->func = second ? NULL : H(CUfunction, 0x7f0000003001);
    params->kern = second ? H(CUkernel, 0x7f0000009000) : NULL;
    params->blockDimX = second ? 384 : 32;
    params->blockDimY = second ? 1 : 2;
    params->blockDimZ = second ? 1 : 3;
    params->sharedMemBytes = second ? 200000 : 4096;
    return note("cuGraphKernelNodeGetParams_v2", " %llx", N(node));
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    *function = H(CUfunction, 0x7f0000003002);
    return note("cuKernelGetFunction", " %llx", N(kernel));
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) { return note("cuGraphDestroy", " %llx", N(graph)); }

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags) {
    *event = H(CUevent, 0x7f0000005000);
    return note("cuEventCreate", " %u", flags);
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent event) { return note("cuEventDestroy_v2", " %llx", N(event)); }
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) { return note("cuEventRecord", " %llx %llx", N(event), N(stream)); }
CUresult CUDAAPI cuEventQuery(CUevent event) { return note("cuEventQuery", " %llx", N(event)); }
CUresult CUDAAPI cuEventSynchronize(CUevent event) { return note("cuEventSynchronize", " %llx", N(event)); }
CUresult CUDAAPI cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    *ms = 1.25f;
    return note("cuEventElapsedTime", " %llx %llx", N(start), N(end));
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *available, size_t *total) {
    *available = 4096;
    *total = 150000000000;
    return note("cuMemGetInfo_v2", "");
}

/* With FAKE_heap=1 device memory is memory of this process, of which there are FAKE_heap_bytes. */
static long long heap_used;

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    CUresult result = note("cuMemAlloc_v2", " %zu", bytes);
    *address = value_of("address", 0x7f1234567800);
    if (result != 0 || !value_of("heap", 0)) return result;
    if (heap_used + (long long)bytes > value_of("heap_bytes", 1 << 30)) return (CUresult)2;
    heap_used += bytes;
    *address = N(aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
#ifdef HEAP_EXECUTABLE
    if (mprotect(H(void *, *address), (bytes + 4095) / 4096 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) abort();
#endif
    return (CUresult)0;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
    if (value_of("heap", 0)) free(H(void *, address));
    return note("cuMemFree_v2", " %llx", address);
}

CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) {
    CUresult result = note("cuMemHostAlloc", " %zu %u", bytes, flags);
    if (result == 0) *address = malloc(bytes);
    return result;
}

CUresult CUDAAPI cuMemFreeHost(void *address) {
    free(address);
    return note("cuMemFreeHost", "");
}

CUresult CUDAAPI cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags) {
    return note("cuMemHostRegister_v2", " %d %zu %u", *(unsigned char *)address, bytes, flags);
}

CUresult CUDAAPI cuMemHostUnregister(void *address) { return note("cuMemHostUnregister", " %d", *(unsigned char *)address); }

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned int flags) {
    *device = N(address);
    return note("cuMemHostGetDevicePointer_v2", " %u", flags);
}

/* Device memory of the stand-in is a few bytes from FAKE_MEMORY on, and its heap. */
#define FAKE_MEMORY 0x1fffffff00000
static unsigned char memory[256];

static unsigned char *at(CUdeviceptr address) {
    return address >= FAKE_MEMORY && address < FAKE_MEMORY + sizeof memory ? memory + (address - FAKE_MEMORY) : H(unsigned char *, address);
}

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    memcpy(at(to), from, bytes);
    return note("cuMemcpyHtoDAsync_v2", " %llx %zu %llx", to, bytes, N(stream));
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    memcpy(to, at(from), bytes);
    return note("cuMemcpyDtoHAsync_v2", " %llx %zu %llx", from, bytes, N(stream));
}

CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    memmove(at(to), at(from), bytes);
    return note("cuMemcpyDtoDAsync_v2", " %llx %llx %zu %llx", to, from, bytes, N(stream));
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    memset(at(to), value, bytes);
    return note("cuMemsetD8Async", " %llx %u %zu %llx", to, value, bytes, N(stream));
}

/* The linker puts its inputs one behind the other. */
static unsigned char linked[256];
static size_t linked_bytes;
static char *link_log;
static size_t link_log_bytes;

CUresult CUDAAPI cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values, CUlinkState *state) {
    linked_bytes = 0;
    for (unsigned int i = 0; i < count; i++) {
        if ((int)options[i] == 5) link_log = values[i];
        if ((int)options[i] == 6) link_log_bytes = N(values[i]);
    }
    *state = H(CUlinkState, 0x7f0000006000);
    return note("cuLinkCreate_v2", " %u", count);
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count,
                                  CUjit_option *options, void **values) {
    memcpy(linked + linked_bytes, data, size);
    linked_bytes += size;
    if (result_of("cuLinkAddData_v2")) snprintf(link_log, link_log_bytes, "error: %s defines it again", name);
    return note("cuLinkAddData_v2", " %llx %d %zu %s %u %llx %llx", N(state), (int)type, size, name, count, N(options), N(values));
}

CUresult CUDAAPI cuLinkComplete(CUlinkState state, void **cubin, size_t *size) {
    *cubin = linked;
    *size = linked_bytes;
    return note("cuLinkComplete", " %llx", N(state));
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState state) {
    memset(linked, 0xee, sizeof linked); /* what was not copied is gone */
    return note("cuLinkDestroy", " %llx", N(state));
}
