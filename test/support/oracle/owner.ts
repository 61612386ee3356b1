import { type Content, isSame } from '../ledger.ts'

/**
 * What the service should hold of one owner that one client writes for, with any content. (Owners
 * of many clients at once are the ledger's.)
 */
export class Owner {
  readonly name: string
  readonly token: string
  readonly plants = new Map<bigint, Content>()
  /** Sent and never answered: they may be stored. */
  readonly open = new Map<bigint, Content[]>()
  /** The last id of the page that each cursor came with. */
  readonly cursors = new Map<string, bigint>()
  /**
   * Set if readers may differ on what was sent with its token: then its list is not compared.
   */
  blurred = false
  #sorted: readonly bigint[] | undefined

  constructor(name: string, token: string) {
    this.name = name
    this.token = token
  }

  get isCertain(): boolean {
    return this.open.size === 0 && !this.blurred
  }

  keep(id: bigint, plant: Content): void {
    if (this.plants.has(id)) return
    this.plants.set(id, plant)
    this.#sorted = undefined
  }

  mayHold(id: bigint, plant: Content): void {
    if (this.plants.has(id)) return
    this.open.set(id, [...(this.open.get(id) ?? []), plant])
  }

  /** Ids after another, ascending. */
  idsAfter(after: bigint | undefined): readonly bigint[] {
    this.#sorted ??= [...this.plants.keys()].sort((a, b) => (a < b ? -1 : 1))
    return after === undefined ? this.#sorted : this.#sorted.filter((id) => id > after)
  }

  /**
   * Whether a whole list can be this owner's: every plant that is known, in the order of ids, and
   * any of the open ones in between.
   */
  explains(listed: readonly Content[]): boolean {
    if (this.blurred) return true
    const ids = [...new Set([...this.plants.keys(), ...this.open.keys()])].sort((a, b) =>
      a < b ? -1 : 1,
    )
    // How many plants of the list the ids so far may explain.
    let reached = new Set([0])
    for (const id of ids) {
      const next = new Set<number>()
      const kept = this.plants.get(id)
      for (const at of reached) {
        const shown = listed[at]
        if (
          shown &&
          (kept ? [kept] : (this.open.get(id) ?? [])).some((plant) => isSame(plant, shown))
        )
          next.add(at + 1)
        if (!kept) next.add(at)
      }
      reached = next
    }
    return reached.has(listed.length)
  }
}
