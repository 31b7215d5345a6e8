import { defineOperator, type OperatorDefinition } from './define.ts';

export const CONTROL_OPERATORS: readonly OperatorDefinition[] = [
  defineOperator({
    name: 'nop',
    family: 'control',
    kind: 'fixed',
    about: 'does nothing; its completion marks a place in a queue',
    inputs: [],
    infer: () => [],
  }),
];
