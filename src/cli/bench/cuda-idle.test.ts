import { describe, expect, it } from 'vitest';
import { slowdown } from './cuda-idle.ts';

describe('what the kernel takes from a product beside it', () => {
  it('is told against the faster of both ways alone, by medians', () => {
    const measured = { beside: [230, 210, 900], without: [220, 205, 215], fastest: [200, 190, 1000] };
    expect(slowdown('float16', measured)).toMatchObject({ alone: 200, beside: 230, value: 230 / 200 - 1 });
    expect(slowdown('float16', { ...measured, fastest: [300, 300, 300] })).toMatchObject({ alone: 215 });
  });
});
