import { createHash } from 'node:crypto'
import { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster } from './etcd.ts'
import { Faults, pick, type Random, type Site } from './etcd-faults.ts'
import { Instance } from './etcd-instance.ts'
import { Proxy } from './etcd-proxy.ts'
import { call, post, type Reply } from './http.ts'
import { jsonOf, Ledger, plantOf, plantsOf, type SentPlant } from './ledger.ts'
import { PATIENCE_MS, until } from './time.ts'
import { token } from './tokens.ts'

const MEMBERS = 3
const CLIENTS = 48
/** An owner is replaced after this many plants, so that whole lists stay short. */
const OWNER_PLANTS = 150
/** What a burst sends at once. */
const BURST_PLANTS = 24
/** Of a token: a long run takes longer than the time of a test's token. */
const TOKEN_SECONDS = 8 * 60 * 60
/** After each operation of a client: without it, 200 faults fill etcd up to its quota of 2 GiB. */
const PAUSE_MS = 100
/** Names that differ by little, or contain what separates keys. */
const NAMES = [
  ...['alice', 'alice/', 'alice\u0000', 'Alice', 'ali'],
  ...['é', 'e\u0301', '🌱', '/', '..', 'YWxpY2U', '0'],
] as const

const agent = new Agent({ keepAlive: true })

interface RunOptions {
  readonly seed: string
  readonly faults: number
  readonly instances: number
  /** True for a run that spares the disk and the processor. */
  readonly cheap?: boolean
  readonly tell: (line: string) => void
}

class Totals {
  operations = 0
  conflicts = 0
  /** POSTs with the answer 503 or 507, or none: the plant may be stored or not. */
  open = 0
  lists = 0
  listsRefused = 0
  /** How often each was made. */
  readonly faults: Record<string, number> = {}
  /** The longest time from the end of a fault until every instance acknowledged a create. */
  longestRecoveryMs = 0
}

/**
 * Clients on several instances over three members, and one fault after the other. Everything that
 * the clients see is checked against the ledger.
 */
export async function faultRun(options: RunOptions) {
  const cluster = await Cluster.start(MEMBERS, { apart: true, cheap: options.cheap ?? false })
  const sites: Site[] = []
  try {
    for (let i = 0; i < options.instances; i++) {
      const proxies = await Promise.all(cluster.members.map(({ port }) => Proxy.start(() => port)))
      const endpoints = proxies.map(({ endpoint }) => endpoint)
      sites.push({ instance: await Instance.start(endpoints, i), proxies })
    }
    return await new Run(cluster, sites, options).run()
  } finally {
    for (const { instance, proxies } of sites) {
      await instance.end('SIGKILL')
      for (const proxy of proxies) proxy.close()
    }
    await cluster.close()
  }
}

/** Each purpose has its own numbers, so that the speed of the clients changes no fault. */
function randomOf(seed: string, purpose: string): Random {
  let drawn = 0
  return () =>
    createHash('sha256').update(`${seed} ${purpose} ${drawn++}`).digest().readUInt32BE() / 2 ** 32
}

class Run {
  readonly #cluster: Cluster
  readonly #sites: readonly Site[]
  readonly #options: RunOptions
  readonly #forFaults: Random
  readonly #forPlants: Random
  readonly #ledger = new Ledger()
  readonly #owners = new Map<string, { readonly owner: string; nextId: bigint; plants: number }>()
  readonly #totals = new Totals()
  /** Makes every owner and every plant a new one. */
  #serial = 0

  constructor(cluster: Cluster, sites: readonly Site[], options: RunOptions) {
    this.#cluster = cluster
    this.#sites = sites
    this.#options = options
    this.#forFaults = randomOf(options.seed, 'faults')
    this.#forPlants = randomOf(options.seed, 'plants')
  }

  async run() {
    let isRunning = true
    const clients = Array.from({ length: CLIENTS }, async () => {
      while (isRunning && this.#ledger.problems.length === 0) {
        await this.#operation()
        await sleep(PAUSE_MS)
      }
    })
    try {
      await this.#makeFaults()
    } finally {
      isRunning = false
    }
    await Promise.all(clients)
    await this.#verify()
    const { acknowledged, problems } = this.#ledger
    const proxies = this.#sites.flatMap((site) => site.proxies)
    return {
      ...this.#totals,
      acknowledged,
      problems,
      droppedAnswers: proxies.reduce((sum, { dropped }) => sum + dropped, 0),
      /** Transactions with more than one plant, as the instances sent them. */
      groups: proxies.reduce((sum, { groups }) => sum + groups, 0),
      largestGroup: Math.max(...proxies.map(({ largestGroup }) => largestGroup)),
    }
  }

  async #makeFaults(): Promise<void> {
    const totals = this.#totals
    const { kinds } = new Faults(this.#cluster, this.#sites, this.#forFaults)
    let order: string[] = []
    for (let i = 1; i <= this.#options.faults && this.#ledger.problems.length === 0; i++) {
      // Every kind is used once before any is used again.
      if (order.length === 0) order = shuffled(this.#forFaults, Object.keys(kinds))
      const kind = order.pop() ?? ''
      await kinds[kind]?.()
      const repairedAt = performance.now()
      await this.#cluster.ready()
      await Promise.all(this.#sites.map(({ instance }) => this.#untilKept(instance)))
      const recoveryMs = performance.now() - repairedAt
      totals.longestRecoveryMs = Math.max(totals.longestRecoveryMs, recoveryMs)
      totals.faults[kind] = (totals.faults[kind] ?? 0) + 1
      this.#options.tell(
        `fault ${i}: ${kind}; ${totals.operations} operations, ` +
          `every instance keeps plants again after ${Math.round(recoveryMs)} ms`,
      )
      await sleep(200 + this.#forFaults() * 600)
    }
  }

  async #operation(): Promise<void> {
    const dice = this.#forPlants()
    if (dice > 0.9) return this.#burst()
    const { owner, nextId } = this.#nextOwner()
    if (dice < 0.05) return this.#get(owner)
    if (dice < 0.25) return this.#get(owner, Math.ceil(this.#forPlants() * 40))
    const plant = this.#newPlant(owner, nextId)
    if (dice < 0.35) {
      // Two contents for one id, on any instances.
      const rival = this.#newPlant(owner, nextId)
      await Promise.all([this.#post(owner, plant), this.#post(owner, rival)])
    } else if (dice < 0.45) {
      await Promise.all([this.#post(owner, plant), this.#post(owner, plant)])
    } else if ((await this.#post(owner, plant)) === 503) {
      // As a client without an answer does: again, on any instance.
      await this.#post(owner, plant)
    }
  }

  /**
   * Plants of one owner, at once to one instance, which groups them. Among them are two contents
   * for one id, the same plant twice, and another content for an id that may be stored.
   */
  async #burst(): Promise<void> {
    const instance = this.#anInstance()
    const { owner, nextId } = this.#nextOwner(BURST_PLANTS)
    const ids = Array.from({ length: BURST_PLANTS }, (_, i) => nextId + BigInt(i))
    const plants = ids.map((id) => this.#newPlant(owner, id))
    if (this.#forPlants() < 0.5) {
      plants.push(this.#newPlant(owner, pick(this.#forPlants, ids)), pick(this.#forPlants, plants))
      plants.push(this.#newPlant(owner, nextId + BigInt(BURST_PLANTS)))
    }
    const sent = shuffled(this.#forPlants, plants)
    const statuses = await Promise.all(sent.map((plant) => this.#post(owner, plant, instance)))
    // As clients without an answer do: again, at once.
    const open = sent.filter((_, i) => statuses[i] === 503)
    await Promise.all(open.map((plant) => this.#post(owner, plant)))
  }

  /** An owner, and new ids from `nextId` on. Ids descend, so that short lists show new plants. */
  #nextOwner(count = 1): { readonly owner: string; readonly nextId: bigint } {
    const name = pick(this.#forPlants, NAMES)
    const current = this.#owners.get(name)
    if (current && current.plants < OWNER_PLANTS) {
      current.plants += count
      current.nextId -= BigInt(count)
      return { ...current }
    }
    const fresh = { owner: `${name}${this.#serial++}`, nextId: 40n, plants: 0 }
    this.#owners.set(name, fresh)
    return fresh
  }

  #newPlant(owner: string, id: bigint): SentPlant {
    const filler = '🌿 x'.repeat(Math.floor(this.#forPlants() ** 8 * 5000))
    const tag = this.#forPlants() < 0.3 ? 'tag' : undefined
    return plantOf(id, `of ${owner}, ${this.#serial++} ${filler}`, tag)
  }

  async #post(owner: string, plant: SentPlant, instance = this.#anInstance()): Promise<number> {
    this.#ledger.sends(owner, plant)
    // Like a 503, no answer and a 507 leave open whether the plant is stored.
    const answer = await this.#call(instance, owner, '', jsonOf(plant)).catch(() => undefined)
    const status = answer === undefined || answer.status === 507 ? 503 : answer.status
    this.#ledger.answered(owner, plant, status)
    this.#totals.operations += 1
    if (status === 409) this.#totals.conflicts += 1
    if (status === 503) this.#totals.open += 1
    return status
  }

  async #get(owner: string, limit?: number): Promise<void> {
    const certain = this.#ledger.certain(owner)
    const query = limit === undefined ? '' : `?limit=${limit}`
    const answer = await this.#call(this.#anInstance(), owner, query).catch(() => undefined)
    this.#totals.operations += 1
    this.#totals.lists += 1
    if (answer?.status === 200) {
      const isCut = answer.headers['link'] !== undefined
      this.#ledger.showsCertain(owner, plantsOf(answer.text), certain, isCut)
    } else if (answer === undefined || answer.status === 503) this.#totals.listsRefused += 1
    else this.#ledger.problems.push(`GET: ${answer.status} ${answer.text}`)
  }

  /** @throws Error if no create is acknowledged for very long */
  async #untilKept(instance: Instance): Promise<void> {
    const owner = `recovery${instance.port}`
    const plant = plantOf(BigInt(this.#serial++), `of ${owner}`)
    const isKept = async () => (await this.#post(owner, plant, instance)) === 200
    await until('plants are kept after a fault', isKept).catch((error: unknown) => {
      throw new Error(`an instance of which ${String(error)}: ${instance.output}`)
    })
  }

  /**
   * Nothing is sent and nothing is broken any more: every list on every instance must be whole, and
   * decides what was open. On a machine under load one call may not be enough.
   */
  async #verify(): Promise<void> {
    const { problems } = this.#ledger
    const deadline = performance.now() + PATIENCE_MS
    for (const owner of this.#ledger.owners) {
      for (const { instance } of this.#sites) {
        let answer = await this.#call(instance, owner)
        while (answer.status === 503 && performance.now() < deadline)
          answer = await this.#call(instance, owner)
        if (answer.status === 200) this.#ledger.showsAll(owner, plantsOf(answer.text), false)
        else problems.push(`GET: ${answer.status} ${answer.text}`)
      }
    }
    for (const { instance } of this.#sites) {
      const code = await instance.end('SIGTERM')
      if (code !== 0) problems.push(`SIGTERM ended an instance with ${code}: ${instance.output}`)
    }
  }

  #anInstance(): Instance {
    return pick(this.#forPlants, this.#sites).instance
  }

  #call(instance: Instance, owner: string, query = '', body?: string): Promise<Reply> {
    const exp = Math.floor(Date.now() / 1000) + TOKEN_SECONDS
    const options = { token: token(owner, { exp }), agent, path: `/plants${query}` }
    return body === undefined ? call(instance.port, options) : post(instance.port, body, options)
  }
}

function shuffled<T>(random: Random, values: readonly T[]): T[] {
  const drawn = values.map((value) => ({ value, at: random() }))
  return drawn.sort((a, b) => a.at - b.at).map(({ value }) => value)
}
