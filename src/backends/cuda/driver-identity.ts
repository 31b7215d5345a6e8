import { readFileSync, realpathSync } from 'node:fs';

const KERNEL_MODULE = '/proc/driver/nvidia/version';

/** Which driver that is, more exactly than by its CUDA: the kernel's module, and the file that the library's name leads to. */
export function driverIdentity(path: string): string {
  const attempt = (action: () => string): string => {
    try {
      return action();
    } catch {
      return '';
    }
  };
  return `${attempt(() => readFileSync(KERNEL_MODULE, 'utf8'))}${attempt(() => realpathSync(path))}`;
}
