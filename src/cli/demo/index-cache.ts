/**
 * The index on disk: the embeddings of a text's passages, so that a second search starts at once and an interrupted
 * run goes on where it stopped.
 *
 * One file a text, model and backend, in the cache folder. Layout: the magic word, the header's length (u32, little
 * endian), the header as JSON, the indexed passages' numbers (i32), their vectors (f32), and the SHA-256 of all that.
 * It is written to a file beside it and renamed, so a reader sees a whole index or none; what does not agree with its
 * checksum, its key or its own lengths is refused and built again.
 */
import { createHash, randomUUID } from 'node:crypto';
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { GpuosError } from '../../errors.ts';
import type { Passage } from './passages.ts';

const MAGIC = Buffer.from('GPUOSIDX');
const FORMAT = 1;
const CHECKSUM_BYTES = 32;

interface Header {
  readonly format: number;
  readonly key: string;
  readonly dimensions: number;
  readonly passages: number;
  readonly indexed: number;
}

/** The key of an index: everything that its vectors depend on. */
export function indexKey(passages: readonly Passage[], model: string, backend: string, version: string): string {
  const hash = createHash('sha256').update(JSON.stringify([FORMAT, model, backend, version, passages.length]));
  for (const { text } of passages) hash.update('\0').update(text);
  return hash.digest('hex');
}

/** Embeddings by passage number. Every vector has `dimensions` elements. */
export class PassageIndex {
  readonly key: string;
  readonly dimensions: number;
  readonly passages: number;
  readonly vectors = new Map<number, Float32Array>();

  constructor(key: string, dimensions: number, passages: number) {
    this.key = key;
    this.dimensions = dimensions;
    this.passages = passages;
  }

  encode(): Buffer {
    const numbers = [...this.vectors.keys()].sort((a, b) => a - b);
    const header: Header = {
      format: FORMAT,
      key: this.key,
      dimensions: this.dimensions,
      passages: this.passages,
      indexed: numbers.length,
    };
    // Padded so that numbers and vectors are aligned for typed views.
    const json = JSON.stringify(header);
    const headerBytes = Buffer.from(json.padEnd(Math.ceil((json.length + 12) / 8) * 8 - 12));
    const length = Buffer.alloc(4);
    length.writeUInt32LE(headerBytes.length);
    const vectors = Buffer.alloc(numbers.length * this.dimensions * 4);
    numbers.forEach((number, row) => {
      const vector = this.vectors.get(number) as Float32Array;
      vectors.set(new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength), row * this.dimensions * 4);
    });
    const body = Buffer.concat([MAGIC, length, headerBytes, Buffer.from(Int32Array.from(numbers).buffer), vectors]);
    return Buffer.concat([body, createHash('sha256').update(body).digest()]);
  }

  /** Takes the vectors of an encoded index. Throws GPUOS_INDEX_DAMAGED, naming what is wrong. */
  decode(bytes: Buffer): void {
    const damaged = (why: string) => new GpuosError('GPUOS_INDEX_DAMAGED', `the cached index is damaged: ${why}.`);
    if (bytes.length < MAGIC.length + 4 + CHECKSUM_BYTES) throw damaged('it is too short');
    const body = bytes.subarray(0, bytes.length - CHECKSUM_BYTES);
    if (!body.subarray(0, MAGIC.length).equals(MAGIC)) throw damaged('it is no index');
    if (!createHash('sha256').update(body).digest().equals(bytes.subarray(body.length))) throw damaged('its checksum differs');
    const start = MAGIC.length + 4;
    const end = start + body.readUInt32LE(MAGIC.length);
    if (end > body.length) throw damaged('its header is cut off');
    let header: Header;
    try {
      header = JSON.parse(body.toString('utf8', start, end)) as Header;
    } catch {
      throw damaged('its header is no JSON');
    }
    const { key, dimensions, passages, indexed } = header;
    if (key !== this.key || dimensions !== this.dimensions || passages !== this.passages) throw damaged('it belongs to another text');
    if (!Number.isInteger(indexed) || body.length - end !== indexed * 4 * (1 + dimensions)) throw damaged('its length differs');
    // A copy: the file's buffer is not aligned.
    const data = body.buffer.slice(body.byteOffset + end, body.byteOffset + body.length);
    const numbers = new Int32Array(data, 0, indexed);
    const found = new Map<number, Float32Array>();
    for (let row = 0; row < indexed; row++) {
      const number = numbers[row] as number;
      if (number < 0 || number >= passages || found.has(number)) throw damaged('it names a passage that does not exist');
      const vector = new Float32Array(data, indexed * 4 + row * dimensions * 4, dimensions);
      if (!vector.every(Number.isFinite)) throw damaged('a vector is not finite');
      found.set(number, vector);
    }
    for (const [number, vector] of found) this.vectors.set(number, vector);
  }
}

/** The file of an index, and what can be done with it. */
export class IndexCache {
  readonly file: string;

  constructor(folder: string, key: string) {
    this.file = join(folder, 'index', `${key}.gpuosidx`);
  }

  /** Reads what is cached into the index. Throws GPUOS_INDEX_DAMAGED; a missing file is no error. */
  async load(index: PassageIndex): Promise<void> {
    let bytes: Buffer;
    try {
      bytes = await readFile(this.file);
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return;
      throw new GpuosError('GPUOS_INDEX_DAMAGED', `the cached index cannot be read: ${(cause as Error).message}.`, { cause });
    }
    index.decode(bytes);
  }

  /**
   * Writes the index, together with what another process has cached for the same text since.
   * Throws GPUOS_OUTPUT_UNWRITABLE.
   */
  async save(index: PassageIndex): Promise<void> {
    const others = new PassageIndex(index.key, index.dimensions, index.passages);
    // What is damaged is replaced.
    await this.load(others).catch(() => {});
    for (const [number, vector] of others.vectors) if (!index.vectors.has(number)) index.vectors.set(number, vector);
    const temporary = `${this.file}.${randomUUID()}.tmp`;
    try {
      await mkdir(dirname(this.file), { recursive: true });
      const handle = await open(temporary, 'wx');
      try {
        await handle.writeFile(index.encode());
        await handle.sync();
      } finally {
        await handle.close();
      }
      await rename(temporary, this.file);
    } catch (cause) {
      await rm(temporary, { force: true }).catch(() => {});
      throw new GpuosError('GPUOS_OUTPUT_UNWRITABLE', `the index cannot be cached in ${dirname(this.file)}: ${(cause as Error).message}.`, {
        cause,
      });
    }
  }
}
