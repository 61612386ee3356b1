import { readdirSync, readFileSync, statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { median, percentiles } from './figures.ts'
import type { Sample } from './load.ts'
import { rssMiB } from './machine.ts'
import { type Ask, type Bench, type Figures, doubts, type Run, rowsOf } from './measure.ts'
import { call, launch, type Name, type Server, stop } from './processes.ts'
import { user } from './plants.ts'
import { EMPTY, type Filling } from './stores.ts'
import { sign } from './tokens.ts'

const SMALL: Filling = { users: 100, plants: 20 }
const MEDIUM: Filling = { users: 100, plants: 100 }
const LARGE: Filling = { users: 100, plants: 10_000 }
const MILLION: Filling = { users: 1000, plants: 1000 }
const LONG_LIST: Filling = { users: 1, plants: 1_000_000 }
const SHORT_LIST: Filling = { users: 1, plants: 100_000 }
const CONNECTIONS = 64
/** A run that is told when to end ends by itself after so long. */
const TOLD_SECONDS_MAX = 60
/** Behind a start, before memory is looked at. */
const SETTLE_MS = 200

const MIXED: Ask = { kind: 'mixed', limit: 20, ...MILLION, connections: CONNECTIONS }

function ask(kind: Ask['kind'], filling: Filling, { limit = 20, connections = CONNECTIONS } = {}): Ask {
  return { kind, limit, ...filling, connections }
}

export const WORKLOADS: Readonly<Record<string, (bench: Bench) => Promise<Figures>>> = {
  get20: (bench) => bench.compare('GET of 20, 100 users in turn', SMALL, ask('get', SMALL)),
  get100: (bench) => bench.compare('GET of 100, 100 users in turn', MEDIUM, ask('get', MEDIUM, { limit: 100 })),
  cursor: (bench) => bench.compare('GET of 20 behind a cursor never asked before', LARGE, ask('cursor', LARGE)),
  post: (bench) => bench.compare('POST, durable', SMALL, ask('post', SMALL), (server) => allStored(bench, server)),
  post1: (bench) => bench.compare('POST, durable, 1 connection', SMALL, ask('post', SMALL, { connections: 1 }), (server) => allStored(bench, server)),
  mixed: (bench) => bench.compare('9 GETs of 20 to 1 POST, 1,000,000 plants of 1,000 users', MILLION, MIXED),
  compacting,
  list,
  tokens: (bench) => bench.compare('GET of 20, every token new', SMALL, ask('tokens', SMALL)),
  cold,
}

/** Every plant that was acknowledged is listed, each once. */
async function allStored(bench: Bench, server: Server): Promise<void> {
  let found = 0
  for (let u = 0; u < SMALL.users; u++) {
    const { text } = await call(server.port, sign(user(u)), '/plants')
    // A list as the service answers it.
    found += (JSON.parse(text) as readonly unknown[]).length
  }
  const acknowledged = SMALL.users * SMALL.plants + bench.offset(server)
  if (found !== acknowledged) throw new Error(`${found} plants are listed, and ${acknowledged} were acknowledged`)
}

// ---- mixed requests while a compaction runs

/** Journals are compacted once they are longer than the snapshot: this much short of it the load begins, and its own POSTs do the rest. */
const SHORT_BYTES = 48 * 1024
/** A plant as large as a body may be, nearly. */
const BIG_NAME = 1_000_000
/** How long the load goes on behind the compaction. */
const BEHIND_MS = 1500

interface Window {
  readonly startMs: number
  readonly endMs: number
}

async function compacting(bench: Bench): Promise<Figures> {
  const bare = await launch('bare', MILLION)
  await bench.warm(bare, MIXED)
  const bareRuns: Run[] = []
  const ours: Run[] = []
  const outside: Run[] = []
  const lastedMs: number[] = []
  let rss = 0
  for (let i = 0; i < bench.settings.runs; i++) {
    bareRuns.push(await bench.measure(bare, MIXED))
    const server = await launch('plant-store', MILLION)
    await grow(server)
    const run = await loadOverCompaction(bench, server)
    ours.push(run.during)
    outside.push(run.outside)
    lastedMs.push(run.window.endMs - run.window.startMs)
    rss = rssMiB(server.pid)
    await stop(server)
  }
  const rows = rowsOf([
    { server: 'bare', rssMiB: rssMiB(bare.pid), runs: bareRuns },
    { server: 'plant-store', rssMiB: rss, runs: ours },
  ])
  await stop(bare)
  const values = {
    compactionMs: Math.round(median(lastedMs)),
    requestsPerSecondOutside: Math.round(median(outside.map((run) => run.requestsPerSecond))),
    p50Outside: Math.round(median(outside.map((run) => run.p50))),
    p99Outside: Math.round(median(outside.map((run) => run.p99))),
    p999Outside: Math.round(median(outside.map((run) => run.p999))),
  }
  const notes = [
    `plant-store's row is for the time that its log line "compacted" names, ${values.compactionMs} ms in which its worker shares the servers' core; ` +
      `the same runs before and behind it: ${values.requestsPerSecondOutside} requests/s, p50 ${values.p50Outside}, p99 ${values.p99Outside}, p999 ${values.p999Outside} µs`,
    ...doubts(rows),
  ]
  return { title: 'the same while a compaction runs', rows, values, notes }
}

function fileBytes(server: Server, prefix: string): number {
  const names = readdirSync(server.data).filter((name) => name.startsWith(prefix) && !name.endsWith('.tmp'))
  return names.reduce((sum, name) => sum + statSync(`${server.data}/${name}`).size, 0)
}

/** Writes large plants until the journal is nearly as long as the snapshot. They are nobody's whom the load asks for. */
async function grow(server: Server): Promise<void> {
  const token = sign('filler')
  for (let id = 1; ; id++) {
    const missing = fileBytes(server, 'plants.sqlite') - SHORT_BYTES - fileBytes(server, 'journal-')
    if (missing <= 0) return
    const name = 'x'.repeat(Math.min(BIG_NAME, missing))
    const { status, text } = await call(server.port, token, '/plants', JSON.stringify({ id, name }))
    if (status !== 200) throw new Error(`filling the journal: ${status} ${text}`)
  }
}

async function loadOverCompaction(bench: Bench, server: Server): Promise<{ readonly during: Run; readonly outside: Run; readonly window: Window }> {
  const snapshot = `${server.data}/plants.sqlite`
  const old = statSync(snapshot).ino
  const meter = bench.meter(server)
  const { result, stop: endLoad } = bench.load.run({ ...bench.spec(server, MIXED, TOLD_SECONDS_MAX), samples: true })
  let ended = false
  const end = result.finally(() => (ended = true))
  end.catch(() => {})
  // The new snapshot takes the old one's place at the end of a compaction; the log is read once the load is over.
  while (!ended && statSync(snapshot).ino === old) await sleep(20)
  await sleep(BEHIND_MS)
  endLoad()
  const { samples, requests, loadShare } = await end
  const { cpuSeconds, othersShare } = meter()
  bench.made(server, requests + CONNECTIONS)
  const window = readCompaction(server)
  const isWithin = ({ endMs, micros }: Sample): boolean => endMs >= window.startMs && endMs - micros / 1000 <= window.endMs
  const within = samples.filter(isWithin)
  const rest = samples.filter((sample) => !isWithin(sample))
  const lastedSeconds = (window.endMs - window.startMs) / 1000
  const loadSeconds = ((samples.at(-1)?.endMs ?? NaN) - (samples[0]?.endMs ?? NaN)) / 1000
  const toRun = (part: readonly Sample[], seconds: number): Run => ({
    ...percentiles(part.map(({ micros }) => micros)),
    requestsPerSecond: part.length / seconds,
    // Of the whole run: the worker's time is in it, and cannot be told apart.
    cpuMicrosPerRequest: (cpuSeconds * 1e6) / requests,
    othersShare,
    loadShare,
  })
  return { during: toRun(within, lastedSeconds), outside: toRun(rest, loadSeconds - lastedSeconds), window }
}

/** The service logs a compaction when it has ended, and how long it took. */
function readCompaction(server: Server): Window {
  const lines = readFileSync(server.logFile, 'utf8').split('\n').filter((line) => line.includes('"message":"compacted"'))
  const [line] = lines
  if (line === undefined || lines.length > 1) throw new Error(`${lines.length} compactions instead of 1: see how much is written`)
  // The service's own line, whose fields these are.
  const { time, ms } = JSON.parse(line) as { readonly time: string; readonly ms: number }
  const endMs = Date.parse(time)
  return { startMs: endMs - ms, endMs }
}

// ---- lists of everything

const SAMPLE_MS = 10
/** Other requests come at this pace: enough for a p99, too few to compete with the list. */
const OTHERS: Pick<Ask, 'kind' | 'limit' | 'connections'> = { kind: 'cursor', limit: 20, connections: 1 }
const OTHERS_PAUSE_MS = 2

interface Listed {
  readonly run: Run
  readonly rssMiB: number
  readonly values: Readonly<Record<string, number>>
}

async function list(bench: Bench): Promise<Figures> {
  const long = await listAll(bench, LONG_LIST)
  const short = await listAll(bench, SHORT_LIST)
  const named = (suffix: string, values: Readonly<Record<string, number>>): Record<string, number> =>
    Object.fromEntries(Object.entries(values).map(([key, value]) => [key + suffix, value]))
  const values = { ...named('OfMillion', long.values), ...named('Of100000', short.values) }
  const describe = (plants: string, { values: v }: Listed): string =>
    `${plants}: ${v['plantsPerSecond']?.toLocaleString('en')} plants/s, memory +${v['growthOverIdleMiB']} MiB at most over idle (${v['idleMiB']}), ` +
    `+${v['growthOverWarmMiB']} over what other requests alone made of it; those meanwhile: p50 ${v['othersP50']}, p99 ${v['othersP99']}, max ${v['othersMax']} µs`
  const rows = rowsOf([{ server: 'plant-store', rssMiB: long.rssMiB, runs: [long.run] }])
  const notes = [describe('1,000,000 plants', long), describe('100,000 plants', short), ...doubts(rows)]
  return { title: 'GET of all of 1,000,000 plants, one after the other', rows, values, notes }
}

async function listAll(bench: Bench, filling: Filling): Promise<Listed> {
  const server = await launch('plant-store', filling)
  await sleep(SETTLE_MS)
  const idleMiB = rssMiB(server.pid)
  const { seconds, warmSeconds, runs } = bench.settings
  const listSeconds = Math.min(seconds * runs, TOLD_SECONDS_MAX)
  const others = { ...OTHERS, ...filling }
  const other = (duration: number): Parameters<Bench['load']['run']>[0] => ({ ...bench.spec(server, others, duration), pauseMs: OTHERS_PAUSE_MS })
  const alone = await bench.load.run(other(warmSeconds)).result
  bench.made(server, alone.requests + OTHERS.connections)
  const warmMiB = rssMiB(server.pid)
  let mostMiB = warmMiB
  const sampling = setInterval(() => (mostMiB = Math.max(mostMiB, rssMiB(server.pid))), SAMPLE_MS)
  try {
    const meter = bench.meter(server)
    const lists = bench.load.run(bench.spec(server, ask('list', filling, { connections: 1 }), listSeconds))
    const meanwhile = bench.load.run(other(listSeconds * 2))
    // A failure is told once the lists are through.
    meanwhile.result.catch(() => {})
    const result = await lists.result
    meanwhile.stop()
    const { p50, p99, max } = await meanwhile.result
    const { cpuSeconds, othersShare } = meter()
    const requestsPerSecond = result.requests / result.seconds
    const run: Run = { ...result, requestsPerSecond, cpuMicrosPerRequest: (cpuSeconds * 1e6) / result.requests, othersShare }
    const values = {
      plantsPerSecond: Math.round(requestsPerSecond * filling.plants),
      idleMiB: tenth(idleMiB),
      growthOverIdleMiB: tenth(mostMiB - idleMiB),
      growthOverWarmMiB: tenth(mostMiB - warmMiB),
      othersP50: p50,
      othersP99: p99,
      othersMax: max,
    }
    return { run, rssMiB: mostMiB, values }
  } finally {
    clearInterval(sampling)
    await stop(server)
  }
}

// ---- starting

const STARTS = 5

async function cold(): Promise<Figures> {
  const values: Record<string, number> = {}
  const notes: string[] = []
  const starts: readonly (readonly [key: string, text: string, name: Name, filling: Filling])[] = [
    ['bareEmpty', 'bare', 'bare', EMPTY],
    ['empty', 'plant-store, empty', 'plant-store', EMPTY],
    ['million', 'plant-store, 1,000,000 plants', 'plant-store', MILLION],
  ]
  for (const [key, text, name, filling] of starts) {
    const ms: number[] = []
    const rss: number[] = []
    let left: Server | undefined
    // The first start finds nothing in the page cache, and is not counted.
    for (let i = 0; i <= STARTS; i++) {
      const server: Server = await launch(name, filling, left)
      await sleep(SETTLE_MS)
      if (i > 0) ms.push(server.firstAnswerMs)
      rss.push(rssMiB(server.pid))
      await stop(server, { keep: i < STARTS })
      left = server
    }
    values[`${key}Ms`] = Math.round(median(ms))
    values[`${key}IdleMiB`] = tenth(median(rss))
    notes.push(`${text}: first answer after ${Math.round(median(ms))} ms, idle ${tenth(median(rss))} MiB`)
  }
  return { title: 'from the start of the process to its first answer', rows: [], values, notes }
}

function tenth(value: number): number {
  return Math.round(value * 10) / 10
}
