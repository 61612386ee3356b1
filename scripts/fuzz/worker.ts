import { isHead, readRequests } from './http.ts'
import { Owner, type SharedOwner } from './model.ts'
import type { Grant } from './realm.ts'
import { mutate } from './mutate.ts'
import { Random, subSeed } from './random.ts'
import { type Actors, someRequest } from './requests.ts'
import { type Script, talk } from './talk.ts'
import { announce, certainAnswers, compare, type World } from './witness.ts'

/** What a connection sent and what was known before it, by which it can be repeated. */
export interface Finding {
  readonly what: string
  readonly realm: string
  readonly script: Script
  /** What its tokens are good for. */
  readonly grants: readonly (readonly [token: string, grant: Grant])[]
  readonly owners: readonly { readonly name: string; readonly token: string; readonly plants: readonly (readonly [id: string, name: string, tag?: string])[] }[]
}

export interface Totals {
  requests: number
  connections: number
  readonly statuses: Map<number, number>
  /** Connections by what readers make of them. */
  mutated: number
  unclear: number
}

const OWNERS = 3
/** An owner with more plants is left: long lists are no better than short ones. */
const OWNER_MAX_PLANTS = 40
const OWNER_MAX_CHARS = 100_000
/** Names that some comparison takes for one another: by case, by normalization, by what is cut off or does not show. */
const LOOKALIKES: readonly [string, ...string[]] = ['', 'É', 'E\u0301', '\u00e9', 'e\u0301', ' ', '\u0000', '\u200b', '/', '.', '\ufeff', ':', 'ﬁ', 'fi', '\u0130', 'i\u0307', '%00', '\n']

/** One client after another, each a connection, with owners whom nobody else writes for. */
export class Worker {
  readonly #world: World
  readonly #random: Random
  readonly #number: number
  readonly #seed: number
  readonly #others: readonly [string, ...string[]]
  readonly #shared: readonly [SharedOwner, ...SharedOwner[]]
  #owners: Owner[] = []
  #connection = 0
  #named = 0

  constructor(world: World, seed: number, number: number) {
    this.#world = world
    this.#number = number
    this.#seed = seed
    this.#random = new Random(subSeed(seed, number))
    const shared = [...world.shared.values()]
    const [first] = shared
    if (!first) throw new Error('no shared owner')
    this.#shared = [first, ...shared.slice(1)]
    this.#others = otherTokens(world, `other ${number}`)
  }

  /** One connection. `isKilled` says, once it is over, whether the service was killed meanwhile. */
  async step(port: number, totals: Totals, isKilled: () => boolean): Promise<Finding | undefined> {
    const random = new Random(subSeed(this.#seed, this.#number, ++this.#connection))
    const script = this.#script(random, totals)
    const readings = readRequests(script.text)
    const snapshot = this.#owners.map(snapshotOf)
    announce(readings, this.#world)
    const before = new Map(this.#shared.map(({ name, token, acknowledged }) => [name, script.text.includes(token) ? new Set(acknowledged) : new Set<number>()]))
    const heard = await talk(port, script, certainAnswers(readings), (index) => isHead(readings[index]))
    const what = compare(readings, heard, this.#world, before, isKilled())
    totals.connections += 1
    totals.requests += readings.length
    totals.unclear += readings.some(({ kind }) => kind === 'unclear') ? 1 : 0
    for (const { status } of heard.answers) totals.statuses.set(status, (totals.statuses.get(status) ?? 0) + 1)
    if (what !== undefined) for (const owner of this.#owners) owner.blurred = true
    if (what === undefined) return undefined
    const { name, grants } = this.#world.realm
    return { what, realm: name, script, grants: [...grants].filter(([token]) => script.text.includes(token)), owners: snapshot }
  }

  #script(random: Random, totals: Totals): Script {
    const actors = this.#actors()
    const isMutated = random.chance(0.25)
    let text = ''
    for (let left = 1 + random.small(random.chance(0.1) ? 150 : 40); left > 0; left--) text += someRequest(random, actors, !isMutated)
    if (isMutated) {
      totals.mutated += 1
      text = mutate(random, text)
    }
    const cuts: number[] = []
    const way = random.next()
    const byByte = way < 0.02 && text.length < 3000
    if (byByte) for (let at = 1; at < text.length; at++) cuts.push(at)
    else if (way < 0.35) for (let at = random.small(800); at < text.length; at += 1 + random.small(text.length)) cuts.push(at)
    const end = random.next()
    const ending = end < 0.6 ? 'half-close' : end < 0.92 ? 'answers-first' : end < 0.96 ? 'destroy' : 'reset'
    return { text, cuts, ending, sendOnly: random.chance(0.3) ? text.length : random.below(text.length + 1), pauseMs: random.chance(0.05) && cuts.length < 20 ? 1 + random.below(4) : 0 }
  }

  #actors(): Actors {
    this.#owners = this.#owners.filter((owner) => owner.isCertain && owner.plants.size < OWNER_MAX_PLANTS && charsOf(owner) < OWNER_MAX_CHARS)
    while (this.#owners.length < OWNERS) this.#owners.push(this.#newOwner())
    const [first = this.#newOwner(), ...more] = this.#owners
    return { owners: [first, ...more], shared: this.#shared, others: this.#others, maxBodyBytes: this.#world.realm.maxBodyBytes }
  }

  /** Mostly a name that is almost another's. */
  #newOwner(): Owner {
    const random = this.#random
    let name = ''
    do name = `${random.chance(0.5) ? 'w' : 'W'}${this.#number} ${Math.floor(this.#named++ / 6)}${random.pick(LOOKALIKES)}`
    while (this.#world.owners.has(name))
    const owner = new Owner(name, this.#world.realm.tokenOf(name))
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
  return { name, token, plants: [...plants].map(([id, plant]) => (plant.tag === undefined ? [String(id), plant.name] : [String(id), plant.name, plant.tag])) }
}

/** Tokens that the keys have signed and that are good for less than all, or for nothing. */
export function otherTokens({ realm, owners }: World, sub: string): readonly [string, ...string[]] {
  const limited = (scopes: string): string => {
    const owner = new Owner(`${sub} ${scopes}`, realm.tokenOf(`${sub} ${scopes}`, scopes))
    owners.set(owner.name, owner)
    return owner.token
  }
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
  const good = realm.token({ sub })
  return [
    limited('plants:read'), limited('plants:write'), limited(''), limited('plants'), limited('plants:read\tplants:write'),
    realm.token({ sub, exp: 1_700_000_000 }), realm.token({ sub, exp: '4102444800' }), realm.token({ sub, exp: undefined }), realm.token({ sub, exp: null }),
    realm.token({ sub, nbf: 4_000_000_000 }), realm.token({ sub, iat: 'now' }), realm.token({ sub, iss: 'https://other.test' }), realm.token({ sub, iss: undefined }), realm.token({ sub, aud: 'other' }), realm.token({ sub, aud: undefined }), realm.token({ sub, aud: ['a', 'b'] }), realm.token({ sub, aud: { plants: 'plants' } }),
    realm.token({}), realm.token({ sub: '' }), realm.token({ sub: 7 }), realm.token({ sub: [sub] }), realm.token({ sub: null }), realm.token({ sub: { toString: sub } }), realm.token({ sub: '\ud800' }),
    realm.token({ sub }, { typ: 'logout+jwt' }), realm.token({ sub }, { typ: 7 }), realm.token({ sub }, { crit: ['b64'], b64: false }), realm.token({ sub }, { crit: ['x'] }), realm.token({ sub }, { alg: 'none' }), realm.token({ sub }, { alg: 'HS512' }), realm.token({ sub }, { alg: 'RS256' }),
    `${part({ alg: 'none' })}.${part({ sub })}.`, `${good}=`, `${good}.a.b`, good.split('.').slice(0, 2).join('.'), '..', 'a', 'a.b.c', `.${good}`, 'e'.repeat(13_000), `${good.slice(0, -4)}AAAA`,
  ]
}
