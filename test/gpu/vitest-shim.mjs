/** As much of vitest as the conformance suites use, on Node.js's own runner: a machine with a GPU need not have vitest. */
import assert from 'node:assert/strict';
import { after as afterAll, before as beforeAll, describe as group, it as test } from 'node:test';

const named = (name, value) => name.replace(/\$(\w+)/g, (_, key) => String(value[key]));
export const describe = Object.assign((name, body) => group(name, body), {
  each: (list) => (name, body) => {
    for (const value of list) group(named(name, value), () => body(value));
  },
});
/** A property's failure says why only in its cause, which the runner does not print. */
const telling = (body) => async () => {
  try {
    await body();
  } catch (error) {
    if (error instanceof Error && error.cause instanceof Error) error.message += `\nbecause: ${error.cause.stack}`;
    throw error;
  }
};
export const it = Object.assign((name, body) => test(name, telling(body)), {
  skipIf: (skip) => (name, body) => test(name, { skip }, telling(body)),
});
export const expect = Object.assign(
  (actual, message) => ({
    toBe: (expected) => assert.ok(Object.is(actual, expected), message ?? `${actual} is not ${expected}`),
    toEqual: (expected) => assert.deepEqual(actual, expected, message),
  }),
  { fail: (message) => assert.fail(message) },
);
export { afterAll, beforeAll };
