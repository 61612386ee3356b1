import { percentiles, tenth } from '../figures.ts'
import { compactionLine, grow } from './compacting.ts'
import { type Ask, type Bench, doubts, type Figures, type Row, rowsOf, runOf } from './measure.ts'
import { type Name, start } from './processes.ts'
import type { Samples } from './recorder.ts'
import type { Filling } from './stores.ts'

/** Of the rate that a closed loop reaches. */
const SHARE = 1 / 3
/** How many times as long as another run: a tail needs many requests. */
const LENGTH = 20
/** Every latency is kept. */
const SECONDS_MAX = 120
/** The POSTs that warm up the server write less than this, and those of the run write more. */
const LEFT_BYTES = 512 * 1024

/**
 * What users feel below saturation: requests arrive at a fixed rate, and a compaction runs
 * meanwhile. Each server gets a third of what it can do. Both of its rows have the rate and the
 * CPU time of all requests.
 */
export async function steady(bench: Bench, filling: Filling, ask: Ask): Promise<Figures> {
  const rows: Row[] = []
  const notes: string[] = []
  const values: Record<string, number> = {}
  for (const name of ['bare', 'plant-store'] as const) {
    const { result, used, rssMiB } = await load(bench, name, filling, ask)
    const pauseMs = tenth(result.longestPauseMs)
    notes.push(`${name}: the load generator itself was held up for ${pauseMs} ms at most`)
    for (const what of ['GET', 'POST'] as const) {
      const isPost = what === 'POST'
      const { max, ...latencies } = percentiles(microsOf(result.samples, isPost))
      const own = percentiles(microsOf(result.samples, isPost, true))
      const longestMs = tenth(max / 1000)
      values[`${name}${what}LongestMs`] = longestMs
      values[`${name}${what}OwnP999Ms`] = tenth(own.p999 / 1000)
      const without = `without the load generator's pauses ${tenth(own.max / 1000)} ms`
      const ownTail = `and p99.9 was ${tenth(own.p999 / 1000)} ms`
      notes.push(`${name}: the longest ${what} took ${longestMs} ms, ${without}, ${ownTail}`)
      // The load generator looks at the clock all the time: that is no sign that it is the limit.
      const run = { ...runOf(result, used), ...latencies, loadShare: 0 }
      rows.push(...rowsOf([{ server: `${name} ${what}`, rssMiB, runs: [run] }]))
    }
  }
  const title =
    '9 GETs of 20 to 1 POST at a third of the capacity, with a compaction, 1,000,000 plants'
  return { title, rows, values, notes: [...notes, ...doubts(rows)] }
}

async function load(bench: Bench, name: Name, filling: Filling, ask: Ask) {
  const server = await start(name, filling)
  await bench.warm(server, ask)
  const { requestsPerSecond } = await bench.measure(server, ask)
  if (name === 'plant-store') {
    await grow(server, LEFT_BYTES)
    // V8 has dropped the code that it had optimized for small bodies.
    await bench.warm(server, ask)
  }
  const meter = bench.meter(server)
  const seconds = Math.min(bench.settings.seconds * LENGTH, SECONDS_MAX)
  const open = { samples: true, perSecond: requestsPerSecond * SHARE }
  const result = await bench.run(server, ask, seconds, open).result
  const used = meter()
  // Fails if none has ended.
  if (name === 'plant-store') compactionLine(server)
  const { rssMiB } = server
  await server.stop()
  return { result, used, rssMiB }
}

/** `own`: without the requests that were under way when the load generator was held up. */
function microsOf(samples: Samples, isPost: boolean, own = false): Float64Array {
  const { micros, posts, heldUp } = samples
  return micros.filter((_, at) => posts[at] === Number(isPost) && !(own && heldUp[at]))
}
