import { setTimeout as sleep } from 'node:timers/promises'
import { memoryOf } from '../../test/support/memory.ts'
import { median } from '../figures.ts'
import type { Filling } from './plants.ts'
import { type Name, type Server, start } from './processes.ts'

/** The median of fewer differs too much from run to run. */
const STARTS = 11
/** After a start, before memory is read. */
const SETTLE_MS = 200
const EMPTY: Filling = { users: 0, plants: 0 }

const VARIANTS: readonly (readonly [text: string, name: Name, filling: Filling])[] = [
  ['bare', 'bare', EMPTY],
  ['plant-store, empty', 'plant-store', EMPTY],
  ['plant-store, 1,000,000 plants', 'plant-store', { users: 1000, plants: 1000 }],
]

/** Starts, in turn, and memory while idle. */
export async function cold(): Promise<void> {
  const measured = VARIANTS.map((variant) => ({
    variant,
    times: [] as number[],
    memories: [] as number[],
    // The last server, whose store the next one goes on with.
    left: undefined as Server | undefined,
  }))
  for (let i = 0; i <= STARTS; i++) {
    for (const each of measured) {
      const [, name, filling] = each.variant
      const server = await start(name, filling, { data: each.left?.data })
      await sleep(SETTLE_MS)
      // The first start finds nothing in the page cache, and is not counted.
      if (i > 0) each.times.push(server.firstAnswerMs)
      each.memories.push(memoryOf(server.pid).residentMiB)
      await server.stop()
      each.left = server
    }
  }
  for (const { variant, times, memories } of measured) {
    // Each start beside bare's in the same turn: the machine is slower at times.
    const ratio = median(times.map((ms, i) => ms / (measured[0]?.times[i] ?? NaN)))
    const [ms, mib] = [median(times).toFixed(0), median(memories).toFixed(1)]
    const start = `first answer after ${ms} ms, ${ratio.toFixed(1)} times bare's`
    console.log(`${variant[0]}: ${start}, idle ${mib} MiB`)
  }
}
