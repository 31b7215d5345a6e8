/* A stand-in for libnvidia-ml.so.1. */
#include "fake.h"

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
#define N(handle) ((unsigned long long)(uintptr_t)(handle))

nvmlReturn_t nvmlInit_v2(void) { return note("nvmlInit_v2", ""); }
nvmlReturn_t nvmlShutdown(void) { return note("nvmlShutdown", ""); }
const char *nvmlErrorString(nvmlReturn_t result) { return result == 15 ? "GPU is lost" : "Driver Not Loaded"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    snprintf(version, length, "580.1.2");
    return note("nvmlSystemGetDriverVersion", " %u", length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = 2;
    return note("nvmlDeviceGetCount_v2", "");
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(uintptr_t)(0x7f0000008000 + index);
    return note("nvmlDeviceGetHandleByIndex_v2", " %u", index);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(uintptr_t)0x7f0000009000;
    return note("nvmlDeviceGetHandleByPciBusId_v2", " %s", id);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    snprintf(name, length, "Fake GPU");
    return note("nvmlDeviceGetName", " %llx %u", N(device), length);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    rates->gpu = 37;
    rates->memory = 5;
    return note("nvmlDeviceGetUtilizationRates", " %llx", N(device));
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = 150754820096;
    memory->free = 150000000000;
    memory->used = 754820096;
    return note("nvmlDeviceGetMemoryInfo", " %llx", N(device));
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    *milliwatts = 122500;
    return note("nvmlDeviceGetPowerUsage", " %llx", N(device));
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    *millijoules = 5000000000ull;
    return note("nvmlDeviceGetTotalEnergyConsumption", " %llx", N(device));
}
