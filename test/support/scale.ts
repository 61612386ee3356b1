/**
 * PLANTS_TEST_THOROUGH=1, which .ci/run sets, has every test do all that it can; otherwise those
 * that repeat one thing many times do it less often, so that a change is known within a minute or
 * so.
 */
export const THOROUGH = process.env['PLANTS_TEST_THOROUGH'] === '1'

/** For tests that are long by themselves: what to skip them with. */
export const LONG = THOROUGH ? false : 'long: PLANTS_TEST_THOROUGH=1 runs it'

/** All of the cases where they are all to be tried, otherwise one of every so many. */
export function sampled<T>(cases: Iterable<T>, every: number): T[] {
  return [...cases].filter((_, at) => THOROUGH || at % every === 0)
}
