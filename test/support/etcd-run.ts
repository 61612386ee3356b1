import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { Agent, type IncomingMessage, request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { Cluster, gateway, type Member, Proxy, type ProxyMode } from './etcd.ts'
import { jsonOf, Ledger, plantOf, type SentPlant } from './ledger.ts'
import { freePort } from './ports.ts'
import { MAIN } from './process.ts'
import { PATIENCE_MS, until } from './time.ts'
import { AUDIENCE, ISSUER, SECRET, token } from './tokens.ts'

const MEMBERS = 3
const CLIENTS = 48
/** An owner is left for a fresh one after so many plants, so that whole lists stay short. */
const OWNER_PLANTS = 150
/** Names that are apart by little, or hold what separates keys. */
const NAMES = [
  'alice',
  'alice/',
  'alice\u0000',
  'Alice',
  'ali',
  'é',
  'e\u0301',
  '🌱',
  '/',
  '..',
  'YWxpY2U',
  '0',
] as const

export interface RunOptions {
  readonly seed: string
  readonly faults: number
  readonly instances: number
  readonly tell: (line: string) => void
}

export interface RunTotals {
  readonly operations: number
  readonly acknowledged: number
  readonly conflicts: number
  /** POSTs that were answered 503 or 507, or not at all: open whether they were kept. */
  readonly open: number
  readonly lists: number
  readonly listsRefused: number
  readonly droppedAnswers: number
  readonly faults: Readonly<Record<string, number>>
  /**
   * The longest time from the end of a fault to a create that was acknowledged on every instance.
   */
  readonly longestRecoveryMs: number
  readonly problems: readonly string[]
}

/**
 * The service as a process of its own; every member is reached through a proxy that only this
 * instance has.
 */
class Instance {
  readonly port: number
  readonly proxies: readonly Proxy[]
  readonly #order: number
  #child: ChildProcess | undefined
  output = ''

  constructor(port: number, proxies: readonly Proxy[], order: number) {
    this.port = port
    this.proxies = proxies
    this.#order = order
  }

  async start(): Promise<void> {
    const endpoints = this.proxies.map(({ port }) => `http://127.0.0.1:${port}`)
    const turned = [
      ...endpoints.slice(this.#order % MEMBERS),
      ...endpoints.slice(0, this.#order % MEMBERS),
    ]
    const child = spawn(process.execPath, [MAIN, 'serve'], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        PATH: process.env['PATH'] ?? '',
        PLANTS_LISTEN: `127.0.0.1:${this.port}`,
        PLANTS_ADMIN_LISTEN: 'off',
        PLANTS_LOG_LEVEL: 'error',
        PLANTS_ETCD_ENDPOINTS: turned.join(','),
        PLANTS_ISSUER: ISSUER,
        PLANTS_AUDIENCE: AUDIENCE,
        PLANTS_JWT_SECRET: SECRET,
      },
    })
    this.#child = child
    process.once('exit', () => child.kill('SIGKILL'))
    for (const stream of [child.stdout, child.stderr])
      stream
        .setEncoding('utf8')
        .on('data', (text: string) => (this.output = (this.output + text).slice(-4000)))
    for (;;) {
      if (child.exitCode !== null || child.signalCode !== null)
        throw new Error(
          `an instance ended with ${child.exitCode ?? child.signalCode}: ${this.output}`,
        )
      const res = await fetch(`http://127.0.0.1:${this.port}/`).catch(() => undefined)
      if (res?.status === 404) return
      await sleep(10)
    }
  }

  async end(signal: NodeJS.Signals): Promise<number | null> {
    const child = this.#child
    if (!child || child.exitCode !== null || child.signalCode !== null) return null
    const exited = once(child, 'exit')
    child.kill(signal)
    await exited
    return child.exitCode
  }
}

/**
 * Clients on several instances over three members, while one fault follows the other; all that they
 * see is held against the model.
 */
export async function faultRun({
  seed,
  faults,
  instances: count,
  tell,
}: RunOptions): Promise<RunTotals> {
  // Each purpose has numbers of its own, so that how fast clients are changes no fault.
  const stream = (purpose: string): (() => number) => {
    let drawn = 0
    return () =>
      createHash('sha256').update(`${seed} ${purpose} ${drawn++}`).digest().readUInt32BE() / 2 ** 32
  }
  const pick = <T>(random: () => number, of: readonly T[]): T =>
    of[Math.floor(random() * of.length)] as T // of is not empty
  const [ofFaults, ofPlants] = [stream('faults'), stream('plants')]
  const ledger = new Ledger()
  const totals = {
    operations: 0,
    conflicts: 0,
    open: 0,
    lists: 0,
    listsRefused: 0,
    longestRecoveryMs: 0,
  }
  const made: Record<string, number> = {}
  const cluster = await Cluster.start(MEMBERS, { apart: true })
  const instances: Instance[] = []
  const agent = new Agent({ keepAlive: true })
  const owners = new Map<string, { readonly owner: string; nextId: bigint; used: number }>()
  let generation = 0
  let sent = 0
  const lasting = (): Promise<void> => sleep(400 + ofFaults() * 2200)
  const aMember = (): Member => pick(ofFaults, cluster.members)
  const theLeader = async (): Promise<Member> => (await cluster.leader()) ?? aMember()
  const twoMembers = (): readonly Member[] => {
    const spared = aMember()
    return cluster.members.filter((member) => member !== spared)
  }

  /** Ends members and starts them again. */
  async function killed(members: readonly Member[]): Promise<void> {
    await Promise.all(members.map((member) => member.end('SIGKILL')))
    await lasting()
    for (const member of members) cluster.startMember(member)
  }

  async function paused(members: readonly Member[]): Promise<void> {
    for (const member of members) member.signal('SIGSTOP')
    await lasting()
    for (const member of members) member.signal('SIGCONT')
  }

  /** Between members and instances. */
  async function inTheWay(
    mode: ProxyMode,
    members: readonly Member[],
    of: readonly Instance[],
  ): Promise<void> {
    const proxies = of.flatMap(({ proxies }) =>
      proxies.filter((_, i) => members.some((member) => member === cluster.members[i])),
    )
    for (const proxy of proxies) proxy.mode = mode
    await lasting()
    for (const proxy of proxies) proxy.mode = 'pass'
  }

  /** Between members: nobody gets through to these. */
  async function apart(members: readonly Member[]): Promise<void> {
    const proxies = members.flatMap(({ peers }) => peers ?? [])
    for (const proxy of proxies) proxy.mode = 'refuse'
    await lasting()
    for (const proxy of proxies) proxy.mode = 'pass'
  }

  async function noSpace(): Promise<void> {
    const member = aMember()
    const { body } = await gateway(member.endpoint, '/v3/maintenance/status', {}, PATIENCE_MS)
    // etcd's own answer.
    const memberID = (body as { readonly header: { readonly member_id: string } }).header.member_id
    const alarm = (action: string): Promise<void> =>
      until(
        `${action} is done`,
        async () =>
          (
            await gateway(member.endpoint, '/v3/maintenance/alarm', {
              action,
              memberID,
              alarm: 'NOSPACE',
            }).catch(() => undefined)
          )?.status === 200,
      )
    await alarm('ACTIVATE')
    await lasting()
    await alarm('DEACTIVATE')
  }

  async function instanceKilled(): Promise<void> {
    const instance = pick(ofFaults, instances)
    await instance.end('SIGKILL')
    await instance.start()
  }

  const FAULTS: Readonly<Record<string, () => Promise<void>>> = {
    'a member killed': () => killed([aMember()]),
    'the leader killed': async () => killed([await theLeader()]),
    'a member paused': () => paused([aMember()]),
    'the leader paused': async () => paused([await theLeader()]),
    'two members cut off from all instances, connections refused': () =>
      inTheWay('refuse', twoMembers(), instances),
    'two members cut off from all instances, bytes swallowed': () =>
      inTheWay('hang', twoMembers(), instances),
    'all members cut off from one instance': () =>
      inTheWay('refuse', cluster.members, [pick(ofFaults, instances)]),
    'answers of two members dropped': () => inTheWay('drop-answers', twoMembers(), instances),
    'answers of all members dropped': () => inTheWay('drop-answers', cluster.members, instances),
    'a member out of reach of the others': () => apart([aMember()]),
    'the leader out of reach of the others': async () => apart([await theLeader()]),
    'all members apart: no quorum': () => apart(cluster.members),
    'two members killed: no quorum': () => killed(twoMembers()),
    'two members paused: no quorum': () => paused(twoMembers()),
    'NOSPACE alarm': noSpace,
    'an instance killed': instanceKilled,
  }

  try {
    for (let i = 0; i < count; i++) {
      const proxies = await Promise.all(cluster.members.map(({ port }) => Proxy.start(() => port)))
      const instance = new Instance(await freePort(), proxies, i)
      instances.push(instance)
      await instance.start()
    }
    await run()
  } finally {
    agent.destroy()
    for (const instance of instances) {
      await instance.end('SIGKILL')
      for (const proxy of instance.proxies) proxy.close()
    }
    await cluster.close()
  }
  return {
    ...totals,
    acknowledged: ledger.acknowledged,
    droppedAnswers: instances
      .flatMap(({ proxies }) => proxies)
      .reduce((sum, { dropped }) => sum + dropped, 0),
    faults: made,
    problems: ledger.problems,
  }

  async function run(): Promise<void> {
    let running = true
    const clients = Array.from({ length: CLIENTS }, async () => {
      while (running && ledger.problems.length === 0) await operation()
    })
    try {
      await makeFaults()
    } finally {
      running = false
    }
    await Promise.all(clients)
    await verify()
  }

  async function makeFaults(): Promise<void> {
    const kinds = Object.keys(FAULTS)
    let order: string[] = []
    for (let i = 0; i < faults && ledger.problems.length === 0; i++) {
      // Every kind comes up once before any comes up again.
      if (order.length === 0)
        order = kinds
          .map((kind) => ({ kind, at: ofFaults() }))
          .sort((a, b) => a.at - b.at)
          .map(({ kind }) => kind)
      const kind = order.pop() ?? ''
      await FAULTS[kind]?.()
      const healedAt = performance.now()
      await cluster.ready()
      await Promise.all(instances.map((instance) => untilKept(instance)))
      const recoveryMs = performance.now() - healedAt
      totals.longestRecoveryMs = Math.max(totals.longestRecoveryMs, recoveryMs)
      made[kind] = (made[kind] ?? 0) + 1
      tell(
        `fault ${i + 1}: ${kind}; ${totals.operations} operations, every instance keeps plants again after ${Math.round(recoveryMs)} ms`,
      )
      await sleep(200 + ofFaults() * 600)
    }
  }

  async function post(instance: Instance, owner: string, plant: SentPlant): Promise<number> {
    ledger.sends(owner, plant)
    // No answer leaves open what became of it, as a 503 does.
    const { status } = await call(instance, owner, '/plants', jsonOf(plant)).catch(() => ({
      status: 503,
    }))
    ledger.answered(owner, plant, status === 507 ? 503 : status)
    totals.operations += 1
    if (status === 409) totals.conflicts += 1
    if (status === 503 || status === 507) totals.open += 1
    return status
  }

  async function get(instance: Instance, owner: string, limit: number | undefined): Promise<void> {
    const certain = ledger.certain(owner)
    const answer = await call(
      instance,
      owner,
      limit === undefined ? '/plants' : `/plants?limit=${limit}`,
    ).catch(() => undefined)
    totals.operations += 1
    totals.lists += 1
    if (answer?.status === 200) {
      // The service's own answer; the ledger compares each member.
      const plants = JSON.parse(answer.text) as { name: string; tag?: string }[]
      ledger.showsCertain(owner, plants, certain, answer.cut)
    } else if (answer === undefined || answer.status === 503) totals.listsRefused += 1
    else ledger.problems.push(`GET: ${answer.status} ${answer.text}`)
  }

  /**
   * Owners in use, each with the last id that it was given; ids descend, so that a short list shows
   * what was created last.
   */
  function ownerNow(): { owner: string; nextId: bigint } {
    const name = pick(ofPlants, NAMES)
    const current = owners.get(name)
    if (current && current.used < OWNER_PLANTS) {
      current.used += 1
      current.nextId -= 1n
      return current
    }
    const fresh = { owner: `${name}${generation++}`, nextId: 40n, used: 0 }
    owners.set(name, fresh)
    return fresh
  }

  async function operation(): Promise<void> {
    const { owner, nextId } = ownerNow()
    const dice = ofPlants()
    if (dice < 0.25)
      return get(
        pick(ofPlants, instances),
        owner,
        dice < 0.05 ? undefined : Math.ceil(ofPlants() * 40),
      )
    const plant = (): SentPlant =>
      plantOf(
        nextId,
        `of ${owner}, ${sent++} ${'🌿 x'.repeat(Math.floor(ofPlants() ** 8 * 5000))}`,
        ofPlants() < 0.3 ? 'tag' : undefined,
      )
    const wanted = plant()
    if (dice < 0.35) {
      // Two contents for one id, on any instances.
      await Promise.all([
        post(pick(ofPlants, instances), owner, wanted),
        post(pick(ofPlants, instances), owner, plant()),
      ])
    } else if (dice < 0.45) {
      await Promise.all([
        post(pick(ofPlants, instances), owner, wanted),
        post(pick(ofPlants, instances), owner, wanted),
      ])
    } else {
      const status = await post(pick(ofPlants, instances), owner, wanted)
      // As a client that got no answer: again, elsewhere.
      if (status === 503) await post(pick(ofPlants, instances), owner, wanted)
    }
  }

  async function untilKept(instance: Instance): Promise<void> {
    const deadline = performance.now() + PATIENCE_MS
    const owner = `recovery${instance.port}`
    const plant = plantOf(BigInt(sent++), `of ${owner}`)
    while ((await post(instance, owner, plant)) !== 200) {
      if (performance.now() > deadline) {
        ledger.problems.push(
          `no create is acknowledged ${PATIENCE_MS} ms after a fault was over: ${instance.output}`,
        )
        return
      }
      await sleep(50)
    }
  }

  /**
   * Nothing is being sent, and nothing is broken: every list on every instance is whole, and
   * settles what was open. On a machine that is held up it may take more than one call.
   */
  async function verify(): Promise<void> {
    for (const owner of ledger.owners) {
      for (const instance of instances) {
        let answer = await call(instance, owner, '/plants')
        for (
          const deadline = performance.now() + PATIENCE_MS;
          answer.status === 503 && performance.now() < deadline;

        )
          answer = await call(instance, owner, '/plants')
        const { status, text } = answer
        if (status !== 200) ledger.problems.push(`GET: ${status} ${text}`)
        // As above.
        else ledger.showsAll(owner, JSON.parse(text) as { name: string; tag?: string }[], false)
      }
    }
    for (const instance of instances) {
      const code = await instance.end('SIGTERM')
      if (code !== 0)
        ledger.problems.push(`SIGTERM ended an instance with ${code}: ${instance.output}`)
    }
  }

  interface HttpResponse {
    readonly status: number
    readonly text: string
    /** Whether the list says that more follow. */
    readonly cut: boolean
  }

  function call(instance: Instance, owner: string, path: string, body?: string): Promise<HttpResponse> {
    const authorization = bearers.get(owner) ?? `Bearer ${token(owner)}`
    bearers.set(owner, authorization)
    return new Promise((resolve, reject) => {
      const headers = {
        authorization,
        ...(body === undefined
          ? {}
          : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }),
      }
      const take = (res: IncomingMessage): void => {
        let text = ''
        res.setEncoding('utf8').on('data', (chunk: string) => (text += chunk))
        res.on('error', reject)
        res.on('end', () =>
          resolve({ status: res.statusCode ?? 0, text, cut: res.headers['link'] !== undefined }),
        )
      }
      request(
        {
          host: '127.0.0.1',
          port: instance.port,
          path,
          method: body === undefined ? 'GET' : 'POST',
          agent,
          headers,
        },
        take,
      )
        .on('error', reject)
        .end(body)
    })
  }
}

const bearers = new Map<string, string>()
