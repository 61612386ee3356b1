import { isHead, readRequests } from './http.ts'
import { Owner, type SharedOwner } from './model.ts'
import { mutate } from './mutate.ts'
import { Random, subSeed } from './random.ts'
import type { Grant, Realm } from './realm.ts'
import { type Actors, someRequest, type Tokens } from './requests.ts'
import { type Script, talk } from './talk.ts'
import { announce, certainAnswers, compare, type World } from './witness.ts'

/** What a connection sent and what was known before it, by which it can be repeated. */
export interface Finding {
  readonly what: string
  readonly realm: string
  readonly script: Script
  /** What its tokens are good for. */
  readonly grants: readonly (readonly [token: string, grant: Grant])[]
  readonly owners: readonly {
    readonly name: string
    readonly token: string
    readonly plants: readonly (readonly [id: string, name: string, tag?: string])[]
  }[]
}

export interface Totals {
  requests: number
  connections: number
  readonly statuses: Map<number, number>
  /** Connections by what readers make of them. */
  mutated: number
  unclear: number
  /** Connections whose last answers were lost to a reset, as the service documents it. */
  lost: number
}

const OWNERS = 3
/** Of tokens that are good for less than all, or for nothing, where scopes are asked for. */
const SCOPES = ['plants:read', 'plants:write', '', 'plants', 'plants:read\tplants:write']
/** An owner with more plants is left: long lists are no better than short ones. */
const OWNER_MAX_PLANTS = 40
const OWNER_MAX_CHARS = 100_000
/**
 * Names that some comparison takes for one another: by case, by normalization, by what is cut off
 * or does not show.
 */
const LOOKALIKES: readonly [string, ...string[]] = [
  '',
  'É',
  'E\u0301',
  '\u00e9',
  'e\u0301',
  ' ',
  '\u0000',
  '\u200b',
  '/',
  '.',
  '\ufeff',
  ':',
  'ﬁ',
  'fi',
  '\u0130',
  'i\u0307',
  '%00',
  '\n',
]

/** One client after another, each a connection, with owners whom nobody else writes for. */
export class Worker {
  readonly #world: World
  readonly #random: Random
  readonly #number: number
  readonly #seed: number
  readonly #hopeless: readonly [Tokens, ...Tokens[]]
  readonly #shared: readonly [SharedOwner, ...SharedOwner[]]
  #owners: Owner[] = []
  #limited: readonly Owner[] = []
  #connection = 0
  #named = 0

  constructor(world: World, seed: number, number: number, forged: Tokens) {
    this.#world = world
    this.#number = number
    this.#seed = seed
    this.#random = new Random(subSeed(seed, number))
    const shared = [...world.shared.values()]
    const [first] = shared
    if (!first) throw new Error('no shared owner')
    this.#shared = [first, ...shared.slice(1)]
    this.#hopeless = [hopelessTokens(world.realm, `other ${number}`), forged]
  }

  /** One connection. `isKilled` says, once it is over, whether the service was killed meanwhile. */
  step(port: number, totals: Totals, isKilled: () => boolean): Promise<Finding | undefined> {
    const random = new Random(subSeed(this.#seed, this.#number, ++this.#connection))
    return this.#play(port, this.#script(random, totals), totals, isKilled)
  }

  /**
   * One connection that sends good requests, and then a head so slowly that the service gives up.
   */
  stall(port: number, totals: Totals): Promise<Finding | undefined> {
    const random = new Random(subSeed(this.#seed, this.#number, ++this.#connection))
    const { owners } = this.#actors()
    const good = Array.from(
      { length: random.below(4) },
      () =>
        `${random.pick(['GET', 'HEAD'])} /plants?limit=${random.below(3)} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${random.pick(owners).token}\r\n\r\n`,
    ).join('')
    const slow = `${random.pick(['GET', 'POST'])} /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${random.pick(owners).token}\r\nX: ${'s'.repeat(200)}`
    return this.#play(
      port,
      {
        text: good + slow,
        cuts: [],
        ending: 'stall',
        sendOnly: good.length + 1 + random.below(slow.length),
        pauseMs: 0,
        readsLate: false,
      },
      totals,
      () => false,
    )
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
    const before = new Map(
      this.#shared.map(({ name, token, acknowledged }) => [
        name,
        script.text.includes(token) ? new Set(acknowledged) : new Set<number>(),
      ]),
    )
    const heard = await talk(port, script, certainAnswers(readings), (index) =>
      isHead(readings[index]),
    )
    const { flaw: what, lost } = compare(readings, heard, this.#world, before, isKilled())
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
    const actors = this.#actors()
    const isMutated = random.chance(0.25)
    let text = ''
    for (let left = 1 + random.small(random.chance(0.1) ? 150 : 40); left > 0; left--)
      text += someRequest(random, actors, !isMutated)
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

  #actors(): Actors {
    this.#owners = this.#owners.filter(
      (owner) =>
        owner.isCertain && owner.plants.size < OWNER_MAX_PLANTS && charsOf(owner) < OWNER_MAX_CHARS,
    )
    while (this.#owners.length < OWNERS) this.#owners.push(this.#newOwner())
    const [first = this.#newOwner(), ...more] = this.#owners
    // What was sent and never answered may be there or not: whoever's it is, is not asked again.
    this.#limited = SCOPES.map((scopes, at) => {
      const known = this.#limited[at]
      return known?.isCertain === true
        ? known
        : this.#addOwner(`other ${this.#number} ${this.#named++} ${scopes}`, scopes)
    })
    const [token = '', ...tokens] = this.#limited.map((owner) => owner.token)
    return {
      owners: [first, ...more],
      shared: this.#shared,
      others: [[token, ...tokens], ...this.#hopeless],
      maxBodyBytes: this.#world.realm.maxBodyBytes,
    }
  }

  /** Mostly a name that is almost another's. */
  #newOwner(): Owner {
    const random = this.#random
    let name = ''
    do
      name = `${random.chance(0.5) ? 'w' : 'W'}${this.#number} ${Math.floor(this.#named++ / 6)}${random.pick(LOOKALIKES)}`
    while (this.#world.owners.has(name))
    return this.#addOwner(name)
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
  return {
    name,
    token,
    plants: [...plants].map(([id, plant]) =>
      plant.tag === undefined ? [String(id), plant.name] : [String(id), plant.name, plant.tag],
    ),
  }
}

/**
 * Tokens that the keys have signed and that are good for nothing, and some that are hardly tokens.
 */
export function hopelessTokens(realm: Realm, sub: string): Tokens {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
  const good = realm.token({ sub })
  return [
    realm.token({ sub, exp: 1_700_000_000 }),
    realm.token({ sub, exp: '4102444800' }),
    realm.token({ sub, exp: undefined }),
    realm.token({ sub, exp: null }),
    realm.token({ sub, nbf: 4_000_000_000 }),
    realm.token({ sub, iat: 'now' }),
    realm.token({ sub, iss: 'https://other.test' }),
    realm.token({ sub, iss: undefined }),
    realm.token({ sub, aud: 'other' }),
    realm.token({ sub, aud: undefined }),
    realm.token({ sub, aud: ['a', 'b'] }),
    realm.token({ sub, aud: { plants: 'plants' } }),
    realm.token({}),
    realm.token({ sub: '' }),
    realm.token({ sub: 7 }),
    realm.token({ sub: [sub] }),
    realm.token({ sub: null }),
    realm.token({ sub: { toString: sub } }),
    realm.token({ sub: '\ud800' }),
    realm.token({ sub }, { typ: 'logout+jwt' }),
    realm.token({ sub }, { typ: 7 }),
    realm.token({ sub }, { crit: ['b64'], b64: false }),
    realm.token({ sub }, { crit: ['x'] }),
    realm.token({ sub }, { alg: 'none' }),
    `${part({ alg: 'none' })}.${part({ sub })}.`,
    `${good}=`,
    `${good}.a.b`,
    good.split('.').slice(0, 2).join('.'),
    '..',
    'a',
    'a.b.c',
    `.${good}`,
    'e'.repeat(13_000),
    `${good.slice(0, -4)}AAAA`,
  ]
}
