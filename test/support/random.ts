import type { TestContext } from 'node:test'

export interface Seeded {
  readonly seed: number
  /** A number from 0 to 1, 1 excluded; the same ones for the same seed. */
  readonly random: () => number
}

/**
 * Randomness that a failure can be repeated with: the seed is printed, and PLANTS_TEST_SEED sets
 * it.
 */
export function seeded(t: TestContext): Seeded {
  const seed = Number(process.env['PLANTS_TEST_SEED'] ?? Math.floor(Math.random() * 2 ** 31))
  t.diagnostic(`PLANTS_TEST_SEED=${seed}`)
  return { seed, random: mulberry32(seed) }
}

/**
 * Mulberry32, by Tommy Ettinger, in the public domain: 32 bits of state are enough to pick test
 * cases.
 */
function mulberry32(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
