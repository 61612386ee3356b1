import { setTimeout as sleep } from 'node:timers/promises'
import { type Cluster, gateway, type Member } from './etcd.ts'
import type { Instance } from './etcd-instance.ts'
import type { Proxy, ProxyMode } from './etcd-proxy.ts'
import { until } from './time.ts'

/** An instance, and its own proxies: the i-th one leads to the i-th member. */
export interface Site {
  readonly instance: Instance
  readonly proxies: readonly Proxy[]
}

/** Numbers from 0 to 1, 1 excluded. */
export type Random = () => number

export function pick<T>(random: Random, values: readonly T[]): T {
  // No caller passes an empty array.
  return values[Math.floor(random() * values.length)] as T
}

/** Calls of an instance are given up after 6 s. */
const LONGER_THAN_A_CALL_MS = 8000

/** What can break. Each fault lasts a while, and is repaired when its promise resolves. */
export class Faults {
  readonly #cluster: Cluster
  readonly #sites: readonly Site[]
  readonly #random: Random

  constructor(cluster: Cluster, sites: readonly Site[], random: Random) {
    this.#cluster = cluster
    this.#sites = sites
    this.#random = random
  }

  readonly kinds: Readonly<Record<string, () => Promise<void>>> = {
    'a member killed': () => this.#kill(this.#one()),
    'the leader killed': async () => this.#kill(await this.#leader()),
    'a member paused': () => this.#pause(this.#one()),
    'the leader paused': async () => this.#pause(await this.#leader()),
    'two members cut off from all instances, connections refused': () =>
      this.#disturb('refuse', this.#proxiesTo(this.#two())),
    'two members cut off from all instances, bytes discarded': () =>
      this.#disturb('hang', this.#proxiesTo(this.#two())),
    'all members cut off from one instance': () =>
      this.#disturb('refuse', pick(this.#random, this.#sites).proxies),
    'answers of two members dropped': () =>
      this.#disturb('drop-answers', this.#proxiesTo(this.#two())),
    'answers of all members dropped': () =>
      this.#disturb('drop-answers', this.#proxiesTo(this.#cluster.members)),
    'a member isolated from the others': () => this.#isolate(this.#one()),
    'the leader isolated from the others': async () => this.#isolate(await this.#leader()),
    'all members isolated: no quorum': () => this.#isolate(this.#cluster.members),
    'two members killed: no quorum': () => this.#kill(this.#two()),
    'two members paused: no quorum': () => this.#pause(this.#two()),
    'two members killed for longer than a call: no quorum': () =>
      this.#kill(this.#two(), LONGER_THAN_A_CALL_MS),
    'NOSPACE alarm': () => this.#noSpace(),
    'an instance killed': () => this.#killInstance(),
  }

  #one(): readonly Member[] {
    return [pick(this.#random, this.#cluster.members)]
  }

  async #leader(): Promise<readonly Member[]> {
    const leader = await this.#cluster.leader()
    return leader ? [leader] : this.#one()
  }

  #two(): readonly Member[] {
    const [spared] = this.#one()
    return this.#cluster.members.filter((member) => member !== spared)
  }

  #lasting(leastMs = 400): Promise<void> {
    return sleep(leastMs + this.#random() * 2200)
  }

  async #kill(members: readonly Member[], leastMs?: number): Promise<void> {
    await Promise.all(members.map((member) => member.end()))
    await this.#lasting(leastMs)
    for (const member of members) this.#cluster.startMember(member)
  }

  async #pause(members: readonly Member[]): Promise<void> {
    for (const member of members) member.signal('SIGSTOP')
    await this.#lasting()
    for (const member of members) member.signal('SIGCONT')
  }

  async #disturb(mode: ProxyMode, proxies: readonly Proxy[]): Promise<void> {
    for (const proxy of proxies) proxy.mode = mode
    await this.#lasting()
    for (const proxy of proxies) proxy.mode = 'pass'
  }

  /** Those of all instances. */
  #proxiesTo(members: readonly Member[]): readonly Proxy[] {
    const isWanted = (i: number): boolean =>
      members.some((member) => member === this.#cluster.members[i])
    return this.#sites.flatMap(({ proxies }) => proxies.filter((_, i) => isWanted(i)))
  }

  /** No other member reaches these. */
  #isolate(members: readonly Member[]): Promise<void> {
    const proxies = members.flatMap(({ proxy }) => proxy ?? [])
    return this.#disturb('refuse', proxies)
  }

  async #noSpace(): Promise<void> {
    const { endpoint } = pick(this.#random, this.#cluster.members)
    const alarm = (action: string): Promise<void> =>
      until(`${action} is done`, async () => {
        const message = { action, alarm: 'NOSPACE' }
        const done = gateway(endpoint, '/v3/maintenance/alarm', message)
        return (await done.catch(() => undefined))?.status === 200
      })
    await alarm('ACTIVATE')
    await this.#lasting()
    await alarm('DEACTIVATE')
  }

  async #killInstance(): Promise<void> {
    const { instance } = pick(this.#random, this.#sites)
    await instance.end('SIGKILL')
    await instance.start()
  }
}
