/*
 * A stand-in for libcublasLt.so. It computes products of float32 on the calling thread, column by column as the real one,
 * in memory of the process; of large ones only what is looked at when they are tried. There are three algorithms
 * (FAKE_algorithms), whose first byte is their number. While a stream is captured, it notes what it would launch.
 *   FAKE_hungry=n    the first n take more registers than a resident kernel leaves
 *   FAKE_greedy=n    the first n take more shared memory than that
 *   FAKE_rising=1    each takes more shared memory than the one before, else less
 *   FAKE_ids=n       there are n more that it does not propose, from 10 on, each with two tiles and two stages; the second one
 *                    wants pointers to begin at multiples of 32
 *   FAKE_wrong=n    algorithm n computes nonsense
 *   FAKE_long=n     algorithm n comes to its end only after FAKE_long_ms; for a stream of the emulated driver
 *   FAKE_fails_at=n  the n-th product whose sums have at most FAKE_fails_below terms cannot be launched
 *   FAKE_waits=n    the call that launches algorithm n returns only after FAKE_waits_ms, from its FAKE_waits_from-th time on
 */
#include "fake.h"
#include "fake-stream.h"

typedef struct { int compute, scale, transpose[2]; } Operation;
typedef struct { int type; uint64_t rows, columns; int64_t stride; int batch; int64_t batch_stride; } Layout;
typedef struct { uint64_t workspace; uint32_t schemes, alignment[4]; } Preference;
typedef struct { unsigned char algorithm[64]; uint64_t workspace; int state; float waves; int reserved[4]; } Choice;

#define ALGORITHMS value_of("algorithms", 3)
#define FIRST_ID 10
#define NOT_SUPPORTED 15
#define LARGE (1 << 24)

size_t cublasLtGetVersion(void) { return value_of("cublas", 130102); }

const char *cublasLtGetStatusName(int status) {
    return status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : status == 13 ? "CUBLAS_STATUS_EXECUTION_FAILED" : "CUBLAS_STATUS_UNKNOWN";
}

int cublasLtCreate(void **handle) {
    *handle = (void *)0xb1a5;
    return note("cublasLtCreate", "");
}

int cublasLtMatmulDescCreate(Operation **operation, int compute, int scale) {
    *operation = calloc(1, sizeof **operation);
    (*operation)->compute = compute;
    (*operation)->scale = scale;
    return 0;
}

int cublasLtMatmulDescSetAttribute(Operation *operation, int attribute, const void *value, size_t bytes) {
    if (bytes != 4 || (attribute != 3 && attribute != 4)) return 7;
    memcpy(&operation->transpose[attribute - 3], value, 4);
    return 0;
}

int cublasLtMatmulDescDestroy(Operation *operation) {
    free(operation);
    return 0;
}

int cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    *layout = calloc(1, sizeof **layout);
    **layout = (Layout){type, rows, columns, stride, 1, 0};
    return (uint64_t)stride < rows ? 7 : 0;
}

int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
    if (attribute == 5 && bytes == 4) memcpy(&layout->batch, value, 4);
    else if (attribute == 6 && bytes == 8) memcpy(&layout->batch_stride, value, 8);
    else return 7;
    return 0;
}

int cublasLtMatrixLayoutDestroy(Layout *layout) {
    free(layout);
    return 0;
}

int cublasLtMatmulPreferenceCreate(Preference **preference) {
    *preference = calloc(1, sizeof **preference);
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t bytes) {
    if (attribute == 1 && bytes == 8) memcpy(&preference->workspace, value, 8);
    else if (attribute == 3 && bytes == 4) memcpy(&preference->schemes, value, 4);
    else if (attribute >= 5 && attribute <= 8 && bytes == 4) memcpy(&preference->alignment[attribute - 5], value, 4);
    else return 7;
    return 0;
}

int cublasLtMatmulPreferenceDestroy(Preference *preference) {
    free(preference);
    return 0;
}

static Layout transposed(const Layout *layout, int transpose) {
    Layout result = *layout;
    if (transpose) {
        result.rows = layout->columns;
        result.columns = layout->rows;
    }
    return result;
}

/* Whether these are matrices of a product that this library has algorithms for. */
static int is_product(const Operation *operation, const Layout *left, const Layout *right, const Layout *result) {
    Layout a = transposed(left, operation->transpose[0]), b = transposed(right, operation->transpose[1]);
    if (operation->compute != 68 || operation->scale != 0) return 0;
    if (left->type != 0 || right->type != 0 || result->type != 0) return 0;
    return a.rows == result->rows && b.columns == result->columns && a.columns == b.rows;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *operation, Layout *left, Layout *right, Layout *c, Layout *result,
                                   Preference *preference, int most, Choice *choices, int *count) {
    int status = note("cublasLtMatmulAlgoGetHeuristic", " %s%s %d", operation->transpose[0] ? "t" : "n", operation->transpose[1] ? "t" : "n", left->type);
    *count = 0;
    if (status != 0) return status;
    if (handle != (void *)0xb1a5 || c != result || !is_product(operation, left, right, result)) return NOT_SUPPORTED;
    if (preference->schemes != 0 || preference->workspace < 1 << 20) return NOT_SUPPORTED;
    for (int i = 0; i < 4; i++) if (preference->alignment[i] != 16) return NOT_SUPPORTED;
    for (; *count < most && *count < ALGORITHMS; ++*count) {
        memset(&choices[*count], 0, sizeof *choices);
        choices[*count].algorithm[0] = (unsigned char)*count;
        choices[*count].workspace = 4096;
    }
    return 0;
}

static const uint32_t tiles[] = {15, 20}, stages[] = {7, 12};

int cublasLtMatmulAlgoGetIds(void *handle, int compute, int scale, int a, int b, int c, int d, int most, int *ids, int *count) {
    *count = 0;
    if (handle != (void *)0xb1a5 || compute != 68 || scale != 0 || a != b || b != c || c != d) return 7;
    for (; *count < most && *count < value_of("ids", 0); ++*count) ids[*count] = FIRST_ID + *count;
    return note("cublasLtMatmulAlgoGetIds", "");
}

int cublasLtMatmulAlgoInit(void *handle, int compute, int scale, int a, int b, int c, int d, int id, unsigned char *algorithm) {
    (void)handle, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    memset(algorithm, 0, 64);
    algorithm[0] = (unsigned char)id;
    return 0;
}

int cublasLtMatmulAlgoCapGetAttribute(const unsigned char *algorithm, int attribute, void *buffer, size_t bytes, size_t *written) {
    const uint32_t alignment = algorithm[0] == FIRST_ID + 1 ? 32 : 16;
    const void *from = attribute == 6 ? (const void *)tiles : attribute == 13 ? (const void *)stages : (const void *)&alignment;
    *written = attribute == 6 ? sizeof tiles : attribute == 13 ? sizeof stages : sizeof alignment;
    if (bytes < *written || (attribute != 6 && attribute != 13 && (attribute < 16 || attribute > 19))) return 7;
    memcpy(buffer, from, *written);
    return 0;
}

int cublasLtMatmulAlgoConfigSetAttribute(unsigned char *algorithm, int attribute, const void *value, size_t bytes) {
    if (bytes != 4 || (attribute != 1 && attribute != 6)) return 7;
    algorithm[attribute == 1 ? 1 : 2] = *(const unsigned char *)value;
    return 0;
}

static int is_algorithm(const unsigned char *algorithm) {
    if (algorithm[0] < FIRST_ID) return algorithm[0] < ALGORITHMS;
    /* The larger tile has no kernel of most stages. */
    return algorithm[0] < FIRST_ID + value_of("ids", 0) && !(algorithm[1] == 20 && algorithm[2] == 12);
}

int cublasLtMatmulAlgoCheck(void *handle, Operation *operation, Layout *left, Layout *right, Layout *c, Layout *result, const unsigned char *algorithm,
                            Choice *choice) {
    memset(choice, 0, sizeof *choice);
    choice->workspace = 4096;
    choice->state = handle == (void *)0xb1a5 && c == result && is_algorithm(algorithm) && is_product(operation, left, right, result) ? 0 : NOT_SUPPORTED;
    /* As of kernels that have their limits. */
    if ((long long)result->columns == value_of("refused_rows", -1)) choice->state = NOT_SUPPORTED;
    return 0;
}

static float at(const float *matrix, const Layout *layout, int transpose, uint64_t row, uint64_t column) {
    return transpose ? matrix[column + row * layout->stride] : matrix[row + column * layout->stride];
}

static void *finish(void *stream) {
    usleep(value_of("long_ms", 300) * 1000);
    __atomic_fetch_sub((uint32_t *)stream, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void capture(StreamHead *stream, const unsigned char *algorithm) {
    const int number = algorithm[0];
    CapturedLaunch launch = {(uint32_t)number, 128, 65536 - 8192 * (uint32_t)(number % FIRST_ID), 128, 512};
    if (number < value_of("hungry", 0)) launch.threads = 384, launch.registers = 168;
    if (number < value_of("greedy", 0)) launch.dynamic_bytes = 200000;
    if (value_of("rising", 0)) launch.dynamic_bytes = 8192 * (uint32_t)(1 + number);
    if (number >= FIRST_ID) {
        launch.kernel = 10000 * number + 100 * algorithm[1] + algorithm[2];
        launch.registers = algorithm[1] == 20 ? 255 : 100;
        launch.dynamic_bytes = 4096 * algorithm[2];
    }
    stream->launches[stream->captured++] = launch;
    note("captured", " %d %d %d", number, algorithm[1], algorithm[2]);
}

int cublasLtMatmul(void *handle, Operation *operation, const float *alpha, const float *a, Layout *left, const float *b, Layout *right, const float *beta,
                   const float *c, Layout *c_layout, float *d, Layout *result, const unsigned char *algorithm, void *workspace, size_t workspace_bytes,
                   void *stream) {
    static int waited, calls_of_matmul;
    const int number = algorithm[0];
    const uint64_t k = transposed(left, operation->transpose[0]).columns;
    if (stream != NULL && ((StreamHead *)stream)->capturing) {
        capture(stream, algorithm);
        return 0;
    }
    /* What is launched on a stream begins when what was launched before has ended. */
    while (stream != NULL && __atomic_load_n(&((StreamHead *)stream)->running, __ATOMIC_SEQ_CST) != 0) usleep(100);
    int status = note("cublasLtMatmul", " %d %llu x %llu x %llu, batch %d", number, (unsigned long long)result->rows, (unsigned long long)result->columns,
                      (unsigned long long)k, result->batch);
    if (status != 0) return status;
    if ((long long)k <= value_of("fails_below", 1 << 30) && ++calls_of_matmul == value_of("fails_at", -1)) return 13;
    if (handle != (void *)0xb1a5 || c != d || c_layout != result || *alpha != 1 || *beta != 0 || workspace == NULL || workspace_bytes < 4096) return 7;
    if (!is_product(operation, left, right, result)) return NOT_SUPPORTED;
    if (number == value_of("waits", -1) && ++waited >= value_of("waits_from", 1)) usleep(value_of("waits_ms", 1500) * 1000);
    const int large = result->rows * result->columns * k > LARGE;
    for (int i = 0; i < result->batch; i++) {
        for (uint64_t column = 0; column < result->columns; column++) {
            const int last = column == result->columns - 1;
            if (large && column != 0 && column != result->columns / 2 && !last) continue;
            for (uint64_t row = large && last ? result->rows - 4 : 0; row < (large && !last ? 4 : result->rows); row++) {
                float sum = 0;
                for (uint64_t j = 0; j < k; j++)
                    sum += at(a + i * left->batch_stride, left, operation->transpose[0], row, j) * at(b + i * right->batch_stride, right, operation->transpose[1], j, column);
                d[i * result->batch_stride + row + column * result->stride] = number == value_of("wrong", -1) ? -sum : sum;
            }
        }
    }
    if (number == value_of("long", -1)) {
        pthread_t thread;
        __atomic_fetch_add((uint32_t *)stream, 1, __ATOMIC_SEQ_CST);
        if (pthread_create(&thread, NULL, finish, stream) != 0) abort();
        pthread_detach(thread);
    }
    return 0;
}
