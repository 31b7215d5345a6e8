/*
 * What the stand-ins for the CUDA libraries have in common. A stand-in has the symbols of the real library, notes each
 * call with the arguments that arrived, and answers what a test told it to.
 *
 * Where the library is in another process, the environment tells it:
 *   FAKE_slow_CALL=ms        the call takes so long
 *   FAKE_result_CALL=number  the call answers that
 *   FAKE_fault_CALL=n        from its n-th time on that call and all others answer FAKE_fault (700 unless given)
 *   FAKE_log=file            calls are added to that file too
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static long long variable_of(const char *prefix, const char *call, long long otherwise) {
    char name[128];
    snprintf(name, sizeof name, "FAKE_%s%s", prefix, call);
    return getenv(name) ? atoll(getenv(name)) : otherwise;
}

/* Threads of a process call at the same time. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct { char call[64]; long long times; } counts[128];
static int faulted;

/* What the environment says about the n-th time of this call. */
static int result_of_environment(const char *call) {
    int i = 0;
    while (i < 127 && counts[i].times > 0 && strcmp(counts[i].call, call) != 0) i++;
    snprintf(counts[i].call, sizeof counts[i].call, "%s", call);
    counts[i].times++;
    long long fault = variable_of("fault_", call, 0);
    if (fault > 0 && counts[i].times >= fault) faulted = 1;
    return faulted ? (int)variable_of("fault", "", 700) : (int)variable_of("result_", call, 0);
}

static int note(const char *call, const char *format, ...) {
    char line[1024];
    size_t length = snprintf(line, sizeof line, "%s", call);
    va_list list;
    va_start(list, format);
    length += vsnprintf(line + length, sizeof line - length, format, list);
    va_end(list);
    if (length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    line[length] = 0;
    long long slow = variable_of("slow_", call, 0);
    if (slow > 0) usleep(slow * 1000);
    pthread_mutex_lock(&mutex);
    if (strlen(calls) + length < sizeof calls) strcat(calls, line); /* nobody takes them in another process */
    if (getenv("FAKE_log")) {
        int file = open(getenv("FAKE_log"), O_WRONLY | O_APPEND | O_CREAT, 0600);
        if (file >= 0 && write(file, line, length) < 0) abort();
        close(file);
    }
    int scripted = result_of(call);
    int result = scripted ? scripted : result_of_environment(call);
    pthread_mutex_unlock(&mutex);
    return result;
}
