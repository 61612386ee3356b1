import { setTimeout as sleep } from 'node:timers/promises'
import { median, tenth } from '../figures.ts'
import type { Figures } from './measure.ts'
import { type Name, type Server, SETTLE_MS, start } from './processes.ts'
import { EMPTY, type Filling } from './stores.ts'

const STARTS = 5

/** Starts, and memory while idle. */
export async function cold(million: Filling): Promise<Figures> {
  const values: Record<string, number> = {}
  const notes: string[] = []
  const servers: readonly (readonly [key: string, text: string, name: Name, filling: Filling])[] = [
    ['bareEmpty', 'bare', 'bare', EMPTY],
    ['empty', 'plant-store, empty', 'plant-store', EMPTY],
    ['million', 'plant-store, 1,000,000 plants', 'plant-store', million],
  ]
  for (const [key, text, name, filling] of servers) {
    const times: number[] = []
    const memories: number[] = []
    let left: Server | undefined
    // The first start finds nothing in the page cache, and is not counted.
    for (let i = 0; i <= STARTS; i++) {
      const server: Server = await start(name, filling, left === undefined ? {} : { left })
      await sleep(SETTLE_MS)
      if (i > 0) times.push(server.firstAnswerMs)
      memories.push(server.rssMiB)
      await server.stop({ keep: i < STARTS })
      left = server
    }
    const [ms, mib] = [Math.round(median(times)), tenth(median(memories))]
    values[`${key}Ms`] = ms
    values[`${key}IdleMiB`] = mib
    notes.push(`${text}: first answer after ${ms} ms, idle ${mib} MiB`)
  }
  return { title: 'from the start of the process to its first answer', rows: [], values, notes }
}
