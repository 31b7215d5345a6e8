// Status words that an operator returns (the host's copy is src/abi/status.ts; a test keeps them equal).
export const OK: i32 = 0;
export const OUT_OF_RANGE: i32 = 10;
