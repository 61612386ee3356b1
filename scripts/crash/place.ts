import { type FSWatcher, watch } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { Agent } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { call, post } from '../../test/support/http.ts'
import { serviceEnvironment } from '../../test/support/launch.ts'
import { jsonOf, Ledger, plantsOf, type SentPlant } from '../../test/support/ledger.ts'
import { token } from '../../test/support/tokens.ts'
import { check, WatchedService } from '../watched.ts'
import type { Choices } from './choices.ts'

const CONNECTIONS = 32
const OWNERS = ['alice', 'bob', 'carol', 'dave', 'eve'] as const
const COMPACTION_PATIENCE_MS = 3000
const TOKEN_SECONDS = 86_400

/** File names whose change shows a step of a compaction, and how long what follows may take. */
const COMPACTION_SIGNS = [
  // The journal was rotated, or is removed at the end.
  { name: /^journal-\d+\.log$/, ms: 300 },
  // A snapshot is being written.
  { name: /^plants\.sqlite\..*tmp$/, ms: 40 },
  // A snapshot is in place, and its journals are not removed yet.
  { name: /^plants\.sqlite$/, ms: 4 },
] as const

/** What the kill of a round is aimed at. */
const AIMS = ['start', 'load', 'compaction', 'compaction', 'compaction', 'stop'] as const
type Aim = (typeof AIMS)[number]

/** What happened in all directories of a run. */
export const totals = {
  acknowledged: 0,
  lost: 0,
  compactions: 0,
  killedStarting: 0,
  killedCompacting: 0,
  killedStopping: 0,
  recoveryMs: 0,
}
/** How long the last start took, so that kills can be aimed at the next. */
let startMs = 300
const bearers = new Map<string, string>(
  OWNERS.map((owner) => [owner, token(owner, { exp: Date.now() / 1000 + TOKEN_SECONDS })]),
)

/** One data directory, the service that uses it, and the ledger of its plants. */
export class Place {
  readonly directory: string
  readonly ledger = new Ledger()
  readonly #agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS + 1 })
  readonly #choices: Choices

  constructor(directory: string, choices: Choices) {
    this.directory = directory
    this.#choices = choices
  }

  #start(): WatchedService {
    const startedAtMs = performance.now()
    const service = new WatchedService(serviceEnvironment(this.directory), (lines) => {
      totals.compactions += lines.match(/"message":"compacted"/g)?.length ?? 0
    })
    service.port.then(
      () => {
        startMs = performance.now() - startedAtMs
        totals.recoveryMs = Math.max(totals.recoveryMs, startMs)
      },
      () => {},
    )
    return service
  }

  async #end(service: WatchedService, signal: NodeJS.Signals): Promise<number | null> {
    const code = await service.kill(signal)
    this.ledger.problems.push(...service.complaints)
    return code
  }

  /** One round: a start, load, and SIGKILL. */
  async round(): Promise<void> {
    const service = this.#start()
    const aim = this.#choices.ofKills.pick(AIMS)
    if (aim === 'start') {
      const delayMs = this.#choices.ofKills.next() * startMs * 1.3
      const killed = sleep(delayMs).then(() => this.#end(service, 'SIGKILL'))
      const port = await service.port.catch(() => undefined)
      if (port === undefined) totals.killedStarting += 1
      else await this.#load(port)
      await killed
      return
    }
    const port = await service.ready()
    await this.#verify(port)
    const loaded = this.#load(port)
    await this.#untilMoment(aim, service)
    const code = await this.#end(service, 'SIGKILL')
    if (aim === 'stop') totals.killedStopping += code === null ? 1 : 0
    else if (await this.#hasUnfinishedCompaction()) totals.killedCompacting += 1
    await loaded
  }

  /** A last start, and a clean stop. */
  async leave(): Promise<void> {
    const service = this.#start()
    await this.#verify(await service.ready())
    await service.stop(this.directory)
    this.ledger.problems.push(...service.complaints)
  }

  /** Nothing is being sent: lists must hold all that was kept, and open ids can be sent again. */
  async #verify(port: number): Promise<void> {
    const checked = check(this.directory)
    await Promise.all(OWNERS.map((owner) => this.#verifyOwner(port, owner)))
    this.ledger.problems.push(...(await checked))
  }

  async #verifyOwner(port: number, owner: string): Promise<void> {
    const { status, text } = await call(port, { token: bearers.get(owner) })
    if (status !== 200) this.ledger.problems.push(`GET: ${status}`)
    const { shown, absent } = this.ledger.showsAll(owner, plantsOf(text), true)
    await Promise.all([
      ...shown.map(async (id) => {
        const kept = this.ledger.kept(owner, id)
        if (kept) await this.#send(port, owner, kept, 200)
        await this.#send(port, owner, this.#choices.newPlant(id), 409)
      }),
      // Some ids stay unused, so that a plant which comes back late is noticed.
      ...absent
        .filter(() => this.#choices.ofPlants.chance(0.7))
        .map((id) => this.#send(port, owner, this.#choices.newPlant(id), 200)),
    ])
  }

  async #send(port: number, owner: string, plant: SentPlant, expected?: number): Promise<void> {
    this.ledger.sends(owner, plant)
    const options = { token: bearers.get(owner), agent: this.#agent }
    const { status } = await post(port, jsonOf(plant), options)
    this.ledger.answered(owner, plant, status)
    if (expected !== undefined && status !== expected)
      this.ledger.problems.push(`${owner}'s ${plant.id}: a POST got ${status}, not ${expected}`)
  }

  /** Writers and a reader, until the service is gone. */
  async #load(port: number): Promise<void> {
    const clients = [
      this.#read(port),
      ...Array.from({ length: CONNECTIONS }, () => this.#write(port)),
    ]
    await Promise.all(
      clients.map((client) =>
        client.catch((error: unknown) => {
          // The connection ends with the service; anything else is a mistake of this script.
          if (!(error instanceof Error && 'code' in error)) throw error
        }),
      ),
    )
  }

  async #write(port: number): Promise<never> {
    for (;;) {
      const owner = this.#choices.ofPlants.pick(OWNERS)
      const plant = this.#choices.newPlant(this.#choices.newId(owner))
      const dice = this.#choices.ofPlants.next()
      const sends = [this.#send(port, owner, plant)]
      // The same plant twice at once, or two that want the same id.
      if (dice < 0.03) sends.push(this.#send(port, owner, plant))
      else if (dice < 0.06) sends.push(this.#send(port, owner, this.#choices.newPlant(plant.id)))
      await Promise.all(sends)
    }
  }

  async #read(port: number): Promise<never> {
    for (;;) {
      const owner = this.#choices.ofPlants.pick(OWNERS)
      const reply = await call(port, { path: '/plants?limit=20', token: bearers.get(owner) })
      if (reply.status !== 200) this.ledger.problems.push(`GET: ${reply.status}`)
      this.ledger.shows(owner, plantsOf(reply.text))
      await sleep(20)
    }
  }

  /** Waits for the moment of the kill, which the seed chooses as far as a seed can. */
  async #untilMoment(aim: Exclude<Aim, 'start'>, service: WatchedService): Promise<void> {
    if (aim === 'compaction') {
      const watcher = watch(this.directory)
      const sign = this.#choices.ofKills.pick(COMPACTION_SIGNS)
      await renamed(watcher, sign.name)
      watcher.close()
      await sleep(this.#choices.ofKills.next() * sign.ms)
      return
    }
    await sleep(this.#choices.ofKills.next() * (aim === 'load' ? 800 : 300))
    if (aim === 'load') return
    void service.kill('SIGTERM')
    await sleep(this.#choices.ofKills.next() * 250)
  }

  /** A compaction that was killed leaves several journals or an unfinished snapshot. */
  async #hasUnfinishedCompaction(): Promise<boolean> {
    const names = await readdir(this.directory)
    const journals = names.filter((name) => /^journal-\d+\.log$/.test(name))
    return journals.length > 1 || names.some((name) => /^plants\.sqlite\..*tmp$/.test(name))
  }
}

/** Resolves when a file of such a name comes or goes, or after a while without one. */
function renamed(watcher: FSWatcher, pattern: RegExp): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, COMPACTION_PATIENCE_MS)
    watcher.on('change', (type, name) => {
      if (type !== 'rename' || !pattern.test(String(name))) return
      clearTimeout(timer)
      resolve()
    })
  })
}
