import type { TestContext } from 'node:test'

/** Random choices that one number repeats (Mulberry32, by Tommy Ettinger, in the public domain). */
export class Random {
  #state: number

  constructor(seed: number) {
    this.#state = seed | 0
  }

  /** From 0 to 1, 1 excluded. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }

  /** A whole number from 0 to `end`, `end` excluded. */
  below(end: number): number {
    return Math.floor(this.next() * end)
  }

  chance(share: number): boolean {
    return this.next() < share
  }

  pick<const T extends readonly [unknown, ...unknown[]]>(choices: T): T[number] {
    return choices[this.below(choices.length)] ?? choices[0]
  }

  /** Small numbers often, large ones rarely. */
  small(end: number): number {
    return Math.floor(this.next() ** 3 * end)
  }
}

/** A seed for one part of a run, made from the run's seed. */
export function subSeed(...parts: readonly number[]): number {
  let hash = 0x811c9dc5
  for (const part of parts) hash = Math.imul(hash ^ part, 0x01000193) ^ (hash >>> 13)
  return hash
}

export function randomSeed(): number {
  return Math.floor(Math.random() * 2 ** 31)
}

/** A test's random numbers: the seed is printed, and PLANTS_TEST_SEED repeats a failure. */
export function seeded(t: TestContext): { readonly seed: number; readonly random: () => number } {
  const seed = Number(process.env['PLANTS_TEST_SEED'] ?? randomSeed())
  t.diagnostic(`PLANTS_TEST_SEED=${seed}`)
  const random = new Random(seed)
  return { seed, random: () => random.next() }
}
