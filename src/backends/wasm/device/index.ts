// Entry of the device module: the executor and the fixed operators, compiled by scripts/build.mjs.
export { step, run, help, failTile, recover, controlTable, chain } from './executor';
export * from './operators/index';
