import { announce, compare, type World } from '../../test/support/oracle/compare.ts'
import { Owner } from '../../test/support/oracle/owner.ts'
import { readRequests } from '../../test/support/oracle/requests.ts'
import { Random, subSeed } from '../../test/support/random.ts'
import { head } from '../../test/support/wire.ts'
import { dictionary } from './dictionary.ts'
import type { Finding } from './finding.ts'
import { mutate } from './mutate.ts'
import { type Actors, someRequest, type Tokens } from './requests.ts'
import { plainScript, type Script, talk } from './talk.ts'
import { hopelessTokens } from './tokens.ts'

/** Of all eras. */
export class Totals {
  requests = 0
  connections = 0
  readonly statuses = new Map<number, number>()
  mutated = 0
  unclear = 0
  /** Connections whose last answers a reset took away, as the service documents. */
  lost = 0
  /** Whose lists were compared. */
  owners = 0
  kills = 0
  eras = 0
}

/** More requests, or more headers, would be a reset: none of that is an answer to compare. */
const [AT_ONCE, LINES_MAX] = [8, 100]
const OWNERS = 3
/** Scopes that allow less than everything, or nothing, if the realm asks for scopes. */
const SCOPES = ['plants:read', 'plants:write', '', 'plants', 'plants:read\tplants:write']
/** An owner with more is replaced: long lists find no more than short ones. */
const OWNER_MAX_PLANTS = 40
const OWNER_MAX_CHARS = 100_000

/** One connection after another, for owners that no other worker writes for. */
export class Worker {
  readonly #world: World
  readonly #random: Random
  readonly #number: number
  readonly #seed: number
  readonly #hopeless: readonly [Tokens, ...Tokens[]]
  #owners: Owner[] = []
  #limited: readonly Owner[] = []
  #connection = 0
  #named = 0

  constructor(world: World, seed: number, number: number, forged: Tokens) {
    this.#world = world
    this.#number = number
    this.#seed = seed
    this.#random = new Random(subSeed(seed, number))
    this.#hopeless = [hopelessTokens(world.realm, `other ${number}`), forged]
  }

  /** One connection. `isKilled` says afterwards whether the service was killed meanwhile. */
  step(port: number, totals: Totals, isKilled: () => boolean): Promise<Finding | undefined> {
    const random = new Random(subSeed(this.#seed, this.#number, ++this.#connection))
    return this.#play(port, this.#script(random, totals), totals, isKilled)
  }

  /**
   * Good requests, and then headers that come so slowly that the service answers 408.
   */
  stall(port: number, totals: Totals): Promise<Finding | undefined> {
    const random = new Random(subSeed(this.#seed, this.#number, ++this.#connection))
    const { owners } = this.#actors()
    const someGood = (): string => {
      const method = random.pick(['GET', 'HEAD'])
      return head(method, `/plants?limit=${random.below(3)}`, random.pick(owners))
    }
    const good = Array.from({ length: random.below(4) }, someGood).join('')
    const whole = head(random.pick(['GET', 'POST']), '/plants', random.pick(owners))
    const slow = `${whole.slice(0, -2)}X: ${'s'.repeat(200)}`
    const script: Script = {
      ...plainScript(good + slow),
      ending: 'stall',
      sendOnly: good.length + 1 + random.below(slow.length),
    }
    return this.#play(port, script, totals, () => false)
  }

  async #play(
    port: number,
    script: Script,
    totals: Totals,
    isKilled: () => boolean,
  ): Promise<Finding | undefined> {
    const readings = readRequests(script.text, script.ending === 'stall')
    const mine = [...this.#owners, ...this.#limited]
    const snapshot = mine.filter(({ token }) => script.text.includes(token)).map(snapshotOf)
    announce(readings, this.#world)
    const { shared, ledger } = this.#world
    const asked = [...shared].filter(([, token]) => script.text.includes(token))
    const certain = new Map(asked.map(([name]) => [name, ledger.certain(name)]))
    const heard = await talk(port, script, readings)
    const { flaw: what, lost } = compare(readings, heard, this.#world, certain, isKilled())
    totals.connections += 1
    totals.requests += readings.length
    totals.unclear += readings.some(({ kind }) => kind === 'unclear') ? 1 : 0
    totals.lost += lost ? 1 : 0
    for (const { status } of heard.answers)
      totals.statuses.set(status, (totals.statuses.get(status) ?? 0) + 1)
    if (what === undefined) return undefined
    for (const owner of mine) owner.blurred = true
    const { name, grants } = this.#world.realm
    return {
      what,
      realm: name,
      script,
      grants: [...grants].filter(([token]) => script.text.includes(token)),
      owners: snapshot,
    }
  }

  #script(random: Random, totals: Totals): Script {
    const isMutated = random.chance(0.25)
    const actors = this.#actors(!isMutated)
    let text = ''
    for (let left = 1 + random.small(AT_ONCE - 1); left > 0; left--) {
      const next = someRequest(random, actors)
      if (text !== '' && (text + next).split('\r\n').length > LINES_MAX) break
      text += next
    }
    if (isMutated) {
      totals.mutated += 1
      text = mutate(random, text)
    }
    const cuts: number[] = []
    const readsLate = random.chance(0.08)
    const way = random.next()
    const byByte = way < 0.02 && text.length < 3000
    if (byByte) for (let at = 1; at < text.length; at++) cuts.push(at)
    else if (way < (readsLate ? 0.8 : 0.35))
      for (let at = random.small(800); at < text.length; at += 1 + random.small(text.length))
        cuts.push(at)
    const end = random.next()
    const ending =
      end < 0.6 ? 'half-close' : end < 0.92 ? 'answers-first' : end < 0.96 ? 'destroy' : 'reset'
    return {
      text,
      cuts,
      ending,
      sendOnly: random.chance(0.3) ? text.length : random.below(text.length + 1),
      pauseMs: random.chance(readsLate ? 0.6 : 0.05) && cuts.length < 20 ? 1 + random.below(4) : 0,
      readsLate,
    }
  }

  /** A mutated text must not write for the shared owners, whose plants are settled by their ids. */
  #actors(withShared = false): Actors {
    this.#owners = this.#owners.filter(
      (owner) =>
        owner.isCertain && owner.plants.size < OWNER_MAX_PLANTS && charsOf(owner) < OWNER_MAX_CHARS,
    )
    while (this.#owners.length < OWNERS) this.#owners.push(this.#newOwner())
    const [first = this.#newOwner(), ...more] = this.#owners
    // After a create without an answer it is unknown what its owner has: take another owner.
    this.#limited = SCOPES.map((scopes, at) => {
      const known = this.#limited[at]
      return known?.isCertain === true
        ? known
        : this.#addOwner(`other ${this.#number} ${this.#named++} ${scopes}`, scopes)
    })
    const [token = '', ...tokens] = this.#limited.map((owner) => owner.token)
    return {
      owners: [first, ...more],
      shared: withShared ? [...this.#world.shared.values()] : [],
      others: [[token, ...tokens], ...this.#hopeless],
      maxBodyBytes: this.#world.realm.maxBodyBytes,
    }
  }

  /** Mostly with a name that is almost another one's. */
  #newOwner(): Owner {
    const random = this.#random
    for (;;) {
      const start = `${random.chance(0.5) ? 'w' : 'W'}${this.#number}`
      const end = random.pick(dictionary.lookalikes)
      const name = `${start} ${Math.floor(this.#named++ / 6)}${end}`
      if (!this.#world.owners.has(name)) return this.#addOwner(name)
    }
  }

  #addOwner(name: string, scopes?: string): Owner {
    const owner = new Owner(name, this.#world.realm.tokenOf(name, scopes))
    this.#world.owners.set(name, owner)
    return owner
  }
}

function charsOf({ plants }: Owner): number {
  let chars = 0
  for (const { name, tag = '' } of plants.values()) chars += name.length + tag.length
  return chars
}

function snapshotOf({ name, token, plants }: Owner): Finding['owners'][number] {
  return { name, token, plants: [...plants].map(([id, plant]) => [String(id), plant]) }
}
