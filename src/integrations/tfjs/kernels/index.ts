/** Every kernel of tfjs that we have, by its name there: one file a family. */
import { ELEMENT_WISE } from './element-wise.ts';
import { FILL } from './fill.ts';
import { INDEXING } from './indexing.ts';
import type { Kernels } from './kernel.ts';
import { MATRIX } from './matrix.ts';
import { METADATA } from './metadata.ts';
import { NORMALIZATION } from './normalization.ts';
import { REDUCTION } from './reduction.ts';
import { VIEW } from './view.ts';

export const KERNELS: Kernels = {
  ...ELEMENT_WISE,
  ...FILL,
  ...INDEXING,
  ...MATRIX,
  ...METADATA,
  ...NORMALIZATION,
  ...REDUCTION,
  ...VIEW,
};
