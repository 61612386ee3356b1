import { setTimeout as sleep } from 'node:timers/promises'
import { tenth } from './figures.ts'
import { rssMiB } from './machine.ts'
import { type Ask, type Bench, doubts, type Figures, type Run, rowsOf } from './measure.ts'
import { launch, SETTLE_MS, stop } from './processes.ts'
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

interface Listed {
  readonly run: Run
  readonly rssMiB: number
  readonly values: Readonly<Record<string, number>>
}

/**
 * Lists of all plants of a user, and what they cost others; the memory is that of the whole
 * process.
 */
export async function list(bench: Bench): Promise<Figures> {
  const long = await listAll(bench, LONG_LIST)
  const short = await listAll(bench, SHORT_LIST)
  const named = (
    suffix: string,
    values: Readonly<Record<string, number>>,
  ): Record<string, number> =>
    Object.fromEntries(Object.entries(values).map(([key, value]) => [key + suffix, value]))
  const values = { ...named('OfMillion', long.values), ...named('Of100000', short.values) }
  const describe = (plants: string, { values: v }: Listed): string =>
    `${plants}: ${v['plantsPerSecond']?.toLocaleString('en')} plants/s, memory +${v['growthOverIdleMiB']} MiB at most over idle (${v['idleMiB']}), ` +
    `+${v['growthOverWarmMiB']} over what other requests alone made of it; those meanwhile: p50 ${v['othersP50']}, p99 ${v['othersP99']}, max ${v['othersMax']} µs`
  const rows = rowsOf([{ server: 'plant-store', rssMiB: long.rssMiB, runs: [long.run] }])
  const notes = [
    describe('1,000,000 plants', long),
    describe('100,000 plants', short),
    ...doubts(rows),
  ]
  return { title: 'GET of all of 1,000,000 plants, one after the other', rows, values, notes }
}

async function listAll(bench: Bench, filling: Filling): Promise<Listed> {
  const server = await launch('plant-store', filling)
  await sleep(SETTLE_MS)
  const idleMiB = rssMiB(server.pid)
  const { seconds, warmSeconds, runs } = bench.settings
  const listSeconds = Math.min(seconds * runs, SECONDS_MAX)
  const others = { ...OTHERS, ...filling }
  const other = (duration: number): ReturnType<Bench['spec']> => ({
    ...bench.spec(server, others, duration),
    pauseMs: OTHERS_PAUSE_MS,
  })
  const alone = await bench.run(server, other(warmSeconds)).result
  bench.made(server, alone.requests + OTHERS.connections)
  const warmMiB = rssMiB(server.pid)
  let mostMiB = warmMiB
  const sampling = setInterval(() => (mostMiB = Math.max(mostMiB, rssMiB(server.pid))), SAMPLE_MS)
  try {
    const meter = bench.meter(server)
    const lists = bench.run(
      server,
      bench.spec(server, { kind: 'list', limit: 0, ...filling, connections: 1 }, listSeconds),
    )
    const meanwhile = bench.run(server, other(listSeconds * 2))
    // A failure is told once the lists are through.
    meanwhile.result.catch(() => {})
    const result = await lists.result
    meanwhile.stop()
    const { p50, p99, max } = await meanwhile.result
    const { cpuSeconds, othersShare } = meter()
    const requestsPerSecond = result.requests / result.seconds
    const run: Run = {
      ...result,
      requestsPerSecond,
      cpuMicrosPerRequest: (cpuSeconds * 1e6) / result.requests,
      othersShare,
    }
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
