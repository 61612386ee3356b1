import { setTimeout as sleep } from 'node:timers/promises'
import { type Cluster, gateway, type Member, statusOf } from './etcd.ts'
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

/** What can break. Each fault lasts a while, and is repaired when its promise resolves. */
export function faultsOf(
  cluster: Cluster,
  sites: readonly Site[],
  random: Random,
): Readonly<Record<string, () => Promise<void>>> {
  const { members } = cluster
  const lasting = (): Promise<void> => sleep(400 + random() * 2200)
  const one = (): readonly Member[] => [pick(random, members)]
  const leader = async (): Promise<readonly Member[]> => [
    (await cluster.leader()) ?? pick(random, members),
  ]
  const two = (): readonly Member[] => {
    const spared = pick(random, members)
    return members.filter((member) => member !== spared)
  }

  async function kill(broken: readonly Member[]): Promise<void> {
    await Promise.all(broken.map((member) => member.end()))
    await lasting()
    for (const member of broken) cluster.startMember(member)
  }

  async function pause(broken: readonly Member[]): Promise<void> {
    for (const member of broken) member.signal('SIGSTOP')
    await lasting()
    for (const member of broken) member.signal('SIGCONT')
  }

  async function disturb(mode: ProxyMode, proxies: readonly Proxy[]): Promise<void> {
    for (const proxy of proxies) proxy.mode = mode
    await lasting()
    for (const proxy of proxies) proxy.mode = 'pass'
  }

  /** Between members and instances. */
  function between(broken: readonly Member[]): readonly Proxy[] {
    const reaches = (i: number): boolean => broken.some((member) => member === members[i])
    return sites.flatMap(({ proxies }) => proxies.filter((_, i) => reaches(i)))
  }

  /** No other member reaches these. */
  function isolate(broken: readonly Member[]): Promise<void> {
    return disturb(
      'refuse',
      broken.flatMap(({ proxy }) => proxy ?? []),
    )
  }

  async function noSpace(): Promise<void> {
    const member = pick(random, members)
    let memberID: string | undefined
    await until('a member tells its id', async () => {
      memberID = (await statusOf(member))?.header.member_id
      return memberID !== undefined
    })
    const alarm = (action: string): Promise<void> =>
      until(`${action} is done`, async () => {
        const message = { action, memberID, alarm: 'NOSPACE' }
        const path = '/v3/maintenance/alarm'
        return (
          (await gateway(member.endpoint, path, message).catch(() => undefined))?.status === 200
        )
      })
    await alarm('ACTIVATE')
    await lasting()
    await alarm('DEACTIVATE')
  }

  async function killInstance(): Promise<void> {
    const { instance } = pick(random, sites)
    await instance.end('SIGKILL')
    await instance.start()
  }

  return {
    'a member killed': () => kill(one()),
    'the leader killed': async () => kill(await leader()),
    'a member paused': () => pause(one()),
    'the leader paused': async () => pause(await leader()),
    'two members cut off from all instances, connections refused': () =>
      disturb('refuse', between(two())),
    'two members cut off from all instances, bytes discarded': () =>
      disturb('hang', between(two())),
    'all members cut off from one instance': () => disturb('refuse', pick(random, sites).proxies),
    'answers of two members dropped': () => disturb('drop-answers', between(two())),
    'answers of all members dropped': () => disturb('drop-answers', between(members)),
    'a member isolated from the others': () => isolate(one()),
    'the leader isolated from the others': async () => isolate(await leader()),
    'all members isolated: no quorum': () => isolate(members),
    'two members killed: no quorum': () => kill(two()),
    'two members paused: no quorum': () => pause(two()),
    'NOSPACE alarm': noSpace,
    'an instance killed': killInstance,
  }
}
