import { setTimeout as sleep } from 'node:timers/promises'
import { median, tenth } from './figures.ts'
import { rssMiB } from './machine.ts'
import type { Figures } from './measure.ts'
import { launch, type Name, type Server, SETTLE_MS, stop } from './processes.ts'
import { EMPTY, type Filling } from './stores.ts'

const STARTS = 5

/** Starts, and memory once nothing goes on. */
export async function cold(million: Filling): Promise<Figures> {
  const values: Record<string, number> = {}
  const notes: string[] = []
  const starts: readonly (readonly [key: string, text: string, name: Name, filling: Filling])[] = [
    ['bareEmpty', 'bare', 'bare', EMPTY],
    ['empty', 'plant-store, empty', 'plant-store', EMPTY],
    ['million', 'plant-store, 1,000,000 plants', 'plant-store', million],
  ]
  for (const [key, text, name, filling] of starts) {
    const ms: number[] = []
    const rss: number[] = []
    let left: Server | undefined
    // The first start finds nothing in the page cache, and is not counted.
    for (let i = 0; i <= STARTS; i++) {
      const server: Server = await launch(name, filling, left === undefined ? {} : { left })
      await sleep(SETTLE_MS)
      if (i > 0) ms.push(server.firstAnswerMs)
      rss.push(rssMiB(server.pid))
      await stop(server, { keep: i < STARTS })
      left = server
    }
    values[`${key}Ms`] = Math.round(median(ms))
    values[`${key}IdleMiB`] = tenth(median(rss))
    notes.push(
      `${text}: first answer after ${Math.round(median(ms))} ms, idle ${tenth(median(rss))} MiB`,
    )
  }
  return { title: 'from the start of the process to its first answer', rows: [], values, notes }
}
