import { setTimeout as sleep } from 'node:timers/promises'
import { median, tenth } from '../figures.ts'
import type { Figures } from './measure.ts'
import { type Name, type Server, SETTLE_MS, start } from './processes.ts'
import { EMPTY, type Filling } from './stores.ts'

/** The median of fewer differs too much from run to run. */
const STARTS = 11

interface Variant {
  readonly key: string
  readonly text: string
  readonly name: Name
  readonly filling: Filling
  readonly times: number[]
  readonly memories: number[]
  /** The last server, whose store the next one goes on with. */
  left?: Server
}

/** Starts, in turn, and memory while idle. */
export async function cold(million: Filling): Promise<Figures> {
  const variant = (key: string, text: string, name: Name, filling: Filling): Variant => {
    return { key, text, name, filling, times: [], memories: [] }
  }
  const bare = variant('bareEmpty', 'bare', 'bare', EMPTY)
  const variants = [
    bare,
    variant('empty', 'plant-store, empty', 'plant-store', EMPTY),
    variant('million', 'plant-store, 1,000,000 plants', 'plant-store', million),
  ]
  for (let i = 0; i <= STARTS; i++) for (const each of variants) await startOnce(each, i)
  const values: Record<string, number> = {}
  const notes = variants.map(({ key, text, times, memories }) => {
    const [ms, mib] = [Math.round(median(times)), tenth(median(memories))]
    // Each start beside bare's in the same turn: the machine is slower at times.
    const ratio = tenth(median(times.map((time, i) => time / (bare.times[i] ?? NaN))))
    Object.assign(values, { [`${key}Ms`]: ms, [`${key}IdleMiB`]: mib, [`${key}OfBare`]: ratio })
    return `${text}: first answer after ${ms} ms, ${ratio} times bare's, idle ${mib} MiB`
  })
  return { title: 'from the start of the process to its first answer', rows: [], values, notes }
}

async function startOnce(variant: Variant, i: number): Promise<void> {
  const { name, filling, times, memories, left } = variant
  const server = await start(name, filling, left === undefined ? {} : { left })
  await sleep(SETTLE_MS)
  // The first start finds nothing in the page cache, and is not counted.
  if (i > 0) times.push(server.firstAnswerMs)
  memories.push(server.rssMiB)
  await server.stop({ keep: i < STARTS })
  variant.left = server
}
