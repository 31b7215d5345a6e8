// A stand-in for libnvrtc.so whose sources run on the CPU (grid.cc): a cubin of it is a real one in which the operator's
// code begins with a jump into a shared object that g++ makes of the source (injected.h). The object's number is a hash
// of all that is compiled, so that a cubin that was kept works in a later process.
#include <sys/stat.h>

#include <string>
#include <vector>

#include "fake.h"
#include "injected.h"

namespace {

struct Program {
  std::string source, name, log, cubin;
  std::vector<std::string> names, headers;
};

std::string contents(const std::string &path) {
  std::string text;
  if (FILE *file = fopen(path.c_str(), "rb")) {
    char part[65536];
    for (size_t size; (size = fread(part, 1, sizeof part, file)) > 0;) text.append(part, size);
    fclose(file);
  }
  return text;
}

void write(const std::string &path, const std::string &text) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) mkdir(path.substr(0, at).c_str(), 0700);
  FILE *file = fopen(path.c_str(), "wb");
  if (file == nullptr || fwrite(text.data(), 1, text.size(), file) != text.size() || fclose(file) != 0) abort();
}

uint32_t number_of(const Program &program) {
  uint32_t hash = 2166136261u;
  const auto add = [&](const std::string &text) {
    for (const char byte : text) hash = (hash ^ static_cast<uint8_t>(byte)) * 16777619u;
  };
  add(program.source);
  for (size_t i = 0; i < program.names.size(); i++) add(program.names[i]), add(program.headers[i]);
  // Its lowest byte stands where a device has a register: not that of the stack.
  return hash | 0x80;
}

// Makes the shared object of a source, KEEP/number.so, unless it is there. False with the compiler's complaint.
bool compile(const Program &program, uint32_t number, std::string &log) {
  const std::string made = std::string(KEEP "/") + std::to_string(number) + ".so";
  if (access(made.c_str(), R_OK) == 0) return true;
  mkdir(KEEP, 0700);
  char pattern[] = KEEP "/build-XXXXXX";
  const std::string folder = mkdtemp(pattern);
  write(folder + "/" + program.name, program.source);
  for (size_t i = 0; i < program.names.size(); i++) {
    // Of these the compiler has its own.
    if (program.names[i] != "stdint.h" && program.names[i] != "stddef.h") write(folder + "/" + program.names[i], program.headers[i]);
  }
  // The libraries that it calls are there with the driver's, and take the linker as long as the rest takes the compiler.
  const std::string command = std::string(GXX " " FLAGS " -shared -nostdlib -DEMULATION_INJECTED -include " EMULATION "/cuda_emulation.h -I ") + folder +
                              " -I " EMULATION " -x c++ -o " + folder + "/made.so " + folder + "/" + program.name + " -x none " DRIVER " > " +
                              folder + "/log 2>&1";
  const bool good = system(command.c_str()) == 0;
  log = contents(folder + "/log");
  if (good && rename((folder + "/made.so").c_str(), made.c_str()) != 0) abort();
  if (system(("rm -rf " + folder).c_str()) != 0) abort();
  return good;
}

// With FAKE_self_test=1 the operator of the self-test gives another result in its second version; with 2 it hangs, with 3 it faults.
void spoil(std::string &source) {
  const auto put = [&](const char *before, const char *after) {
    const size_t at = source.find(before);
    if (at != std::string::npos) source.replace(at, strlen(before), after);
  };
  const long long how = value_of("self_test", 0);
  if (how == 1) put("#define VERSION 2", "#define VERSION 3");
  if (how == 2) put("  return GPUOS_STATUS_OK;", "  for (volatile int ever = 1; ever;) emulation::rest(1000000);\n  return GPUOS_STATUS_OK;");
  if (how == 3) put("  return GPUOS_STATUS_OK;", "  __builtin_trap();");
}

// The cubin of a function under the name that ours have.
std::string cubin_of(uint32_t number) {
  std::string cubin = contents(TEMPLATE);
  emulation::write_jump(&cubin[CODE_OFFSET], number);
  return cubin;
}

}  // namespace

extern "C" {

int nvrtcCreateProgram(Program **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names) {
  *program = new Program{source, name, "", "", {names, names + count}, {headers, headers + count}};
  return note("nvrtcCreateProgram", " %s %d", name, count);
}

int nvrtcDestroyProgram(Program **program) {
  delete *program;
  *program = nullptr;
  return note("nvrtcDestroyProgram", "");
}

int nvrtcCompileProgram(Program *program, int, const char *const *options) {
  const int result = note("nvrtcCompileProgram", " %s %s", program->name.c_str(), options[0]);
  if (result != 0) return result;
  // The kernel itself is part of the stand-in for the driver.
  if (program->name == "resident.cu") {
    program->cubin = program->source;
    return 0;
  }
  if (program->name == "self-test.cu") spoil(program->source);
  const uint32_t number = number_of(*program);
  if (!compile(*program, number, program->log)) return 6;
  program->cubin = cubin_of(number);
  return 0;
}

int nvrtcGetProgramLogSize(Program *program, size_t *size) {
  *size = program->log.size() + 1;
  return note("nvrtcGetProgramLogSize", "");
}

int nvrtcGetProgramLog(Program *program, char *text) {
  strcpy(text, program->log.c_str());
  return note("nvrtcGetProgramLog", "");
}

int nvrtcGetCUBINSize(Program *program, size_t *size) {
  *size = program->cubin.size();
  return note("nvrtcGetCUBINSize", "");
}

int nvrtcGetCUBIN(Program *program, char *image) {
  memcpy(image, program->cubin.data(), program->cubin.size());
  return note("nvrtcGetCUBIN", "");
}
}
