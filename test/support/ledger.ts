export interface SentPlant {
  readonly id: bigint
  readonly name: string
  readonly tag?: string
}

interface Content {
  readonly name: string
  readonly tag?: string
}

interface Entry {
  /** All that was sent under this id and may be stored. */
  readonly sent: Content[]
  /** The one that certainly is: it was acknowledged, or shown by a GET. */
  kept: Content | undefined
  /** What was answered 409: another stood there, and stands there for good. */
  readonly refused: Content[]
}

/** Ids whose fate was open until a list told. */
export interface Settled {
  readonly shown: readonly bigint[]
  readonly absent: readonly bigint[]
}

/** A plant whose name begins with its id, by which it is known again in a list. */
export function plantOf(id: bigint, text: string, tag?: string): SentPlant {
  return { id, name: `${id} ${text}`, ...(tag === undefined ? {} : { tag }) }
}

export function jsonOf({ id, name, tag }: SentPlant): string {
  return `{"id":${id},"name":${JSON.stringify(name)}${tag === undefined ? '' : `,"tag":${JSON.stringify(tag)}`}}`
}

/**
 * What was sent and what came back, kept outside of the service, and held against what it lists. A
 * plant that was acknowledged must be listed from then on, and so must one that a GET has shown
 * once.
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
  sends(owner: string, { id, name, tag }: SentPlant): void {
    const entries = this.#owners.get(owner) ?? new Map<bigint, Entry>()
    this.#owners.set(owner, entries)
    const entry = entries.get(id) ?? { sent: [], kept: undefined, refused: [] }
    entries.set(id, entry)
    if (entry.sent.some((other) => same(other, { name, tag }))) return
    entry.sent.push(tag === undefined ? { name } : { name, tag })
    this.chars += name.length + (tag?.length ?? 0)
  }

  answered(owner: string, { id, name, tag }: SentPlant, status: number): void {
    const entry = this.#owners.get(owner)?.get(id)
    const content = entry?.sent.find((other) => same(other, { name, tag }))
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
      // Whatever stands in the way is durable.
      if (rivals.length === 1) entry.kept ??= rivals[0]
    } else if (status !== 503) this.#problem(owner, id, `the status ${status}`)
  }

  /** Holds a list of any length against what was sent. */
  shows(owner: string, plants: readonly Content[]): void {
    let last: bigint | undefined
    for (const plant of plants) {
      const id = BigInt(/^-?\d+(?= )/.exec(plant.name)?.[0] ?? 0)
      if (last !== undefined && id <= last) this.#problem(owner, id, `listed behind ${last}`)
      last = id
      const entry = this.#owners.get(owner)?.get(id)
      const content = entry?.sent.find((other) => same(other, plant))
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
   * Holds an owner's whole list, taken while nothing was being sent, against what was kept. What is
   * absent after a start is on no disk any more: from then on it counts as never sent.
   */
  showsAll(owner: string, plants: readonly Content[], afterStart: boolean): Settled {
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

  /** What every list that is asked for from now on must hold. */
  certain(owner: string): ReadonlyMap<bigint, Content> {
    return new Map(
      [...(this.#owners.get(owner) ?? [])].flatMap(([id, { kept }]) =>
        kept ? [[id, kept] as const] : [],
      ),
    )
  }

  /**
   * Holds a list against what was certain when it was asked for; one that was cut short shows
   * nothing behind its last plant.
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

  /** What is certainly stored under an id. */
  kept(owner: string, id: bigint): SentPlant | undefined {
    const kept = this.#owners.get(owner)?.get(id)?.kept
    return kept && { id, ...kept }
  }

  #problem(owner: string, id: bigint, what: string): void {
    this.problems.push(`${owner}'s ${id}: ${what}`)
  }
}

function same(
  a: Content,
  b: { readonly name: string; readonly tag?: string | undefined },
): boolean {
  return a.name === b.name && a.tag === b.tag
}
