// The resident kernel on the CPU, as part of the stand-in for libcuda.so.1: each block of a launch is a thread of the
// operating system whose fibers are the block's threads (cuda_emulation.h), device memory is memory of the process, and
// a stream is done when the blocks that were launched on it have left. All that the kernel is, is compiled as it is; only
// `memory.cuh` is another one.
#include "resident.cu"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <atomic>
#include <functional>
#include <map>
#include <vector>
#include <string>

#include "injected.h"

#define fake_calls grid_calls
#define fake_result grid_result
#define fake_value grid_value
#include "fake.h"
#include "fake-stream.h"

// What injected code jumps to first (injected.h): r10 has the number of its shared object. The arguments stay as they are.
extern "C" void emulation_resolve();
asm(R"(
.global emulation_resolve
emulation_resolve:
  push %rbp
  mov %rsp, %rbp
  push %rdi
  push %rsi
  push %rdx
  push %rcx
  push %r8
  sub $8, %rsp
  and $-16, %rsp
  mov %r10d, %edi
  call emulation_find
  lea -40(%rbp), %rsp
  pop %r8
  pop %rcx
  pop %rdx
  pop %rsi
  pop %rdi
  pop %rbp
  jmp *%rax
)");

namespace {

// Set before anything of this library is called.
const bool resolver_is_known = [] {
  void *page = mmap(reinterpret_cast<void *>(emulation::RESOLVER), 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (page != reinterpret_cast<void *>(emulation::RESOLVER)) abort();
  *static_cast<void (**)()>(page) = emulation_resolve;
  return true;
}();
pthread_mutex_t found_mutex = PTHREAD_MUTEX_INITIALIZER;
std::map<uint32_t, void *> found;

// The shared object of this number: beside this library.
std::string object_of(uint32_t number) {
  Dl_info own;
  if (dladdr(reinterpret_cast<void *>(emulation_resolve), &own) == 0) abort();
  const std::string path(own.dli_fname);
  return path.substr(0, path.rfind('/')) + "/injected/" + std::to_string(number) + ".so";
}

}  // namespace

extern "C" void *emulation_find(uint32_t number) {
  pthread_mutex_lock(&found_mutex);
  void *&function = found[number];
  if (function == nullptr) {
    void *library = dlopen(object_of(number).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || (function = dlsym(library, "gpuos_operator")) == nullptr) {
      fprintf(stderr, "injected code: %s\n", dlerror());
      abort();
    }
  }
  void *const result = function;
  pthread_mutex_unlock(&found_mutex);
  return result;
}

// A block's dynamic shared memory.
thread_local __align__(1024) char shared[GPUOS_DYNAMIC_BYTES];

namespace {

// What linked images begin with.
const char *const LINKED = "linked\n";
// Releases of a warp before the next one has its turn: few, as in a grid they wait for each other.
constexpr uint32_t TURN = 4;
// Of the lanes of a warp the last comes first: see memory.cuh.
constexpr uint32_t LAST_FIRST = 1;

struct Stream {
  std::atomic<uint32_t> running{0};
  uint32_t capturing = 0;
  uint32_t captured = 0;
  CapturedLaunch launches[MOST_CAPTURED];
};
static_assert(sizeof(Stream) == sizeof(StreamHead) && offsetof(Stream, launches) == offsetof(StreamHead, launches), "as libraries see it");

// All blocks that run: none may while a module is loaded or unloaded, for which the driver would wait.
std::atomic<uint32_t> running_blocks{0};

// Set by the first fault of a block; every call that has to do with the device answers with it from then on.
std::atomic<int> device_fault{0};
thread_local bool is_block = false;
constexpr int FAULTS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
struct sigaction handlers_before[NSIG];

// The block stands where it faulted. (On a device the others would too.)
void on_fault(int number, siginfo_t *info, void *context) {
  if (is_block) {
    device_fault = number == SIGILL ? 719 : 700;
    for (;;) pause();
  }
  const struct sigaction &before = handlers_before[number];
  if ((before.sa_flags & SA_SIGINFO) != 0) before.sa_sigaction(number, info, context);
  else sigaction(number, &before, nullptr);
}

void catch_faults() {
  static bool caught = false;
  if (caught) return;
  caught = true;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  for (int number : FAULTS) sigaction(number, &action, &handlers_before[number]);
}

// What a call comes to after a fault.
int after_fault(int result) { return device_fault != 0 ? device_fault.load() : result; }

// What was loaded: the kernel itself is part of this library, and what was linked to it are shared objects.
struct Module {
  void *table = nullptr;
};

struct Kernel {
  const char *name;
  void *function; // of a shared object
  int registers = 126;
  int static_bytes = 1000;
};

// What was captured last: nobody looks at two of them.
struct Graph {
  CapturedLaunch launches[MOST_CAPTURED];
  uint32_t count;
} graph;
std::map<uint32_t, Kernel *> captured_kernels;

Kernel *captured_kernel(const CapturedLaunch &launch) {
  Kernel *&kernel = captured_kernels[launch.kernel];
  if (kernel == nullptr) kernel = new Kernel{"captured", nullptr};
  kernel->registers = launch.registers;
  kernel->static_bytes = launch.static_bytes;
  return kernel;
}

struct Launch {
  std::function<void()> body;
  Stream *stream;
  uint32_t blocks, threads;
};

struct BlockOfLaunch {
  Launch launch;
  uint32_t index;
};

uint32_t run_thread(void *context) {
  static_cast<BlockOfLaunch *>(context)->launch.body();
  return 0;
}

void *run_block_of(void *context) {
  BlockOfLaunch *own = static_cast<BlockOfLaunch *>(context);
  is_block = true;
  emulation::Block &block = emulation::own_block();
  block.turn = TURN;
  block.grid_dim = {own->launch.blocks, 1, 1};
  block.block_index = {own->index, 0, 0};
  memset(shared, 0xff, sizeof shared);
  if (!emulation::run_body(run_thread, own, own->launch.threads, LAST_FIRST)) {
    fprintf(stderr, "block %u: %s\n", own->index, block.message);
    abort();
  }
  munmap(block.stacks, emulation::MOST_THREADS * emulation::STACK_BYTES);
  free(block.threads);
  free(&block);
  running_blocks--;
  own->launch.stream->running--;
  delete own;
  return nullptr;
}

// A kernel with its parameters, which are copied before the call returns.
std::function<void()> body_of(const Kernel &kernel, void **parameters) {
  const auto word = [&](int i) { return *static_cast<uint32_t *>(parameters[i]); };
  if (kernel.function != nullptr) {
    uint64_t *const told = *static_cast<uint64_t **>(parameters[0]);
    const void *const moves = *static_cast<void **>(parameters[1]);
    const auto tell = reinterpret_cast<void (*)(uint64_t *, const void *, uint32_t)>(kernel.function);
    return [tell, told, moves, count = word(2)] { tell(told, moves, count); };
  }
  const ResidentArguments arguments = *static_cast<ResidentArguments *>(parameters[0]);
  if (strcmp(kernel.name, "gpuos_resident") == 0) return [arguments] { gpuos_resident(arguments); };
  if (strcmp(kernel.name, "gpuos_fill_table") == 0) return [arguments] { gpuos_fill_table(arguments); };
  return [arguments, queue = word(1), sequence = word(2), status = word(3), aside = word(4)] {
    gpuos_external_end(arguments, queue, sequence, status, aside);
  };
}

int launch(const Kernel *kernel, uint32_t blocks, uint32_t threads, Stream *stream, void **parameters) {
  catch_faults();
  const std::function<void()> body = body_of(*kernel, parameters);
  while (stream->running != 0 && device_fault == 0) usleep(100);
  if (device_fault != 0) return device_fault;
  for (uint32_t i = 0; i < blocks; i++) {
    pthread_t thread;
    stream->running++;
    running_blocks++;
    BlockOfLaunch *block = new BlockOfLaunch{{body, stream, blocks, threads}, i};
    if (pthread_create(&thread, nullptr, run_block_of, block) != 0) abort();
    pthread_detach(thread);
  }
  return 0;
}

void wait(const Stream *stream) {
  while (stream->running != 0 && device_fault == 0) usleep(100);
}

}  // namespace

extern "C" {

// What is asked of a stream comes after what was launched on it.
int plain_cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *stream);
int plain_cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *stream);
int plain_cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *stream);
int plain_cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream *stream);

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, Stream *stream) {
  wait(stream);
  return after_fault(plain_cuMemcpyHtoDAsync_v2(to, from, bytes, stream));
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, Stream *stream) {
  wait(stream);
  return after_fault(plain_cuMemcpyDtoHAsync_v2(to, from, bytes, stream));
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream *stream) {
  wait(stream);
  return after_fault(plain_cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream *stream) {
  wait(stream);
  return after_fault(plain_cuMemsetD8Async(to, value, bytes, stream));
}

int cuModuleLoadData(Module **module, const char *image) {
  *module = new Module;
  // Paths of shared objects, the table's last; or the kernel alone.
  if (strncmp(image, LINKED, strlen(LINKED)) == 0) {
    std::string paths = image + strlen(LINKED);
    for (size_t end; (end = paths.find('\n')) != std::string::npos; paths.erase(0, end + 1)) {
      (*module)->table = dlopen(paths.substr(0, end).c_str(), RTLD_NOW | RTLD_GLOBAL);
      if ((*module)->table == nullptr) {
        fprintf(stderr, "linked code: %s\n", dlerror());
        return 200;
      }
    }
  }
  // With FAKE_bad_load=n the n-th one is refused.
  static uint32_t loads = 0;
  const int result = note("cuModuleLoadData", running_blocks == 0 ? "" : " while a kernel runs");
  return ++loads == value_of("bad_load", 0) ? 200 : result;
}

int cuModuleUnload(Module *) { return note("cuModuleUnload", running_blocks == 0 ? "" : " while a kernel runs"); }

int cuModuleGetFunction(Kernel **function, Module *module, const char *name) {
  static const char *const own[] = {"gpuos_resident", "gpuos_fill_table", "gpuos_external_end"};
  *function = nullptr;
  for (const char *known : own) if (strcmp(name, known) == 0) *function = new Kernel{known, nullptr};
  void *const linked = *function == nullptr && module->table != nullptr ? dlsym(module->table, name) : nullptr;
  if (linked != nullptr) *function = new Kernel{"", linked};
  const int result = note("cuModuleGetFunction", " %s", name);
  return *function == nullptr ? 500 : result;
}

int cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
  *stream = new Stream;
  return note("cuStreamCreateWithPriority", " %u %d", flags, priority);
}

int plain_cuFuncGetAttribute(int *value, int attribute, const Kernel *kernel);
int plain_cuMemFree_v2(uint64_t address);

int cuFuncGetAttribute(int *value, int attribute, const Kernel *kernel) {
  const int result = plain_cuFuncGetAttribute(value, attribute, kernel);
  *value = attribute == 4 ? kernel->registers : attribute == 1 ? kernel->static_bytes : *value;
  return result;
}

int cuMemFree_v2(uint64_t address) {
  if (running_blocks != 0) note("cuMemFree_v2", " while a kernel runs");
  return plain_cuMemFree_v2(address);
}

int cuStreamBeginCapture_v2(Stream *stream, int mode) {
  const int result = note("cuStreamBeginCapture_v2", "%s", running_blocks == 0 ? "" : " while a kernel runs");
  if (result != 0) return result;
  stream->capturing = mode == 2;
  stream->captured = 0;
  return 0;
}

int cuStreamEndCapture(Stream *stream, Graph **to) {
  graph.count = stream->captured;
  memcpy(graph.launches, stream->launches, sizeof graph.launches);
  stream->capturing = 0;
  *to = &graph;
  return note("cuStreamEndCapture", "");
}

int cuGraphGetNodes(Graph *of, CapturedLaunch **nodes, size_t *count) {
  for (size_t i = 0; nodes != nullptr && i < *count; i++) nodes[i] = &of->launches[i];
  *count = of->count;
  return 0;
}

int cuGraphNodeGetType(CapturedLaunch *, int *type) {
  *type = 0;
  return 0;
}

struct NodeParams {
  Kernel *function;
  unsigned grid[3], block[3], shared_bytes;
  void *parameters, *extra;
  Kernel *kernel;
  void *context;
};

// Some come with a function, some with a kernel that has none yet.
int cuGraphKernelNodeGetParams_v2(CapturedLaunch *node, NodeParams *params) {
  Kernel *const kernel = captured_kernel(*node);
  const bool odd = node->kernel % 2 != 0;
  *params = {odd ? nullptr : kernel, {1, 1, 1}, {node->threads, 1, 1}, node->dynamic_bytes, nullptr, nullptr, odd ? kernel : nullptr, nullptr};
  return 0;
}

int cuKernelGetFunction(Kernel **function, Kernel *kernel) {
  *function = kernel;
  return 0;
}

int cuGraphDestroy(Graph *) { return 0; }

int cuStreamDestroy_v2(Stream *stream) {
  delete stream;
  return note("cuStreamDestroy_v2", "");
}

int cuStreamQuery(Stream *stream) {
  const int result = after_fault(note("cuStreamQuery", ""));
  return result != 0 ? result : stream->running == 0 ? 0 : 600;
}

int cuStreamSynchronize(Stream *stream) {
  wait(stream);
  return after_fault(note("cuStreamSynchronize", ""));
}

int cuLaunchKernel(const Kernel *kernel, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, Stream *stream, void **parameters, void **) {
  const int result = note("cuLaunchKernel", " %u x %u", gx, bx);
  return result != 0 ? result : launch(kernel, gx, bx, stream, parameters);
}

struct Config {
  unsigned grid[3], block[3], shared_bytes;
  Stream *stream;
  void *attributes;
  unsigned count;
};

int cuLaunchKernelEx(const Config *config, const Kernel *kernel, void **parameters, void **) {
  const int result = note("cuLaunchKernelEx", " %u x %u", config->grid[0], config->block[0]);
  return result != 0 ? result : launch(kernel, config->grid[0], config->block[0], config->stream, parameters);
}

// Linked is a list of the shared objects behind operators' cubins; what has none is the kernel.
static std::string image;

int cuLinkCreate_v2(unsigned, void *, void **, void **state) {
  image = LINKED;
  *state = &image;
  return note("cuLinkCreate_v2", "");
}

int cuLinkAddData_v2(void *, int, void *data, size_t size, const char *name, unsigned, void *, void **) {
  uint32_t number;
  if (emulation::read_jump(static_cast<char *>(data), size, number)) image += object_of(number) + '\n';
  return note("cuLinkAddData_v2", " %s", name);
}

int cuLinkComplete(void *, void **cubin, size_t *size) {
  *cubin = &image[0];
  *size = image.size() + 1;
  return note("cuLinkComplete", "");
}

int cuLinkDestroy(void *) { return note("cuLinkDestroy", ""); }
}
