/*
 * What a stream of the emulated driver begins with, for the stand-in of a library that launches on it: what runs is counted,
 * and between the begin and the end of a capture launches are noted instead.
 */
#include <stdint.h>

#define MOST_CAPTURED 4

typedef struct {
    uint32_t kernel; /* its number */
    uint32_t threads, dynamic_bytes;
    int32_t registers, static_bytes;
} CapturedLaunch;

typedef struct {
    uint32_t running;
    uint32_t capturing;
    uint32_t captured;
    CapturedLaunch launches[MOST_CAPTURED];
} StreamHead;
