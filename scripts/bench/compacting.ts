import { readFileSync, statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { post } from '../../test/support/http.ts'
import { bytesIn, median, percentiles } from '../figures.ts'
import { type Ask, type Bench, doubts, type Figures, type Run, rowsOf } from './measure.ts'
import { type Server, start } from './processes.ts'
import type { Filling } from './stores.ts'
import { sign } from './tokens.ts'

/**
 * A compaction starts when the journals are longer than a third of the snapshot: the load begins
 * this many bytes before that, and its own POSTs do the rest.
 */
const SHORT_BYTES = 48 * 1024
/** Almost as large as a body may be. */
const BIG_NAME_CHARS = 1_000_000
/** The load ends by itself after this long. */
const COMPACTION_SECONDS_MAX = 60
/** How long the load goes on after the compaction. */
const AFTER_MS = 1500

/** Requests before, during and after one compaction of each run, told apart by the log. */
export async function compacting(bench: Bench, filling: Filling, ask: Ask): Promise<Figures> {
  const bare = await start('bare', filling)
  await bench.warm(bare, ask)
  const bareRuns: Run[] = []
  const ours: Awaited<ReturnType<typeof loadOverCompaction>>[] = []
  let rssMiB = 0
  for (let i = 0; i < bench.settings.runs; i++) {
    bareRuns.push(await bench.measure(bare, ask))
    const server = await start('plant-store', filling)
    await grow(server)
    ours.push(await loadOverCompaction(bench, server, ask))
    rssMiB = server.rssMiB
    await server.stop()
  }
  const rows = rowsOf([
    { server: 'bare', rssMiB: bare.rssMiB, runs: bareRuns },
    { server: 'plant-store', rssMiB, runs: ours.map(({ during }) => during) },
  ])
  await bare.stop()
  const outside = (key: keyof Run): number =>
    Math.round(median(ours.map((run) => run.outside[key])))
  const values = {
    compactionMs: Math.round(median(ours.map(({ ms }) => ms))),
    requestsPerSecondOutside: outside('requestsPerSecond'),
    p50Outside: outside('p50'),
    p99Outside: outside('p99'),
    p999Outside: outside('p999'),
  }
  const rate = values.requestsPerSecondOutside
  const tail = `p50 ${values.p50Outside}, p99 ${values.p99Outside}, p999 ${values.p999Outside} µs`
  const during = `the ${values.compactionMs} ms of the compaction, whose worker shares the core`
  const notes = [
    `plant-store's row: ${during}`,
    `the same runs before and after: ${rate} requests/s, ${tail}`,
    ...doubts(rows),
  ]
  return { title: '9 GETs of 20 to 1 POST, while a compaction runs', rows, values, notes }
}

/**
 * Writes large plants, of an owner that the load never asks for, until the journals are this many
 * bytes short of a compaction.
 */
export async function grow(server: Server, leftBytes = SHORT_BYTES): Promise<void> {
  for (let id = 1; ; id++) {
    const dueBytes = bytesIn(server.data, /^plants\.sqlite$/) / 3
    const missing = Math.floor(dueBytes - leftBytes - bytesIn(server.data, /^journal-\d+\.log$/))
    if (missing <= 0) return
    const name = 'x'.repeat(Math.min(BIG_NAME_CHARS, missing))
    const { status, text } = await post(server.port, { id, name }, { token: sign('filler') })
    if (status !== 200) throw new Error(`filling the journal: ${status} ${text}`)
  }
}

async function loadOverCompaction(bench: Bench, server: Server, ask: Ask) {
  const snapshot = `${server.data}/plants.sqlite`
  const oldInode = statSync(snapshot).ino
  const meter = bench.meter(server)
  const load = bench.run(server, ask, COMPACTION_SECONDS_MAX, { samples: true })
  let hasEnded = false
  const end = load.result.finally(() => (hasEnded = true))
  end.catch(() => {})
  // A compaction ends by putting the new snapshot in the old one's place.
  while (!hasEnded && statSync(snapshot).ino === oldInode) await sleep(20)
  await sleep(AFTER_MS)
  load.stop()
  const { samples, requests, loadShare } = await end
  const { endsMs } = samples
  const { cpuSeconds, othersShare } = meter()
  const compaction = readCompaction(server)
  const isDuring = (micros: number, at: number): boolean => {
    const endMs = endsMs[at] ?? NaN
    return endMs >= compaction.startMs && endMs - micros / 1000 <= compaction.endMs
  }
  const ms = compaction.endMs - compaction.startMs
  const loadMs = (endsMs.at(-1) ?? NaN) - (endsMs[0] ?? NaN)
  const runOfPart = (micros: Float64Array, partMs: number): Run => ({
    ...percentiles(micros),
    requestsPerSecond: (micros.length * 1000) / partMs,
    // Of the whole run: the worker's time is in it and cannot be told apart.
    cpuMicrosPerRequest: (cpuSeconds * 1e6) / requests,
    othersShare,
    loadShare,
  })
  return {
    during: runOfPart(samples.micros.filter(isDuring), ms),
    outside: runOfPart(
      samples.micros.filter((micros, at) => !isDuring(micros, at)),
      loadMs - ms,
    ),
    ms,
  }
}

/** What a server logged of its one compaction, when that had ended. */
export function compactionLine(server: Server): string {
  const lines = readFileSync(server.logFile, 'utf8')
    .split('\n')
    .filter((line) => line.includes('"message":"compacted"'))
  const [line] = lines
  if (line === undefined || lines.length > 1)
    throw new Error(`${lines.length} compactions instead of 1: see how much is written`)
  return line
}

function readCompaction(server: Server) {
  // The service's own line, whose fields these are.
  const { time, ms } = JSON.parse(compactionLine(server)) as {
    readonly time: string
    readonly ms: number
  }
  const endMs = Date.parse(time)
  return { startMs: endMs - ms, endMs }
}
