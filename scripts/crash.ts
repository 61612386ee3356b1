/*
 * Kills the built service with SIGKILL, again and again, under concurrent writers, and checks after
 * each start that nothing acknowledged is lost and nothing else has appeared. A start, a compaction
 * and a stop take little of the time and hold most of the danger, so most kills are aimed at them.
 */
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { type FSWatcher, watch } from 'node:fs'
import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { Agent, request } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { call, post } from '../test/support/http.ts'
import { jsonOf, Ledger, plantOf, type SentPlant } from '../test/support/ledger.ts'
import { MAIN, run } from '../test/support/process.ts'
import { AUDIENCE, ISSUER, SECRET, token } from '../test/support/tokens.ts'

const CONNECTIONS = 32
const OWNERS = ['alice', 'bob', 'carol', 'dave', 'eve'] as const
/**
 * A directory is left for a fresh one after so many rounds or characters: all of it is read after
 * each start.
 */
const DIRECTORY_ROUNDS = 25
const DIRECTORY_CHARS = 16 * 1024 * 1024
const COMPACTION_PATIENCE_MS = 3000
const START_PATIENCE_MS = 120_000

const { values } = parseArgs({
  options: { rounds: { type: 'string', default: '200' }, seed: { type: 'string' } },
})
const rounds = Number(values.rounds)
const seed = values.seed ?? String(Math.floor(Math.random() * 2 ** 31))

/**
 * Numbers from 0 to 1, 1 excluded. Each purpose has its own, so that how fast writers write changes
 * no kill.
 */
function stream(purpose: string): () => number {
  let drawn = 0
  return () =>
    createHash('sha256').update(`${seed} ${purpose} ${drawn++}`).digest().readUInt32BE() / 2 ** 32
}

const ofKills = stream('kills')
const ofPlants = stream('plants')

function pick<const T extends readonly [unknown, ...unknown[]]>(
  random: () => number,
  choices: T,
): T[number] {
  return choices[Math.floor(random() * choices.length)] ?? choices[0]
}

/**
 * Names whose coming or going gives a compaction away, and how long from then on a kill may hit
 * what follows.
 */
const COMPACTION_SIGNS = [
  // A journal turned, or removed at the end.
  { name: /^journal-\d+\.log$/, ms: 300 },
  // A snapshot begun.
  { name: /^plants\.sqlite\.tmp$/, ms: 40 },
  // A snapshot in place, and its journals not yet removed.
  { name: /^plants\.sqlite$/, ms: 4 },
] as const

/** Where the kill of a round is aimed at. */
const KINDS = ['start', 'load', 'compaction', 'compaction', 'compaction', 'stop'] as const
type Kind = (typeof KINDS)[number]

const totals = {
  acknowledged: 0,
  compactions: 0,
  killedStarting: 0,
  killedCompacting: 0,
  killedStopping: 0,
  recoveryMs: 0,
}
/** How long the last start took, so that kills can be aimed at the next. */
let startMs = 300

/** Of the directory in use. */
let ledger = new Ledger()

class Service {
  readonly #child
  readonly exited: Promise<number | null>
  readonly port: Promise<number>
  listening = false
  #told = false
  #output = ''
  #lastLines: readonly string[] = []

  constructor(directory: string) {
    const startedAt = performance.now()
    const env = {
      PATH: process.env['PATH'] ?? '',
      PLANTS_LISTEN: '127.0.0.1:0',
      PLANTS_ADMIN_LISTEN: 'off',
      PLANTS_DATA: directory,
      PLANTS_ISSUER: ISSUER,
      PLANTS_AUDIENCE: AUDIENCE,
      PLANTS_JWT_SECRET: SECRET,
    }
    this.#child = spawn(process.execPath, [MAIN, 'serve'], {
      env,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.exited = once(this.#child, 'close').then(() => {
      if (!this.#told)
        ledger.problems.push(
          `the service ended unasked, with ${this.#child.exitCode ?? this.#child.signalCode}: ${this.#lastLines.join('\n')}${this.#output}`,
        )
      return this.#child.exitCode
    })
    this.port = new Promise((resolve, reject) => {
      const read = (text: string): void => {
        // One line a request: only what is looked for is kept.
        const lines = (this.#output + text).split('\n')
        this.#output = lines.pop() ?? ''
        this.#lastLines = [...this.#lastLines, ...lines].slice(-5)
        for (const line of lines) {
          if (line.includes('"message":"compacted"')) totals.compactions += 1
          if (line.includes('"level":"error"') && !line.includes('is torn'))
            ledger.problems.push(`the service says: ${line}`)
          const port = /"message":"listening".*"plants":"http:\/\/127\.0\.0\.1:(\d+)"/.exec(
            line,
          )?.[1]
          if (port === undefined) continue
          this.listening = true
          startMs = performance.now() - startedAt
          totals.recoveryMs = Math.max(totals.recoveryMs, startMs)
          resolve(Number(port))
        }
      }
      this.#child.stdout.setEncoding('utf8').on('data', read)
      this.#child.stderr.setEncoding('utf8').on('data', read)
      void this.exited.then(() => reject(new Error('the service ended before it listened')))
    })
    this.port.catch(() => {})
  }

  async ready(): Promise<number> {
    const timer = setTimeout(() => this.kill('SIGKILL'), START_PATIENCE_MS)
    try {
      return await this.port
    } finally {
      clearTimeout(timer)
    }
  }

  kill(signal: NodeJS.Signals): Promise<number | null> {
    this.#told = true
    this.#child.kill(signal)
    return this.exited
  }
}

const nextId = new Map<string, bigint>()
/** Descending, so that a short list shows what was created last. */
function newId(owner: string): bigint {
  const id = (nextId.get(owner) ?? 2n ** 62n) - 1n
  nextId.set(owner, id)
  return id
}

let made = 0
/**
 * Never the same twice. Mostly small, and now and then of about 100 KB, so that compactions come
 * often.
 */
function newPlant(id: bigint): SentPlant {
  const kind = ofPlants()
  const chars = Math.floor(ofPlants() * (kind < 0.6 ? 100 : kind < 0.88 ? 4000 : 120_000))
  return plantOf(
    id,
    `${made++} ${'Ficus ελαστική 🌿 '
      .repeat(chars / 18 + 1)
      .slice(0, chars)
      .toWellFormed()}`,
    kind < 0.3 ? `tag ${chars}` : undefined,
  )
}

async function send(
  port: number,
  agent: Agent,
  owner: string,
  bearer: string,
  plant: SentPlant,
): Promise<void> {
  ledger.sends(owner, plant)
  const body = Buffer.from(jsonOf(plant))
  const status = await new Promise<number>((resolve, reject) => {
    const headers = {
      authorization: `Bearer ${bearer}`,
      'content-type': 'application/json',
      'content-length': body.length,
    }
    const req = request(
      { host: '127.0.0.1', port, method: 'POST', path: '/plants', agent, headers },
      (res) => {
        res
          .resume()
          .on('end', () => resolve(res.statusCode ?? 0))
          .on('error', reject)
      },
    )
    req.on('error', reject).end(body)
  })
  ledger.answered(owner, plant, status)
}

/** Writers and a reader, until the service is gone. */
async function load(port: number): Promise<void> {
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS + 1 })
  const bearers = new Map<string, string>(OWNERS.map((owner) => [owner, token(owner)]))
  const writer = async (): Promise<void> => {
    for (;;) {
      const owner = pick(ofPlants, OWNERS)
      const plant = newPlant(newId(owner))
      const sends = (sent: SentPlant): Promise<void> =>
        send(port, agent, owner, bearers.get(owner) ?? '', sent)
      const twice = ofPlants()
      // The same plant twice at once, or two that are after the same id.
      if (twice < 0.03) await Promise.all([sends(plant), sends(plant)])
      else if (twice < 0.06) await Promise.all([sends(plant), sends(newPlant(plant.id))])
      else await sends(plant)
    }
  }
  const reader = async (): Promise<void> => {
    for (;;) {
      const owner = pick(ofPlants, OWNERS)
      const reply = await call(port, { path: '/plants?limit=20', token: bearers.get(owner) })
      if (reply.status !== 200) ledger.problems.push(`GET: ${reply.status}`)
      ledger.shows(owner, plantsOf(reply.text))
      await sleep(20)
    }
  }
  const failure = (error: unknown): void => {
    // The connection ends with the service; anything else is a mistake of this script.
    if (!(error instanceof Error && 'code' in error)) throw error
  }
  await Promise.all([
    reader().catch(failure),
    ...Array.from({ length: CONNECTIONS }, () => writer().catch(failure)),
  ])
  agent.destroy()
}

function plantsOf(text: string): { name: string; tag?: string }[] {
  // The service's own answer; the ledger compares each member.
  return JSON.parse(text) as { name: string; tag?: string }[]
}

/**
 * Nothing is being sent: the lists must hold all that was kept, and what was left open can be sent
 * again.
 */
async function verify(port: number, directory: string): Promise<void> {
  const checked = run(['check'], { PLANTS_DATA: directory })
  await Promise.all(OWNERS.map((owner) => verifyOwner(port, owner)))
  const { status, stdout, stderr } = await checked
  if (status !== 0) ledger.problems.push(`check: ${stdout}${stderr}`)
}

async function verifyOwner(port: number, owner: string): Promise<void> {
  const { status, text } = await call(port, { token: token(owner) })
  if (status !== 200) ledger.problems.push(`GET: ${status}`)
  const { shown, absent } = ledger.showsAll(owner, plantsOf(text), true)
  await Promise.all([
    ...shown.map(async (id) => {
      const kept = ledger.kept(owner, id)
      if (kept) await repeat(port, owner, kept, 200)
      await repeat(port, owner, newPlant(id), 409)
    }),
    // Some ids stay unused, so that a plant which comes back late is noticed.
    ...absent.filter(() => ofPlants() < 0.7).map((id) => repeat(port, owner, newPlant(id), 200)),
  ])
}

async function repeat(
  port: number,
  owner: string,
  plant: SentPlant,
  expected: number,
): Promise<void> {
  ledger.sends(owner, plant)
  const { status } = await post(port, jsonOf(plant), { token: token(owner) })
  ledger.answered(owner, plant, status)
  if (status !== expected)
    ledger.problems.push(
      `${owner}'s ${plant.id}: a POST that should be answered ${expected} was answered ${status}`,
    )
}

/** Resolves when a file of such a name comes or goes, or after a while without. */
function changed(watcher: FSWatcher, sign: RegExp): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, COMPACTION_PATIENCE_MS)
    watcher.on('change', (type, name) => {
      if (type !== 'rename' || !sign.test(String(name))) return
      clearTimeout(timer)
      resolve()
    })
  })
}

/** Waits for the moment of the kill, which the seed chose as far as a seed can. */
async function untilTheMoment(
  kind: Exclude<Kind, 'start'>,
  service: Service,
  directory: string,
): Promise<void> {
  if (kind === 'compaction') {
    const watcher = watch(directory)
    const sign = pick(ofKills, COMPACTION_SIGNS)
    await changed(watcher, sign.name)
    watcher.close()
    await sleep(ofKills() * sign.ms)
    return
  }
  await sleep(ofKills() * (kind === 'load' ? 800 : 300))
  if (kind === 'load') return
  void service.kill('SIGTERM')
  await sleep(ofKills() * 250)
}

/**
 * Of a compaction that the kill broke off, more than one journal or the snapshot's beginning is
 * left.
 */
async function countWhatWasHit(
  kind: Kind,
  service: Service,
  directory: string,
  code: number | null,
): Promise<void> {
  const names: readonly string[] = await readdir(directory).catch(() => [])
  if (!service.listening) totals.killedStarting += 1
  else if (kind === 'stop') totals.killedStopping += code === null ? 1 : 0
  else if (
    names.includes('plants.sqlite.tmp') ||
    names.filter((name) => /^journal-\d+\.log$/.test(name)).length > 1
  )
    totals.killedCompacting += 1
}

async function round(directory: string): Promise<void> {
  const service = new Service(directory)
  const kind = pick(ofKills, KINDS)
  let loaded: Promise<void> | undefined
  if (kind === 'start') {
    const killed = sleep(ofKills() * (startMs * 1.3)).then(() => service.kill('SIGKILL'))
    const port = await service.port.catch(() => undefined)
    if (port !== undefined) loaded = load(port)
    await countWhatWasHit(kind, service, directory, await killed)
  } else {
    const port = await service.ready()
    await verify(port, directory)
    loaded = load(port)
    await untilTheMoment(kind, service, directory)
    await countWhatWasHit(kind, service, directory, await service.kill('SIGKILL'))
  }
  await loaded
}

/** A last start, and a stop in peace. */
async function leave(directory: string): Promise<void> {
  const service = new Service(directory)
  await verify(await service.ready(), directory)
  const code = await service.kill('SIGTERM')
  if (code !== 0) ledger.problems.push(`SIGTERM ended the service with ${code}`)
  const { status, stdout, stderr } = await run(['check'], { PLANTS_DATA: directory })
  if (status !== 0) ledger.problems.push(`check after a clean stop: ${stdout}${stderr}`)
}

async function main(): Promise<number> {
  if (!(Number.isSafeInteger(rounds) && rounds > 0)) {
    console.error('--rounds must be a whole number, 1 or more')
    return 2
  }
  console.log(`${rounds} rounds, seed ${seed}`)
  const startedAt = performance.now()
  let done = 0
  let root = ''
  let status = 0
  try {
    while (done < rounds) {
      root = await mkdtemp(join(tmpdir(), 'plant-store-crash-'))
      const directory = join(root, 'data')
      ledger = new Ledger()
      for (
        let here = 0;
        done < rounds && here < DIRECTORY_ROUNDS && ledger.chars < DIRECTORY_CHARS;
        here++
      ) {
        await round(directory)
        if (ledger.problems.length > 0) throw new Error('the service broke its promises')
        done += 1
      }
      await leave(directory)
      if (ledger.problems.length > 0)
        throw new Error('the service broke its promises after a stop in peace')
      totals.acknowledged += ledger.acknowledged
      await rm(root, { recursive: true })
    }
  } catch (error) {
    status = 1
    totals.acknowledged += ledger.acknowledged
    console.error(
      `${ledger.problems.slice(0, 20).join('\n')}\n${error instanceof Error ? error.stack : String(error)}\nthe directory is left: ${root}`,
    )
  }
  console.log(`rounds ${done}, acknowledged ${totals.acknowledged}, lost ${ledger.lost}
compactions ${totals.compactions}, kills during one ${totals.killedCompacting}, during a start ${totals.killedStarting}, during a stop ${totals.killedStopping}
longest recovery ${Math.ceil(totals.recoveryMs)} ms, ${Math.round((performance.now() - startedAt) / 1000)} s in all, seed ${seed}`)
  return status
}

process.exitCode = await main()
