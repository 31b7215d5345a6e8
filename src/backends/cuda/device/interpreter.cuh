// Runs a fused program from bytecode, which `data` points to, on the parameter block that the compiled program would
// have: the first tier, for expressions that are not compiled yet. interpreter/bytecode.ts says what the words mean; the
// host has checked them (interpreter/check.ts), so nothing is checked here but that all of it fits into `shared`.
//
// Each thread works at up to four elements of a row at a time. Registers lie in `shared`, one word a thread: element
// registers have a word for each of those elements, row registers one for the row that the thread is at.
#pragma once

#include "program.cuh"

#ifndef GPUOS_SHARED_BYTES
#define GPUOS_SHARED_BYTES 32768
#endif

// The order is that of interpreter/opcodes.ts; a test compares them.
#define GPUOS_BYTECODE_VERSION 0x47500002u
#define GPUOS_REDUCTIONS(X)                                                                                            \
  X(SumFloat, float) X(ProdFloat, float) X(MaxFloat, float) X(MinFloat, float) X(ArgmaxFloat, float) X(ArgminFloat, float) \
  X(SumInt, int32_t) X(ProdInt, int32_t) X(MaxInt, int32_t) X(MinInt, int32_t) X(ArgmaxInt, int32_t) X(ArgminInt, int32_t) \
  X(Any, bool) X(All, bool)
#define GPUOS_FLOAT_UNARY(X)                                                                                   \
  X(neg) X(abs) X(sign) X(exp) X(expm1) X(log) X(log1p) X(sqrt) X(rsqrt) X(square) X(reciprocal) X(floor) X(ceil) X(round) \
  X(erf) X(tanh) X(sigmoid) X(softplus) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) X(acosh)     \
  X(atanh) X(relu) X(relu6) X(elu) X(selu) X(gelu) X(gelu_tanh) X(silu) X(is_nan) X(is_inf) X(is_finite) X(to_int) X(to_bool) \
  X(round_float16) X(round_bfloat16)
#define GPUOS_FLOAT_BINARY(X)                                                                                       \
  X(add) X(sub) X(mul) X(div) X(floor_div) X(mod) X(maximum) X(minimum) X(pow) X(squared_difference) X(atan2) X(prelu) \
  X(equal) X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)
#define GPUOS_INT_UNARY(X) X(neg) X(abs) X(sign) X(square) X(relu) X(to_float) X(to_bool)
#define GPUOS_INT_BINARY(X)                                                                              \
  X(add) X(sub) X(mul) X(floor_div) X(mod) X(maximum) X(minimum) X(pow) X(squared_difference) X(equal) \
  X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)
#define GPUOS_BOOL_BINARY(X) X(logical_and) X(logical_or) X(logical_xor)

namespace program {

enum Opcode : uint32_t {
  CODE_load, CODE_load_row, CODE_store, CODE_store_row, CODE_settle, CODE_move, CODE_select, CODE_logical_not,
#define GPUOS_CODE(name) CODE_##name,
  GPUOS_BOOL_BINARY(GPUOS_CODE)
#undef GPUOS_CODE
#define GPUOS_CODE(name) CODE_##name##_float,
  GPUOS_FLOAT_UNARY(GPUOS_CODE) GPUOS_FLOAT_BINARY(GPUOS_CODE)
#undef GPUOS_CODE
#define GPUOS_CODE(name) CODE_##name##_int,
  GPUOS_INT_UNARY(GPUOS_CODE) GPUOS_INT_BINARY(GPUOS_CODE)
#undef GPUOS_CODE
#define GPUOS_CODE(Name, T) CODE_begin_##Name, CODE_fold_##Name, CODE_finish_##Name,
  GPUOS_REDUCTIONS(GPUOS_CODE)
#undef GPUOS_CODE
};

// The words of the header, and the classes of an operand (its two highest bits of 16).
enum Header : uint32_t {
  HEADER_VERSION, HEADER_WORDS, HEADER_INPUTS, HEADER_OUTPUTS, HEADER_RANK, HEADER_PASSES, HEADER_CONSTANTS, HEADER_SCALARS,
  HEADER_ELEMENTS, HEADER_ROWS, HEADER_PARAMETERS, HEADER_FLAGS, HEADER_SIZE
};
enum Flag : uint32_t { FLAG_REDUCES = 1, FLAG_ROW_OUTPUTS = 2 };
enum OperandClass : uint32_t { CLASS_ELEMENT, CLASS_ROW, CLASS_CONSTANT, CLASS_SCALAR };

struct Machine {
  const uint32_t *words;      // the parameter block
  const uint32_t *code;       // the bytecode
  const uint32_t *constants;
  const uint32_t *scalars;
  uint32_t *elements;         // this thread's registers
  uint32_t *rows;
  uint32_t width;             // elements at a time
  // Where the thread is.
  uint32_t row, column, end;
  bool active;
  // Words of the parameter block.
  uint32_t rank, inputs, input_strides, output_strides, column_strides;
  Group group;
};

struct Operand {
  uint32_t *word;
  uint32_t step;
};

__device__ __forceinline__ Operand operand_of(const Machine &m, uint32_t class_of, uint32_t index) {
  switch (class_of) {
    case CLASS_ELEMENT: return {m.elements + index * m.width * blockDim.x, blockDim.x};
    case CLASS_ROW: return {m.rows + index * blockDim.x, 0};
    case CLASS_CONSTANT: return {const_cast<uint32_t *>(m.constants) + index, 0};
    default: return {const_cast<uint32_t *>(m.scalars) + index, 0};
  }
}

__device__ __forceinline__ Operand operand_of(const Machine &m, uint32_t word) { return operand_of(m, word >> 14, word & 0x3fffu); }

// How elements are stored: the two highest bits of an input's or output's word; below them is which stride it has.
enum Storage : uint32_t { STORED_WORD, STORED_FLOAT16, STORED_BFLOAT16 };
#define GPUOS_STRIDE_BITS 0x3fffffffu

// A row of an operand in memory.
struct Row {
  char *start;
  uint32_t storage;
  __device__ __forceinline__ uint32_t load(int64_t element) const {
    if (storage == STORED_WORD) return reinterpret_cast<const uint32_t *>(start)[element];
    const uint16_t bits = reinterpret_cast<const uint16_t *>(start)[element];
    return word_of(storage == STORED_FLOAT16 ? widened(Float16{bits}) : widened(Bfloat16{bits}));
  }
  __device__ __forceinline__ void store(int64_t element, uint32_t word) const {
    if (storage == STORED_WORD) {
      reinterpret_cast<uint32_t *>(start)[element] = word;
      return;
    }
    const float value = float_of(word);
    reinterpret_cast<uint16_t *>(start)[element] = storage == STORED_FLOAT16 ? to_float16(value).bits : to_bfloat16(value).bits;
  }
};

// The current row of the operand with this pointer and word, whose row strides begin at `strides`; of rank 0 its start.
__device__ __forceinline__ Row row_of(const Machine &m, uint32_t index, uint32_t word, uint32_t rank, uint32_t strides) {
  int64_t elements = 0;
  for (uint32_t d = 0; d < rank; d++) elements += offset(m.words, strides + d, m.rows[d * blockDim.x]);
  const uint32_t storage = word >> 30;
  return {pointer<char>(m.words, index) + elements * (storage == STORED_WORD ? 4 : 2), storage};
}

// One instruction: opcode (8 bits), destination (8, the highest for a row register) and c (16); a and b (16 each).
__device__ __forceinline__ void execute(Machine &m, uint32_t high, uint32_t low) {
  const uint32_t opcode = high & 0xffu;
  const uint32_t target = (high >> 8) & 0xffu;
  const uint32_t extra = high >> 16;
  const Operand d = operand_of(m, (target & 0x80u) != 0 ? CLASS_ROW : CLASS_ELEMENT, target & 0x7fu);
  const Operand a = operand_of(m, low & 0xffffu);
  const Operand b = operand_of(m, low >> 16);
  const uint32_t width = d.step == 0 ? 1 : m.width;
#define GPUOS_EACH _Pragma("unroll 1") for (uint32_t w = 0; w < width; w++)
#define GPUOS_A a.word[w * a.step]
#define GPUOS_B b.word[w * b.step]
#define GPUOS_D d.word[w * d.step]
  switch (opcode) {
    case CODE_load: {
      const uint32_t word = m.code[HEADER_SIZE + extra];
      const Row row = row_of(m, extra, word, m.rank, m.input_strides + m.rank * extra);
      const uint32_t kind = word & GPUOS_STRIDE_BITS;
      const int64_t stride = kind == 0 ? 0 : kind == 1 ? 1 : wrapped(m.words[m.column_strides + kind - 2]);
      GPUOS_EACH {
        const uint32_t column = m.column + w * m.group.lanes;
        GPUOS_D = column < m.end ? row.load(stride * column) : 0;
      }
      break;
    }
    case CODE_load_row: {
      const uint32_t value = row_of(m, extra, m.code[HEADER_SIZE + extra], m.rank, m.input_strides + m.rank * extra).load(0);
      GPUOS_EACH GPUOS_D = value;
      break;
    }
    case CODE_store: {
      const uint32_t word = m.code[HEADER_SIZE + m.inputs + extra];
      const uint32_t full = (word & GPUOS_STRIDE_BITS) - 1;
      const Row row = row_of(m, m.inputs + extra, word, m.rank, m.output_strides + m.rank * full);
      for (uint32_t w = 0; w < m.width; w++) {
        const uint32_t column = m.column + w * m.group.lanes;
        if (column < m.end) row.store(column, GPUOS_A);
      }
      break;
    }
    case CODE_store_row:
      if (m.active && m.group.lane == 0) {
        row_of(m, m.inputs + extra, m.code[HEADER_SIZE + m.inputs + extra], 0, 0).store(m.row, a.word[0]);
      }
      break;
    case CODE_settle: settle(m.group); break;
    case CODE_move: GPUOS_EACH GPUOS_D = GPUOS_A; break;
    case CODE_select: {
      const Operand c = operand_of(m, extra);
      GPUOS_EACH GPUOS_D = GPUOS_A != 0 ? GPUOS_B : c.word[w * c.step];
      break;
    }
    case CODE_logical_not: GPUOS_EACH GPUOS_D = word_of(GPUOS_A == 0); break;
#define GPUOS_CASE(name) \
  case CODE_##name: GPUOS_EACH GPUOS_D = word_of(map_##name(GPUOS_A != 0, GPUOS_B != 0)); break;
    GPUOS_BOOL_BINARY(GPUOS_CASE)
#undef GPUOS_CASE
#define GPUOS_CASE(name) \
  case CODE_##name##_float: GPUOS_EACH GPUOS_D = word_of(map_##name(float_of(GPUOS_A))); break;
    GPUOS_FLOAT_UNARY(GPUOS_CASE)
#undef GPUOS_CASE
#define GPUOS_CASE(name) \
  case CODE_##name##_float: GPUOS_EACH GPUOS_D = word_of(map_##name(float_of(GPUOS_A), float_of(GPUOS_B))); break;
    GPUOS_FLOAT_BINARY(GPUOS_CASE)
#undef GPUOS_CASE
#define GPUOS_CASE(name) \
  case CODE_##name##_int: GPUOS_EACH GPUOS_D = word_of(map_##name(wrapped(GPUOS_A))); break;
    GPUOS_INT_UNARY(GPUOS_CASE)
#undef GPUOS_CASE
#define GPUOS_CASE(name) \
  case CODE_##name##_int: GPUOS_EACH GPUOS_D = word_of(map_##name(wrapped(GPUOS_A), wrapped(GPUOS_B))); break;
    GPUOS_INT_BINARY(GPUOS_CASE)
#undef GPUOS_CASE
// A reduction's state is in the row registers d and d + 1.
#define GPUOS_CASE(Name, T)                                                \
  case CODE_begin_##Name: {                                                \
    Name state;                                                            \
    d.word[0] = state.first();                                             \
    d.word[blockDim.x] = state.second();                                   \
    break;                                                                 \
  }                                                                        \
  case CODE_fold_##Name: {                                                 \
    Name state;                                                            \
    state.set(d.word[0], d.word[blockDim.x]);                              \
    for (uint32_t w = 0; w < m.width; w++) {                               \
      const uint32_t column = m.column + w * m.group.lanes;                \
      T value;                                                             \
      from_word(GPUOS_A, value);                                           \
      if (column < m.end) state.fold(value, column);                       \
    }                                                                      \
    d.word[0] = state.first();                                             \
    d.word[blockDim.x] = state.second();                                   \
    break;                                                                 \
  }                                                                        \
  case CODE_finish_##Name: {                                               \
    Name state;                                                            \
    state.set(a.word[0], a.word[blockDim.x]);                              \
    reduce(m.group, state);                                                \
    d.word[0] = word_of(state.result());                                   \
    break;                                                                 \
  }
    GPUOS_REDUCTIONS(GPUOS_CASE)
#undef GPUOS_CASE
    default: break;
  }
#undef GPUOS_EACH
#undef GPUOS_A
#undef GPUOS_B
#undef GPUOS_D
}

}  // namespace program

extern "C" {

__device__ __noinline__ uint32_t operator_interpret(const uint64_t *params, uint32_t tile, uint32_t tiles, char *shared,
                                                    const uint32_t *data) {
  using namespace program;
  const uint32_t parameters = data[HEADER_PARAMETERS];
  const uint32_t size = data[HEADER_WORDS];
  const uint32_t element_registers = data[HEADER_ELEMENTS];
  const uint32_t row_registers = data[HEADER_ROWS];
  // In shared memory: the parameter block, the bytecode, scratch of reductions, registers.
  const uint32_t scratch = (parameters + size + 3) / 4 * 4;
  const uint32_t registers = scratch + ((data[HEADER_FLAGS] & FLAG_REDUCES) != 0 ? 4 * blockDim.x : 0);
  if (registers + (element_registers + row_registers) * blockDim.x > GPUOS_SHARED_BYTES / 4) return GPUOS_STATUS_FAILED;
  uint32_t *memory = reinterpret_cast<uint32_t *>(shared);
  for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) memory[parameters + i] = data[i];

  Machine m;
  m.words = stage(params, parameters, shared);
  m.code = memory + parameters;
  m.rank = m.code[HEADER_RANK];
  m.inputs = m.code[HEADER_INPUTS];
  const uint32_t outputs = m.code[HEADER_OUTPUTS];
  const uint32_t passes = m.code[HEADER_PASSES];
  const uint32_t base = 2 * (m.inputs + outputs > 4 ? m.inputs + outputs : 4);
  m.input_strides = base + 3 + m.rank;
  m.output_strides = m.input_strides + m.rank * m.inputs;
  m.scalars = m.words + parameters - m.code[HEADER_SCALARS];
  uint32_t strided = 0;
  for (uint32_t i = 0; i < m.inputs; i++) strided += (m.code[HEADER_SIZE + i] & GPUOS_STRIDE_BITS) >= 2 ? 1 : 0;
  m.column_strides = parameters - m.code[HEADER_SCALARS] - strided;
  const uint32_t *ends = m.code + HEADER_SIZE + m.inputs + outputs;
  m.constants = ends + 2 * passes + 1;
  const uint32_t *instructions = m.constants + m.code[HEADER_CONSTANTS];

  m.rows = memory + registers + threadIdx.x;
  m.elements = m.rows + row_registers * blockDim.x;
  const uint32_t room = (GPUOS_SHARED_BYTES / 4 - registers) / blockDim.x - row_registers;
  m.width = 4;
  while (m.width > 1 && m.width * element_registers > room) m.width--;

  const uint32_t columns = m.words[base];
  const bool reduces = (m.code[HEADER_FLAGS] & FLAG_REDUCES) != 0;
  uint32_t begin = 0, first_row = 0, end_row = 1, last = columns;
  char *const exchange = shared + 4 * scratch;
  if (m.rank == 0) {
    m.group = whole_block(exchange);
    if (!reduces) {
      const Span span = columns_of_tile(columns, tile, tiles);
      begin = span.begin;
      last = span.end;
    }
  } else {
    const uint32_t units = m.words[base + 2];
    if (units == 0 || (columns == 0 && (m.code[HEADER_FLAGS] & FLAG_ROW_OUTPUTS) == 0)) return GPUOS_STATUS_OK;
    const uint32_t rows_a_unit = m.words[base + 1] / units;
    first_row = first_unit(units, tile, tiles) * rows_a_unit;
    end_row = first_unit(units, tile + 1, tiles) * rows_a_unit;
    m.group = share_rows(end_row - first_row, columns / m.width + (columns % m.width != 0 ? 1 : 0), exchange);
  }
  for (uint32_t next = first_row; next < end_row; next += m.group.count) {
    // A group without a row of its own goes through the motions, over no columns.
    m.active = next + m.group.index < end_row && (m.rank > 0 || tile == 0);
    m.row = m.active ? next + m.group.index : next;
    m.end = m.active || m.rank == 0 ? last : 0;
    uint32_t rest = m.row;
    for (uint32_t d = m.rank; d > 0; d--) {
      const uint32_t dim = m.words[base + 2 + d];
      m.rows[(d - 1) * blockDim.x] = d > 1 ? rest % dim : rest;
      rest /= dim;
    }
    // Stages run once, as if over one column: one place that executes keeps the code small.
    uint32_t at = 0;
    for (uint32_t part = 0; part <= 2 * passes; part++) {
      const bool in_pass = (part & 1) != 0;
      const uint32_t end = ends[part];
      const uint32_t limit = in_pass ? m.end : 1;
      const uint32_t step = in_pass ? m.group.lanes * m.width : 1;
      for (m.column = in_pass ? begin + m.group.lane : 0; m.column < limit; m.column += step) {
        for (uint32_t i = at; i < end; i++) execute(m, instructions[2 * i], instructions[2 * i + 1]);
      }
      at = end;
    }
  }
  return GPUOS_STATUS_OK;
}
}
