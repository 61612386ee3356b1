import { setTimeout as sleep } from 'node:timers/promises'
import { tenth } from '../figures.ts'
import { type Ask, type Bench, doubts, type Figures, rowsOf, runOf } from './measure.ts'
import { SETTLE_MS, start } from './processes.ts'
import type { Filling } from './stores.ts'

const LONG_LIST: Filling = { users: 1, plants: 1_000_000 }
const SHORT_LIST: Filling = { users: 1, plants: 100_000 }
const SAMPLE_MS = 10
/** Other requests come at this pace: enough for a p99, too few to compete with the list. */
const OTHERS: Pick<Ask, 'kind' | 'limit' | 'connections'> = {
  kind: 'cursor',
  limit: 20,
  connections: 1,
}
const OTHERS_PAUSE_MS = 2
const SECONDS_MAX = 60

type Listed = Awaited<ReturnType<typeof listAll>>

/** Lists of all plants of a user, and what they cost others; memory is the whole process's. */
export async function list(bench: Bench): Promise<Figures> {
  const long = await listAll(bench, LONG_LIST)
  const short = await listAll(bench, SHORT_LIST)
  const named = (suffix: string, { values }: Listed): Record<string, number> =>
    Object.fromEntries(Object.entries(values).map(([key, value]) => [key + suffix, value]))
  const describe = (plants: string, { values: v }: Listed): string =>
    `${plants}: ${v.plantsPerSecond.toLocaleString('en')} plants/s, ` +
    `memory at most +${v.growthOverIdleMiB} MiB over idle (${v.idleMiB}), ` +
    `+${v.growthOverWarmMiB} over what other requests alone use; ` +
    `those meanwhile: p50 ${v.othersP50}, p99 ${v.othersP99}, max ${v.othersMax} µs`
  const rows = rowsOf([{ server: 'plant-store', rssMiB: long.rssMiB, runs: [long.run] }])
  return {
    title: 'GET of all of 1,000,000 plants, one after the other',
    rows,
    values: { ...named('OfMillion', long), ...named('Of100000', short) },
    notes: [describe('1,000,000 plants', long), describe('100,000 plants', short), ...doubts(rows)],
  }
}

async function listAll(bench: Bench, filling: Filling) {
  const server = await start('plant-store', filling)
  await sleep(SETTLE_MS)
  const idleMiB = server.rssMiB
  const { seconds, warmSeconds, runs } = bench.settings
  const listSeconds = Math.min(seconds * runs, SECONDS_MAX)
  const others = { ...OTHERS, ...filling }
  const pause = { pauseMs: OTHERS_PAUSE_MS }
  await bench.run(server, others, warmSeconds, pause).result
  const warmMiB = server.rssMiB
  let mostMiB = warmMiB
  const sampling = setInterval(() => (mostMiB = Math.max(mostMiB, server.rssMiB)), SAMPLE_MS)
  try {
    const meter = bench.meter(server)
    const all: Ask = { kind: 'list', limit: 0, ...filling, connections: 1 }
    const lists = bench.run(server, all, listSeconds)
    const meanwhile = bench.run(server, others, listSeconds * 2, pause)
    // Its failure is reported after the lists.
    meanwhile.result.catch(() => {})
    const run = runOf(await lists.result, meter())
    meanwhile.stop()
    const { p50, p99, max } = await meanwhile.result
    const values = {
      plantsPerSecond: Math.round(run.requestsPerSecond * filling.plants),
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
    await server.stop()
  }
}
