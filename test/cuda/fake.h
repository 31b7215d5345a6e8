/*
 * What the stand-ins for the CUDA libraries have in common. A stand-in has the symbols of the real library, notes each
 * call with the arguments that arrived, and answers what a test told it to.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char calls[1 << 16];
static struct { char call[64]; int result; long long value; int used; } script[64];

/* Every call since the last time, one a line. */
const char *fake_calls(void) {
    static char taken[sizeof calls];
    strcpy(taken, calls);
    calls[0] = 0;
    return taken;
}

/* From here on `call` answers `result`; 0 takes it back. */
void fake_result(const char *call, int result) {
    int i = 0;
    while (script[i].used && (strcmp(script[i].call, call) != 0 || script[i].used != 1)) i++;
    script[i].used = 1;
    snprintf(script[i].call, sizeof script[i].call, "%s", call);
    script[i].result = result;
}

/* From here on the quantity `name` has this value. */
void fake_value(const char *name, long long value) {
    int i = 0;
    while (script[i].used && (strcmp(script[i].call, name) != 0 || script[i].used != 2)) i++;
    script[i].used = 2;
    snprintf(script[i].call, sizeof script[i].call, "%s", name);
    script[i].value = value;
}

/* What the environment of the process says (FAKE_name), what a test said, or the default. */
__attribute__((unused)) static long long value_of(const char *name, long long otherwise) {
    char variable[80];
    for (int i = 0; script[i].used; i++)
        if (script[i].used == 2 && strcmp(script[i].call, name) == 0) return script[i].value;
    snprintf(variable, sizeof variable, "FAKE_%s", name);
    return getenv(variable) ? atoll(getenv(variable)) : otherwise;
}

static int result_of(const char *call) {
    for (int i = 0; script[i].used; i++)
        if (script[i].used == 1 && strcmp(script[i].call, call) == 0) return script[i].result;
    return 0;
}

static int note(const char *call, const char *format, ...) {
    size_t length = strlen(calls);
    length += snprintf(calls + length, sizeof calls - length, "%s", call);
    va_list list;
    va_start(list, format);
    length += vsnprintf(calls + length, sizeof calls - length, format, list);
    va_end(list);
    snprintf(calls + length, sizeof calls - length, "\n");
    return result_of(call);
}
