import { spawn } from 'node:child_process';

/** Runs a compiler without blocking: tests that compile for several architectures do so at the same time. */
export async function runTool(
  command: string,
  options: readonly string[],
): Promise<{ readonly status: number | null; readonly output: string }> {
  return await new Promise((resolve, reject) => {
    const child = spawn(command, options, { stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (text: Buffer) => (output += text.toString()));
    child.on('error', reject);
    child.on('close', (status) => resolve({ status, output }));
  });
}
