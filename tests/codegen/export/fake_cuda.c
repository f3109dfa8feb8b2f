/* A CUDA driver that runs nothing: it records one launch and the tensor maps encoded before it. */
#include <cuda.h>
#include <string.h>

enum { MOST_ARGUMENTS = 128, MOST_MAPS = 16 };

struct {
    unsigned grid, block, shared, count;
    struct { unsigned id, value[3]; } attributes[3];
    CUstream stream;
    unsigned arguments; /* set by the test: the number of arguments, and the bytes of each */
    unsigned sizes[MOST_ARGUMENTS];
    unsigned long long values[MOST_ARGUMENTS];
    unsigned maps;
    struct {
        unsigned long long address, extents[3], strides[2];
        unsigned type, rank, box[3], swizzle;
    } encoded[MOST_MAPS];
    unsigned long long cleared, bytes; /* address and size of the last cuMemsetD8Async */
    int resident; /* set by the test: workgroups that the GPU runs at once */
    int capability; /* set by the test: ten times the compute capability of the GPU */
} recorded;

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = (CUmodule)image;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    *module = (CUmodule)path;
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    *function = (CUfunction)module;
    return strcmp(name, "gemm") ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function, (void)attribute;
    recorded.shared = (unsigned)value;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        *value = recorded.capability / 10;
    else if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        *value = recorded.capability % 10;
    else
        *value = recorded.resident;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, CUfunction function, int threads, size_t shared)
{
    (void)function, (void)threads, (void)shared;
    *blocks = 1;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    (void)function, (void)config;
    *clusters = recorded.resident;
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream)
{
    (void)stream;
    recorded.cleared = address;
    recorded.bytes = bytes;
    return value ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(
    CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
    const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *ones, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    unsigned i;
    (void)interleave, (void)promotion, (void)fill;
    if ((unsigned long long)map % 64 || recorded.maps == MOST_MAPS) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    memcpy(map, &address, sizeof address);
    recorded.encoded[recorded.maps].address = (unsigned long long)address;
    recorded.encoded[recorded.maps].type = type;
    recorded.encoded[recorded.maps].rank = rank;
    recorded.encoded[recorded.maps].swizzle = swizzle;
    for (i = 0; i < rank; i++) {
        if (ones[i] != 1) return CUDA_ERROR_INVALID_VALUE;
        recorded.encoded[recorded.maps].extents[i] = extents[i];
        recorded.encoded[recorded.maps].box[i] = box[i];
        if (i) recorded.encoded[recorded.maps].strides[i - 1] = strides[i - 1];
    }
    recorded.maps++;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(
    const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    unsigned i;
    (void)function, (void)extra;
    recorded.grid = config->gridDimX * config->gridDimY * config->gridDimZ;
    recorded.block = config->blockDimX * config->blockDimY * config->blockDimZ;
    recorded.shared = config->sharedMemBytes;
    recorded.stream = config->hStream;
    recorded.count = config->numAttrs;
    for (i = 0; i < config->numAttrs; i++) {
        recorded.attributes[i].id = config->attrs[i].id;
        recorded.attributes[i].value[0] = config->attrs[i].value.clusterDim.x;
        recorded.attributes[i].value[1] = config->attrs[i].value.clusterDim.y;
        recorded.attributes[i].value[2] = config->attrs[i].value.clusterDim.z;
    }
    for (i = 0; i < recorded.arguments; i++) 
        memcpy(&recorded.values[i], arguments[i], recorded.sizes[i]);
    return CUDA_SUCCESS;
}
