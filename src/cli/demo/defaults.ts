/** What the demo does when nothing else is said; also shown in its help. */
export const DEFAULT_QUERY = 'a storm at sea';
/** Some seconds of indexing on two cores. */
export const DEFAULT_LIMIT = 500;
export const MAX_TOP = 1000;
