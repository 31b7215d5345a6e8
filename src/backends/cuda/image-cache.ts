import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const DIGEST_BYTES = 32;

/**
 * Machine code that was compiled before, in files under the hash of all that it depends on. Each file begins with the hash
 * of its contents: one that was cut short or damaged is as good as none. A folder that cannot be written costs time only.
 */
export class ImageCache {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = join(folder, 'cuda');
  }

  /** The key of what `parts` decide. */
  static key(parts: readonly unknown[]): string {
    return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
  }

  read(key: string): Uint8Array | undefined {
    let file: Buffer;
    try {
      file = readFileSync(join(this.#folder, key));
    } catch {
      return undefined;
    }
    const image = file.subarray(DIGEST_BYTES);
    const digest = createHash('sha256').update(image).digest();
    return file.length > DIGEST_BYTES && digest.equals(file.subarray(0, DIGEST_BYTES)) ? image : undefined;
  }

  write(key: string, image: Uint8Array): void {
    const path = join(this.#folder, key);
    const temporary = `${path}.${process.pid}.tmp`;
    try {
      mkdirSync(this.#folder, { recursive: true });
      writeFileSync(temporary, Buffer.concat([createHash('sha256').update(image).digest(), image]));
      renameSync(temporary, path);
    } catch {
      try {
        rmSync(temporary, { force: true });
      } catch {
        // Not even a folder.
      }
    }
  }
}
