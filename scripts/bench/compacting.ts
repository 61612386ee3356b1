import { readdirSync, readFileSync, statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { median, percentiles } from './figures.ts'
import type { Sample } from './load.ts'
import { rssMiB } from './machine.ts'
import { type Ask, type Bench, doubts, type Figures, type Run, rowsOf } from './measure.ts'
import { call, launch, type Server, stop } from './processes.ts'
import type { Filling } from './stores.ts'
import { sign } from './tokens.ts'

/**
 * Journals are compacted once they are longer than the snapshot: this much short of it the load
 * begins, and its own POSTs do the rest.
 */
const SHORT_BYTES = 48 * 1024
/** A plant as large as a body may be, nearly. */
const BIG_NAME = 1_000_000
/** The load ends by itself after so long. */
const COMPACTION_SECONDS_MAX = 60
/** How long the load goes on behind the compaction. */
const BEHIND_MS = 1500

interface Window {
  readonly startMs: number
  readonly endMs: number
}

/**
 * Requests before, during and behind one compaction of each run, told apart by what the service
 * logs.
 */
export async function compacting(bench: Bench, filling: Filling, ask: Ask): Promise<Figures> {
  const bare = await launch('bare', filling)
  await bench.warm(bare, ask)
  const bareRuns: Run[] = []
  const ours: Run[] = []
  const outside: Run[] = []
  const lastedMs: number[] = []
  let rss = 0
  for (let i = 0; i < bench.settings.runs; i++) {
    bareRuns.push(await bench.measure(bare, ask))
    const server = await launch('plant-store', filling)
    await grow(server)
    const run = await loadOverCompaction(bench, server, ask)
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
  return { title: '9 GETs of 20 to 1 POST, while a compaction runs', rows, values, notes }
}

function fileBytes(server: Server, prefix: string): number {
  const names = readdirSync(server.data).filter(
    (name) => name.startsWith(prefix) && !name.endsWith('.tmp'),
  )
  return names.reduce((sum, name) => sum + statSync(`${server.data}/${name}`).size, 0)
}

/**
 * Writes large plants until the journal is nearly as long as the snapshot. They are nobody's whom
 * the load asks for.
 */
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

async function loadOverCompaction(
  bench: Bench,
  server: Server,
  ask: Ask,
): Promise<{ readonly during: Run; readonly outside: Run; readonly window: Window }> {
  const snapshot = `${server.data}/plants.sqlite`
  const old = statSync(snapshot).ino
  const meter = bench.meter(server)
  const { result, stop: endLoad } = bench.run(server, {
    ...bench.spec(server, ask, COMPACTION_SECONDS_MAX),
    samples: true,
  })
  let ended = false
  const end = result.finally(() => (ended = true))
  end.catch(() => {})
  // The new snapshot takes the old one's place at the end of a compaction; the log is read once the
  // load is over.
  while (!ended && statSync(snapshot).ino === old) await sleep(20)
  await sleep(BEHIND_MS)
  endLoad()
  const { samples, requests, loadShare } = await end
  const { cpuSeconds, othersShare } = meter()
  bench.made(server, requests + ask.connections)
  const window = readCompaction(server)
  const isWithin = ({ endMs, micros }: Sample): boolean =>
    endMs >= window.startMs && endMs - micros / 1000 <= window.endMs
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
  return {
    during: toRun(within, lastedSeconds),
    outside: toRun(rest, loadSeconds - lastedSeconds),
    window,
  }
}

/** The service logs a compaction when it has ended, and how long it took. */
function readCompaction(server: Server): Window {
  const lines = readFileSync(server.logFile, 'utf8')
    .split('\n')
    .filter((line) => line.includes('"message":"compacted"'))
  const [line] = lines
  if (line === undefined || lines.length > 1)
    throw new Error(`${lines.length} compactions instead of 1: see how much is written`)
  // The service's own line, whose fields these are.
  const { time, ms } = JSON.parse(line) as { readonly time: string; readonly ms: number }
  const endMs = Date.parse(time)
  return { startMs: endMs - ms, endMs }
}
