import { plantOf, type SentPlant } from '../../test/support/ledger.ts'
import { Random, subSeed } from '../../test/support/random.ts'

/** All that a seed decides. */
export class Choices {
  /** Each purpose has its own numbers, so that the speed of the writers changes no kill. */
  readonly ofKills: Random
  readonly ofPlants: Random
  readonly #lastIds = new Map<string, bigint>()
  #plants = 0

  constructor(seed: number) {
    this.ofKills = new Random(subSeed(seed, 1))
    this.ofPlants = new Random(subSeed(seed, 2))
  }

  /** Descending, so that a short list shows what was created last. */
  newId(owner: string): bigint {
    const id = (this.#lastIds.get(owner) ?? 2n ** 62n) - 1n
    this.#lastIds.set(owner, id)
    return id
  }

  /** Never the same twice. Mostly small; a few have over 100 KB, so that compactions come. */
  newPlant(id: bigint): SentPlant {
    const kind = this.ofPlants.next()
    const chars = this.ofPlants.below(kind < 0.6 ? 100 : kind < 0.88 ? 4000 : 240_000)
    const text = 'Ficus ελαστική 🌿 '.repeat(chars / 18 + 1).slice(0, chars)
    const tag = kind < 0.3 ? `tag ${chars}` : undefined
    return plantOf(id, `${this.#plants++} ${text.toWellFormed()}`, tag)
  }
}
