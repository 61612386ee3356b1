export interface Content {
  readonly name: string
  readonly tag?: string
}

export interface SentPlant extends Content {
  readonly id: bigint
}

interface Entry {
  /** Every content that was sent under this id and may be stored. */
  readonly sent: Content[]
  /** The one that is certainly stored: it was acknowledged, or a list has shown it. */
  kept: Content | undefined
  /** Contents that were answered 409: another one is stored for good. */
  readonly refused: Content[]
}

/** A plant whose name begins with its id, so that a list, which has no ids, shows which it is. */
export function plantOf(id: bigint, text: string, tag?: string): SentPlant {
  return { id, name: `${id} ${text}`, ...(tag === undefined ? {} : { tag }) }
}

export function jsonOf({ id, name, tag }: SentPlant): string {
  const rest = JSON.stringify(tag === undefined ? { name } : { name, tag }).slice(1)
  // Not by JSON.stringify, which knows no bigint.
  return `{"id":${id},${rest}`
}

/** The body of a list. The ledger compares each member, so nothing is checked here. */
export function plantsOf(text: string): readonly Content[] {
  return JSON.parse(text) as readonly Content[]
}

/**
 * What was sent and what was answered, recorded outside the service and compared with its lists. A
 * plant that was acknowledged must be listed from then on, and so must one that a list has shown.
 */
export class Ledger {
  readonly #owners = new Map<string, Map<bigint, Entry>>()
  readonly problems: string[] = []
  acknowledged = 0
  lost = 0
  /** Characters of all plants that may be stored. */
  chars = 0

  get owners(): readonly string[] {
    return [...this.#owners.keys()]
  }

  /** To be called before the plant is sent. */
  sends(owner: string, plant: SentPlant): void {
    const { id, name, tag } = plant
    const entries = this.#owners.get(owner) ?? new Map<bigint, Entry>()
    this.#owners.set(owner, entries)
    const entry = entries.get(id) ?? { sent: [], kept: undefined, refused: [] }
    entries.set(id, entry)
    if (entry.sent.some((other) => isSame(other, plant))) return
    entry.sent.push(tag === undefined ? { name } : { name, tag })
    this.chars += name.length + (tag?.length ?? 0)
  }

  answered(owner: string, plant: SentPlant, status: number): void {
    const { id } = plant
    const entry = this.#owners.get(owner)?.get(id)
    const content = entry?.sent.find((other) => isSame(other, plant))
    if (!entry || !content) throw new Error('an answer to what was not sent')
    if (status === 200) {
      if (entry.kept && entry.kept !== content)
        this.#problem(owner, id, '200 to other content than was kept before')
      if (!entry.kept) this.acknowledged += 1
      entry.kept = content
      if (entry.refused.includes(content))
        this.#problem(owner, id, '200 to what was answered 409 before')
    } else if (status === 409) {
      if (entry.kept === content) this.#problem(owner, id, '409 to what was kept before')
      entry.refused.push(content)
      const rivals = entry.sent.filter((other) => other !== content)
      if (rivals.length === 0) this.#problem(owner, id, '409, and nothing else was ever sent')
      // The plant in the way is durable.
      if (rivals.length === 1) entry.kept ??= rivals[0]
    } else if (status !== 503) this.#problem(owner, id, `the status ${status}`)
  }

  /** Compares a list of any length with what was sent. */
  shows(owner: string, plants: readonly Content[]): void {
    let last: bigint | undefined
    for (const plant of plants) {
      const id = BigInt(/^-?\d+(?= )/.exec(plant.name)?.[0] ?? 0)
      if (last !== undefined && id <= last) this.#problem(owner, id, `listed after ${last}`)
      last = id
      const entry = this.#owners.get(owner)?.get(id)
      const content = entry?.sent.find((other) => isSame(other, plant))
      if (!entry || !content)
        this.#problem(owner, id, `listed, and never sent: ${plant.name.slice(0, 80)}`)
      else if (entry.kept && entry.kept !== content)
        this.#problem(owner, id, 'listed with other content than was kept before')
      else if (entry.refused.includes(content))
        this.#problem(owner, id, 'listed with what was answered 409 before')
      else entry.kept = content
    }
  }

  /**
   * Compares an owner's whole list, taken while nothing was being sent, with what was kept. What is
   * missing after a start is on no disk: from then on it counts as never sent.
   */
  showsAll(owner: string, plants: readonly Content[], afterStart: boolean) {
    const entries = this.#owners.get(owner) ?? new Map<bigint, Entry>()
    const open = [...entries].filter(([, entry]) => !entry.kept)
    this.shows(owner, plants)
    const listed = new Set(plants.map(({ name }) => name))
    for (const [id, { kept }] of entries) {
      if (!kept || listed.has(kept.name)) continue
      this.lost += 1
      this.#problem(owner, id, 'kept before, and not listed')
    }
    const absent = open.filter(([, entry]) => !entry.kept)
    if (afterStart)
      for (const [, { sent }] of absent)
        this.chars -= sent
          .splice(0)
          .reduce((sum, { name, tag }) => sum + name.length + (tag?.length ?? 0), 0)
    return {
      shown: open.filter(([, entry]) => entry.kept).map(([id]) => id),
      absent: absent.map(([id]) => id),
    }
  }

  /** What every later list must hold. */
  certain(owner: string): ReadonlyMap<bigint, Content> {
    return new Map(
      [...(this.#owners.get(owner) ?? [])].flatMap(([id, { kept }]) =>
        kept ? [[id, kept] as const] : [],
      ),
    )
  }

  /**
   * Compares a list with what was certain when it was asked for. `cut` says that it has a next
   * page, so that it shows nothing after its last plant.
   */
  showsCertain(
    owner: string,
    plants: readonly Content[],
    certain: ReadonlyMap<bigint, Content>,
    cut: boolean,
  ): void {
    this.shows(owner, plants)
    const listed = new Set(plants.map(({ name }) => name))
    const last = cut ? BigInt(plants.at(-1)?.name.split(' ')[0] ?? 0) : undefined
    for (const [id, { name }] of certain) {
      if (listed.has(name) || (last !== undefined && id > last)) continue
      this.lost += 1
      this.#problem(owner, id, 'certain when a list was asked for, and not in it')
    }
  }

  /** The content that is certainly stored under an id. */
  kept(owner: string, id: bigint): SentPlant | undefined {
    const kept = this.#owners.get(owner)?.get(id)?.kept
    return kept && { id, ...kept }
  }

  #problem(owner: string, id: bigint, what: string): void {
    this.problems.push(`${owner}'s ${id}: ${what}`)
  }
}

/** The tests' own comparison: it must not share a line with src/. */
export function isSame(a: Content, b: Content): boolean {
  return a.name === b.name && a.tag === b.tag
}
