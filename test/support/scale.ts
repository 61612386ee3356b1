import { spawnSync } from 'node:child_process'
import type { TestContext } from 'node:test'
import { seeded } from './random.ts'

/**
 * PLANTS_TEST_THOROUGH=1, which .ci/run sets, runs every test in its long form. By default tests
 * that repeat one thing many times repeat it less often.
 */
export const THOROUGH = process.env['PLANTS_TEST_THOROUGH'] === '1'

/** The `skip` of tests that have only a long form. */
export const LONG = THOROUGH ? false : 'long: PLANTS_TEST_THOROUGH=1 runs it'

/**
 * All cases in the long form, otherwise one of every this many. With a test, its seed says which is
 * the first; without one it is always the same.
 */
export function sampled<T>(cases: Iterable<T>, every: number, t?: TestContext): T[] {
  const first = t && !THOROUGH ? Math.floor(seeded(t).random() * every) : 0
  return [...cases].filter((_, at) => THOROUGH || at % every === first)
}

/** All cases in the long form, otherwise one of every this many, from a random one on. */
export function someOf<T>(random: () => number, cases: Iterable<T>, every: number): T[] {
  const first = Math.floor(random() * every)
  return [...cases].filter((_, at) => THOROUGH || at % every === first)
}

/** The `skip` of a test that needs something. Says it aloud: what does not run proves nothing. */
export function skipUnless(works: boolean, what: string): string | false {
  if (!works) console.log(`SKIPPED: ${what}`)
  return works ? false : `SKIPPED: ${what}`
}

/** The `skip` of a test that needs a command, found out by running it. */
export function skipWithout(what: string, command: string, ...args: readonly string[]) {
  return skipUnless(spawnSync(command, args, { stdio: 'ignore' }).status === 0, what)
}
