/**
 * One `struct` value describes a record that host and device share. From it derive the offsets, the
 * typed accessors, the C header and the constants of the WebAssembly device, so that a layout is
 * written down once.
 */
export type FieldType = 'u8' | 'u16' | 'u32' | 'u64' | 'i64' | 'f64';

const SIZES: Readonly<Record<FieldType, number>> = { u8: 1, u16: 2, u32: 4, u64: 8, i64: 8, f64: 8 };
const C_TYPES: Readonly<Record<FieldType, string>> = {
  u8: 'uint8_t',
  u16: 'uint16_t',
  u32: 'uint32_t',
  u64: 'uint64_t',
  i64: 'int64_t',
  f64: 'double',
};

/** A field: its type, and how many of them (an array where `count` is given). */
export interface FieldDefinition {
  readonly type: FieldType;
  readonly count?: number;
  /** Byte offset that the field must have; a disagreement with the natural layout is an error at load. */
  readonly at?: number;
  readonly about: string;
}

export type FieldDefinitions = Readonly<Record<string, FieldDefinition>>;

export interface Struct<F extends FieldDefinitions> {
  readonly name: string;
  readonly size: number;
  readonly align: number;
  readonly fields: F;
  /** Byte offset of each field. */
  readonly offset: { readonly [K in keyof F]: number };
}

/**
 * Lays the fields out in order with C's natural alignment.
 * @param size the exact size in bytes; fields that pass it, or an `at` that the layout does not give, throw RangeError
 */
export function struct<const F extends FieldDefinitions>(name: string, size: number, align: number, fields: F): Struct<F> {
  const offset: Record<string, number> = {};
  let at = 0;
  for (const [key, field] of Object.entries(fields)) {
    const bytes = SIZES[field.type];
    if (bytes > align) throw new RangeError(`${name}.${key} needs an alignment of ${bytes}, more than the ${align} of the whole`);
    at = Math.ceil(at / bytes) * bytes;
    if (field.at !== undefined) {
      if (field.at < at || field.at % bytes !== 0)
        throw new RangeError(`${name}.${key} cannot stand at byte ${field.at}; ${at} is the first free`);
      at = field.at;
    }
    offset[key] = at;
    at += bytes * (field.count ?? 1);
  }
  if (at > size) throw new RangeError(`${name} takes ${at} bytes, more than the ${size} stated`);
  if (size % align !== 0) throw new RangeError(`${name}: ${size} bytes is not a multiple of its alignment ${align}`);
  return { name, size, align, fields, offset: offset as { readonly [K in keyof F]: number } };
}

const upper = (name: string): string =>
  name
    .replace(/([a-z0-9])([A-Z])/g, '$1_$2')
    .replaceAll('-', '_')
    .toUpperCase();
const snake = (name: string): string => upper(name).toLowerCase();

/** Field names that C or C++ keeps for itself get a `_`. */
const KEYWORDS: ReadonlySet<string> = new Set([
  'operator',
  'new',
  'delete',
  'class',
  'this',
  'template',
  'private',
  'public',
  'default',
  'register',
]);
const cName = (key: string): string => (KEYWORDS.has(snake(key)) ? `${snake(key)}_` : snake(key));

/** The struct as a C type with static asserts on its size and on every offset. */
export function structToC(definition: Struct<FieldDefinitions>): string {
  const type = `gpuos_${snake(definition.name)}`;
  const lines = [`typedef struct GPUOS_ALIGN(${definition.align}) ${type} {`];
  let at = 0;
  let pads = 0;
  for (const [key, field] of Object.entries(definition.fields)) {
    const offset = definition.offset[key] as number;
    // Gaps are spelled out, so that the layout does not depend on a compiler's idea of padding.
    if (offset > at) lines.push(`  uint8_t pad${pads++}[${offset - at}];`);
    const count = field.count === undefined ? '' : `[${field.count}]`;
    lines.push(`  ${C_TYPES[field.type]} ${cName(key)}${count}; /* ${offset}: ${field.about} */`);
    at = offset + SIZES[field.type] * (field.count ?? 1);
  }
  if (definition.size > at) lines.push(`  uint8_t pad${pads}[${definition.size - at}];`);
  lines.push(`} ${type};`, `GPUOS_STATIC_ASSERT(sizeof(${type}) == ${definition.size}, "${type}: size");`);
  for (const key of Object.keys(definition.fields)) {
    lines.push(`GPUOS_ASSERT_OFFSET(${type}, ${cName(key)}, ${definition.offset[key]}, "${type}.${snake(key)}: offset");`);
  }
  return lines.join('\n');
}

/** The struct as AssemblyScript constants: `NAME_BYTES`, and `NAME_FIELD` for each offset. */
export function structToConstants(definition: Struct<FieldDefinitions>): string {
  const prefix = upper(definition.name);
  const lines = [`export const ${prefix}_BYTES: u32 = ${definition.size};`];
  for (const key of Object.keys(definition.fields)) lines.push(`export const ${prefix}_${upper(key)}: u32 = ${definition.offset[key]};`);
  return lines.join('\n');
}

/** Named numbers (statuses, flags) as AssemblyScript constants or C macros. */
export function numbersToConstants(prefix: string, numbers: Readonly<Record<string, number>>): string {
  return Object.entries(numbers)
    .map(([key, value]) => `export const ${prefix}_${key}: u32 = ${value};`)
    .join('\n');
}

export function numbersToC(prefix: string, numbers: Readonly<Record<string, number>>): string {
  return Object.entries(numbers)
    .map(([key, value]) => `#define GPUOS_${prefix}_${key} ${value}u`)
    .join('\n');
}
