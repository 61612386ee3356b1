/*
 * Kills the built service with SIGKILL, again and again, under concurrent writers, and checks after
 * each start that nothing acknowledged is lost and nothing else appears. A start, a compaction and
 * a stop take little time and hold most of the danger, so most kills are aimed at them.
 */
import { type FSWatcher, watch } from 'node:fs'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { Agent } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { call, post } from '../test/support/http.ts'
import { exitOnSignals, serviceEnvironment } from '../test/support/launch.ts'
import { jsonOf, Ledger, plantOf, plantsOf, type SentPlant } from '../test/support/ledger.ts'
import { run } from '../test/support/process.ts'
import { Random, randomSeed, subSeed } from '../test/support/random.ts'
import { token } from '../test/support/tokens.ts'
import { wholeNumber } from './arguments.ts'
import { WatchedService } from './watched.ts'

const CONNECTIONS = 32
const OWNERS = ['alice', 'bob', 'carol', 'dave', 'eve'] as const
/** After so many rounds or characters a new directory is used: each start reads all of it. */
const DIRECTORY_ROUNDS = 25
const DIRECTORY_CHARS = 16 * 1024 * 1024
const COMPACTION_PATIENCE_MS = 3000
const TOKEN_SECONDS = 86_400

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '200' },
    seed: { type: 'string', default: String(randomSeed()) },
  },
})
const rounds = wholeNumber('--rounds', values.rounds)
const seed = wholeNumber('--seed', values.seed, 0)
/** Each purpose has its own numbers, so that the speed of the writers changes no kill. */
const ofKills = new Random(subSeed(seed, 1))
const ofPlants = new Random(subSeed(seed, 2))

/** File names whose change shows a step of a compaction, and how long what follows may take. */
const COMPACTION_SIGNS = [
  // The journal was rotated, or is removed at the end.
  { name: /^journal-\d+\.log$/, ms: 300 },
  // A snapshot is being written.
  { name: /^plants\.sqlite\.tmp$/, ms: 40 },
  // A snapshot is in place, and its journals are not removed yet.
  { name: /^plants\.sqlite$/, ms: 4 },
] as const

/** What the kill of a round is aimed at. */
const AIMS = ['start', 'load', 'compaction', 'compaction', 'compaction', 'stop'] as const
type Aim = (typeof AIMS)[number]

const totals = {
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
let plantsMade = 0
const nextIds = new Map<string, bigint>()
const bearers = new Map<string, string>(
  OWNERS.map((owner) => [owner, token(owner, { exp: Date.now() / 1000 + TOKEN_SECONDS })]),
)

/** One data directory, the service that uses it, and the ledger of its plants. */
class Place {
  readonly directory: string
  readonly ledger = new Ledger()
  readonly #agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS + 1 })

  constructor(directory: string) {
    this.directory = directory
  }

  start(): WatchedService {
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

  async end(service: WatchedService, signal: NodeJS.Signals): Promise<number | null> {
    const code = await service.kill(signal)
    this.ledger.problems.push(...service.complaints)
    return code
  }

  /** One round: a start, load, and SIGKILL. */
  async round(): Promise<void> {
    const service = this.start()
    const aim = ofKills.pick(AIMS)
    if (aim === 'start') {
      const delayMs = ofKills.next() * startMs * 1.3
      const killed = sleep(delayMs).then(() => this.end(service, 'SIGKILL'))
      const port = await service.port.catch(() => undefined)
      if (port === undefined) totals.killedStarting += 1
      else await this.#load(port)
      await killed
      return
    }
    const port = await service.ready()
    await this.verify(port)
    const loaded = this.#load(port)
    await this.#untilMoment(aim, service)
    const code = await this.end(service, 'SIGKILL')
    if (aim === 'stop') totals.killedStopping += code === null ? 1 : 0
    else if (await this.#hasUnfinishedCompaction()) totals.killedCompacting += 1
    await loaded
  }

  /** A last start, and a clean stop. */
  async leave(): Promise<void> {
    const service = this.start()
    await this.verify(await service.ready())
    const code = await this.end(service, 'SIGTERM')
    if (code !== 0) this.ledger.problems.push(`SIGTERM ended the service with ${code}`)
    await this.#check()
  }

  /** Nothing is being sent: lists must hold all that was kept, and open ids can be sent again. */
  async verify(port: number): Promise<void> {
    const checked = this.#check()
    await Promise.all(OWNERS.map((owner) => this.#verifyOwner(port, owner)))
    await checked
  }

  async #check(): Promise<void> {
    const { status, stdout, stderr } = await run(['check'], { PLANTS_DATA: this.directory })
    if (status !== 0) this.ledger.problems.push(`check: ${stdout}${stderr}`)
  }

  async #verifyOwner(port: number, owner: string): Promise<void> {
    const { status, text } = await call(port, { token: bearers.get(owner) })
    if (status !== 200) this.ledger.problems.push(`GET: ${status}`)
    const { shown, absent } = this.ledger.showsAll(owner, plantsOf(text), true)
    await Promise.all([
      ...shown.map(async (id) => {
        const kept = this.ledger.kept(owner, id)
        if (kept) await this.#send(port, owner, kept, 200)
        await this.#send(port, owner, newPlant(id), 409)
      }),
      // Some ids stay unused, so that a plant which comes back late is noticed.
      ...absent
        .filter(() => ofPlants.chance(0.7))
        .map((id) => this.#send(port, owner, newPlant(id), 200)),
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
      const owner = ofPlants.pick(OWNERS)
      const plant = newPlant(newId(owner))
      const dice = ofPlants.next()
      const sends = [this.#send(port, owner, plant)]
      // The same plant twice at once, or two that want the same id.
      if (dice < 0.03) sends.push(this.#send(port, owner, plant))
      else if (dice < 0.06) sends.push(this.#send(port, owner, newPlant(plant.id)))
      await Promise.all(sends)
    }
  }

  async #read(port: number): Promise<never> {
    for (;;) {
      const owner = ofPlants.pick(OWNERS)
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
      const sign = ofKills.pick(COMPACTION_SIGNS)
      await renamed(watcher, sign.name)
      watcher.close()
      await sleep(ofKills.next() * sign.ms)
      return
    }
    await sleep(ofKills.next() * (aim === 'load' ? 800 : 300))
    if (aim === 'load') return
    void service.kill('SIGTERM')
    await sleep(ofKills.next() * 250)
  }

  /** A compaction that was killed leaves several journals or an unfinished snapshot. */
  async #hasUnfinishedCompaction(): Promise<boolean> {
    const names = await readdir(this.directory)
    const journals = names.filter((name) => /^journal-\d+\.log$/.test(name))
    return names.includes('plants.sqlite.tmp') || journals.length > 1
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

/** Descending, so that a short list shows what was created last. */
function newId(owner: string): bigint {
  const id = (nextIds.get(owner) ?? 2n ** 62n) - 1n
  nextIds.set(owner, id)
  return id
}

/** Never the same twice. Mostly small; some have about 100 KB, so that compactions come often. */
function newPlant(id: bigint): SentPlant {
  const kind = ofPlants.next()
  const chars = ofPlants.below(kind < 0.6 ? 100 : kind < 0.88 ? 4000 : 120_000)
  const text = 'Ficus ελαστική 🌿 '.repeat(chars / 18 + 1).slice(0, chars)
  const tag = kind < 0.3 ? `tag ${chars}` : undefined
  return plantOf(id, `${plantsMade++} ${text.toWellFormed()}`, tag)
}

/** Rounds on one directory. Returns how many, or throws with the directory left as it is. */
async function useDirectory(roundsLeft: number): Promise<number> {
  const root = await mkdtemp(join(tmpdir(), 'plant-store-crash-'))
  const place = new Place(join(root, 'data'))
  const { ledger } = place
  const throwProblems = (): void => {
    if (ledger.problems.length === 0) return
    throw new Error(`${ledger.problems.slice(0, 20).join('\n')}\nthe directory is left: ${root}`)
  }
  const max = Math.min(roundsLeft, DIRECTORY_ROUNDS)
  let done = 0
  try {
    for (; done < max && ledger.chars < DIRECTORY_CHARS; done++) {
      await place.round()
      throwProblems()
    }
    await place.leave()
    throwProblems()
  } finally {
    totals.acknowledged += ledger.acknowledged
    totals.lost += ledger.lost
  }
  await rm(root, { recursive: true })
  return done
}

async function main(): Promise<number> {
  console.log(`${rounds} rounds, seed ${seed}`)
  const startedAtMs = performance.now()
  let done = 0
  let status = 0
  try {
    while (done < rounds) done += await useDirectory(rounds - done)
  } catch (error) {
    status = 1
    console.error(error)
  }
  const { acknowledged, lost, compactions, recoveryMs } = totals
  const { killedCompacting, killedStarting, killedStopping } = totals
  const seconds = Math.round((performance.now() - startedAtMs) / 1000)
  console.log(`rounds ${done}, acknowledged ${acknowledged}, lost ${lost}, compactions ${compactions}
kills during a compaction ${killedCompacting}, a start ${killedStarting}, a stop ${killedStopping}
longest recovery ${Math.ceil(recoveryMs)} ms, ${seconds} s in all, seed ${seed}`)
  return status
}

exitOnSignals()
// A service that an error left running must not keep this process alive.
process.exit(await main())
