/*
 * A stand-in for libnvrtc.so: it "compiles" a source by putting the target before it, and fails where it says `#error`.
 * With FAKE_cubin=file every source becomes what is in that file.
 */
#include "fake.h"

#ifdef WITH_NVRTC_H
#include <nvrtc.h>
#else
typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;
#endif

static char source[512], compiled[1 << 16], text_log[600];
static size_t compiled_bytes;

nvrtcResult nvrtcVersion(int *major, int *minor) {
    *major = value_of("nvrtc", 13);
    *minor = value_of("nvrtc_minor", 0);
    return note("nvrtcVersion", "");
}

const char *nvrtcGetErrorString(nvrtcResult result) {
    return (int)result == 6 ? "NVRTC_ERROR_COMPILATION" : (int)result == 5 ? "NVRTC_ERROR_INVALID_OPTION" : "NVRTC_ERROR_INTERNAL_ERROR";
}

nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    *count = 3;
    return note("nvrtcGetNumSupportedArchs", "");
}

nvrtcResult nvrtcGetSupportedArchs(int *list) {
    list[0] = 75, list[1] = 90, list[2] = 100;
    return note("nvrtcGetSupportedArchs", "");
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *src, const char *name, int count, const char *const *headers,
                               const char *const *names) {
    char text[200] = "";
    for (int i = 0; i < count; i++) snprintf(text + strlen(text), sizeof text - strlen(text), " %s=%s", names[i], headers[i]);
    snprintf(source, sizeof source, "%s", src);
    *program = (nvrtcProgram)(uintptr_t)0x7f0000007000;
    return note("nvrtcCreateProgram", " %s %d%s", name, count, text);
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    int result = note("nvrtcDestroyProgram", " %llx", (unsigned long long)(uintptr_t)*program);
    *program = NULL;
    return result;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options) {
    char text[200] = "";
    for (int i = 0; i < count; i++) snprintf(text + strlen(text), sizeof text - strlen(text), " %s", options[i]);
    compiled_bytes = snprintf(compiled, sizeof compiled, "%s|%s", options[0], source);
    FILE *file = getenv("FAKE_cubin") ? fopen(getenv("FAKE_cubin"), "rb") : NULL;
    if (file) {
        compiled_bytes = fread(compiled, 1, sizeof compiled, file);
        fclose(file);
    }
    int failed = strstr(source, "#error") != NULL;
    snprintf(text_log, sizeof text_log, "%s", failed ? "k.cu(1): error: #error" : "");
    int result = note("nvrtcCompileProgram", " %llx %d%s", (unsigned long long)(uintptr_t)program, count, text);
    return result ? result : failed ? 6 : 0;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = strlen(text_log) + 1;
    return note("nvrtcGetProgramLogSize", "");
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *text) {
    (void)program;
    strcpy(text, text_log);
    return note("nvrtcGetProgramLog", "");
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = compiled_bytes;
    return note("nvrtcGetCUBINSize", "");
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *image) {
    (void)program;
    memcpy(image, compiled, compiled_bytes);
    return note("nvrtcGetCUBIN", "");
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = strlen(compiled) + 1;
    return note("nvrtcGetPTXSize", "");
}

nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *image) {
    (void)program;
    strcpy(image, compiled);
    return note("nvrtcGetPTX", "");
}
