#!/usr/bin/env node
/** The `gpuos` command. Exit codes: 0, 1 for an error that gpuos names, 2 for a wrong command line, 128 + n for a signal. */
import { Command, CommanderError, InvalidArgumentError, Option } from 'commander';
import { GpuosError } from '../errors.ts';
import { nearMatchHint } from '../spelling.ts';
import { SUITES, type SuiteName } from './bench/suite.ts';
import { DEFAULT_LIMIT, DEFAULT_QUERY, MAX_TOP } from './demo/defaults.ts';
import { outputFailure, print, watchOutput } from './output.ts';
import { packageVersion } from './version.ts';

// Commands are imported when they run: `--help` and a wrong word answer without loading TensorFlow.js.

function integerBetween(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = /^\d+$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    throw new InvalidArgumentError(`It has to be an integer from ${min} to ${max}.`);
  };
}

function oneOf<T extends string>(values: readonly T[]): (text: string) => T {
  return (text) => {
    if (values.includes(text as T)) return text as T;
    throw new InvalidArgumentError(`It has to be one of ${values.join(', ')}.${nearMatchHint(text, values)}`);
  };
}

function buildProgram(finish: (code: number) => void): Command {
  const program = new Command('gpuos')
    .description('A resident runtime for many small operations: launch once, call forever.')
    .version(packageVersion(), '-V, --version', 'print the version')
    .helpOption('-h, --help', 'show this help')
    .helpCommand(false)
    .addHelpText(
      'after',
      `
Examples:
  gpuos info                               the devices of this machine, and what is missing
  gpuos demo --query "a storm at sea"      semantic search over Moby Dick
  gpuos bench submit throughput --json     measure, one JSON object a line

Flags of the environment (GPUOS_DEVICE, GPUOS_WORKERS, ...) are listed in docs/flags.md.`,
    );

  program
    .command('info')
    .description('show the devices: what was found, what is missing and how to get it')
    .option('--json', 'print one JSON object')
    .addHelpText('after', '\nExamples:\n  gpuos info\n  gpuos info --json\n  GPUOS_WORKERS=3 gpuos info')
    .action(async (options: { json?: boolean }) => {
      const { runInfo } = await import('./info.ts');
      finish(await runInfo({ json: options.json === true }));
    });

  program
    .command('demo')
    .description('semantic search over a book, with a sentence encoder made for TensorFlow.js')
    .option(
      '-q, --query <text>',
      `what to look for; may be given several times (default: "${DEFAULT_QUERY}")`,
      (text, list: string[] = []) => [...list, text],
    )
    .option('-i, --input <file>', 'a text file in UTF-8, or - for standard input (default: Moby Dick)')
    .option('-k, --top <n>', 'how many passages to show for each query', integerBetween(1, MAX_TOP), 5)
    .option(
      '-n, --limit <n>',
      'how many passages to index, drawn evenly over the text; what earlier runs have indexed is searched as well',
      integerBetween(1, 10_000_000),
      DEFAULT_LIMIT,
    )
    .addOption(new Option('-a, --all', 'index every passage').conflicts('limit'))
    .option('--compare', 'measure stock TensorFlow.js as well: 200 sentences on wasm, 20 on cpu')
    .option(
      '--backend <name>',
      'the tfjs backend: gpuos, or a stock one (wasm, cpu) to try things out',
      oneOf(['gpuos', 'wasm', 'cpu']),
      'gpuos',
    )
    .option('--device <name>', 'where the backend gpuos runs: wasm, cuda or auto (default: GPUOS_DEVICE)', oneOf(['auto', 'wasm', 'cuda']))
    .option('--no-cache', 'neither read nor write the cached index')
    .option('--quiet', 'no progress')
    .option('--json', 'print one JSON object as the last line of stdout; everything else goes to stderr')
    .addHelpText(
      'after',
      `
Examples:
  gpuos demo
  gpuos demo --query "a storm at sea" --query "the price of whale oil" --top 3
  gpuos demo --input notes.txt --all --query "what to do in a fire"
  man sh | gpuos demo --input - --query "how to read a line"
  gpuos demo --json --compare
  gpuos demo --device cuda --json

Ctrl-C keeps what has been indexed; the next run goes on from there.`,
    )
    .action(
      async (options: {
        query?: string[];
        input?: string;
        top: number;
        limit: number;
        all?: boolean;
        compare?: boolean;
        backend: 'gpuos' | 'wasm' | 'cpu';
        device?: 'auto' | 'wasm' | 'cuda';
        cache: boolean;
        quiet?: boolean;
        json?: boolean;
      }) => {
        const { runDemo } = await import('./demo/index.ts');
        finish(
          await runDemo({
            input: options.input,
            queries: options.query ?? [DEFAULT_QUERY],
            top: options.top,
            limit: options.all === true ? Infinity : options.limit,
            compare: options.compare === true,
            json: options.json === true,
            quiet: options.quiet === true,
            cache: options.cache,
            backend: options.backend,
            device: options.device,
          }),
        );
      },
    );

  program
    .command('bench')
    .description('measure: each suite in a process of its own')
    .argument('[suite...]', `${SUITES.join(', ')}; without any, the suites are listed`)
    .option('--json', 'print one JSON object a line, and nothing else on stdout')
    .option('-o, --out <file>', 'append the rows to a file, one JSON object a line')
    .addHelpText(
      'after',
      `
Examples:
  gpuos bench                               what each suite measures
  gpuos bench submit throughput
  gpuos bench model --json --out bench/results/model.jsonl`,
    )
    .action(async (words: string[], options: { json?: boolean; out?: string }) => {
      const wrong = words.find((word) => !SUITES.includes(word as SuiteName));
      if (wrong !== undefined) {
        throw new UsageError(`unknown suite '${wrong}'; there are ${SUITES.join(', ')}.${nearMatchHint(wrong, SUITES)}`);
      }
      if (words.length === 0 && options.out !== undefined) throw new UsageError(`--out needs a suite: ${SUITES.join(', ')}.`);
      const { describeSuites, runBench } = await import('./bench/index.ts');
      if (words.length === 0) {
        for (const [name, about] of await describeSuites()) {
          print(options.json ? `${JSON.stringify({ suite: name, about })}\n` : `${name.padEnd(12)} ${about}\n`);
        }
        return finish(0);
      }
      const suites = [...new Set(words)] as SuiteName[];
      finish(await runBench({ suites, json: options.json === true, out: options.out }));
    });

  // Our own, as commander's answers a wrong word with the help of everything.
  program
    .command('help')
    .description('show the help of a command')
    .argument('[command]')
    .addHelpText('after', '\nExamples:\n  gpuos help demo')
    .action((word: string | undefined) => {
      const command = word === undefined ? program : program.commands.find((candidate) => candidate.name() === word);
      if (command === undefined) throw new UsageError(`unknown command '${word}'.${nearMatchHint(word as string, commandNames(program))}`);
      command.outputHelp();
    });

  for (const command of [program, ...program.commands]) {
    command
      .exitOverride()
      .showSuggestionAfterError(false)
      .configureOutput({ outputError: () => {}, writeOut: print });
  }
  return program;
}

class UsageError extends Error {}

function commandNames(program: Command): string[] {
  return program.commands.map((candidate) => candidate.name());
}

/** A wrong word of the command line, with the word that was probably meant. */
function usageMessage(program: Command, error: CommanderError): string {
  const message = error.message.replace(/^error: /, '').replace(/[^.?]$/, '$&.');
  const word = /'([^']*)'/.exec(message)?.[1] ?? '';
  const command = program.commands.find((candidate) => candidate.name() === process.argv[2]) ?? program;
  if (error.code === 'commander.unknownCommand') return message + nearMatchHint(word, commandNames(program));
  if (error.code === 'commander.unknownOption') {
    const flags = command.createHelp().visibleOptions(command);
    const hint = nearMatchHint(
      word.replace(/^-+/, ''),
      flags.map(({ long }) => long?.slice(2) ?? ''),
    );
    return message + hint.replace('"', '"--');
  }
  return message;
}

function printError(error: GpuosError, json: boolean): void {
  const { code, remedy, message } = error;
  // The remedy and code are in the message; a message of several lines would not be one line on a terminal.
  const text = message.replace(/\s*\n\s*/g, ' ');
  process.stderr.write(`error: ${text}\n`);
  const bare = text.replace(` [${code}] ${remedy}`, '');
  if (!json || outputFailure() !== undefined) return;
  try {
    print(`${JSON.stringify({ error: { code, message: bare, remedy } })}\n`);
  } catch {
    // What was wrong first has been said.
  }
}

function asGpuosError(error: unknown, program: Command): { error: GpuosError; exitCode: number } {
  if (error instanceof GpuosError) return { error, exitCode: error.code === 'GPUOS_USAGE' ? 2 : 1 };
  if (error instanceof UsageError) return { error: new GpuosError('GPUOS_USAGE', error.message), exitCode: 2 };
  if (error instanceof CommanderError) return { error: new GpuosError('GPUOS_USAGE', usageMessage(program, error)), exitCode: 2 };
  const message = error instanceof Error ? error.message : String(error);
  return { error: new GpuosError('GPUOS_INTERNAL', message, { cause: error }), exitCode: 1 };
}

/** Ends the process once everything has been written: a pipe takes output in its own time, and may fail only then. */
function exit(code: number, reported = false): void {
  process.exitCode = code;
  const leave = () => process.exit(process.exitCode);
  const written = () => {
    const failure = outputFailure();
    if (failure !== undefined && !reported) {
      printError(failure, false);
      process.exitCode = 1;
    }
    process.stderr.write('', leave);
  };
  // The stream tells of an error after it has called back.
  process.stdout.write('', () => setImmediate(written));
  // A reader that never reads must not keep us.
  setTimeout(leave, 5000).unref();
}

async function main(): Promise<void> {
  watchOutput();
  let code = 0;
  let reported = false;
  const program = buildProgram((result) => {
    code = result;
  });
  const json = process.argv.includes('--json');
  try {
    if (process.argv.length <= 2) program.outputHelp();
    else await program.parseAsync();
  } catch (thrown) {
    // Help and version arrive as exceptions too.
    if (thrown instanceof CommanderError && thrown.exitCode === 0) return exit(0);
    if (thrown instanceof CommanderError && thrown.code === 'commander.help') return exit(2);
    const { error, exitCode } = asGpuosError(thrown, program);
    printError(error, json);
    reported = true;
    if (error.code === 'GPUOS_INTERNAL' && process.env['GPUOS_LOG'] === 'debug') process.stderr.write(`${(thrown as Error).stack ?? ''}\n`);
    code = exitCode;
  }
  exit(code, reported);
}

await main();
