import type { Content } from './json.ts'

/** What the service should hold of one owner, as far as its answers have said. */
export class Owner {
  readonly name: string
  readonly token: string
  readonly plants = new Map<bigint, Content>()
  /** Sent, and never answered: they may be there. */
  readonly open = new Map<bigint, Content[]>()
  /** Positions that were learnt from Link headers. */
  readonly cursors = new Map<string, bigint>()
  /**
   * Set when readers may differ on what was sent with its token: then its list is only looked at,
   * not compared.
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

  /** Ids behind a position, ascending. */
  idsAfter(after: bigint | undefined): readonly bigint[] {
    this.#sorted ??= [...this.plants.keys()].sort((a, b) => (a < b ? -1 : 1))
    return after === undefined ? this.#sorted : this.#sorted.filter((id) => id > after)
  }

  /**
   * Whether a whole list can be this owner's: each plant that is kept, in the order of ids, and any
   * of the open ones between.
   */
  explains(listed: readonly Content[]): boolean {
    if (this.blurred) return true
    const ids = [...new Set([...this.plants.keys(), ...this.open.keys()])].sort((a, b) =>
      a < b ? -1 : 1,
    )
    // How much of the list may have been passed.
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

/**
 * An owner that all connections write to at once. The id settles the content, so that nobody is
 * ever refused.
 */
export class SharedOwner {
  readonly name: string
  readonly token: string
  readonly sent = new Set<number>()
  readonly acknowledged = new Set<number>()

  constructor(name: string, token: string) {
    this.name = name
    this.token = token
  }

  static plant(id: number): Content {
    return { name: `${id} of all` }
  }

  /** What is wrong with a list, given what had been acknowledged before it was asked for. */
  flaw(listed: readonly Content[], before: ReadonlySet<number>): string | undefined {
    let last = -1
    let found = 0
    for (const { name, tag } of listed) {
      const id = Number.parseInt(name, 10)
      if (tag !== undefined || name !== SharedOwner.plant(id).name || !this.sent.has(id))
        return `lists ${JSON.stringify(name)}, which was never sent`
      if (id <= last) return `lists ${id} behind ${last}`
      if (before.has(id)) found += 1
      last = id
    }
    return found < before.size
      ? `lists ${found} of the ${before.size} plants that were acknowledged before`
      : undefined
  }
}

export function isSame(a: Content, b: Content): boolean {
  return a.name === b.name && a.tag === b.tag
}
